"""Logging: events with values, over the standard library's loggers.

An app configures the logger ``tierlog`` as for any library; unconfigured, only warnings and errors appear, on
stderr. The program ``tierlog`` and its host processes call ``log_to_stderr``.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from contextvars import ContextVar
from typing import NamedTuple

from .printable import printable
from .utc import show_utc

LEVELS = ("error", "warning", "info")
"""The levels of the events that tierlog logs."""

_context: ContextVar[Mapping[str, object]] = ContextVar("values of each event")


def add_to_events(**values: object) -> None:
    """Add ``values`` to each event of this task, and of those that it starts from now on."""
    # A new mapping: tasks that were started before share the old one.
    _context.set({**_context.get({}), **values})


class Event(NamedTuple):
    """A log record's message. As text: ``event='name' key=value``."""

    name: str
    values: Mapping[str, object]

    def __str__(self) -> str:
        return " ".join(f"{key}={value!r}" for key, value in {"event": self.name, **self.values}.items())


class Logger:
    """The logger ``tierlog.<name>``: ``log.info("event_name", key=value)``."""

    __slots__ = ("_logger",)

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(f"tierlog.{name}")

    def info(self, event: str, **values: object) -> None:
        self._log(logging.INFO, event, values)

    def warning(self, event: str, **values: object) -> None:
        self._log(logging.WARNING, event, values)

    def error(self, event: str, exc_info: BaseException | None = None, **values: object) -> None:
        """``exc_info``: an error that nobody expected; its traceback is logged too."""
        self._log(logging.ERROR, event, values, exc_info)

    def _log(
        self, level: int, event: str, values: dict[str, object], exc_info: BaseException | None = None
    ) -> None:
        if self._logger.isEnabledFor(level):
            values = {**_context.get({}), **values}
            # The place that a formatter shows is the caller of `info`, `warning` or `error`.
            self._logger.log(level, Event(event, values), exc_info=exc_info, stacklevel=3)


class _JsonLines(logging.Formatter):
    """One object a line, also of what other libraries log."""

    def __init__(self, fields: Mapping[str, object]) -> None:
        super().__init__()
        self._fields = fields

    def format(self, record: logging.LogRecord) -> str:
        # Values of the event override the fields of the process, and both never the level and the time.
        line = dict(self._fields)
        if isinstance(record.msg, Event):
            line |= {**record.msg.values, "event": record.msg.name}
            if record.exc_info:
                line["exception"] = self.formatException(record.exc_info)
        else:
            # Its traceback is a part of the text.
            line["event"] = super().format(record)
        line |= {
            "level": record.levelname.lower(),
            "logger": record.name,
            "timestamp": show_utc(record.created, "%Y-%m-%dT%H:%M:%S.%fZ"),
        }
        return json.dumps(line, default=str)


class _PlainLines(logging.Formatter):
    """Time, level and values, for a terminal; a traceback follows on lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        # Line by line: the line ends of a traceback stay, other control characters are escaped.
        return "\n".join(map(printable, super().format(record).split("\n")))


def log_to_stderr(level: str | None = None, **fields: object) -> None:
    """Write the process's log to stderr: plain text if that is a terminal, else one JSON object a line, each
    with ``fields``. ``level``: one of ``LEVELS``; None: the one of an earlier call, else info."""
    formatter: logging.Formatter
    if sys.stderr.isatty():
        name = f"{fields['host']} " if "host" in fields else ""
        formatter = _PlainLines(f"%(asctime)s %(levelname)-7s {name}%(message)s")
    else:
        formatter = _JsonLines(fields)
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    # Other libraries log warnings only: their information is for their own developers. A later call
    # replaces the handler of an earlier one.
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
