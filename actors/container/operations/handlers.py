"""How a verb plugs into the container: a request is decided, a log record is applied and published.

Each module of this package defines one verb and ends with ``HANDLERS``, its only registration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from msgspec import Struct

from ....journal.operations.operation import Operation
from ..requests import Request

if TYPE_CHECKING:
    from ..publish import Publisher
    from ..state import ContainerState

RequestT = TypeVar("RequestT", bound=Request)
OperationT = TypeVar("OperationT", bound=Operation)

Decision: TypeAlias = tuple[Operation | list[Operation] | None, Any]
"""(what to log, the answer). Several operations are logged in the same group, in order. Without an operation
the answer still waits until everything it depends on is durable (rule C1)."""


class RequestHandler(Struct, Generic[RequestT], frozen=True, eq=False):
    """``decide`` is pure and synchronous: it reads the speculative state and changes nothing. A refusal is
    raised as the error that the caller gets. What it returns can always be applied (rule C5)."""

    request: type[RequestT]
    decide: Callable[[ContainerState, RequestT], Decision]


def changes_nothing(state: ContainerState, op: Operation) -> None:
    """The ``apply`` of records that matter only by their position in the log."""


class OperationHandler(Struct, Generic[OperationT], frozen=True, eq=False):
    """``apply`` changes the speculative state, live and in replay; it has no other effects. ``publish`` is
    called once the operation's group (its last argument) is durable, and makes the change visible (rule C1).
    An exception from either poisons the container live and is corruption in replay."""

    record: type[OperationT]
    apply: Callable[[ContainerState, OperationT], None] = changes_nothing
    publish: Callable[[Publisher, OperationT, int], None] | None = None
    from_client: bool = False
    """A client caused it. Only such operations make a flush cycle due (rule F5)."""


def collect_handlers(modules: Iterable[ModuleType]) -> list[RequestHandler[Any] | OperationHandler[Any]]:
    """The handlers of all ``modules``. Raises ``TypeError`` if a module registers none, or if a request or a
    record has two: otherwise the container would fail only when the first one arrives."""
    found: dict[type, RequestHandler[Any] | OperationHandler[Any]] = {}
    for module in modules:
        handlers = getattr(module, "HANDLERS", ())
        if not handlers:
            raise TypeError(f"{module.__name__} defines no HANDLERS: a module of this package is one verb")

        for handler in handlers:
            kind = handler.request if isinstance(handler, RequestHandler) else handler.record
            if kind in found:
                raise TypeError(f"{module.__name__} registers a second handler for {kind.__name__}")
            found[kind] = handler
    return list(found.values())
