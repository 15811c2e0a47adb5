"""Delete: the name becomes free; the open transactions of the segment end with it (rule T8)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ....journal.operations.delete_segment import DeleteSegment
from ....journal.operations.segment_image import SegmentStatus
from ..requests import NameRequest
from ..transaction_table import refuse_staged
from .handlers import Decision, OperationHandler, RequestHandler

if TYPE_CHECKING:
    from ..publish import Publisher
    from ..segments import SegmentState
    from ..state import ContainerState


class DeleteRequest(NameRequest):
    """Answered with None."""

    __slots__ = ()
    deletes = True


def _decide(state: ContainerState, request: DeleteRequest) -> Decision:
    refuse_staged(
        request.name,
        "a commit that does not name it deletes it, abort_transaction deletes all of a transaction",
    )
    segment = state.segments.require(request.name)
    aborts = state.transactions.aborts_with_target(segment.name, segment.sid)
    # T8: in one group, so that no crash leaves an open transaction without its target.
    return [*aborts, DeleteSegment(segment.sid)], None


def _with_merged(find: Callable[[int], SegmentState], sid: int) -> Iterator[SegmentState]:
    """The segment and, at any depth, the sources merged into it that its record does not include yet."""
    left = [sid]
    # Without recursion: merges may be nested deeper than Python's stack, and replay must not fail (rule C5).
    while left:
        segment = find(left.pop())
        yield segment
        left += [merge.source for merge in reversed(segment.merges)]


def delete_segment(state: ContainerState, sid: int, beside: int = 0) -> None:
    """Delete the segment, and what was merged into it. ``beside``: another segment that the operation
    changes."""
    # A merged source is known by its id only: after its target nothing else would name it.
    for segment in _with_merged(state.change, sid):
        state.unname(segment, SegmentStatus.DELETED, beside or sid)


def publish_delete(publisher: Publisher, sid: int) -> None:
    """The segment's bytes are neither read nor flushed any more."""
    for segment in _with_merged(publisher.by_id.__getitem__, sid):
        segment.log_references.clear()
        # Readers at the tail find out that the segment is gone.
        segment.wake()
        publisher.cache.drop_segment(segment.sid)


def _apply(state: ContainerState, op: DeleteSegment) -> None:
    delete_segment(state, op.sid)


def _publish(publisher: Publisher, op: DeleteSegment, group: int) -> None:
    publish_delete(publisher, op.sid)


HANDLERS = (
    RequestHandler(DeleteRequest, _decide),
    OperationHandler(DeleteSegment, _apply, _publish, from_client=True),
)
