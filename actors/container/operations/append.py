"""Append: bytes at a segment's tail, once per event of a writer (rule C3)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from ....journal.operations.append import (
    FIELDS_BYTES,
    PLAIN_HEAD_BYTES,
    TYPE,
    Append,
    new_tuple,
    pack_plain_head,
)
from ....journal.operations.segment_image import WriterState
from ....journal.operations.transaction_image import TransactionStatus
from ....storage_backends.base.checksum import Buffer
from ....storage_backends.base.errors import (
    BadOffset,
    HistoryLost,
    InvalidArgument,
    OutOfOrder,
    SegmentNotFound,
    SegmentSealed,
    TierlogError,
    UnknownWriter,
    WrongSegmentKind,
)
from ....storage_backends.base.transactions import is_staged, split_staged
from ..lost_histories import check_position, is_recovered, recovered_length
from ..requests import Request
from ..segments import NotLoaded, SegmentState
from ..transaction_table import ended, unknown
from .handlers import Decision, OperationHandler, RequestHandler
from .writers import and_spill

if TYPE_CHECKING:
    from ..pending_group import Group
    from ..publish import Publisher
    from ..state import ContainerState


class WriterEvents(Protocol):
    """A request that carries events of a writer."""

    @property
    def writer(self) -> bytes: ...
    @property
    def first_event(self) -> int: ...
    @property
    def event_count(self) -> int: ...
    @property
    def previous_event(self) -> int | None: ...
    @property
    def history(self) -> int | None: ...


class AppendRequest(Request):
    """Answered with the offset of the data. A repeat is answered with its first offset, or with None if it is
    not the writer's latest append."""

    __slots__ = (
        "data",
        "event_count",
        "expected_offset",
        "first_event",
        "history",
        "name",
        "previous_event",
        "size",
        "span",
        "writer",
    )
    span: object
    """Only set by a store with a span hook, which links the span of the group to it. Without a hook nobody
    reads it, and appends do not pay for it."""

    def __init__(
        self,
        name: str,
        data: Buffer,
        writer: bytes = b"",
        first_event: int = 0,
        event_count: int = 0,
        previous_event: int | None = None,
        expected_offset: int | None = None,
        history: int | None = None,
    ) -> None:
        self.name = name
        self.data = data
        self.size = len(data)
        self.writer = writer
        self.first_event = first_event
        self.event_count = event_count
        self.previous_event = previous_event
        self.expected_offset = expected_offset
        self.history = history
        """The history that the events and the expected offset are of, None if the caller does not say."""

    def named(self) -> Sequence[str]:
        return (self.name,)


def decide_append(state: ContainerState, request: AppendRequest) -> Decision:
    segment = state.segments.find(request.name)
    if segment is None:
        raise _no_segment(state, request.name)

    if segment.is_table:
        raise WrongSegmentKind.of(segment.name, is_table=True)

    # C3: repeats come first. A lost answer must not turn into ``SegmentSealed`` or ``BadOffset``.
    if request.writer and (known := find_repeat(state, segment, request)) is not None:
        return None, first_answer(request, known)

    # After the repeats, and before the offset: who appends to a sealed segment needs to know that no offset
    # is right.
    if segment.sealed:
        raise SegmentSealed(
            f"{segment.name!r} is sealed at offset {segment.length}: append to another segment",
            segment=segment.name,
        )

    offset, expected = segment.length, request.expected_offset
    if expected is not None and (expected > offset or request.history is not None):
        check_position(state.histories, segment, expected, offset, request.history)
    if expected is not None and expected != offset:
        raise BadOffset(
            f"the expected offset is {expected}, but {segment.name!r} ends at {offset}: read its length and "
            f"decide again",
            segment=segment.name,
            expected=offset,
            given=expected,
        )

    # Such an append would change nothing, and make the writer known with no event.
    if request.writer and not request.size and not request.event_count:
        raise InvalidArgument("an append by a writer carries at least one event number")

    fields = segment.sid, offset, request.data, request.writer, request.first_event, request.event_count
    op = new_tuple(Append, fields)
    if request.writer and len(segment.writers) >= state.image_entries:
        return and_spill(state, segment, request.writer, op), offset
    return op, offset


