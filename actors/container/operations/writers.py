"""Writers: the last event number of a writer, and the expiry of writers' state (rule C3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ....journal.operations.expire_writers import ExpireWriters
from ..requests import Request
from .handlers import Decision, OperationHandler, RequestHandler

if TYPE_CHECKING:
    from ..state import ContainerState


class ExpireWritersRequest(Request):
    """Answered with the number of writers that were known."""

    __slots__ = ("name", "writers")

    def __init__(self, name: str, writers: Sequence[bytes]) -> None:
        self.name = name
        self.writers = writers

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


def _decide_expire(state: ContainerState, request: ExpireWritersRequest) -> Decision:
    segment = state.segments.require(request.name)
    # Only known ones: an unknown writer has no state, and a record of its expiry would stay for good.
    known = tuple(writer for writer in dict.fromkeys(request.writers) if writer in segment.writers)
    return (ExpireWriters(segment.sid, known) if known else None), len(known)


def _decide_last_event(state: ContainerState, request: LastEventRequest) -> Decision:
    return None, state.segments.require(request.name).last_event(request.writer)


def _apply_expire(state: ContainerState, op: ExpireWriters) -> None:
    segment = state.change(op.sid)
    for writer in op.writers:
        del segment.writers[writer]
        segment.expired[writer] = None


HANDLERS = (
    RequestHandler(ExpireWritersRequest, _decide_expire),
    RequestHandler(LastEventRequest, _decide_last_event),
    OperationHandler(ExpireWriters, _apply_expire, from_client=True),
)
