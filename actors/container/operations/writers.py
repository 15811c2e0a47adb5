"""Writers: the last event number of a writer, the expiry of writers' state (rule C3), and what makes rows of
writers (rule M20)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING

from ....journal.operations.expire_writers import ExpireWriters
from ....journal.operations.operation import Operation
from ....journal.operations.spill_writers import SpillWriters
from ..requests import Request
from .handlers import Decision, OperationHandler, RequestHandler

if TYPE_CHECKING:
    from ..segments import SegmentState
    from ..state import ContainerState


_SPILLED_MAX = 256
"""Writers that become rows with one append, or update, at most."""


class ExpireWritersRequest(Request):
    """Answered with the number of writers that were known."""

    __slots__ = ("name", "work", "writers")

    def __init__(self, name: str, writers: Sequence[bytes]) -> None:
        self.name = name
        self.writers = writers
        self.work = len(writers)

    def named(self) -> Sequence[str]:
        return (self.name,)

    def takes_room(self, state: ContainerState) -> bool:
        return True  # up to 4 MiB, which stay


class LastEventRequest(Request):
    """Answered with the writer's last event number in the segment, or None."""

    __slots__ = ("name", "writer")
    is_read = True

    def __init__(self, name: str, writer: bytes) -> None:
        self.name = name
        self.writer = writer

    def named(self) -> Sequence[str]:
        return (self.name,)


def and_spill(state: ContainerState, segment: SegmentState, writer: bytes, op: Operation) -> list[Operation]:
    """``op`` of a writer, and what keeps the image short if the writer is new in it (rule M20)."""
    room = state.image_entries
    if writer in segment.writers or (count := len(segment.writers) + 1 - room) <= 0:
        return [op]

    # Those that came first, a quarter at once: one of them that is still used comes back as the newest.
    oldest = islice(segment.writers, min(count + room // 4, _SPILLED_MAX))
    return [op, SpillWriters(segment.sid, tuple(oldest))]


def excess_writers(segment: SegmentState, room: int) -> tuple[bytes, ...]:
    """Some of the writers that an earlier version left beyond ``room`` in an image."""
    return tuple(
        chain.from_iterable(
            islice(each, max(0, min(len(each) - room, _SPILLED_MAX)))
            for each in (segment.writers, segment.expired)
        )
    )


def _decide_expire(state: ContainerState, request: ExpireWritersRequest) -> Decision:
    segment = state.segments.require(request.name)
    found = state.find_writers(segment, dict.fromkeys(request.writers))
    # Only known ones: an unknown writer has no state, and a record of its expiry would stay for good.
    known = tuple(writer for writer, events in found.items() if events is not None)
    if not known:
        return None, 0

    ops: list[Operation] = [ExpireWriters(segment.sid, known)]
    if segment.has_writer_rows or len(segment.expired) + len(known) > state.image_entries:
        ops.append(SpillWriters(segment.sid, (*islice(segment.expired, _SPILLED_MAX), *known)))
    return ops, len(known)


def _decide_last_event(state: ContainerState, request: LastEventRequest) -> Decision:
    segment = state.segments.require(request.name)
    known = state.find_writers(segment, (request.writer,)).get(request.writer)
    return None, None if known is None else known.last_event


def _apply_expire(state: ContainerState, op: ExpireWriters) -> None:
    segment = state.change(op.sid)
    for writer in op.writers:
        segment.writers.pop(writer, None)  # it may be a row, which is old from now on
        segment.expired[writer] = None


def _apply_spill(state: ContainerState, op: SpillWriters) -> None:
    state.spill_writers(state.change(op.sid), op.writers)


HANDLERS = (
    RequestHandler(ExpireWritersRequest, _decide_expire),
    RequestHandler(LastEventRequest, _decide_last_event),
    OperationHandler(ExpireWriters, _apply_expire, from_client=True),
    OperationHandler(SpillWriters, _apply_spill),
)
