"""Attributes: conditional updates of a segment's 64-bit values, all or nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from ....journal.operations.attribute_rows import SpillAttributes, UpdateAttributeIds
from ....journal.operations.operation import Operation
from ....journal.operations.spill_writers import SpillWriters
from ....journal.operations.update_attributes import UpdateAttributes
from ....storage_backends.base.errors import AttributeConflict
from ....storage_backends.base.segments import (
    ATTRIBUTE_MAX,
    ATTRIBUTE_MIN,
    AttributeName,
    AttributeUpdate,
    AttributeUpdateKind,
)
from ..requests import Request
from ..segments import SegmentState
from .handlers import Decision, OperationHandler, RequestHandler
from .writers import excess_writers

if TYPE_CHECKING:
    from ..state import ContainerState


_SPILLED_AT_ONCE = 256
_UPDATE_BYTES = 256
"""Of memory that an update takes while it waits, about."""


class AttributesRequest(Request):
    """Answered with the new values of the updated attributes."""

    __slots__ = ("name", "size", "updates", "work")

    def __init__(self, name: str, updates: Sequence[AttributeUpdate]) -> None:
        self.name = name
        self.updates = updates
        self.size = _UPDATE_BYTES * len(updates)
        self.work = len(updates)

    def named(self) -> Sequence[str]:
        return (self.name,)

    def takes_room(self, state: ContainerState) -> bool:
        return True


class SpillRequest(Request):
    """Internal: move some attributes and writers of a segment whose image has too many, because an earlier
    version made it, into rows. Answered with None."""

    __slots__ = ("sid",)

    def __init__(self, sid: int) -> None:
        self.sid = sid


class AttributeChanges(Struct, frozen=True):
    """What updates lead to. The results are logged and not the conditions: replay evaluates nothing, so an
    accumulation cannot count twice."""

    segment: SegmentState
    values: dict[AttributeName, int]
    room: int
    """How many attributes the segment's image may have."""

    @property
    def named(self) -> tuple[tuple[str, int], ...]:
        return tuple((name, value) for name, value in self.values.items() if isinstance(name, str))

    def after(self) -> list[Operation]:
        """What is logged after the operation that sets ``named``."""
        segment, sid = self.segment, self.segment.sid
        ids = tuple((name, value) for name, value in self.values.items() if isinstance(name, bytes))
        ops: list[Operation] = [UpdateAttributeIds(sid, ids)] if ids else []
        if not segment.spilled and self._has_too_many(segment.attributes):
            # M19: the image keeps what was set first.
            ops.append(SpillAttributes(sid, max(self.room, len(segment.attributes))))
        return ops

    def _has_too_many(self, attributes: Mapping[str, int]) -> bool:
        # The sum of the sizes first: names are compared near the limit only.
        return (
            len(attributes) + len(self.values)
            > self.room
            < len(attributes) + sum(name not in attributes for name, _ in self.named)
        )


def _decide(state: ContainerState, request: AttributesRequest) -> Decision:
    segment = state.segments.require(request.name)
    changes = resolve_updates(state, segment, request.updates)
    ops = changes.after()
    if named := changes.named:
        ops.insert(0, UpdateAttributes(segment.sid, named))
    return ops[0] if len(ops) == 1 else ops, changes.values


def _decide_spill(state: ContainerState, request: SpillRequest) -> Decision:
    segment = state.segments.get(request.sid)
    room = state.image_entries
    ops: list[Operation] = []
    if segment is None or not state.has_long_image(segment):
        return None, None

    if (count := len(segment.attributes)) > room:
        ops.append(SpillAttributes(segment.sid, max(room, count - _SPILLED_AT_ONCE)))
    if writers := excess_writers(segment, room):
        ops.append(SpillWriters(segment.sid, writers))
    return ops or None, None


def resolve_updates(
    state: ContainerState, segment: SegmentState, updates: Sequence[AttributeUpdate]
) -> AttributeChanges:
    """The values that ``updates`` lead to, evaluated in order. Raises ``AttributeConflict`` if a condition
    fails, ``NotLoaded``."""
    present = state.find_attributes(segment, dict.fromkeys(update.name for update in updates))
    values: dict[AttributeName, int] = {}
    for update in updates:
        # Earlier updates of the same call count: together they are one step.
        current = values.get(update.name, present[update.name])
        values[update.name] = _resolve(segment, update, current)
    return AttributeChanges(segment, values, state.image_entries)


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
        wanted = "missing" if update.expected is None else update.expected  # None for the kind NONE too
        if kind is AttributeUpdateKind.REPLACE_IF_GREATER:
            wanted = f"less than {update.value}"
        present = "missing" if current is None else current
        raise AttributeConflict(
            f"attribute {update.name!r} of {segment.name!r} is {present}, and "
            f"the update expects that it is {wanted}: read it and decide again",
            segment=segment.name,
        )

    return update.value


def _apply(state: ContainerState, op: UpdateAttributes) -> None:
    state.set_attributes(state.change(op.sid), op.values)


def _apply_spill(state: ContainerState, op: SpillAttributes) -> None:
    if op.sid:
        state.spill_attributes(state.change(op.sid), op.keep)
    else:  # it marks a checkpoint, whose segments may all be cold
        state.has_spilled = True


def _apply_ids(state: ContainerState, op: UpdateAttributeIds) -> None:
    state.set_attribute_ids(state.change(op.sid), op.values)


HANDLERS = (
    RequestHandler(AttributesRequest, _decide),
    RequestHandler(SpillRequest, _decide_spill),
    OperationHandler(UpdateAttributes, _apply, from_client=True),
    OperationHandler(SpillAttributes, _apply_spill),
    OperationHandler(UpdateAttributeIds, _apply_ids, from_client=True),
)
