"""A writer without Spark: a process that appends its segments with the client, exactly once.

Owns: numbered appends, and sending the last ones again. Does not own: who kills what meanwhile.
``jobs.ClientJob`` starts it.

All segments at the same time, each in order. An append travels again by itself when its host is killed: it
has a number.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import anyio

import tierlog
from chaos_parts.gate import Passer
from quickstart_parts.orders import Answer, Assignment, Order, carry_out
from quickstart_parts.shares import PIECE_BYTES_MAX, QuickstartError
from tierlog.actors.settings.units import MiB
from tierlog.spark_bridge import events

WRITER = "quickstart"
REPEATED = 100
"""Events of each segment that are sent again at the end, at most."""
DEADLINE = 60.0


async def write(order: Order) -> Answer:
    repeated: list[int] = []

    async def write_one(segment: Assignment) -> None:
        repeated.append(await write_segment(store, segment, order.port))

    async with tierlog.connect(order.url, deadline=DEADLINE) as store, anyio.create_task_group() as tasks:
        for segment in order.segments:
            tasks.start_soon(write_one, segment)

    return {"repeated": sum(repeated)}


async def write_segment(store: tierlog.Client, segment: Assignment, port: int) -> int:
    """Append the pieces, small ones together; returns how many events were sent twice."""
    number = segment.pieces[0].first_event
    frames: list[bytes] = []
    with Passer(port) as passer:
        for piece in segment.pieces:
            await anyio.to_thread.run_sync(passer.cross, piece.share, piece.index)
            frames += [events.encode([event]) for event in piece.load()]
            if piece is segment.pieces[-1] or sum(map(len, frames)) >= PIECE_BYTES_MAX:
                await append(store, segment.name, frames, number)
                number += len(frames)
                frames = frames[-REPEATED:] if piece is segment.pieces[-1] else []

    return await repeat_last(store, segment.name, frames, number)


async def append(store: tierlog.Client, name: str, frames: list[bytes], first: int) -> None:
    for batch in batches(frames, MiB):
        await store.append_many(name, batch, writer_id=WRITER, first_event_number=first)
        first += len(batch)


async def repeat_last(store: tierlog.Client, name: str, frames: list[bytes], end: int) -> int:
    """Send the last events, which end before number ``end``, again, as a client does that never saw the
    answer. It must change nothing."""
    before = (await store.segment_info(name)).length
    await append(store, name, frames, end - len(frames))
    after = (await store.segment_info(name)).length
    if after != before:
        raise QuickstartError(
            f"segment {name}: {len(frames)} events that were sent again made it longer, from {before} to "
            f"{after} bytes"
        )

    return len(frames)


def batches(frames: list[bytes], bytes_max: int) -> Iterator[list[bytes]]:
    """In order: at least one, and no more than ``bytes_max`` bytes if they are several."""
    batch: list[bytes] = []
    size = 0
    for frame in frames:
        if batch and size + len(frame) > bytes_max:
            yield batch
            batch, size = [], 0
        batch.append(frame)
        size += len(frame)
    if batch:
        yield batch


def handle(order: Order) -> Answer:
    answer: Answer = anyio.run(partial(write, order), backend_options={"use_uvloop": True})
    return answer


if __name__ == "__main__":
    carry_out(handle, (QuickstartError, tierlog.TierlogError, OSError))
