"""Following a segment's tail: a long poll, and a stream (rule H11).

A long poll answers 200 with one block, or 204 when there is none: then ``Tierlog-Sealed`` tells whether there
will ever be one. A stream sends blocks until the segment is sealed and read through, or the server stops:
both end it cleanly, and one long poll at the next offset shows which. Anything else breaks it. A parked
reader holds no bytes; a slow one holds one block, and waits for the room of it. Streams at the end of a
segment wait for it together (``fan_out.py``): in a session without a task (``waiting_tails.py``), over HTTP
in two small ones."""

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
from .fan_out import FanOut, FollowingTask
from .read_handlers import HISTORY_PARAMETER, check_same
from .waiting_tails import WaitingTail

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
    # An error here still gets an answer of its own.
    is_at_end = not await call.server.store.read(call.name, offset, 1, history=history)
    call.server.check_tails()
    head = {names.OFFSET: str(offset), **_head(info)}
    await call.begin(200, {"Content-Type": BYTES_TYPE, "Cache-Control": "no-store", **head})
    await _follow(call, offset, info.segment_id, is_at_end=is_at_end, may_begin=is_at_end)


async def _follow(
    call: Call, position: int, segment_id: int, *, is_at_end: bool, may_begin: bool
) -> WaitingTail | None:
    """Send the rest of a stream. Returns the tail if it waits without this task from here on.
    ``is_at_end``: there is probably nothing yet. ``may_begin``: others may follow the segment with it."""
    while True:
        waiting = _wait_apart(call, position, segment_id, may_begin=may_begin)
        if waiting is not None:
            return waiting

        is_over = True  # also if the server stops
        async with call.while_connected() as scope:
            if not call.server.draining:
                with call.server.parked(scope, has_begun=True):
                    position = await _wait_together(call, position, segment_id, may_begin=may_begin)
                    position, is_over = await _read_on(call, position, segment_id, is_at_end=is_at_end)
        if is_over:
            await call.block(b"", more=False)
            return None

        is_at_end = may_begin = True


def _wait_apart(call: Call, position: int, segment_id: int, *, may_begin: bool) -> WaitingTail | None:
    """Have the stream wait with others and without this task, if its connection can send without one."""
    if "tierlog.park" not in call.scope or call.scope["method"] == "HEAD" or call.server.draining:
        return None

    fan_out = _fan_out(call, position, segment_id, may_begin=may_begin)
    if fan_out is None:
        return None

    waiting = call.scope.get("tierlog.waiting") or WaitingTail(call, _read_on_alone)
    return waiting if waiting.wait(call, fan_out, position) else None


async def _read_on_alone(call: Call, position: int, segment_id: int) -> WaitingTail | None:
    """The rest of a stream that has left the others: what ended them it meets itself."""
    return await _follow(call, position, segment_id, is_at_end=True, may_begin=False)


def _fan_out(call: Call, position: int, segment_id: int, *, may_begin: bool) -> FanOut | None:
    fan_outs = call.server.fan_outs
    if may_begin:
        fan_outs.begin(call.name, segment_id, position)
    return fan_outs.near(call.name, segment_id, position)


async def _wait_together(call: Call, position: int, segment_id: int, *, may_begin: bool) -> int:
    """Follow the segment with others, where that is possible. Returns the next position."""
    write = None if "tierlog.park" in call.scope else call.writer()
    fan_out = write and _fan_out(call, position, segment_id, may_begin=may_begin)
    return await FollowingTask(position, write).follow(fan_out) if write and fan_out else position


async def _read_on(call: Call, position: int, segment_id: int, *, is_at_end: bool) -> tuple[int, bool]:
    """Send blocks up to where others follow the segment, or to its end. Returns the next position, and
    whether there will never be more."""
    is_checked, size = False, call.server.limits.block_bytes
    if is_at_end:
        # It would wait in another segment of the name for as long as that is shorter.
        await check_same(call, segment_id)
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
            if call.server.fan_outs.near(call.name, segment_id, position):
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
