"""Logging: structlog events over the standard library's loggers, one event per decision.

Owns: how tierlog's loggers are made. Does not own: where they go: an app configures ``logging`` for ``tierlog`` as for any library, or
wraps our loggers' output with structlog's own formatter. Unconfigured, only warnings and errors appear, on stderr.

structlog is imported with the first event that is shown, because it costs half of the time that opening a store may take.
"""

from __future__ import annotations

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
                self._logger,
                processors=[structlog.processors.format_exc_info, structlog.processors.KeyValueRenderer(key_order=["event"])],
                wrapper_class=structlog.stdlib.BoundLogger,
            )
        return self._bound


def get_logger(name: str) -> Logger:
    return Logger(name)