def append_plain(
    state: ContainerState, request: Request, following: Iterator[Request], group: Group
) -> Request | None:
    """Decide and apply ``request`` and those of ``following``, and add them to the group, up to the first one
    that is not an append without a writer and an expected offset, or that may be refused. Returns that one,
    for which nothing was done; None if there is none.

    The hot path: has the effects of ``decide_append``, ``_apply`` and ``PayloadBuilder.add``, in their order.
    What they ask for each append is asked once for those to one segment that follow each other."""
    operations, parts, size = group.operations, group.parts, group.size
    replies, values = group.replies, group.values
    begin = sequence = state.sequence
    left: Request | None = request
    segment: SegmentState | None = None
    name, sid, offset = "", 0, 0
    while type(left) is AppendRequest and not left.writer and left.expected_offset is None:
        if segment is None or left.name != name:
            name = left.name
            try:
                segment = state.segments.find(name)
            except (NotLoaded, TierlogError):
                break  # or a damaged block of a run: ``decide_append`` raises it again
            if segment is None or segment.is_table or segment.sealed:
                break
            sid, offset = segment.sid, segment.length
            state.sequence = sequence + 1
            state.before_change(segment)

        sequence += 1
        length = left.size
        operations.append(new_tuple(Append, (sid, offset, left.data, b"", 0, 0)))
        parts += pack_plain_head(TYPE, FIELDS_BYTES + length, sid, offset, 0), left.data
        size += PLAIN_HEAD_BYTES + length
        replies.append(left.reply)
        values.append(offset)
        offset += length
        segment.length, segment.touched = offset, sequence
        left = next(following, None)

    state.sequence, group.size = sequence, size
    if sequence > begin:
        state.client_sequence = sequence
    return left


def find_repeat(state: ContainerState, segment: SegmentState, request: WriterEvents) -> WriterState | None:
    """The writer's latest events, if those of the request are among them or were applied before. Raises if
    the request neither was nor can be applied, ``NotLoaded``."""
    known = segment.writers.get(request.writer)
    if known is None:
        found = state.find_writers(segment, (request.writer,))
        known = found.get(request.writer)
        if known is None:
            _check_new_writer(state, segment, request, is_expired=bool(found))
            return None
    return known if _is_repeat(state, segment, request, known) else None


def first_answer(request: WriterEvents, known: WriterState) -> int | None:
    """What the repeated events were answered with, if they are the writer's latest: to keep all answers would
    need memory for each event ever written."""
    is_latest = request.first_event == known.first_event and _last_event(request) == known.last_event
    return known.offset if is_latest else None


def _no_segment(state: ContainerState, name: str) -> TierlogError:
    """Why nothing can be appended to ``name``. The writer of a staged segment learns that the transaction
    ended (rule T5). Raises ``NotLoaded``."""
    if is_staged(name):
        record = state.find_transaction_of(name)
        if record is None:
            return unknown(*split_staged(name))
        if record.status is not TransactionStatus.OPEN:
            return ended(record)

    return SegmentNotFound(f"no segment {name!r}", segment=name)


def _shown(writer: bytes) -> str:
    """A writer's id as it was probably given."""
    try:
        return repr(writer.decode())
    except UnicodeDecodeError:
        return repr(writer)


def _last_event(request: WriterEvents) -> int:
    return request.first_event + request.event_count - 1


def _previous(request: WriterEvents) -> int:
    """The event before those of the request; -1 if they are the writer's first ones."""
    return request.first_event - 1 if request.previous_event is None else request.previous_event


def _check_new_writer(
    state: ContainerState, segment: SegmentState, request: WriterEvents, *, is_expired: bool
) -> None:
    # C3: a fresh start would apply a repeat of an event whose number is forgotten.
    if is_expired:
        raise UnknownWriter(
            f"the state of writer {_shown(request.writer)} in {segment.name!r} was expired",
            segment=segment.name,
        )

    # R9: a writer that was acked before is not known either if its first event was lost.
    if _previous(request) >= 0 and _may_follow_lost(state, segment, request):
        remedy = (
            f"none. Send its events again from the first one, event 0; a new writer that begins with another "
            f"number gives history={state.history}"
        )
        raise _lost(state, segment, request, None, remedy)

    if request.previous_event is not None:
        raise UnknownWriter(
            f"writer {_shown(request.writer)} names event {request.previous_event} as its previous one, but "
            f"{segment.name!r} knows none of it",
            segment=segment.name,
        )


