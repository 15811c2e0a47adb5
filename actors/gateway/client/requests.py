"""Each verb as a request, and each response as a value or a failure. No I/O; both clients share it.

Arguments are checked as ``SegmentStore`` checks them, so that a mistake needs no round trip. Limits that only
the server knows (the largest append, the most attributes) are left to the server."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

import attrs
import msgspec

from ....storage_backends.base.arguments import (
    JoinedAppend,
    WriterId,
    check_attribute_page,
    check_data,
    check_history,
    check_joined,
    check_offset,
    check_range,
    check_rolling_size,
    check_size,
    checked_parts,
    checked_reason,
    checked_sources,
    checked_token,
    checked_updates,
    checked_writers,
    required_writer,
)
from ....storage_backends.base.backups import Backup, BackupStep, StepAnswer, check_backup_name
from ....storage_backends.base.errors import (
    InvalidArgument,
    OutcomeUnknown,
    SegmentNotFound,
    TooLarge,
    Unavailable,
)
from ....storage_backends.base.list_pages import PageAsked, Part
from ....storage_backends.base.names import check_segment_name
from ....storage_backends.base.segment_layout import SegmentLayout
from ....storage_backends.base.segments import (
    AttributeName,
    AttributePage,
    AttributeUpdate,
    SegmentInfo,
)
from ....storage_backends.base.transactions import (
    CommitResult,
    StagedPart,
    TransactionInfo,
    TransactionToken,
    check_lease,
    check_transaction_id,
    staged_name,
)
from ..wire import bodies, paths
from ..wire.batch import BATCH_TYPE, BatchItem, Outcome, decode_outcomes, encode_batch
from ..wire.bodies import (
    JSON_TYPE,
    Appended,
    ContainerMap,
    Empty,
    HostStatus,
    Nothing,
    decode_answer,
    encode_json,
)
from ..wire.errors import RangeNotSatisfiable, from_problem, is_problem, malformed_answer, retry_after
from ..wire.headers import (
    HISTORY,
    OFFSET,
    SEALED,
    SEGMENT_ID,
    AppendHeaders,
    append_headers,
    parse_number,
    writer_text,
)
from ..wire.paths import Verb
from ..wire.ranges import parse_content_range, range_header
from .retries import Failure, Kind, Repeat, kind_of

T = TypeVar("T")
A = TypeVar("A")
BYTES_TYPE = "application/octet-stream"
POLL_SECONDS = 20.0
"""Seconds that a server may hold a poll or a stream of ``tail`` without bytes: a peer that is gone is
noticed."""
WAIT_MAX = 60.0
"""Seconds that a server holds a poll back at most."""
_REDIRECTS = (301, 302, 303, 307, 308)
_TRANSIENT_STATUSES = (408, 425, 429)


@attrs.frozen
class Request:
    method: str
    path: str
    """The path, with its query."""
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    """Headers other than Host and Content-Length."""


@attrs.frozen
class Response:
    status: int
    headers: Mapping[str, str]
    """Headers by lower-case name."""
    body: bytes


@attrs.frozen
class TransportFailure:
    """No response, or half of one."""

    sent: bool
    """Whether the server may have received the whole request."""
    reason: str


@attrs.frozen
class Call(Generic[T]):
    request: Request
    repeat: Repeat
    parse: Callable[[Response], T]
    """The value of a success; raises ``ValueError`` if it cannot be decoded."""
    segment: str | None = None
    """The request goes to its owner; None: the caller chooses the server."""
    container: int | None = None
    """Likewise, of a request about a container."""
    statuses: tuple[int, ...] = (200,)
    """The statuses of success."""
    wait: float = 0.0
    """Seconds that a long poll may wait."""
    parks: bool = False
    """It may be one of many at once, long poll or not, and must not fill the pool of the other requests."""
    asks_once_more: bool = False
    """It is a step of a tail, which goes on behind one answer that does not come."""

    @property
    def changes(self) -> bool:
        return self.repeat is not Repeat.READS


def interpret(call: Call[T], answer: Response | TransportFailure) -> T | Failure:
    """The result of one attempt."""
    if isinstance(answer, TransportFailure):
        return lost(answer, changes=call.changes)

    if answer.status in call.statuses:
        try:
            return call.parse(answer)
        except ValueError as error:
            # JSON of another form comes from another version, and a repeat gets the same; a page in place of
            # JSON comes from a proxy.
            is_final = isinstance(error, msgspec.ValidationError) and not call.changes
            kind = Kind.REFUSED if is_final else Kind.UNKNOWN
            return Failure(kind, malformed_answer(str(error), maybe_applied=call.changes))

    return failure_of(answer, changes=call.changes)


def failure_of(response: Response, *, changes: bool) -> Failure:
    """What a response other than a success means."""
    # Not followed here: the map shows the owner to all later calls too.
    if response.status in _REDIRECTS:
        return Failure(
            Kind.ELSEWHERE, Unavailable(f"redirected to {response.headers.get('location', 'nowhere')!r}")
        )

    error = from_problem(response.status, response.headers, response.body, maybe_applied=changes)
    pause = retry_after(response.headers, response.body) or 0.0
    if (
        not is_problem(response.headers)
        and 400 <= response.status < 500
        and response.status not in _TRANSIENT_STATUSES
    ):
        # A wrong URL, or a proxy that denies access: the same answer would come forever.
        return Failure(Kind.REFUSED, error)

    return Failure(kind_of(error), error, pause)


def lost(answer: TransportFailure, *, changes: bool) -> Failure:
    if not answer.sent:
        return Failure(Kind.NOT_SENT, Unavailable(answer.reason))

    if changes:
        return Failure(Kind.UNKNOWN, OutcomeUnknown(f"{answer.reason}; the request may have been applied"))

    return Failure(Kind.UNKNOWN, Unavailable(answer.reason))


# --- appends ------------------------------------------------------------------------------------


def joined_item(append: JoinedAppend, bytes_max: int) -> BatchItem:
    """One append of ``append_each``, checked."""
    check_segment_name(append.name)
    check_append_size(check_data(append.data), bytes_max)
    optional = check_joined(append)
    return BatchItem(append.name, append.data, append.writer, append.first_event, append.count, *optional)


def check_append_size(size: int, maximum: int) -> None:
    # Before it is sent: the library below sends a whole body before it looks for the server's refusal.
    if size > maximum:
        raise TooLarge.append(size, maximum)


def repeat_of(item: BatchItem) -> Repeat:
    if item.writer:
        return Repeat.NUMBERED

    # After a lost answer nothing tells a repeat of plain bytes from a second append.
    return Repeat.NEVER if item.expected_offset is None else Repeat.AT_OFFSET


def append(item: BatchItem) -> Call[list[Outcome]]:
    """One append in a request of its own: raw bytes, or a batch of one for several events."""
    if item.count > 1:
        return batch([item])

    return Call(
        _append_request(item),
        repeat_of(item),
        lambda response: [decode_answer(response.body, Appended).offset],
    )


def _append_request(item: BatchItem) -> Request:
    number = item.first_event if item.writer else None
    numbers = AppendHeaders(item.writer, number, item.previous_event, item.expected_offset, item.history)
    headers = (("Content-Type", BYTES_TYPE), *append_headers(numbers).items())
    return Request("POST", paths.segment_path(item.name, Verb.APPEND), bytes(item.data), headers)


def batch(items: Sequence[BatchItem]) -> Call[list[Outcome]]:
    """Many appends in one request. Whether one may be sent again is decided for each append."""
    request = Request("POST", paths.BATCH, b"".join(encode_batch(items)), (("Content-Type", BATCH_TYPE),))
    return Call(request, Repeat.NEVER, lambda response: decode_outcomes(response.body, len(items)))


# --- other changes ------------------------------------------------------------------------------


def create_segment(name: str, rolling_size: int | None, exist_ok: bool) -> Call[None]:
    size = None if rolling_size is None else check_rolling_size(rolling_size)
    repeat = Repeat.IDEMPOTENT if exist_ok else Repeat.CREATES
    return _post(name, Verb.CREATE, bodies.Create(size, exist_ok), Empty, _nothing, repeat, 201)


def seal_segment(name: str) -> Call[int]:
    return _post(name, Verb.SEAL, Nothing(), bodies.Length, lambda answer: answer.length, Repeat.SEALS)


def truncate_segment(name: str, offset: int, history: int | None) -> Call[None]:
    body = bodies.Truncate(check_offset(offset), check_history(history))
    return _post(name, Verb.TRUNCATE, body, Empty, _nothing)


def delete_segment(name: str) -> Call[None]:
    return _post(name, Verb.DELETE, Nothing(), Empty, _nothing)


def merge_segments(
    target: str, sources: Sequence[str], attribute_updates: Sequence[AttributeUpdate]
) -> Call[int]:
    names = checked_sources(sources)
    body = bodies.Merge(list(names), bodies.update_bodies(checked_updates(attribute_updates)))
    return _post(target, Verb.MERGE, body, bodies.Merged, lambda answer: answer.offset)


def update_attributes(name: str, updates: Sequence[AttributeUpdate]) -> Call[dict[AttributeName, int]]:
    body = bodies.Attributes(bodies.update_bodies(checked_updates(updates, is_verb=True)))
    return _post(name, Verb.ATTRIBUTES, body, bodies.AttributeValues, lambda answer: answer.values())


def expire_writers(name: str, writer_ids: Iterable[WriterId]) -> Call[int]:
    body = bodies.ExpireWriters([writer_text(writer) for writer in checked_writers(writer_ids)])
    return _post(name, Verb.EXPIRE_WRITERS, body, bodies.KnownWriters, lambda answer: answer.known)


def flush() -> Call[None]:
    """Flush one host. A repeat is harmless: a flush changes nothing that a caller could see."""
    request = Request("POST", paths.FLUSH, encode_json(Nothing()), _JSON)
    return Call(request, Repeat.READS, _answer(Empty, _nothing))


# --- backups ------------------------------------------------------------------------------------


def take_backup_step(step: BackupStep) -> Call[StepAnswer]:
    elements = tuple(bodies.PinnedElement(*position) for position in step.positions)
    body = bodies.TakeBackupStep(step.kind, check_backup_name(step.name), step.token, elements)
    path = paths.container_path(step.container, "backup-steps")
    request = Request("POST", path, encode_json(body), _JSON)
    parse = _answer(bodies.BackupStepDone, lambda answer: StepAnswer((answer.n, answer.crc), answer.found))
    return Call(request, Repeat.IDEMPOTENT, parse, container=step.container)


def backups() -> Call[list[Backup]]:
    request = Request("GET", paths.container_path(0, "backups"))
    return Call(request, Repeat.READS, _answer(bodies.Backups, _backups), container=0)


def _backups(answer: bodies.Backups) -> list[Backup]:
    return [Backup(each.name, each.created_ms, each.containers, each.problem) for each in answer.backups]


# --- transactions (rule H17) ----------------------------------------------------------------------


def begin_transaction(
    target: str, transaction_id: str, token: TransactionToken | None, lease: float
) -> Call[TransactionInfo]:
    body = bodies.Begin(
        check_transaction_id(transaction_id), bodies.token_body(checked_token(token)), check_lease(lease)
    )
    return _post(target, Verb.BEGIN_TRANSACTION, body, TransactionInfo, _itself, Repeat.IDEMPOTENT)


def stage_segment(target: str, transaction_id: str, part: str) -> Call[str]:
    staged_name(target, transaction_id, part)
    body = bodies.Stage(transaction_id, part)
    return _post(
        target, Verb.STAGE_SEGMENT, body, bodies.Staged, lambda answer: answer.segment, Repeat.IDEMPOTENT
    )


def commit_transaction(
    target: str, transaction_id: str, parts: Sequence[StagedPart], token: TransactionToken | None
) -> Call[CommitResult]:
    chosen = bodies.part_bodies(checked_parts(parts))
    body = bodies.Commit(
        check_transaction_id(transaction_id), chosen, bodies.token_body(checked_token(token))
    )
    return _post(target, Verb.COMMIT_TRANSACTION, body, CommitResult, _itself, Repeat.COMMITS)


def abort_transaction(target: str, transaction_id: str, reason: str) -> Call[TransactionInfo]:
    body = bodies.Abort(check_transaction_id(transaction_id), checked_reason(reason))
    return _post(target, Verb.ABORT_TRANSACTION, body, TransactionInfo, _itself, Repeat.IDEMPOTENT)


def transaction_info(target: str, transaction_id: str) -> Call[TransactionInfo]:
    check_segment_name(target)
    path = paths.transaction_info_path(target, check_transaction_id(transaction_id))
    return _get(path, target, TransactionInfo, _itself)


def page_of_transactions(asked: PageAsked, limit: int) -> Call[Part[TransactionInfo]]:
    """The part of one host."""

    def part(answer: bodies.Transactions) -> Part[TransactionInfo]:
        return asked.part(answer.transactions, answer.token)

    request = Request("GET", paths.page_path(paths.TRANSACTIONS, asked, limit))
    return Call(request, Repeat.READS, _answer(bodies.Transactions, part))


# --- reading ------------------------------------------------------------------------------------


def read(name: str, offset: int, size: int, history: int | None = None) -> Call[bytes]:
    check_segment_name(name)
    check_offset(offset)
    check_size(size)

    def parse(response: Response) -> bytes:
        if response.status == 416:
            return _nothing_there(response)

        extent = parse_content_range(response.headers.get("content-range", ""))
        # H3: a proxy may answer with another range, or with a body that it cut off.
        if extent is None or extent.start != offset or not extent.size == len(response.body) <= size:
            raise ValueError(f"{len(response.body)} bytes for {size} at {offset}")

        return response.body

    headers = (("Range", range_header(offset, size)),)
    return Call(
        Request("GET", paths.bytes_path(name, check_history(history)), b"", headers),
        Repeat.READS,
        parse,
        name,
        statuses=(206, 416),
    )


def _nothing_there(response: Response) -> bytes:
    error = from_problem(response.status, response.headers, response.body, maybe_applied=False)
    if not isinstance(error, RangeNotSatisfiable):
        raise ValueError(str(error))  # noqa: TRY004 - an answer that no tierlog server gives

    return b""


@attrs.frozen
class PollResult:
    """The result of a long poll of a tail."""

    block: bytes
    """The next bytes, as many as the server sends at once; empty if there were none in time."""
    sealed: bool
    """The segment is sealed and read to its end."""
    segment_id: str
    """Distinguishes the segment from a later one of the same name."""
    history: int | None = None
    """The history that the offset behind the block is of; None from a server of an earlier version."""


def poll(name: str, offset: int, wait: float, history: int | None = None) -> Call[PollResult]:
    check_segment_name(name)
    check_offset(offset)
    # Written so that NaN is refused.
    if not 0 <= wait <= WAIT_MAX:
        raise InvalidArgument(f"a poll waits from 0 to {WAIT_MAX:g} seconds, not {wait!r}")

    def parse(response: Response) -> PollResult:
        if response.status == 200 and not response.body:
            # A tail would ask again at once, forever.
            raise ValueError("an empty block")

        return PollResult(
            response.body,
            response.status == 204 and response.headers.get(SEALED.lower()) == "true",
            response.headers.get(SEGMENT_ID.lower(), ""),
            _history(response.headers),
        )

    return Call(
        Request("GET", paths.tail_path(name, offset, check_history(history), wait=wait)),
        Repeat.READS,
        parse,
        name,
        statuses=(200, 204),
        wait=wait,
        parks=True,
    )


def _history(headers: Mapping[str, str]) -> int | None:
    text = headers.get(HISTORY.lower())
    return None if text is None else parse_number(HISTORY, text)


StartsStream = Callable[[int, Mapping[str, str]], bool]
"""Whether the status and the headers of an answer begin a stream."""


class TailCursor:
    """A tail made of polls and streams: its position, and the cut into blocks of at most the caller's size.

    Polls bring what is there in large blocks, find the owner, and raise the errors. Where there is nothing
    yet, a stream brings what is appended, without a request for each append. A stream ends for many reasons,
    and the next poll finds out which at once: another segment may have the name
    (rule H11). If streams bring nothing, as behind a proxy that refuses them, a poll that waits comes before
    the next one.

    Each poll brings the history that its position is of, which the next request names: if the store is
    recovered without its logs in between, the tail ends where the two histories differ (rule R10)."""

    __slots__ = (
        "_block_size",
        "_segment_id",
        "_stream_was_empty",
        "_wait",
        "history",
        "is_at_end",
        "is_over",
        "name",
        "position",
    )

    def __init__(self, name: str, offset: int, block_size: int, history: int | None) -> None:
        self.name = name
        self.position = offset
        self.history = history
        self._block_size = block_size
        self._wait = 0.0
        self._stream_was_empty = False
        self._segment_id = ""
        self.is_over = self.is_at_end = False

    def poll(self) -> Call[PollResult]:
        return attrs.evolve(poll(self.name, self.position, self._wait, self.history), asks_once_more=True)

    def take_poll(self, result: PollResult) -> Iterator[bytes]:
        # H11: the bytes of a later segment must not continue those of the deleted one.
        if self._segment_id not in {"", result.segment_id}:
            raise SegmentNotFound.replaced(self.name)

        self._segment_id, self.history = result.segment_id, result.history
        waits_next = not result.block and not self._wait and self._stream_was_empty
        self.is_over, self.is_at_end = result.sealed, not result.block and not waits_next
        self._wait = POLL_SECONDS if waits_next else 0.0
        return self.take(result.block)

    def stream(self) -> Request:
        """The request for a stream of what comes after the position."""
        # Until bytes arrive: a proxy may hold all of an answer back until its end.
        self._stream_was_empty = True
        return Request("GET", paths.tail_path(self.name, self.position, self.history, stream=True))

    def starts_stream(self, status: int, headers: Mapping[str, str]) -> bool:
        """Whether the head of an answer begins this tail's stream."""
        return (
            status == 200
            # A cache in between could answer with an older stream.
            and headers.get(OFFSET.lower()) == str(self.position)
            and headers.get(SEGMENT_ID.lower(), "") == self._segment_id
            # The server may have been replaced since the poll: what the stream brings is of one history.
            and headers.get(HISTORY.lower(), "") == ("" if self.history is None else str(self.history))
        )

    def take(self, data: bytes) -> Iterator[bytes]:
        """Its blocks. The position moves when a block is taken."""
        for start in range(0, len(data), self._block_size):
            block = data[start : start + self._block_size]
            self.position += len(block)
            self._stream_was_empty = False
            yield block

    def note_idle(self) -> None:
        """The stream had nothing for ``POLL_SECONDS``."""
        self._stream_was_empty = False


