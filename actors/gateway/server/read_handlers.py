"""The verbs that read: bytes in ranges, and what a segment is.

A stream reads one block, sends it, and reads the next when the client took it: a slow reader costs about two
blocks, and the windows of long-term storage that they are views of (rule H10). Its end is the tail at the
time of the request. If the name comes to mean another segment meanwhile (deleted and created again), the
connection breaks before the last block. A client that disconnects ends its stream at the next block."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta
from msgspec.structs import replace

from ....storage_backends.base.arguments import OFFSET_MAX
from ....storage_backends.base.checksum import Buffer
from ....storage_backends.base.errors import (
    DataCorruption,
    HistoryLost,
    NotOwner,
    SegmentNotFound,
    SegmentTruncated,
    Throttled,
    WrongSegmentKind,
)
from ....storage_backends.base.list_pages import SEGMENTS
from ....storage_backends.base.segment_layout import SegmentLayout
from ....storage_backends.base.segments import (
    ATTRIBUTE_PAGE,
    ATTRIBUTE_PAGE_MAX,
    SEGMENTS_PAGE_MAX,
    AttributeName,
    SegmentInfo,
)
from ..wire import headers as names
from ..wire import paths
from ..wire.bodies import (
    AppendStarts,
    AttributeValues,
    EventNumber,
    ListedAttributes,
    Offset,
    SegmentNames,
    attribute_id,
    described,
)
from ..wire.errors import RangeNotSatisfiable
from ..wire.headers import WRITER_ID_BYTES_MAX
from ..wire.paths import Verb, query_flag, query_history, query_number, query_page, query_text, query_writer
from ..wire.ranges import Extent, parse_range, resolve_range
from .call import BYTES_TYPE, RAW, SMALL_BYTES, Answer, Call
from .endpoint import Parameter, Success, endpoint, page_parameters, verb

_PAGE = Annotated[int, Meta(ge=1, le=ATTRIBUTE_PAGE_MAX)]
_RANGE = Annotated[str, described(r"^bytes=([0-9]{1,18}-([0-9]{1,18})?|-[0-9]{1,18})$")]
_WRITER_IN_QUERY = Annotated[str, described(f"^[!-~]{{1,{WRITER_ID_BYTES_MAX}}}$")]
"""Without the ``%XX``, which are the query's own way to write bytes."""
SEGMENTS_PARAMETERS = page_parameters("A prefix of the names.", "names", SEGMENTS_PAGE_MAX)
HISTORY_PARAMETER = Parameter("history", Offset, "The history that the offset is of.")
_HEADERS = {
    names.OFFSET: "The offset of the first byte of the answer.",
    names.LENGTH: "The segment's length.",
    names.START_OFFSET: "The first offset that can be read.",
    names.SEALED: "true if the length is final.",
}


@verb(
    Verb.BYTES,
    SegmentTruncated,
    RangeNotSatisfiable,
    DataCorruption,
    HistoryLost,
    parameters=(
        Parameter("Range", _RANGE, "bytes=a-b, bytes=a- or bytes=-n.", "header"),
        HISTORY_PARAMETER,
    ),
    successes=(
        Success(200, "All bytes that can be read.", BYTES_TYPE, RAW, _HEADERS),
        Success(
            206,
            "The range.",
            BYTES_TYPE,
            RAW,
            {**_HEADERS, "Content-Range": "The range of the answer, and the length."},
        ),
    ),
)
async def read_bytes(call: Call) -> Answer | None:
    """The bytes of the segment, all or a range."""
    text, history = call.header("Range"), query_history(call.query())
    wanted = None if text is None else parse_range(text)
    info = await call.server.store.segment_info(call.name)
    if info.is_table:  # M14: it has no byte that a read could be refused for
        raise WrongSegmentKind.of(call.name, is_table=True)

    first = None if wanted is None else wanted.first
    if first is not None and (history is not None or first > info.length):
        # R10: before an answer that there is nothing yet.
        await call.server.store.read_view(call.name, first, 1, history=history)
    extent = resolve_range(wanted, call.name, info.start_offset, info.length, sealed=info.sealed)
    head = _head(info, extent)
    if wanted is not None:
        head["Content-Range"] = extent.content_range(info.length)
    status = 200 if wanted is None else 206
    if extent.size > call.server.limits.block_bytes:
        await _stream(call, info, extent, status, head)
        return None

    if extent.size > SMALL_BYTES:
        await call.take_room()
    data = await _read_all(call, info, extent)
    return Answer(status, data, BYTES_TYPE, head)


def _head(info: SegmentInfo, extent: Extent) -> dict[str, str]:
    return {
        names.OFFSET: str(extent.start),
        names.LENGTH: str(info.length),
        names.START_OFFSET: str(info.start_offset),
        names.SEALED: "true" if info.sealed else "false",
        "Accept-Ranges": "bytes",
        # A cache would go on answering for a segment that was deleted and created again.
        "Cache-Control": "no-store",
    }


