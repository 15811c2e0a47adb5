"""Each verb as a request, and each response as a value or a failure. No I/O; both clients share it.

Owns: the arguments' checks (those of ``SegmentStore``, so that a mistake is told without a round trip), which
request a verb becomes, which answers are successes, and what the others mean for this verb. Does not own:
where a request goes (``container_map.py``), nor whether it is sent again (``retries.py``).

A limit that only the server knows (the largest append, the most attributes) is the server's to check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

import attrs

from ....storage_backends.base.arguments import (
    JoinedAppend,
    WriterId,
    check_data,
    check_int,
    check_joined,
    check_many,
    check_offset,
    check_size,
    checked_updates,
    event_identity,
    joined_events,
    previous_event,
    required_writer,
)
from ....storage_backends.base.checksum import Buffer
from ....storage_backends.base.errors import InvalidArgument, OutcomeUnknown, Unavailable
from ....storage_backends.base.names import check_segment_name
from ....storage_backends.base.segments import AttributeUpdate, SegmentInfo
from ..wire import documents, paths
from ..wire.batch import BATCH_TYPE, BatchItem, Outcome, decode_outcomes, encode_batch
from ..wire.documents import JSON_TYPE, ContainerMap, HostStatus
from ..wire.errors import PROBLEM_TYPE, RangeNotSatisfiable, from_problem, no_such_answer, retry_after
from ..wire.headers import SEALED, AppendHeaders, append_headers
from ..wire.paths import Verb
from ..wire.ranges import parse_content_range, range_header
from .retries import Failure, Kind, Repeat, kind_of

T = TypeVar("T")
BYTES_TYPE = "application/octet-stream"
APPEND_BYTES_MAX = 32 << 20
"""The most that a configuration can let one append have."""
WAIT_MAX = 60.0
"""Seconds that a server holds a poll back at most."""
_REDIRECTS = (301, 302, 303, 307, 308)
_FOREIGN_BUT_PASSING = (408, 425, 429)


@attrs.frozen
class Request:
    method: str
    path: str
    """With its query."""
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    """Beside Host and Content-Length."""


@attrs.frozen
class Response:
    status: int
    headers: Mapping[str, str]
    """By lower-case name."""
    body: bytes


@attrs.frozen
class TransportFailure:
    """No response, or half of one."""

    sent: bool
    """Whether the server may have the whole request."""
    reason: str


@attrs.frozen
class Call(Generic[T]):
    request: Request
    repeat: Repeat
    parse: Callable[[Response], T]
    """A success's value; ``ValueError`` if it makes no sense."""
    segment: str | None = None
    """Whose owner it goes to; None: to whom the caller chooses."""
    statuses: tuple[int, ...] = (200,)
    """Of success."""
    wait: float = 0.0
    """Seconds that the server may hold it back on purpose."""

    @property
    def changes(self) -> bool:
        return self.repeat is not Repeat.READS


def interpret(call: Call[T], answer: Response | TransportFailure) -> T | Failure:
    """What came of one attempt."""
    if isinstance(answer, TransportFailure):
        return lost(answer, changes=call.changes)

    if answer.status in call.statuses:
        try:
            return call.parse(answer)
        except ValueError as error:
            return Failure(Kind.UNKNOWN, no_such_answer(str(error), maybe_applied=call.changes))

    return failure_of(answer, changes=call.changes)


def failure_of(response: Response, *, changes: bool) -> Failure:
    """A response that is no success."""
    if response.status in _REDIRECTS:
        return Failure(
            Kind.ELSEWHERE, Unavailable(f"redirected to {response.headers.get('location', 'nowhere')!r}")
        )

    error = from_problem(response.status, response.headers, response.body, maybe_applied=changes)
    pause = retry_after(response.headers, response.body) or 0.0
    is_foreign = not response.headers.get("content-type", "").lower().startswith(PROBLEM_TYPE)
    if is_foreign and 400 <= response.status < 500 and response.status not in _FOREIGN_BUT_PASSING:
        # A wrong URL, or a proxy that does not let us through: it will say the same for ever.
        return Failure(Kind.REFUSED, error)

    return Failure(kind_of(error), error, pause)


def lost(answer: TransportFailure, *, changes: bool) -> Failure:
    if not answer.sent:
        return Failure(Kind.NOT_SENT, Unavailable(answer.reason))

    if changes:
        return Failure(Kind.UNKNOWN, OutcomeUnknown(f"{answer.reason}; the request may have been applied"))

    return Failure(Kind.UNKNOWN, Unavailable(answer.reason))


# --- appends ------------------------------------------------------------------------------------