def segment_info(name: str) -> Call[SegmentInfo]:
    check_segment_name(name)
    return _get(paths.segment_path(name, Verb.INFO), name, SegmentInfo, _itself)


def list_attributes(
    name: str, prefix: AttributeName, after: AttributeName | None, limit: int
) -> Call[AttributePage]:
    check_segment_name(name)
    check_attribute_page(prefix, after, limit)

    def page(answer: bodies.ListedAttributes) -> AttributePage:
        following = answer.after
        is_of_ids = following is not None and isinstance(prefix, bytes)
        return AttributePage(answer.values(), bytes.fromhex(following or "") if is_of_ids else following)

    path = paths.list_attributes_path(name, prefix, after, limit)
    return _get(path, name, bodies.ListedAttributes, page)


def last_event_number(name: str, writer_id: WriterId) -> Call[int | None]:
    check_segment_name(name)
    path = paths.last_event_number_path(name, required_writer(writer_id, "last_event_number"))
    return _get(path, name, bodies.EventNumber, lambda answer: answer.event_number)


def append_starts(name: str, start: int, end: int) -> Call[list[int]]:
    check_segment_name(name)
    path = paths.range_path(name, Verb.APPEND_STARTS, *check_range(start, end))
    return _get(path, name, bodies.AppendStarts, lambda answer: answer.append_starts)


