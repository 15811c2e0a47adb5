"""What a container can do: one module per verb, with its request, decision, apply and publish.

The tables below are all that the pipeline, the state and the publisher know of the verbs. A new verb adds its
module's ``HANDLERS`` here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import (
    append,
    attributes,
    create,
    delete,
    import_segment,
    internal,
    merge,
    metadata,
    queries,
    seal,
    transactions,
    truncate,
    writers,
)
from .handlers import Decision, OperationHandler, RequestHandler

HANDLERS: tuple[RequestHandler[Any] | OperationHandler[Any], ...] = (
    *append.HANDLERS,
    *attributes.HANDLERS,
    *create.HANDLERS,
    *delete.HANDLERS,
    *import_segment.HANDLERS,
    *internal.HANDLERS,
    *merge.HANDLERS,
    *metadata.HANDLERS,
    *queries.HANDLERS,
    *seal.HANDLERS,
    *transactions.HANDLERS,
    *truncate.HANDLERS,
    *writers.HANDLERS,
)

_OPERATIONS = [handler for handler in HANDLERS if isinstance(handler, OperationHandler)]

DECIDE: dict[type, Callable[..., Decision]] = {
    handler.request: handler.decide for handler in HANDLERS if isinstance(handler, RequestHandler)
}
APPLY: dict[type, Callable[..., None]] = {handler.record: handler.apply for handler in _OPERATIONS}
PUBLISH: dict[type, Callable[..., None]] = {
    handler.record: handler.publish for handler in _OPERATIONS if handler.publish is not None
}
CLIENT_OPERATIONS = frozenset(handler.record for handler in _OPERATIONS if handler.from_client)
"""Records that a client caused; the others never make a flush cycle due (rule F5)."""
