"""Logging: structlog events over the standard library's loggers.

An app configures the logger ``tierlog`` as for any library; unconfigured, only warnings and errors appear, on
stderr. Tierlog's own processes call ``log_json_lines``.

structlog is imported with the first event that is written, because it takes half of the time that opening a
store may take.
"""

from __future__ import annotations

import json
import logging
from typing import Any


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


def log_json_lines(level: int = logging.INFO, **fields: object) -> None:
    """Write the process's log to stderr as one JSON object a line, each with ``fields``. Call it once, before
    the first event."""
    global _json_fields  # noqa: PLW0603 - logging is global to the process, and so is this
    _json_fields = fields
    handler = logging.StreamHandler()
    handler.setFormatter(_JsonLines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("tierlog").setLevel(level)


def get_logger(name: str) -> Logger:
    return Logger(name)
