"""Delete: the name becomes free; the open transactions of the segment end with it (rule T8)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....journal.operations.delete_segment import DeleteSegment
from ....journal.operations.segment_image import SegmentStatus
from ..requests import NameRequest
from ..transaction_table import refuse_staged
from .handlers import Decision, OperationHandler, RequestHandler

if TYPE_CHECKING:
    from ..publish import Publisher
    from ..state import ContainerState


class DeleteRequest(NameRequest):
    """Answered with None."""

    __slots__ = ()


def _decide(state: ContainerState, request: DeleteRequest) -> Decision:
    refuse_staged(
        request.name,
        "a commit that does not name it deletes it, abort_transaction deletes all of a transaction",
    )
    segment = state.segments.require(request.name)
    aborts = state.transactions.aborts_with_target(segment.name, segment.sid)
    # T8: in one group, so that no crash leaves an open transaction without its target.
    return [*aborts, DeleteSegment(segment.sid)], None


def delete_segment(state: ContainerState, sid: int) -> None:
    """Delete the segment and the sources merged into it that its record does not include yet."""
    segment = state.change(sid)
    state.unname(segment, SegmentStatus.DELETED)
    for merge in segment.merges:
        # A merged source is known by its id only: after its target nothing else would name it.
        delete_segment(state, merge.source)


def publish_delete(publisher: Publisher, sid: int) -> None:
    """The segment's bytes are neither read nor flushed any more."""
    segment = publisher.by_id[sid]
    segment.log_references.clear()
    # Readers at the tail find out that the segment is gone.
    segment.wake()
    publisher.cache.drop_segment(sid)
    for merge in segment.merges:
        publish_delete(publisher, merge.source)


def _apply(state: ContainerState, op: DeleteSegment) -> None:
    delete_segment(state, op.sid)


def _publish(publisher: Publisher, op: DeleteSegment, group: int) -> None:
    publish_delete(publisher, op.sid)


HANDLERS = (
    RequestHandler(DeleteRequest, _decide),
    OperationHandler(DeleteSegment, _apply, _publish, from_client=True),
)
