"""Chunk metadata in the container's log: conditional commits (rule S6), and the end of a deleted segment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ....journal.operations.commit_metadata import CommitMetadata
from ....journal.operations.forget_segment import ForgetSegment
from ....journal.operations.segment_image import SegmentStatus
from ....storage_backends.base.errors import MetadataConflict
from ....storage_backends.segments.records.segment import SEGMENT_PREFIX, segment_of_key
from ....storage_backends.sorted_runs.memtable import version_of
from ..closures import segment_of_records
from ..requests import Request
from .handlers import Decision, OperationHandler, RequestHandler

if TYPE_CHECKING:
    from ..publish import Publisher
    from ..segments import SegmentState
    from ..state import ContainerState


class CommitMetadataRequest(Request):
    """Internal: one metadata transaction. ``expected`` was found true in a view of the system table at
    version ``seen``; 0 if all rows are in memory. Answered with the version that the written keys get, or
    None if the lookup must be repeated (rule M9)."""

    __slots__ = ("expected", "seen", "writes")

    def __init__(
        self, expected: Mapping[str, int], writes: Mapping[str, bytes | None], seen: int = 0
    ) -> None:
        self.expected = expected
        self.writes = writes
        self.seen = seen


def is_as_expected(state: ContainerState, expected: Mapping[str, int], seen: int) -> bool:
    """Whether each key of ``expected`` still has the version given there, 0 for absent, as in the view at
    version ``seen``; False if that is unknown. Raises ``MetadataConflict`` (rule M9).

    A row that is not in memory is unchanged, unless rows above ``seen`` were released since."""
    released = state.table.runs.records_to
    is_known = True
    for key, version in expected.items():
        row = state.find_record(key)
        if row is None and released:
            is_known &= released <= seen
        elif version_of(row) != version:
            raise conflict(key, version, version_of(row))
    return is_known


def conflict(key: str, expected: int, present: int) -> MetadataConflict:
    return MetadataConflict(f"metadata {key!r} is at version {present}, the transaction read {expected}")


def _decide(state: ContainerState, request: CommitMetadataRequest) -> Decision:
    if not is_as_expected(state, request.expected, request.seen):
        return None, None

    for key, value in request.writes.items():
        if key.startswith(SEGMENT_PREFIX):
            segment = state.find_by_id(segment_of_key(key))
            # Deleted since the flush began: only the removal of its record may still be committed.
            if segment is None or (segment.status is SegmentStatus.DELETED and value is not None):
                raise MetadataConflict(f"the segment of metadata {key!r} was deleted")

    if not request.writes:
        return None, state.sequence

    # The version is the sequence that the operation gets when it is applied next.
    return CommitMetadata(tuple(request.writes.items())), state.sequence + 1


def _apply(state: ContainerState, op: CommitMetadata) -> None:
    if changed := segment_of_records(key for key, _ in op.writes):
        state.closures.note(state.sequence, changed)
    # Before the write: a cycle that is published may need the present records.
    segments = [
        (state.change_record(segment_of_key(key)), value)
        for key, value in op.writes
        if key.startswith(SEGMENT_PREFIX)
    ]
    state.write_records(op.writes)
    for segment, value in segments:
        _apply_record(state, segment, value)


def _apply_record(state: ContainerState, segment: SegmentState, value: bytes | None) -> None:
    """The segment's record in long-term storage changed: this commit is the flush position (rule F3)."""
    if value is None:
        segment.has_record = False
        segment.recorded = state.sequence
        if segment.status is SegmentStatus.MERGED:
            state.remove_segment(segment.sid)  # its chunks belong to the target's record now
        return

    segment.load_record(state.sequence, value)
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
    state.change_record(op.sid)
    state.remove_segment(op.sid)


def _publish_forget(publisher: Publisher, op: ForgetSegment, group: int) -> None:
    publisher.cache.drop_segment(op.sid)


HANDLERS = (
    RequestHandler(CommitMetadataRequest, _decide),
    OperationHandler(CommitMetadata, _apply, _publish),
    OperationHandler(ForgetSegment, _apply_forget, _publish_forget),
)
