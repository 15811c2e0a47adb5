"""The verbs that read: bytes in ranges, and what a segment is.

Owns: how a range becomes a stream of blocks. Does not own: the meaning of ranges (``wire/ranges.py``) nor the
bytes (the store).

A stream reads one block, sends it, and reads the next when the client took it: a slow reader costs about two
blocks, and the windows that they are views of (rule H10). Its end is the tail at the time of the request. The
segment it began with is the one it ends with: if the name means another segment meanwhile (deleted and
created again), the connection breaks before the last block. A client that goes away ends its stream at once.
"""

from __future__ import annotations

from ....storage_backends.base.arguments import OFFSET_MAX
from ....storage_backends.base.checksum import Buffer
from ....storage_backends.base.errors import SegmentNotFound
from ....storage_backends.base.segments import SegmentInfo
from ..wire import headers as names
from ..wire.documents import info_document
from ..wire.paths import query_number, query_text, query_writer
from ..wire.ranges import Extent, parse_range, resolve_range
from .call import BYTES_TYPE, Answer, Call, document


async def read_bytes(call: Call) -> Answer | None:
    call.query()
    text = call.header("Range")
    wanted = None if text is None else parse_range(text)
    info = await call.server.store.segment_info(call.name)
    extent = resolve_range(wanted, call.name, info.start_offset, info.length, sealed=info.sealed)
    head = _head(info, extent)
    if wanted is not None:
        head["Content-Range"] = extent.content_range(info.length)
    status = 200 if wanted is None else 206
    if extent.size > call.server.limits.block_bytes:
        await _stream(call, info, extent, status, head)
        return None

    data = await _read_all(call, info, extent)
    return Answer(status, data, BYTES_TYPE, head)


def _head(info: SegmentInfo, extent: Extent) -> dict[str, str]:
    return {
        names.OFFSET: str(extent.start),
        names.LENGTH: str(info.length),
        names.START_OFFSET: str(info.start_offset),
        names.SEALED: "true" if info.sealed else "false",
        "Accept-Ranges": "bytes",
        "Cache-Control": "no-store",
    }


async def _read_all(call: Call, info: SegmentInfo, extent: Extent) -> Buffer:
    """An extent of one block at most; its bytes may come in several pieces."""
    pieces: list[Buffer] = []
    position = extent.start
    while position < extent.end:
        pieces.append(await _piece(call, position, extent.end - position))
        position += len(pieces[-1])

    await _check_same(call, info)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


async def _stream(call: Call, info: SegmentInfo, extent: Extent, status: int, head: dict[str, str]) -> None:
    # The first block before the head: what fails now still gets an answer of its own.
    size = call.server.limits.block_bytes
    block = await _piece(call, extent.start, size)
    position = extent.start
    async with call.while_connected():
        await call.begin(status, {"Content-Type": BYTES_TYPE, "Content-Length": str(extent.size), **head})
        while position + len(block) < extent.end:
            await call.block(block, more=True)
            position += len(block)
            block = await _piece(call, position, min(size, extent.end - position))

        await _check_same(call, info)
        await call.block(block, more=False)


async def _piece(call: Call, position: int, size: int) -> Buffer:
    data = await call.server.store.read_view(call.name, position, size)
    if not data:
        raise SegmentNotFound(f"{call.name!r} became another segment while it was read", segment=call.name)

    return data


async def _check_same(call: Call, info: SegmentInfo) -> None:
    if (await call.server.store.segment_info(call.name)).segment_id != info.segment_id:
        raise SegmentNotFound(f"{call.name!r} became another segment while it was read", segment=call.name)


async def info(call: Call) -> Answer:
    call.query()
    return document(info_document(await call.server.store.segment_info(call.name)))


async def last_event_number(call: Call) -> Answer:
    writer = query_writer(call.query(writer_id="the writer"))
    return document({"event_number": await call.server.store.last_event_number(call.name, writer)})


async def append_starts(call: Call) -> Answer:
    values = call.query(start="where to begin", end="where to stop")
    start, end = query_number(values, "start", 0), query_number(values, "end", OFFSET_MAX)
    return document({"append_starts": await call.server.store.append_starts(call.name, start, end)})


async def list_segments(call: Call) -> Answer:
    """Of the containers that are served here."""
    prefix = query_text(call.query(prefix="what the names begin with").get("prefix", ""))
    return document({"segments": await call.server.store.list_segments(prefix)})
