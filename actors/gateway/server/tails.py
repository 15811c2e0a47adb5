"""Following a segment's tail: a long poll, and a stream (rule H11).

Owns: how a reader waits for bytes that do not exist yet, and how such a wait ends: with bytes, with the seal,
with its time, with its client, or with the server. Does not own: the waiting itself (the container wakes its
readers).

A long poll answers 200 with one block, or 204 when there is none: then ``Tierlog-Sealed`` says whether there
will ever be one. A stream sends blocks until the segment is sealed and read through, or the server stops:
both end it cleanly, and one long poll at the next offset tells which. Anything else breaks it. A parked
reader is two small tasks; a slow one holds one block.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import anyio

from ..wire import headers as names
from ..wire.paths import query_flag, query_number, query_seconds
from .call import BYTES_TYPE, Answer, Call


async def tail(call: Call) -> Answer | None:
    limits = call.server.limits
    query = call.query(offset="where to begin", wait="seconds", stream="true for a stream")
    offset = query_number(query, "offset", 0)
    wait = query_seconds(query, "wait", limits.wait_default, limits.wait_max)
    if query_flag(query, "stream"):
        await _stream(call, offset)
        return None

    return await _poll(call, offset, wait)


async def _poll(call: Call, offset: int, wait: float) -> Answer:
    block = await call.server.store.read(call.name, offset, call.server.limits.block_bytes)
    if block:
        return _block(block, offset)

    sealed = False
    async with call.while_connected() as scope:
        with call.server.parked(scope), anyio.move_on_after(wait):
            async with aclosing(_blocks(call, offset)) as blocks:
                block = await anext(blocks, b"")
                sealed = not block

    if block:
        return _block(block, offset)

    if not sealed:
        call.server.check_serving()
    return Answer(204, headers={names.SEALED: "true" if sealed else "false"})


async def _stream(call: Call, offset: int) -> None:
    await call.server.store.read(
        call.name, offset, 1
    )  # what is wrong from the start gets an answer of its own
    async with call.while_connected() as scope:
        with call.server.parked(scope):
            await call.begin(
                200, {"Content-Type": BYTES_TYPE, "Cache-Control": "no-store", names.OFFSET: str(offset)}
            )
            async with aclosing(_blocks(call, offset)) as blocks:
                async for block in blocks:
                    await call.block(block, more=True)

    await call.block(b"", more=False)


def _blocks(call: Call, offset: int) -> AsyncGenerator[bytes, None]:
    return call.server.store.tail(call.name, offset, block_size=call.server.limits.block_bytes)


def _block(block: bytes, offset: int) -> Answer:
    return Answer(200, block, BYTES_TYPE, {names.OFFSET: str(offset), "Cache-Control": "no-store"})