def append_item(
    name: str,
    data: Buffer,
    writer_id: WriterId | None,
    event_number: int | None,
    previous_event_number: int | None,
    expected_offset: int | None,
) -> BatchItem:
    """The arguments of ``append``, all but the name checked, and the bytes safe from what the caller does
    with its buffer."""
    if type(data) is not bytes:
        check_data(data)
        data = bytes(data)
    expected = None if expected_offset is None else check_offset(expected_offset, "expected_offset")
    if writer_id is None and event_number is None and previous_event_number is None:
        return BatchItem(name, data, expected_offset=expected)

    writer, first = event_identity(writer_id, event_number, "event_number")
    return BatchItem(name, data, writer, first, 1, previous_event(previous_event_number, first), expected)


def append_many_item(
    name: str,
    events: Iterable[Buffer],
    writer_id: WriterId | None,
    first_event_number: int | None,
    previous_event_number: int | None,
    expected_offset: int | None,
) -> BatchItem:
    data, count = joined_events(events)
    expected = None if expected_offset is None else check_offset(expected_offset, "expected_offset")
    if writer_id is None and first_event_number is None and previous_event_number is None:
        return BatchItem(name, data, expected_offset=expected)

    writer, first = event_identity(writer_id, first_event_number, "first_event_number", count)
    return BatchItem(name, data, writer, first, count, previous_event(previous_event_number, first), expected)


def joined_item(append: JoinedAppend) -> BatchItem:
    """One append of ``append_each``, checked."""
    check_segment_name(append.name)
    check_data(append.data)
    previous, expected = check_joined(append)
    return BatchItem(
        append.name, append.data, append.writer, append.first_event, append.count, previous, expected
    )


def repeat_of(item: BatchItem) -> Repeat:
    if item.writer:
        return Repeat.NUMBERED

    return Repeat.NEVER if item.expected_offset is None else Repeat.AT_OFFSET


def append(item: BatchItem) -> Call[list[Outcome]]:
    """One append in a request of its own: raw bytes where that form can say it, else a batch of one."""
    if item.count > 1:
        return batch([item])

    numbers = AppendHeaders(
        item.writer, item.first_event if item.writer else None, item.previous_event, item.expected_offset
    )
    headers = (("Content-Type", BYTES_TYPE), *append_headers(numbers).items())
    request = Request("POST", paths.segment_path(item.name, Verb.APPEND), bytes(item.data), headers)
    return Call(request, repeat_of(item), lambda response: [documents.parse_offset(response.body)])


def batch(items: Sequence[BatchItem]) -> Call[list[Outcome]]:
    """Many appends in one request. Whether it may be sent again is decided for each of them."""
    request = Request("POST", paths.BATCH, b"".join(encode_batch(items)), (("Content-Type", BATCH_TYPE),))
    return Call(request, Repeat.NEVER, lambda response: decode_outcomes(response.body, len(items)))


# --- other changes ------------------------------------------------------------------------------


def create_segment(name: str, rolling_size: int | None) -> Call[None]:
    size = None if rolling_size is None else check_int("rolling_size", rolling_size, 1, 1 << 40)
    return post(name, Verb.CREATE, documents.create_document(size), _nothing, Repeat.CREATES, 201)


def seal_segment(name: str) -> Call[int]:
    return post(name, Verb.SEAL, b"{}", lambda response: documents.parse_length(response.body), Repeat.SEALS)


def truncate_segment(name: str, offset: int) -> Call[None]:
    return post(name, Verb.TRUNCATE, documents.truncate_document(check_offset(offset)), _nothing)


def delete_segment(name: str) -> Call[None]:
    return post(name, Verb.DELETE, b"{}", _nothing)


def merge_segments(
    target: str, sources: Sequence[str], attribute_updates: Sequence[AttributeUpdate]
) -> Call[int]:
    names = tuple(check_many("sources", sources))
    for name in names:
        check_segment_name(name)

    document = documents.merge_document(names, checked_updates(attribute_updates))
    return post(target, Verb.MERGE, document, lambda response: documents.parse_merged(response.body))


def update_attributes(name: str, updates: Sequence[AttributeUpdate]) -> Call[dict[str, int]]:
    wanted = checked_updates(updates)
    if not wanted:
        raise InvalidArgument("update_attributes takes at least one AttributeUpdate")

    return post(
        name,
        Verb.ATTRIBUTES,
        documents.attributes_document(wanted),
        lambda response: documents.parse_values(response.body),
    )


def expire_writers(name: str, writer_ids: Iterable[WriterId]) -> Call[int]:
    writers = tuple(
        required_writer(writer, "expire_writers") for writer in check_many("writer_ids", writer_ids)
    )
    if not writers:
        raise InvalidArgument("expire_writers takes at least one writer id")

    return post(
        name,
        Verb.EXPIRE_WRITERS,
        documents.expire_writers_document(writers),
        lambda response: documents.parse_known(response.body),
    )


