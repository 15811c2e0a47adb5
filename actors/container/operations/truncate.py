"""Truncate: readers no longer see a segment's first bytes. Its chunks become garbage later (rule F2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ....journal.operations.truncate_segment import TruncateSegment
from ....storage_backends.base.errors import BadOffset
from ..lost_histories import check_position
from ..requests import Request
from ..transaction_table import refuse_staged
from .handlers import Decision, OperationHandler, RequestHandler

if TYPE_CHECKING:
    from ..publish import Publisher
    from ..state import ContainerState


class TruncateRequest(Request):
    """Answered with None. Truncating below the start offset does nothing."""

    __slots__ = ("history", "name", "offset")

    def __init__(self, name: str, offset: int, history: int | None = None) -> None:
        self.name = name
        self.offset = offset
        self.history = history
        """The history that the offset is of, None if the caller does not say."""

    def named(self) -> Sequence[str]:
        return (self.name,)


def _decide(state: ContainerState, request: TruncateRequest) -> Decision:
    refuse_staged(request.name, "a commit takes it whole or not at all")
    segment = state.segments.require_bytes(request.name)
    # R10: who read up to there read other bytes.
    check_position(state.histories, segment, request.offset, segment.length, request.history)
    # Beyond the tail it would drop the bytes of appends that are still to come.
    if request.offset > segment.length:
        raise BadOffset(
            f"{segment.name!r} ends at offset {segment.length} and cannot be truncated at {request.offset}: "
            f"name an offset up to its end",
            segment=segment.name,
            expected=segment.length,
            given=request.offset,
        )

    if request.offset <= segment.start_offset:
        return None, None

    return TruncateSegment(segment.sid, request.offset), None


def _apply(state: ContainerState, op: TruncateSegment) -> None:
    segment = state.change(op.sid)
    segment.start_offset = max(segment.start_offset, op.offset)


def _publish(publisher: Publisher, op: TruncateSegment, group: int) -> None:
    # A reader that waits before the new start gets ``SegmentTruncated``.
    publisher.by_id[op.sid].wake()


HANDLERS = (
    RequestHandler(TruncateRequest, _decide),
    OperationHandler(TruncateSegment, _apply, _publish, from_client=True),
)
