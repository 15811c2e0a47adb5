"""Attributes: conditional updates of a segment's 64-bit values, all or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ....journal.operations.update_attributes import UpdateAttributes
from ....storage_backends.base.errors import AttributeConflict, InvalidArgument
from ....storage_backends.base.segments import (
    ATTRIBUTE_MAX,
    ATTRIBUTE_MIN,
    ATTRIBUTES_MAX,
    AttributeUpdate,
    AttributeUpdateKind,
)
from ..requests import Request
from ..segments import SegmentState
from .handlers import Decision, OperationHandler, RequestHandler

if TYPE_CHECKING:
    from ..state import ContainerState


class AttributesRequest(Request):
    """Answered with the new values of the updated attributes."""

    __slots__ = ("name", "updates")

    def __init__(self, name: str, updates: Sequence[AttributeUpdate]) -> None:
        self.name = name
        self.updates = updates

    def named(self) -> Sequence[str]:
        return (self.name,)

    def takes_room(self, state: ContainerState) -> bool:
        return True


def _decide(state: ContainerState, request: AttributesRequest) -> Decision:
    segment = state.segments.require(request.name)
    values = resolve_updates(segment, request.updates)
    # The results are logged and not the conditions: replay evaluates nothing, so an accumulation cannot count
    # twice.
    return UpdateAttributes(segment.sid, values), dict(values)


def resolve_updates(segment: SegmentState, updates: Sequence[AttributeUpdate]) -> tuple[tuple[str, int], ...]:
    """The values that ``updates`` lead to, evaluated in order. ``AttributeConflict`` if a condition fails."""
    values: dict[str, int] = {}
    for update in updates:
        # Earlier updates of the same call count: together they are one step.
        current = values.get(update.name, segment.attributes.get(update.name))
        values[update.name] = _resolve(segment, update, current)

    if (
        # The sum of the sizes first: the union makes a set of all names, and is needed near the limit only.
        len(segment.attributes) + len(values) > ATTRIBUTES_MAX
        and len(segment.attributes.keys() | values) > ATTRIBUTES_MAX
    ):
        raise InvalidArgument(f"{segment.name!r} would have more than {ATTRIBUTES_MAX} attributes")

    return tuple(values.items())


def _resolve(segment: SegmentState, update: AttributeUpdate, current: int | None) -> int:
    kind = update.kind
    if kind is AttributeUpdateKind.ACCUMULATE:
        total = (current or 0) + update.value
        if not ATTRIBUTE_MIN <= total <= ATTRIBUTE_MAX:
            raise AttributeConflict(
                f"attribute {update.name!r} of {segment.name!r} would leave 64 bits: {total}",
                segment=segment.name,
            )

        return total

    holds = {
        AttributeUpdateKind.NONE: current is None,
        AttributeUpdateKind.REPLACE: True,
        AttributeUpdateKind.REPLACE_IF_GREATER: current is None or update.value > current,
        AttributeUpdateKind.REPLACE_IF_EQUALS: current == update.expected,
    }[kind]
    if not holds:
        expected = f" (expected {update.expected})" if kind is AttributeUpdateKind.REPLACE_IF_EQUALS else ""
        raise AttributeConflict(
            f"attribute {update.name!r} of {segment.name!r} is {current}: {kind.value} with "
            f"{update.value}{expected} does not apply",
            segment=segment.name,
        )

    return update.value


def _apply(state: ContainerState, op: UpdateAttributes) -> None:
    state.change(op.sid).attributes.update(op.values)


HANDLERS = (
    RequestHandler(AttributesRequest, _decide),
    OperationHandler(UpdateAttributes, _apply, from_client=True),
)