def flush() -> Call[None]:
    """Of one host. What it does could be done at any time: a repeat is harmless."""
    return Call(Request("POST", paths.FLUSH, b"{}", _JSON), Repeat.READS, _nothing)


# --- reading ------------------------------------------------------------------------------------


def read(name: str, offset: int, size: int) -> Call[bytes]:
    check_segment_name(name)
    check_offset(offset)
    check_size(size)

    def parse(response: Response) -> bytes:
        if response.status == 416:
            return _nothing_there(response)

        extent = parse_content_range(response.headers.get("content-range", ""))
        if extent is None or extent.start != offset or not extent.size == len(response.body) <= size:
            raise ValueError(f"{len(response.body)} bytes for {size} at {offset}")

        return response.body

    headers = (("Range", range_header(offset, size)),)
    return Call(
        Request("GET", paths.segment_path(name, Verb.BYTES), b"", headers),
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
    """What a long poll of a tail gave."""

    block: bytes
    """What comes next, as much as the server sends at once; empty if nothing came in time."""
    sealed: bool
    """There is nothing and never will be."""


def poll(name: str, offset: int, wait: float) -> Call[PollResult]:
    check_segment_name(name)
    check_offset(offset)
    if not 0 <= wait <= WAIT_MAX:
        raise InvalidArgument(f"a poll waits from 0 to {WAIT_MAX:g} seconds, not {wait!r}")

    def parse(response: Response) -> PollResult:
        if response.status == 200 and not response.body:
            raise ValueError("an empty block")

        return PollResult(
            response.body, response.status == 204 and response.headers.get(SEALED.lower()) == "true"
        )

    return Call(
        Request("GET", paths.tail_path(name, offset, wait=wait)),
        Repeat.READS,
        parse,
        name,
        statuses=(200, 204),
        wait=wait,
    )


def segment_info(name: str) -> Call[SegmentInfo]:
    return _get(name, Verb.INFO, lambda response: documents.parse_info(response.body))


def last_event_number(name: str, writer_id: WriterId) -> Call[int | None]:
    check_segment_name(name)
    path = paths.last_event_number_path(name, required_writer(writer_id, "last_event_number"))
    return Call(
        Request("GET", path), Repeat.READS, lambda response: documents.parse_event_number(response.body), name
    )


def append_starts(name: str, start: int, end: int) -> Call[list[int]]:
    check_segment_name(name)
    path = paths.append_starts_path(name, check_offset(start, "start"), check_offset(end, "end"))
    return Call(
        Request("GET", path),
        Repeat.READS,
        lambda response: documents.parse_append_starts(response.body),
        name,
    )


def list_segments(prefix: str) -> Call[list[str]]:
    """Of one host."""
    return Call(
        listing(paths.list_path, prefix), Repeat.READS, lambda response: documents.parse_names(response.body)
    )


def listing(path_of: Callable[[str], str], prefix: str) -> Request:
    """The request for what begins with ``prefix``."""
    if not isinstance(prefix, str):
        raise InvalidArgument(f"prefix is a str, not {type(prefix).__name__}")

    try:
        return Request("GET", path_of(prefix))
    except UnicodeEncodeError:
        # No name has a lone surrogate; one that is in no name either finds the same.
        return Request("GET", path_of("\0"))


def containers() -> Call[ContainerMap]:
    return Call(
        Request("GET", paths.CONTAINERS), Repeat.READS, lambda response: documents.parse_map(response.body)
    )


def ready() -> Call[HostStatus]:
    return Call(
        Request("GET", paths.READY),
        Repeat.READS,
        lambda response: documents.parse_status(response.body),
        statuses=(200, 503),
    )


# --- inside -------------------------------------------------------------------------------------

_JSON = (("Content-Type", JSON_TYPE),)


def post(
    name: str,
    verb: Verb,
    body: bytes,
    parse: Callable[[Response], T],
    repeat: Repeat = Repeat.NEVER,
    status: int = 200,
) -> Call[T]:
    check_segment_name(name)
    return Call(
        Request("POST", paths.segment_path(name, verb), body, _JSON), repeat, parse, name, statuses=(status,)
    )


def _get(name: str, verb: Verb, parse: Callable[[Response], T]) -> Call[T]:
    check_segment_name(name)
    return Call(Request("GET", paths.segment_path(name, verb)), Repeat.READS, parse, name)


def _nothing(response: Response) -> None:
    documents.load_answer(response.body)
