"""Following a segment's tail: a long poll, and a stream (rule H11).

A long poll answers 200 with one block, or 204 when there is none: then ``Tierlog-Sealed`` tells whether there
will ever be one. A stream sends blocks until the segment is sealed and read through, or the server stops:
both end it cleanly, and one long poll at the next offset shows which. Anything else breaks it. A parked
reader is two small tasks and holds no bytes; a slow one holds one block, and waits for the room of it.
Streams at the end of a segment wait for it together (``fan_out.py``)."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated

import anyio
import attrs

from ....storage_backends.base.errors import DataCorruption, HistoryLost, SegmentTruncated
from ....storage_backends.base.segments import SegmentInfo
from ..wire import headers as names
from ..wire.bodies import Offset, described
from ..wire.paths import Verb, query_flag, query_history, query_number, query_seconds
from .call import BYTES_TYPE, RAW, SMALL_BYTES, Answer, Call
from .endpoint import Parameter, Success, verb
from .fan_out import Stream
from .read_handlers import HISTORY_PARAMETER, check_same

Wait = Annotated[str, described(r"^([0-5]?[0-9](\.[0-9]{1,3})?|60(\.0{1,3})?)$")]
"""Seconds, from 0 to 60. A pattern, because ``multipleOf`` does not restrict how a number is written (rule
H4)."""
_HEADERS = {
    names.SEGMENT_ID: "Distinguishes the segment from a later one of the same name.",
    names.HISTORY: "The history that the next offset is of.",
}


@verb(
    Verb.TAIL,
    SegmentTruncated,
    DataCorruption,
    HistoryLost,
    is_tail=True,
    parameters=(
        Parameter("offset", Offset, "The offset to begin at; 0 by default."),
        Parameter("wait", Wait, "Seconds that a long poll waits; 30 by default."),
        Parameter("stream", bool, "Send all blocks in one answer, as they arrive."),
        HISTORY_PARAMETER,
    ),
    successes=(
        Success(
            200,
            "The next block, or a stream of them.",
            BYTES_TYPE,
            RAW,
            {names.OFFSET: "Of the first byte.", **_HEADERS},
        ),
        Success(
            204,
            "No bytes in time, or the segment is sealed and read to its end.",
            headers={names.SEALED: "true if the segment is sealed.", **_HEADERS},
        ),
    ),
)
async def tail(call: Call) -> Answer | None:
    """Bytes from an offset on, waiting for those that do not exist yet."""
    limits = call.server.limits
    query = call.query()
    offset = query_number(query, "offset", 0)
    wait = query_seconds(query, "wait", limits.wait_default, limits.wait_max)
    history = query_history(query)
    info = await call.server.store.segment_info(call.name)
    if query_flag(query, "stream"):
        await _stream(call, offset, history, info)
        return None

    answer = await _poll(call, offset, history, wait)
    await check_same(call, info.segment_id)
    return attrs.evolve(answer, headers={**answer.headers, **_head(info)})


def _head(info: SegmentInfo) -> dict[str, str]:
    return {names.SEGMENT_ID: str(info.segment_id), names.HISTORY: str(info.history)}


async def _poll(call: Call, offset: int, history: int | None, wait: float) -> Answer:
    # Not parked: bytes that are there need no slot among the tails.
    await call.take_room()
    # R10: the first read checks the offset. What the tail reads from there on is of the present history.
    block = await call.server.store.read(call.name, offset, call.server.limits.block_bytes, history=history)
    if block:
        return _block(block, offset)

    call.release_room()
    sealed = False
    async with call.while_connected() as scope:
        with call.server.parked(scope), anyio.move_on_after(wait):
            async with aclosing(_blocks(call, offset, SMALL_BYTES)) as blocks:
                block = await anext(blocks, b"")
                sealed = not block

    if block:
        return _block(block, offset)

    if not sealed:
        call.server.check_serving()
    return Answer(204, headers={names.SEALED: "true" if sealed else "false"})


async def _stream(call: Call, offset: int, history: int | None, info: SegmentInfo) -> None:
    segment_id = info.segment_id
    # An error here still gets an answer of its own.
    position, is_at_end = offset, not await call.server.store.read(call.name, offset, 1, history=history)
    async with call.while_connected() as scope:
        with call.server.parked(scope):
            head = {names.OFFSET: str(offset), **_head(info)}
            await call.begin(200, {"Content-Type": BYTES_TYPE, "Cache-Control": "no-store", **head})
            is_over = False
            while not is_over:
                position = await _wait_together(call, position, segment_id, is_at_end=is_at_end)
                position, is_over = await _read_on(call, position, segment_id, is_at_end=is_at_end)
                is_at_end = not is_over

    await call.block(b"", more=False)


async def _wait_together(call: Call, position: int, segment_id: int, *, is_at_end: bool) -> int:
    """Follow the segment with others, where that is possible. Returns the next position."""
    write, fan_outs = call.writer(), call.server.fan_outs
    if write is None:
        return position

    if is_at_end:
        fan_outs.begin(call.name, segment_id, position, lambda: check_same(call, segment_id))
    if not fan_outs.has_near(call.name, segment_id, position):
        return position

    stream = Stream(position, write)
    await fan_outs.follow(call.name, segment_id, stream)
    return stream.position


async def _read_on(call: Call, position: int, segment_id: int, *, is_at_end: bool) -> tuple[int, bool]:
    """Send blocks up to where others follow the segment, or to its end. Returns the next position, and
    whether there will never be more."""
    is_checked, size = False, call.server.limits.block_bytes
    if is_at_end:
        # Without room, which others would wait for as long as nothing is appended.
        async with aclosing(_blocks(call, position, 1)) as blocks:
            if not await anext(blocks, b""):
                return position, True
    async with aclosing(_blocks(call, position, size)) as blocks:
        await call.take_room()
        while block := await anext(blocks, b""):
            if not is_checked:  # The tail has found its segment by now, which it keeps to.
                await check_same(call, segment_id)
                is_checked = True
            await call.block(block, more=True)
            position, is_full = position + len(block), len(block) == size
            del block  # H12: it would stay in memory, uncounted, while this waits for room
            if call.server.fan_outs.has_near(call.name, segment_id, position):
                return position, False
            if await _is_end(call, position, is_full=is_full):
                return position, False
            await call.take_room()
    call.release_room()
    return position, True


async def _is_end(call: Call, position: int, *, is_full: bool) -> bool:
    """Whether a stream would wait there for bytes: it must not do so with room that others need."""
    if is_full:
        # Many may follow. A read of one byte would end the read-ahead of this stream.
        return position >= (await call.server.store.segment_info(call.name)).length

    return not await call.server.store.read(call.name, position, 1)


def _blocks(call: Call, offset: int, size: int) -> AsyncGenerator[bytes, None]:
    return call.server.store.tail(call.name, offset, block_size=size)


def _block(block: bytes, offset: int) -> Answer:
    return Answer(200, block, BYTES_TYPE, {names.OFFSET: str(offset), "Cache-Control": "no-store"})