def segment_layout(name: str, start: int, end: int) -> Call[SegmentLayout]:
    check_segment_name(name)
    path = paths.range_path(name, Verb.LAYOUT, *check_range(start, end))
    return _get(path, name, SegmentLayout, _itself)


def page_of_segments(asked: PageAsked, limit: int) -> Call[Part[str]]:
    """The part of one host."""

    def part(answer: bodies.SegmentNames) -> Part[str]:
        return asked.part(answer.segments, answer.token)

    request = Request("GET", paths.page_path(paths.SEGMENTS, asked, limit))
    return Call(request, Repeat.READS, _answer(bodies.SegmentNames, part))


def container_map() -> Call[ContainerMap]:
    request = Request("GET", paths.CONTAINERS)
    return Call(request, Repeat.READS, lambda response: bodies.decode_map(response.body))


def host_status() -> Call[HostStatus]:
    return Call(Request("GET", paths.READY), Repeat.READS, _answer(HostStatus, _itself), statuses=(200, 503))


# --- inside -------------------------------------------------------------------------------------

_JSON = (("Content-Type", JSON_TYPE),)


def _post(
    name: str,
    verb: Verb,
    body: bodies.RequestBody,
    kind: type[A],
    value: Callable[[A], T],
    repeat: Repeat = Repeat.NEVER,
    status: int = 200,
) -> Call[T]:
    check_segment_name(name)
    request = Request("POST", paths.segment_path(name, verb), encode_json(body), _JSON)
    return Call(request, repeat, _answer(kind, value), name, statuses=(status,))


def _get(path: str, name: str, kind: type[A], value: Callable[[A], T]) -> Call[T]:
    return Call(Request("GET", path), Repeat.READS, _answer(kind, value), name)


def _answer(kind: type[A], value: Callable[[A], T]) -> Callable[[Response], T]:
    return lambda response: value(decode_answer(response.body, kind))


def _itself(answer: T) -> T:
    return answer


def _nothing(answer: Empty) -> None:
    pass
