"""Real text into an embedded store, its writer killed with SIGKILL in the middle, every byte read back and compared.

What happens, in order:

1. The input is cut into one share per segment; every line is an event. A child process appends all shares at the same time, each with
   a writer id and event numbers, and reports what was acked.
2. This process kills the child with SIGKILL at a random moment. A fresh child opens the folder, asks each segment for the writer's last
   event number, sends the events before it once more (as a client does that never saw its answer) and goes on behind it.
3. The store is opened here, flushed to long-term storage, and gets a last part that stays in the log.
4. The store is opened again. Every segment is read back, from chunks and from the log, and compared with the input byte by byte, by
   length and by SHA-256; the files under lts/ are compared with the input too, without the store.

Between the processes: the child writes JSON lines to its standard output, and may be only WINDOW reports ahead of the confirmations
(one line each) on its standard input. So a kill always comes in the middle, and a child whose parent is gone sees the end of its input
and stops. Nothing waits for a clock.

Exit status: 0 if all of it holds, 1 if something is wrong (the message says which segment, where and what), 2 for wrong arguments,
130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import io
import json
import os
import re
import signal
import sys
import sysconfig
import tempfile
import time
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any

import anyio
import attrs
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn
from rich.table import Table

import tierlog
from tierlog.actors.config import WriterConfig
from tierlog.actors.config_units import GiB, KiB, MiB, UnitError, size

WRITER = "quickstart"
WINDOW = 8
"""Reports that a child may be ahead of its parent."""
EVENT_BYTES_MAX = MiB
"""A longer line is several events."""
REPEATED = 100
"""Events that a restarted writer sends again."""
LOG_BYTES = 256 * KiB
"""Of each segment, at most, appended after the flush; a twentieth of it if that is less."""
MESSAGE_BYTES_MAX = 64 * KiB
LIMIT = size(32 * MiB, KiB, 64 * GiB, "How much of the input is used.")
_CHUNK_NAME = re.compile(r"([0-9a-f]{16})-([0-9a-f]{16})-[0-9a-f]{32}")


class QuickstartError(Exception):
    """Something that was promised does not hold, or the run cannot be made. The message says what and where."""


# --- the input ------------------------------------------------------------------------------------------------


@attrs.frozen
class Share:
    """What one segment shall hold."""

    name: str
    data: bytes
    ends: array[int]
    """Where each event ends."""
    flushed_events: int
    """The events that are appended before the flush; at least one comes after."""

    @property
    def flushed_bytes(self) -> int:
        return self.bytes_of(self.flushed_events)

    def bytes_of(self, events: int) -> int:
        """The size of the first ``events`` events."""
        return self.ends[events - 1] if events else 0

    def batch(self, first: int, end: int, bytes_max: int) -> list[bytes]:
        """Events from number ``first`` on, below ``end``: at least one, and no more than ``bytes_max`` bytes if they are several."""
        events, at = [], self.bytes_of(first)
        start = at
        for stop in self.ends[first:end]:
            if events and stop - start > bytes_max:
                break
            events.append(self.data[at:stop])
            at = stop

        return events


def stdlib_files() -> list[Path]:
    """The source files of the Python that runs this."""
    root = Path(sysconfig.get_path("stdlib"))
    return sorted(path for path in root.rglob("*.py") if path.is_file() and "site-packages" not in path.parts)


def input_files(source: Path | None) -> list[Path]:
    if source is None:
        return stdlib_files()

    if source.is_dir():
        return sorted(path for path in source.rglob("*") if path.is_file())

    return [source]


def read_input(source: Path | None, limit: int) -> bytes:
    parts: list[bytes] = []
    left = limit
    for path in input_files(source):
        try:
            with path.open("rb") as stream:
                parts.append(stream.read(left))
        except OSError as error:
            raise QuickstartError(f"cannot read the input {path}: {error.strerror}") from error
        left -= len(parts[-1])
        if not left:
            break

    return b"".join(parts)


def event_ends(data: bytes) -> array[int]:
    lengths: list[int] = []
    for line in io.BytesIO(data):
        whole, rest = divmod(len(line), EVENT_BYTES_MAX)
        lengths += [EVENT_BYTES_MAX] * whole + [rest] * (rest > 0)

    return array("Q", accumulate(lengths))


def split_input(data: bytes, segments: int) -> list[Share]:
    """The input in order, one share of about equal size for each segment, cut between lines."""
    shares, start = [], 0
    for index in range(segments):
        line = data.find(b"\n", max(start, len(data) * (index + 1) // segments - 1))
        stop = len(data) if line < 0 or index == segments - 1 else line + 1
        shares.append(_share(f"quickstart/part-{index + 1}", data[start:stop]))
        start = stop

    return shares


def _share(name: str, data: bytes) -> Share:
    ends = event_ends(data)
    if len(ends) < 2:
        raise QuickstartError("the input has too few lines for that many segments: give more input, or fewer --segments")

    in_log = min(len(data) // 20, LOG_BYTES)
    flushed = len(ends) - 1
    while flushed > 1 and len(data) - ends[flushed - 1] < in_log:
        flushed -= 1

    return Share(name, data, ends, flushed)


def digest_of(shares: list[Share]) -> str:
    return hashlib.sha256(b"".join(hashlib.sha256(share.data).digest() for share in shares)).hexdigest()


# --- the store ------------------------------------------------------------------------------------------------


def store_config(shares: list[Share]) -> tierlog.StoreConfig:
    """Small enough flushes and chunks that every segment gets several, whatever the input's size; no flush by age."""
    share = max(len(share.data) for share in shares)
    writer = WriterConfig(
        flush_bytes=min(max(share // 8, KiB), 4 * MiB), rolling_size=min(max(share // 4, 64 * KiB), 128 * MiB), flush_age=86_400.0
    )
    return tierlog.StoreConfig(writer=writer)


def batch_bytes(shares: list[Share]) -> int:
    """Small beside the input, so that WINDOW batches of every share are far from all of it."""
    return min(sum(len(share.data) for share in shares) // 400, 256 * KiB)


async def append_events(
    store: tierlog.SegmentStore, share: Share, first: int, end: int, bytes_max: int, on_acked: Callable[[int], Awaitable[None]]
) -> None:
    """Append the events ``first`` to ``end - 1``; ``on_acked(n)`` is awaited each time the first ``n`` events are acked."""
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
    info = await store.segment_info(share.name)
    if info.length != share.bytes_of(events):
        raise QuickstartError(
            f"segment {share.name}: it is {info.length} bytes long, and its writer's {events} events are {share.bytes_of(events)} bytes"
        )


# --- the child ------------------------------------------------------------------------------------------------


def say(event: str, **fields: object) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


class Confirmations:
    """The child's view of its parent: what it has heard, and whether it is still there."""

    def __init__(self) -> None:
        self._window = anyio.Semaphore(WINDOW)
        self._finished = False

    async def say(self, event: str, **fields: object) -> None:
        """Report, as soon as fewer than WINDOW reports are unconfirmed."""
        await self._window.acquire()
        say(event, **fields)

    def finish(self) -> None:
        """From now on the end of the input is the sign to leave."""
        self._finished = True

    async def listen(self) -> None:
        while await anyio.to_thread.run_sync(sys.stdin.buffer.readline, abandon_on_cancel=True):
            self._window.release()
        if not self._finished:
            raise QuickstartError("the parent process is gone")


async def write_child(folder: Path, shares: list[Share]) -> None:
    """Append what is missing of every share, then say so and wait until the parent has heard it."""
    parent = Confirmations()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(parent.listen)
        async with tierlog.open_store(folder, config=store_config(shares)) as store:
            first = [await find_acked(store, share) for share in shares]
            await parent.say("ready", acked=first, digest=digest_of(shares))
            repeated = sum([await repeat_last(store, share, events) for share, events in zip(shares, first, strict=True)])
            async with anyio.create_task_group() as writers:
                for index, share in enumerate(shares):
                    writers.start_soon(write_share, store, share, index, first[index], batch_bytes(shares), parent)

        parent.finish()
        await parent.say("done", repeated=repeated)


async def write_share(store: tierlog.SegmentStore, share: Share, index: int, first: int, bytes_max: int, parent: Confirmations) -> None:
    async def report(events: int) -> None:
        await parent.say("acked", segment=index, events=events)

    await append_events(store, share, first, share.flushed_events, bytes_max, report)


async def repeat_last(store: tierlog.SegmentStore, share: Share, acked: int) -> int:
    """Send the last events again, as a client that never saw their answer; they must change nothing. Returns how many."""
    first = max(0, acked - REPEATED)
    if first == acked:
        return 0

    events = share.batch(first, acked, MiB)
    await store.append_many(share.name, events, writer_id=WRITER, first_event_number=first)
    await check_length(store, share, acked)
    return len(events)


# --- the parent: writing and killing --------------------------------------------------------------------------


@attrs.define
class Tally:
    """What has happened so far."""

    acked: list[int]
    """Events of each share that a child reported as acked."""
    kills: int = 0
    repeated: int = 0
    write_seconds: float = 0.0
    flush_seconds: float = 0.0


@attrs.frozen
class Plan:
    """One run."""

    folder: Path
    shares: list[Share]
    kill_points: list[int]
    """Acked bytes after which the child is killed, one after the other."""
    child: list[str]
    """The command that starts a child."""


def kill_points(shares: list[Share], kills: int, random: Random) -> list[int]:
    """One random point in each of ``kills`` equal slices of what lies between a tenth and nine tenths of the work."""
    work = sum(share.flushed_bytes for share in shares)
    return [int(work * (0.1 + 0.8 * (index + random.random()) / kills)) for index in range(kills)]


async def write_all(plan: Plan, tally: Tally, display: Display) -> None:
    begin = time.perf_counter()
    for point in plan.kill_points:
        await run_child(plan, tally, display, point)
        tally.kills += 1
        display.note(f"killed the writer with SIGKILL at {acked_bytes(plan, tally) / 1e6:.1f} MB acked")

    await run_child(plan, tally, display, None)
    tally.write_seconds = time.perf_counter() - begin


def acked_bytes(plan: Plan, tally: Tally) -> int:
    return sum(share.bytes_of(events) for share, events in zip(plan.shares, tally.acked, strict=True))


async def run_child(plan: Plan, tally: Tally, display: Display, kill_at: int | None) -> None:
    """Run one child to its end, or until ``kill_at`` bytes are acked. What it said before it died counts as acked."""
    async with child_process(plan.child) as process:
        assert process.stdin is not None
        done = False
        async for message in messages(process):
            done = take_message(plan, tally, message) or done
            display.show(plan, tally)
            if kill_at is not None and process.returncode is None and acked_bytes(plan, tally) >= kill_at:
                process.send_signal(signal.SIGKILL)
                kill_at = None
                done = True
                continue
            if done and message["event"] == "done":
                break
            if not done:
                await confirm(process)

        await process.stdin.aclose()
        status = await process.wait()
    if not done or status not in (0, -signal.SIGKILL):
        raise QuickstartError(f"a writer stopped by itself with status {status}; its last words are above")


async def confirm(process: Process) -> None:
    assert process.stdin is not None
    try:
        await process.stdin.send(b"\n")
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        return  # it ended: its last message or its status says why


def take_message(plan: Plan, tally: Tally, message: dict[str, Any]) -> bool:
    """Count what a child says; True if it has finished. What was acked once must be there for ever."""
    if message["event"] == "failed":
        raise QuickstartError(message["error"])

    if message["event"] == "acked":
        tally.acked[message["segment"]] = max(tally.acked[message["segment"]], message["events"])
    elif message["event"] == "ready":
        if message["digest"] != digest_of(plan.shares):
            raise QuickstartError("the input changed while it was being written: run again")

        for index, events in enumerate(message["acked"]):
            if events < tally.acked[index]:
                share = plan.shares[index]
                raise QuickstartError(
                    f"segment {share.name}, offset {share.bytes_of(events)}: {tally.acked[index]} events were acked and {events} are there"
                )

            tally.acked[index] = events
    else:
        tally.repeated += message["repeated"]
        return True

    return False
