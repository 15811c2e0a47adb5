"""A program that appends numbered events to a store and prints every ack: the victim of process tests.

Usage: ``python event_writer.py <folder> <seed> <name> [<appends>]``. It says one line for each thing that is
certain:

* ``open`` once the store answers, ``flushed``, ``end``;
* ``<segment> <first> <last> <offset>`` for an acked append of the events first to last (offset -1: a
  duplicate whose place is forgotten);
* ``doubt`` for a call of unknown outcome; ``fenced`` when another owner took over: then it ends.

A line without its line end does not count. An event is ``<name> <number> <padding>`` and a line end, so a
segment explains itself. The writer goes on after the last number that the store knows, so it can be started
again after anything.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from random import Random

import anyio

import tierlog
from tierlog.actors.settings.configuration import (
    CheckpointConfig,
    GcConfig,
    SupervisionConfig,
    WalConfig,
    WriterConfig,
)

SEGMENTS = ("app/one", "app/two", "app/three")
CONFIG = tierlog.StoreConfig(
    containers=2,
    wal=WalConfig(file_size=64 << 10, reserve=64 << 10, low_water=0),
    checkpoint=CheckpointConfig(wal_bytes=1 << 20),
    writer=WriterConfig(flush_bytes=32 << 10, rolling_size=64 << 10),
    gc=GcConfig(delay=0.0),
    supervision=SupervisionConfig(backoff=0.001, backoff_max=0.01),
)


def event(name: str, number: int) -> bytes:
    return f"{name} {number} ".encode() + b"x" * (number * 37 % 400) + b"\n"


def say(*words: object) -> None:
    print(*words, flush=True)


async def write(store: tierlog.SegmentStore, segment: str, name: str, random: Random, events: int) -> None:
    with suppress(tierlog.SegmentExists):
        await store.create_segment(segment)
    number = await next_number(store, segment, name)
    for _ in range(events):
        try:
            number = await append(store, segment, name, number, random.choice((1, 1, 1, 5, 40)))
        except tierlog.OutcomeUnknown:
            say("doubt")
            number = await next_number(store, segment, name)


async def next_number(store: tierlog.SegmentStore, segment: str, name: str) -> int:
    known = await store.last_event_number(segment, name)
    return 1 if known is None else known + 1


async def append(store: tierlog.SegmentStore, segment: str, name: str, number: int, count: int) -> int:
    """Append ``count`` events; returns the number of the next one."""
    if count == 1:
        offset = await store.append(segment, event(name, number), writer_id=name, event_number=number)
    else:
        batch = [event(name, number + index) for index in range(count)]
        offset = await store.append_many(segment, batch, writer_id=name, first_event_number=number)
    say(segment, number, number + count - 1, -1 if offset is None else offset)
    return number + count


async def flush(store: tierlog.SegmentStore, random: Random) -> None:
    while True:
        await anyio.sleep(random.random() * 0.05)
        try:
            await store.flush()
        except tierlog.OutcomeUnknown:
            say("doubt")
        else:
            say("flushed")


async def main(folder: str, seed: int, name: str, events: int) -> None:
    random = Random(seed)
    try:
        async with tierlog.open_store(folder, config=CONFIG) as store:
            say("open")
            async with anyio.create_task_group() as helpers:
                helpers.start_soon(flush, store, random)
                async with anyio.create_task_group() as writers:
                    for segment in SEGMENTS:
                        writers.start_soon(write, store, segment, name, random, events)
                helpers.cancel_scope.cancel()
            say("end")
    except* tierlog.NotOwner:
        say("fenced")


if __name__ == "__main__":
    numbers = [int(word) for word in (sys.argv[2], *sys.argv[4:5])]
    backend = "trio" if numbers[0] % 2 else "asyncio"
    anyio.run(
        main,
        sys.argv[1],
        numbers[0],
        sys.argv[3],
        numbers[1] if len(numbers) > 1 else 1 << 30,
        backend=backend,
    )
