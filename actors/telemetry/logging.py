"""Logging: structlog events over the standard library's loggers, one event per decision.

Owns: how tierlog's loggers are made. Does not own: where they go: an app configures ``logging`` for
``tierlog`` as for any library, or wraps our loggers' output with structlog's own formatter. Unconfigured,
only warnings and errors appear, on stderr.

A process of tierlog's own (``log_json_lines``) writes one JSON object a line on stderr instead.

structlog is imported with the first event that is shown, because it costs half of the time that opening a
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
            self._shown().log(level, event, **values)

    def _shown(self) -> Any:
        if self._bound is None:
            import structlog

            self._bound = structlog.wrap_logger(
                self._logger, processors=_processors(), wrapper_class=structlog.stdlib.BoundLogger
            )
        return self._bound


def _processors() -> list[Any]:
    from structlog import contextvars, processors, stdlib

    if _always is None:
        return [
            contextvars.merge_contextvars,
            processors.format_exc_info,
            processors.KeyValueRenderer(key_order=["event"]),
        ]

    always = _always
    return [
        contextvars.merge_contextvars,
        lambda logger, method, event: {**always, **event},
        stdlib.add_log_level,
        stdlib.add_logger_name,
        processors.TimeStamper(fmt="iso"),
        processors.format_exc_info,
        processors.JSONRenderer(default=str),
    ]


_always: dict[str, object] | None = None
"""What each JSON line says besides its event; None: no JSON."""


class _JsonLines(logging.Formatter):
    """Passes tierlog's own lines on, and puts what other libraries say into the same form."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        if record.name.startswith("tierlog."):
            return text

        return json.dumps(
            {**(_always or {}), "event": text, "level": record.levelname.lower(), "logger": record.name}
        )


def log_json_lines(level: int = logging.INFO, **always: object) -> None:
    """Write this process's log to stderr, one JSON object a line, each with ``always`` in it. Once, before
    the first event."""
    global _always  # noqa: PLW0603 - logging is the process's, and so is this
    _always = always
    handler = logging.StreamHandler()
    handler.setFormatter(_JsonLines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("tierlog").setLevel(level)


def get_logger(name: str) -> Logger:
    return Logger(name)
