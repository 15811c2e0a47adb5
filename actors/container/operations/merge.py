"""Merge: sealed sources move to the target's tail as one operation, with conditional attribute updates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ....journal.operations.commit_transaction import CommitTransaction
from ....journal.operations.merge_segments import MergeSegments
from ....journal.operations.segment_image import MergedRange, SegmentStatus
from ....storage_backends.base.errors import InvalidArgument, SegmentNotSealed, SegmentSealed
from ....storage_backends.base.segments import AttributeUpdate
from ..requests import Request
from ..segments import SegmentState
from ..transaction_table import refuse_staged
from .attributes import resolve_updates
from .handlers import Decision, OperationHandler, RequestHandler

if TYPE_CHECKING:
    from ..publish import Publisher
    from ..state import ContainerState


class MergeRequest(Request):
    """Answered with the target offset of the first source's bytes. Open transactions on the sources end (rule
    T8)."""

    __slots__ = ("sources", "target", "updates")

    def __init__(self, target: str, sources: Sequence[str], updates: Sequence[AttributeUpdate]) -> None:
        self.target = target
        self.sources = sources
        self.updates = updates

    def named(self) -> Sequence[str]:
        return (self.target, *self.sources)


def _decide(state: ContainerState, request: MergeRequest) -> Decision:
    for name in (request.target, *request.sources):
        refuse_staged(name, "commit_transaction moves those to their target")

    target = state.segments.require_bytes(request.target)
    if target.sealed:
        raise SegmentSealed(f"{target.name!r} is sealed: merge into another segment", segment=target.name)

    sources = [state.segments.require_bytes(name) for name in request.sources]
    for source in sources:
        _check_source(target, source)

    changes = resolve_updates(state, target, request.updates)
    merge = MergeSegments(target.sid, target.length, tuple((s.sid, s.length) for s in sources), changes.named)
    # T8: in the group of the merge, as with a delete.
    aborts = [abort for s in sources for abort in state.transactions.aborts_with_target(s.name, s.sid)]
    return [*aborts, merge, *changes.after()], target.length  # rule T8


def _check_source(target: SegmentState, source: SegmentState) -> None:
    if source is target:
        raise InvalidArgument(f"{source.name!r} cannot be merged into itself")

    if not source.sealed:
        raise SegmentNotSealed(f"{source.name!r} must be sealed before it is merged", segment=source.name)

    # Its first bytes may be gone already, and the target cannot have a gap.
    if source.start_offset:
        raise InvalidArgument(
            f"{source.name!r} was truncated at {source.start_offset}: only whole segments can be merged"
        )


def merge_sources(state: ContainerState, op: MergeSegments | CommitTransaction) -> None:
    """Move the sources to the target and free their names, in this one step."""
    target = state.change(op.target)
    if target.length != op.offset:
        raise ValueError(f"merge at {op.offset} into {target!r}")

    for sid, length in op.sources:
        source = state.change(sid)
        if source.length != length:
            raise ValueError(f"merge of {length} bytes from {source!r}")

        # Of an empty source there is nothing to splice, so its record is only to be removed.
        state.unname(source, SegmentStatus.MERGED if length else SegmentStatus.DELETED, op.target)
        if length:
            target.add_merge(MergedRange(target.length, sid, length))
            target.length += length

    state.set_attributes(target, op.values)


def publish_merge(publisher: Publisher, op: MergeSegments | CommitTransaction, group: int) -> None:
    target = publisher.by_id[op.target]
    target.durable_length = op.offset + sum(length for _, length in op.sources)
    target.wake()
    for sid, _ in op.sources:
        source = publisher.segments.get(sid)
        if source is not None:
            source.wake()


HANDLERS = (
    RequestHandler(MergeRequest, _decide),
    OperationHandler(MergeSegments, merge_sources, publish_merge, from_client=True),
)
