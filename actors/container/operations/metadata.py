"""Chunk metadata in the container's log: conditional commits (rule S6), and the end of a deleted segment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ....journal.operations.commit_metadata import CommitMetadata
from ....journal.operations.forget_segment import ForgetSegment
from ....journal.operations.segment_image import SegmentStatus
from ....storage_backends.base.errors import MetadataConflict
from ....storage_backends.segments.records.segment import SEGMENT_PREFIX, segment_of_key
from ..requests import Request
from .handlers import Decision, OperationHandler, RequestHandler

if TYPE_CHECKING:
    from ..publish import Publisher
    from ..state import ContainerState


class CommitMetadataRequest(Request):
    """Internal: one metadata transaction. Answered with the version that the written keys get."""

    __slots__ = ("expected", "writes")

    def __init__(self, expected: Mapping[str, int], writes: Mapping[str, bytes | None]) -> None:
        self.expected = expected
        self.writes = writes


def _decide(state: ContainerState, request: CommitMetadataRequest) -> Decision:
    for key, version in request.expected.items():
        entry = state.metadata.get(key)
        if (entry[0] if entry else 0) != version:
            raise MetadataConflict(
                f"metadata {key!r} is at version {entry[0] if entry else 0}, the transaction read {version}"
            )

    for key, value in request.writes.items():
        if key.startswith(SEGMENT_PREFIX):
            segment = state.segments.get(segment_of_key(key))
            # Deleted since the flush began: only the removal of its record may still be committed.
            if segment is None or (segment.status is SegmentStatus.DELETED and value is not None):
                raise MetadataConflict(f"the segment of metadata {key!r} was deleted")

    if not request.writes:
        return None, state.sequence

    # The version is the sequence that the operation gets when it is applied next.
    return CommitMetadata(tuple(request.writes.items())), state.sequence + 1


def _apply(state: ContainerState, op: CommitMetadata) -> None:
    for key, value in op.writes:
        if value is None:
            state.metadata.pop(key, None)
        else:
            state.metadata[key] = (state.sequence, value)

        if key.startswith(SEGMENT_PREFIX):
            _apply_record(state, segment_of_key(key), value)


def _apply_record(state: ContainerState, sid: int, value: bytes | None) -> None:
    """The segment's record in long-term storage changed: this commit is the flush position (rule F3)."""
    segment = state.change(sid)
    if value is None:
        segment.has_record = False
        if segment.status is SegmentStatus.MERGED:
            state.segments.remove(sid)  # its chunks belong to the target's record now
        return

    segment.load_record(value)
    segment.drop_flushed_merges()
    if segment.is_clean:
        state.segments.unlist_dirty(segment)


def _publish(publisher: Publisher, op: CommitMetadata, group: int) -> None:
    for key, _ in op.writes:
        if key.startswith(SEGMENT_PREFIX):
            _publish_record(publisher, segment_of_key(key))


def _publish_record(publisher: Publisher, sid: int) -> None:
    publisher.listeners.record_changed(sid)
    segment = publisher.segments.get(sid)
    if segment is None:
        publisher.cache.drop_segment(sid)
        return

    publisher.cache.mark_flushed(sid, segment.flushed)
    segment.drop_flushed_references()


def _apply_forget(state: ContainerState, op: ForgetSegment) -> None:
    state.change(op.sid)
    state.segments.remove(op.sid)


def _publish_forget(publisher: Publisher, op: ForgetSegment, group: int) -> None:
    publisher.cache.drop_segment(op.sid)


HANDLERS = (
    RequestHandler(CommitMetadataRequest, _decide),
    OperationHandler(CommitMetadata, _apply, _publish),
    OperationHandler(ForgetSegment, _apply_forget, _publish_forget),
)