def _may_follow_lost(
    state: ContainerState, segment: SegmentState, request: WriterEvents, known: WriterState | None = None
) -> bool:
    """Whether events that the segment lacks before those of the request may have been acked in an earlier
    history: those after the writer's latest ones, or any if none are ``known``."""
    if request.history is not None:
        return request.history != state.history
    if not is_recovered(state.histories, segment.sid):
        return False
    # A writer that appended since knows the present history. A table's state has a version in place of an
    # offset.
    if known is None or segment.is_table:
        return known is None or known.offset < state.history_from
    return known.offset < recovered_length(state.histories, segment)


def _lost(
    state: ContainerState, segment: SegmentState, request: WriterEvents, last: int | None, remedy: str
) -> HistoryLost:
    return HistoryLost(
        f"writer {_shown(request.writer)} sent event {request.first_event} to {segment.name!r}, and of the "
        f"events before it some are lost: the store was recovered from long-term storage, which had {remedy}",
        segment=segment.name,
        history=state.history,
        recovered_length=recovered_length(state.histories, segment),
        last_event_number=last,
    )


def _is_repeat(
    state: ContainerState, segment: SegmentState, request: WriterEvents, known: WriterState
) -> bool:
    """Whether all events of the request were applied before. Raises if the request neither was nor can be
    applied."""
    last = known.last_event
    if _last_event(request) <= last:
        return True

    # C3: only the writer can cut its data between two events.
    if request.first_event <= last:
        raise InvalidArgument(
            f"events {request.first_event} to {_last_event(request)} of writer {_shown(request.writer)} are "
            f"partly applied (up to {last}): repeat the original batch, or send a new one from {last + 1} on"
        )

    previous = _previous(request)
    # R9: otherwise it would wait for events that nobody sends again.
    if previous > last and _may_follow_lost(state, segment, request, known):
        remedy = f"those up to {last}. Send the events after {last} again, in order"
        raise _lost(state, segment, request, last, remedy)

    if previous != last:
        after, remedy = "", f"send event {last + 1} next"
        if request.previous_event is not None:
            after, remedy = f" after event {previous}", f"send the events after {last} first"
        raise OutOfOrder(
            f"writer {_shown(request.writer)} sent event {request.first_event}{after}, but its last applied "
            f"event is {last}: {remedy}",
            segment=segment.name,
            last_event_number=last,
        )

    return False


def _apply(state: ContainerState, op: Append) -> None:
    # In one step: by name each of them takes as long as a lookup.
    sid, offset, data, writer, first_event, event_count = op
    segment = state.segments.by_id[sid]
    state.before_change(segment)
    # C5: a decision cannot lead here. In replay it means that the log is damaged.
    if segment.length != offset:
        raise ValueError(f"append at {offset} to {segment!r}")

    segment.length = offset + len(data)
    if writer:
        segment.writers[writer] = WriterState(first_event, first_event + event_count - 1, offset)


def publish_appends(publisher: Publisher, run: list[Append], group: int) -> None:
    """Publish consecutive appends to one segment. Appends have no ``publish`` of their own: the publisher
    collects them into runs."""
    sid, offset, data, _, _, _ = run[0]
    if len(run) > 1:
        data = b"".join([op.data for op in run])
    segment = publisher.by_id[sid]
    end = offset + len(data)
    if segment.durable_length > offset:
        raise ValueError(f"{segment!r}: an append at {offset} was published before")

    segment.durable_length = end
    if data:
        publisher.cache.append(sid, offset, data, group)
        segment.add_log_reference(end, group)
        segment.add_append_boundaries(run, end)
        unflushed = end - segment.flushed
        if unflushed >= publisher.due_bytes and publisher.is_due(segment, unflushed):
            publisher.listeners.segment_due(sid)
    if segment.waiter is not None:
        segment.wake()


HANDLERS = (RequestHandler(AppendRequest, decide_append), OperationHandler(Append, _apply, from_client=True))
