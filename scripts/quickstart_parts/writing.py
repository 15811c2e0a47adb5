"""The writer: the child process that appends until it is done or killed, and its reports.

Owns: idempotent appends from where the segment ends, and the child's side of the protocol. Does not own: who kills it.

Protocol: the child prints JSON lines. ``ready`` (events that each segment holds, digest of the input), ``acked`` (segment, events),
``done`` (events sent twice), ``failed`` (error). The parent answers each with an empty line, and the child is never more than WINDOW
reports ahead. The end of its input before it is done means that the parent is gone: it stops. After ``done`` it means: leave.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio

import tierlog
from tierlog.actors.config_units import MiB

from .shares import QuickstartError, Share, batch_bytes, digest_of, store_config

WRITER = "quickstart"
WINDOW = 8
"""Reports that a child may be ahead of its parent: it cannot have finished when it is killed in the middle."""
REPEATED = 100
"""Events of each segment that a restarted writer sends again, at most."""


async def append_events(
    store: tierlog.SegmentStore, share: Share, first: int, end: int, bytes_max: int, on_acked: Callable[[int], Awaitable[None]]
) -> None:
    """Append the events ``first`` to ``end - 1``; ``on_acked(n)`` is awaited each time that the first ``n`` events are acked."""
    while first < end:
        events = share.batch(first, end, bytes_max)
        await store.append_many(share.name, events, writer_id=WRITER, first_event_number=first)
        first += len(events)
        await on_acked(first)


async def find_acked(store: tierlog.SegmentStore, share: Share) -> int:
    """How many events the segment holds; it is made if it is missing."""
    try:
        await store.create_segment(share.name)
    except tierlog.SegmentExists:
        last = await store.last_event_number(share.name, WRITER)
        events = 0 if last is None else last + 1
        await check_length(store, share, events)
        return events

    return 0


async def check_length(store: tierlog.SegmentStore, share: Share, events: int) -> None:
    """Whether the segment is as long as its writer's events say."""
    info = await store.segment_info(share.name)
    expected = share.bytes_of(events)
    if info.length != expected:
        raise QuickstartError(
            f"segment {share.name}: it ends at offset {info.length}, but its writer's {events} events end at {expected}: events were "
            f"{'lost' if info.length < expected else 'appended twice'}"
        )


async def repeat_last(store: tierlog.SegmentStore, share: Share, acked: int) -> int:
    """Send the last events again, as a client does that never saw their answer. It must change nothing. Returns how many."""
    first = max(0, acked - REPEATED)
    if first == acked:
        return 0

    events = share.batch(first, acked, MiB)
    await store.append_many(share.name, events, writer_id=WRITER, first_event_number=first)
    await check_length(store, share, acked)
    return len(events)


def say(event: str, **fields: object) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


class Parent:
    """The child's view of its parent."""

    def __init__(self) -> None:
        self._window = anyio.Semaphore(WINDOW)
        self._finished = False

    async def tell(self, event: str, **fields: object) -> None:
        """Report, once fewer than WINDOW reports are unanswered."""
        await self._window.acquire()
        say(event, **fields)

    async def tell_done(self, **fields: object) -> None:
        """The last report."""
        self._finished = True
        await self.tell("done", **fields)

    async def listen(self) -> None:
        """Until the parent has heard that we are done; raises if it is gone before."""
        while await anyio.to_thread.run_sync(sys.stdin.buffer.readline, abandon_on_cancel=True):
            self._window.release()
        if not self._finished:
            raise QuickstartError("the parent process is gone")


async def write_child(folder: Path, shares: list[Share]) -> None:
    """Append what is missing of every share, all segments at the same time."""
    parent = Parent()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(parent.listen)
        repeated = 0
        async with tierlog.open_store(folder, config=store_config(shares, flush_by_size=True)) as store:
            acked = [await find_acked(store, share) for share in shares]
            await parent.tell("ready", acked=acked, digest=digest_of(shares))
            for share, events in zip(shares, acked, strict=True):
                repeated += await repeat_last(store, share, events)
            async with anyio.create_task_group() as writers:
                for index, share in enumerate(shares):
                    writers.start_soon(_write_share, store, share, index, acked[index], batch_bytes(shares), parent)

        await parent.tell_done(repeated=repeated)


async def _write_share(store: tierlog.SegmentStore, share: Share, index: int, first: int, bytes_max: int, parent: Parent) -> None:
    async def report(events: int) -> None:
        await parent.tell("acked", segment=index, events=events)

    await append_events(store, share, first, share.flushed_events, bytes_max, report)