async def _read_all(call: Call, info: SegmentInfo, extent: Extent) -> Buffer:
    """An extent of one block at most; its bytes may come in several pieces."""
    pieces: list[Buffer] = []
    position = extent.start
    while position < extent.end:
        pieces.append(await _piece(call, position, extent.end - position))
        position += len(pieces[-1])

    # H10: the name may have passed to another segment between two pieces.
    await check_same(call, info.segment_id)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


async def _stream(call: Call, info: SegmentInfo, extent: Extent, status: int, head: dict[str, str]) -> None:
    # The first block before the head: what fails now still gets an answer of its own.
    size = call.server.limits.block_bytes
    await call.take_room()
    block = await _piece(call, extent.start, size)
    position = extent.start
    await call.begin(status, {"Content-Type": BYTES_TYPE, "Content-Length": str(extent.size), **head})
    while position + len(block) < extent.end:
        await call.block(block, more=True)
        position += len(block)
        del block  # H12: it would stay in memory, uncounted, while this waits for room
        await call.take_room()
        block = await _piece(call, position, min(size, extent.end - position))

    await check_same(call, info.segment_id)
    await call.block(block, more=False)


async def _piece(call: Call, position: int, size: int) -> Buffer:
    data = await call.server.store.read_view(call.name, position, size)
    if not data:
        raise SegmentNotFound.replaced(call.name)

    return call.to_keep(data)


async def check_same(call: Call, segment_id: int) -> None:
    """Raise ``SegmentNotFound`` if another segment has the name now."""
    if (await call.server.store.segment_info(call.name)).segment_id != segment_id:
        raise SegmentNotFound.replaced(call.name)


@verb(Verb.INFO, help="The answer.")
async def info(call: Call) -> SegmentInfo:
    """Length, start, seal, attributes and more, at one moment."""
    return await call.server.store.segment_info(call.name)


@verb(
    Verb.LIST_ATTRIBUTES,
    help="The answer.",
    parameters=(
        Parameter("prefix", str, "A prefix of the names, or of the ids in hex."),
        Parameter("after", str, "The `after` of the page before; the first page without it."),
        Parameter("limit", _PAGE, f"Attributes of the page; {ATTRIBUTE_PAGE} by default."),
        Parameter("ids", bool, "true: attributes that have ids; false, the default: those with names."),
    ),
)
async def list_attributes(call: Call) -> ListedAttributes:
    """A page of the segment's attributes, in order, at one moment."""
    values = call.query()
    prefix, after = query_text(values.get("prefix", "")), query_text(values.get("after", ""))
    start: AttributeName | None = after or None
    first: AttributeName = prefix
    if query_flag(values, "ids"):
        first, start = attribute_id(prefix, is_prefix=True), attribute_id(after) if after else None
    page = await call.server.store.list_attributes(
        call.name, first, after=start, limit=query_number(values, "limit", ATTRIBUTE_PAGE)
    )
    shown = AttributeValues.of(page.attributes)
    following = page.after.hex() if isinstance(page.after, bytes) else page.after
    return ListedAttributes(shown.attributes, shown.ids, following)


@verb(
    Verb.LAST_EVENT_NUMBER,
    help="The answer.",
    parameters=(Parameter("writer_id", _WRITER_IN_QUERY, "The writer.", required=True),),
)
async def last_event_number(call: Call) -> EventNumber:
    """The number of a writer's latest event in the segment: where the writer continues."""
    writer = query_writer(call.query())
    return EventNumber(await call.server.store.last_event_number(call.name, writer))


_OFFSETS = (
    Parameter("start", Offset, "The first offset to consider; 0 by default."),
    Parameter("end", Offset, "The offset to stop before; the segment's length by default."),
)


@verb(Verb.APPEND_STARTS, help="The answer.", parameters=_OFFSETS)
async def append_starts(call: Call) -> AppendStarts:
    """Offsets at which appends begin, about one for each MiB, at most 4,096: where the segment can be divided
    among readers."""
    return AppendStarts(await call.server.store.append_starts(call.name, *_offsets(call)))


@verb(Verb.LAYOUT, DataCorruption, help="The answer.", parameters=_OFFSETS)
async def layout(call: Call) -> SegmentLayout:
    """Which chunks of long-term storage have the flushed bytes of the range, with the checksum of each MiB:
    at most 1,000 chunks, and `next_start` if there are more."""
    found = await call.server.store.segment_layout(call.name, *_offsets(call))
    try:
        found.place.location.encode()
    except UnicodeEncodeError:
        # A folder's name may be any bytes, and JSON has text. Its readers use the service.
        return replace(found, place=replace(found.place, location=""))

    return found


def _offsets(call: Call) -> tuple[int, int]:
    values = call.query()
    return query_number(values, "start", 0), query_number(values, "end", OFFSET_MAX)


@endpoint(
    "GET",
    paths.SEGMENTS,
    "list",
    NotOwner,
    Throttled,
    help="The answer.",
    parameters=SEGMENTS_PARAMETERS,
)
async def page_of_segments(call: Call) -> SegmentNames:
    """A page of the names of segments, sorted, of the containers that this server has. With the `token` of a
    page the next one."""
    asked = query_page(SEGMENTS, call.query())
    page = await call.server.store.page_of_segments(asked.prefix, token=asked.token, limit=asked.limit)
    return SegmentNames(page.names, page.token)
