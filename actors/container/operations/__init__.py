"""What a container can do: one module per verb, with its request, decision, apply and publish.

Each module registers itself by its ``HANDLERS``. The tables below are all that the pipeline, the state and
the publisher know of the verbs."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules

from .handlers import Decision, OperationHandler, RequestHandler, collect_handlers

HANDLERS = collect_handlers(
    import_module(f"{__name__}.{module.name}")
    for module in iter_modules(__path__)
    if module.name != "handlers"
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
