"""Logging: structlog events over the standard library's loggers.

An app configures the logger ``tierlog`` as for any library; unconfigured, only warnings and errors appear, on
stderr. The program ``tierlog`` and its host processes call ``log_to_stderr``.

structlog is imported with the first event that is written, because it takes half of the time that opening a
store may take.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

from .printable import printable

LEVELS = ("error", "warning", "info")
"""Of the events that tierlog logs."""


class Logger:
    """The logger ``tierlog.<name>``: ``log.info("event_name", key=value)``."""

    __slots__ = ("_bound", "_logger")

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(f"tierlog.{name}")
        self._bound: Any = None

    def info(self, event: str, **values: object) -> None:
        self._log(logging.INFO, event, values)

    def warning(self, event: str, **values: object) -> None:
        self._log(logging.WARNING, event, values)

    def error(self, event: str, **values: object) -> None:
        self._log(logging.ERROR, event, values)

    def _log(self, level: int, event: str, values: dict[str, object]) -> None:
        if self._logger.isEnabledFor(level):
            if self._bound is None:
                import structlog

                self._bound = structlog.wrap_logger(
                    self._logger, processors=_processors(), wrapper_class=structlog.stdlib.BoundLogger
                )
            self._bound.log(level, event, **values)


def _processors() -> list[Any]:
    from structlog import contextvars, processors, stdlib

    fields = _json_fields
    if fields is None:
        return [
            contextvars.merge_contextvars,
            processors.format_exc_info,
            processors.KeyValueRenderer(key_order=["event"]),
        ]

    return [
        contextvars.merge_contextvars,
        lambda logger, method, event: {**fields, **event},
        stdlib.add_log_level,
        stdlib.add_logger_name,
        processors.TimeStamper(fmt="iso"),
        processors.format_exc_info,
        processors.JSONRenderer(default=str),
    ]


_json_fields: dict[str, object] | None = None
"""Fields of every JSON line; None if lines are not JSON."""


class _JsonLines(logging.Formatter):
    """Leaves tierlog's own lines as they are and formats those of other libraries in the same way."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        if record.name.startswith("tierlog."):
            return text

        return json.dumps(
            {**(_json_fields or {}), "event": text, "level": record.levelname.lower(), "logger": record.name}
        )


class _PlainLines(logging.Formatter):
    """Time, level and values, for a terminal; a traceback follows on lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(map(printable, super().format(record).split("\n")))


def log_to_stderr(level: str | None = None, **fields: object) -> None:
    """Write the process's log to stderr: plain text if that is a terminal, else one JSON object a line, each
    with ``fields``. ``level``: one of ``LEVELS``; None: the one of an earlier call, else info. Call it before
    the first event."""
    global _json_fields
    formatter: logging.Formatter
    if sys.stderr.isatty():
        name = f"{fields['host']} " if "host" in fields else ""
        formatter = _PlainLines(f"%(asctime)s %(levelname)-7s {name}%(message)s")
    else:
        _json_fields, formatter = fields, _JsonLines()
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logger = logging.getLogger("tierlog")
    logger.setLevel(level.upper() if level else logger.level or logging.INFO)


def current_level() -> str:
    """The level that ``log_to_stderr`` set."""
    return logging.getLevelName(logging.getLogger("tierlog").level).lower()


def is_logging() -> bool:
    """Whether ``log_to_stderr`` was called."""
    return logging.getLogger("tierlog").level != logging.NOTSET


def get_logger(name: str) -> Logger:
    return Logger(name)
