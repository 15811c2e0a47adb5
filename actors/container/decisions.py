"""Decisions: what a request means in the present state. Pure and synchronous.

Owns: every rule of admission to the log: existence, seals, offsets, idempotence (C3), attribute conditions,
merges, metadata versions (S6). Does not own: applying (``state.py``), logging (``pipeline.py``), nor argument
checks (the store's door does those).

A decision returns ``(operation, answer)``; without an operation the answer is still given only when
everything it depends on is durable (rule C1). A refusal is raised as the error that the caller gets.
Whatever is returned can be applied (rule C5).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from ...journal.operations.append import Append
from ...journal.operations.commit_metadata import CommitMetadata
from ...journal.operations.create_segment import CreateSegment
from ...journal.operations.delete_segment import DeleteSegment
from ...journal.operations.expire_writers import ExpireWriters
from ...journal.operations.merge_segments import MergeSegments
from ...journal.operations.operation import Operation
from ...journal.operations.seal_segment import SealSegment
from ...journal.operations.segment_image import SegmentStatus, WriterState
from ...journal.operations.transaction_image import TransactionStatus
from ...journal.operations.truncate_segment import TruncateSegment
from ...journal.operations.update_attributes import UpdateAttributes
from ...storage_backends.base.errors import (
    AttributeConflict,
    BadOffset,
    InvalidArgument,
    MetadataConflict,
    OutOfOrder,
    SegmentExists,
    SegmentNotFound,
    SegmentNotSealed,
    SegmentSealed,
    TierlogError,
    UnknownWriter,
)
from ...storage_backends.base.segments import (
    ATTRIBUTE_MAX,
    ATTRIBUTE_MIN,
    ATTRIBUTES_MAX,
    AttributeUpdate,
    AttributeUpdateKind,
)
from ...storage_backends.base.transactions import is_staged, split_staged
from ...storage_backends.segments.records.segment import SEGMENT_PREFIX, segment_of_key
from .requests import (
    AppendRequest,
    AttributesRequest,
    CommitMetadataRequest,
    CreateRequest,
    DeleteRequest,
    ExpireWritersRequest,
    MergeRequest,
    SealRequest,
    TruncateRequest,
    WriterRequest,
)
from .segments import SegmentState
from .state import ContainerState
from .transaction_table import ended, unknown

Decision: TypeAlias = tuple[Operation | None, Any]


def require(state: ContainerState, name: str) -> SegmentState:
    segment = state.segments.find(name)
    if segment is None:
        raise SegmentNotFound(f"no segment {name!r}", segment=name)

    return segment


def refuse_staged(name: str, hint: str) -> None:
    """Staged segments live and end with their transaction alone (rule T1)."""
    if is_staged(name):
        raise InvalidArgument(f"{name!r} is the name of a transaction's staged segment: {hint}")


def _no_segment(state: ContainerState, name: str) -> TierlogError:
    """Why nothing can be appended to ``name``: a staged segment went with its transaction, and its writer is
    told so (rule T5)."""
    if is_staged(name):
        target, transaction = split_staged(name)
        record = state.transactions.find(target, transaction, state.segments.sid_of(target))
        if record is None:
            return unknown(target, transaction)
        if record.status is not TransactionStatus.OPEN:
            return ended(record)

    return SegmentNotFound(f"no segment {name!r}", segment=name)


def decide_append(state: ContainerState, request: AppendRequest) -> Decision:
    """The offset of the data; for a repeat its first offset, or None if it is not the writer's latest (rule
    C3)."""
    segment = state.segments.find(request.name)
    if segment is None:
        raise _no_segment(state, request.name)

    if request.writer:
        known = segment.writers.get(request.writer)
        if known is None:
            _check_new_writer(segment, request)
        elif _is_repeat(segment, request, known):
            return None, known.offset if request.first_event == known.first_event and _last_event(
                request
            ) == known.last_event else None

    if segment.sealed:
        raise SegmentSealed(f"{segment.name!r} is sealed at {segment.length}", segment=segment.name)

    offset = segment.length
    if request.expected_offset is not None and request.expected_offset != offset:
        raise BadOffset(
            f"{segment.name!r} is {offset} bytes long, the append expected {request.expected_offset}",
            segment=segment.name,
            expected=offset,
            given=request.expected_offset,
        )

    if request.writer and not request.size and not request.event_count:
        raise InvalidArgument("an append by a writer carries at least one event number")

    return Append(
        segment.sid, offset, request.data, request.writer, request.first_event, request.event_count
    ), offset


def _last_event(request: AppendRequest) -> int:
    return request.first_event + request.event_count - 1


def _check_new_writer(segment: SegmentState, request: AppendRequest) -> None:
    if request.writer in segment.expired:
        raise UnknownWriter(
            f"the state of writer {request.writer!r} in {segment.name!r} was expired", segment=segment.name
        )

    if request.previous_event is not None:
        raise UnknownWriter(
            f"writer {request.writer!r} names event {request.previous_event} as its previous one, but "
            f"{segment.name!r} knows none of it",
            segment=segment.name,
        )


def _is_repeat(segment: SegmentState, request: AppendRequest, known: WriterState) -> bool:
    """Whether all of the request was applied before; raises if it neither was nor can be applied now."""
    last = known.last_event
    if _last_event(request) <= last:
        return True

    if request.first_event <= last:
        raise InvalidArgument(
            f"events {request.first_event} to {_last_event(request)} of writer {request.writer!r} are "
            f"partly applied (up to {last}): "
            f"a batch is sent again as it was, or new from {last + 1} on"
        )

    previous = request.first_event - 1 if request.previous_event is None else request.previous_event
    if previous != last:
        raise OutOfOrder(
            f"event {request.first_event} of writer {request.writer!r} follows {previous}, but the last "
            f"applied one is {last}: "
            f"retry once its predecessor is acked",
            segment=segment.name,
            last_event_number=last,
        )

    return False


def decide_create(state: ContainerState, request: CreateRequest) -> Decision:
    refuse_staged(request.name, "stage_segment makes those")
    if state.segments.find(request.name) is not None:
        raise SegmentExists(f"segment {request.name!r} exists", segment=request.name)

    return CreateSegment(state.next_segment_id(), request.name, request.rolling_size), None


def decide_seal(state: ContainerState, request: SealRequest) -> Decision:
    """The final length. Sealing a sealed segment is fine."""
    refuse_staged(request.name, "commit_transaction seals those that it takes")
    segment = require(state, request.name)
    return (None if segment.sealed else SealSegment(segment.sid)), segment.length


def decide_truncate(state: ContainerState, request: TruncateRequest) -> Decision:
    refuse_staged(request.name, "a commit takes it whole or not at all")
    segment = require(state, request.name)
    if request.offset > segment.length:
        raise BadOffset(
            f"{segment.name!r} is {segment.length} bytes long and cannot be truncated at {request.offset}",
            segment=segment.name,
            expected=segment.length,
            given=request.offset,
        )

    return (
        TruncateSegment(segment.sid, request.offset) if request.offset > segment.start_offset else None
    ), None


def decide_delete(state: ContainerState, request: DeleteRequest) -> Decision:
    refuse_staged(
        request.name,
        "a commit that does not name it deletes it, abort_transaction deletes all of a transaction",
    )
    return DeleteSegment(require(state, request.name).sid), None


def decide_attributes(state: ContainerState, request: AttributesRequest) -> Decision:
    """The new values of the named attributes."""
    segment = require(state, request.name)
    values = resolve_updates(segment, request.updates)
    return UpdateAttributes(segment.sid, values), dict(values)


def resolve_updates(segment: SegmentState, updates: Sequence[AttributeUpdate]) -> tuple[tuple[str, int], ...]:
    """The values that ``updates`` lead to, evaluated in order; all or nothing."""
    values: dict[str, int] = {}
    for update in updates:
        current = values.get(update.name, segment.attributes.get(update.name))
        values[update.name] = _resolve(segment, update, current)

    if (
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
        wanted = f" (expected {update.expected})" if kind is AttributeUpdateKind.REPLACE_IF_EQUALS else ""
        raise AttributeConflict(
            f"attribute {update.name!r} of {segment.name!r} is {current}: {kind.value} with "
            f"{update.value}{wanted} does not apply",
            segment=segment.name,
        )

    return update.value


def decide_merge(state: ContainerState, request: MergeRequest) -> Decision:
    """The target offset of the first source's bytes. Sources are locked by being unnamed in this very
    step."""
    for name in (request.target, *request.sources):
        refuse_staged(name, "commit_transaction moves those to their target")

    target = require(state, request.target)
    if target.sealed:
        raise SegmentSealed(f"{target.name!r} is sealed: nothing can be merged into it", segment=target.name)

    sources = [require(state, name) for name in request.sources]
    for source in sources:
        _check_source(target, source)

    values = resolve_updates(target, request.updates)
    return MergeSegments(
        target.sid, target.length, tuple((s.sid, s.length) for s in sources), values
    ), target.length


def _check_source(target: SegmentState, source: SegmentState) -> None:
    if source is target:
        raise InvalidArgument(f"{source.name!r} cannot be merged into itself")

    if not source.sealed:
        raise SegmentNotSealed(f"{source.name!r} must be sealed before it is merged", segment=source.name)

    if source.start_offset:
        raise InvalidArgument(
            f"{source.name!r} was truncated at {source.start_offset}: only whole segments can be merged"
        )


def decide_expire_writers(state: ContainerState, request: ExpireWritersRequest) -> Decision:
    """How many of the writers were known."""
    segment = require(state, request.name)
    known = tuple(writer for writer in dict.fromkeys(request.writers) if writer in segment.writers)
    return (ExpireWriters(segment.sid, known) if known else None), len(known)


def decide_writer(state: ContainerState, request: WriterRequest) -> Decision:
    """The writer's last event number in the segment, or None."""
    known = require(state, request.name).writers.get(request.writer)
    return None, None if known is None else known.last_event


def decide_commit(state: ContainerState, request: CommitMetadataRequest) -> Decision:
    """The version that the written keys get. Metadata of a segment that is gone cannot be written any
    more."""
    for key, version in request.expected.items():
        entry = state.metadata.get(key)
        if (entry[0] if entry else 0) != version:
            raise MetadataConflict(
                f"metadata {key!r} is at version {entry[0] if entry else 0}, the transaction read {version}"
            )

    for key, value in request.writes.items():
        if key.startswith(SEGMENT_PREFIX):
            segment = state.segments.get(segment_of_key(key))
            if segment is None or (segment.status is SegmentStatus.DELETED and value is not None):
                raise MetadataConflict(f"the segment of metadata {key!r} was deleted")

    if not request.writes:
        return None, state.sequence

    return CommitMetadata(tuple(request.writes.items())), state.sequence + 1
