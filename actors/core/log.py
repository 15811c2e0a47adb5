"""Logging: structlog events over the standard library's loggers, one event per decision.

Owns: how tierlog's loggers are made. Does not own: where they go: an app configures ``logging`` for ``tierlog`` as for any library, or
wraps our loggers' output with structlog's own formatter. Unconfigured, only warnings and errors appear, on stderr.
"""

from __future__ import annotations

import logging
from typing import Any

import structlog


def get_logger(name: str) -> Any:
    """The logger ``tierlog.<name>``; call it as ``log.info("event_name", key=value)``."""
    return structlog.wrap_logger(
        logging.getLogger(f"tierlog.{name}"),
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(key_order=["event"]),
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
