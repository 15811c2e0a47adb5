"""A writer process that tests kill or fence, and the check of what it was acked.

As a program, ``python event_writer.py <folder> <seed> <writers>`` opens the store, appends with the writers
of the chaos scripts, and flushes at random moments. Each writer continues behind the last event that the
store knows, so the process can be started again after anything. It ends when another owner has fenced it.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import anyio
import msgspec

import tierlog
from chaos_parts.events import SegmentCheck
from chaos_parts.ledger import Ledger, Outcome, Record, Writer, split_records
from chaos_parts.processes import python_path
from chaos_parts.writers import EventWriter, WriterPlan, print_record
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


class WriterProcess:
    """One process that writes to each segment as ``writer``; its records go into the ledger."""

    def __init__(self, ledger: Ledger, folder: Path, seed: int, writer: str = "w") -> None:
        self._ledger = ledger
        known = {(each.id, each.segment): index for index, each in enumerate(ledger.writers)}
        plans = []
        for segment in SEGMENTS:
            index = known.get((writer, segment))
            if index is None:
                index = ledger.add_writer(Writer(writer, segment, 0, numbered=True))
            plans.append(WriterPlan(index, writer, segment, numbered=True, first=ledger.writers[index].next))
        command = [sys.executable, __file__, str(folder), str(seed), msgspec.json.encode(plans).decode()]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=python_path()
        )

    def receive(self, count: int) -> None:
        """Wait for so many records."""
        assert self._process.stdout is not None
        for _ in range(count):
            line = self._process.stdout.readline()
            assert line, self._end()
            self._ledger.add(split_records(line)[0])

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        assert "Traceback" not in self._end()

    def wait_until_fenced(self) -> None:
        """It must end by itself."""
        errors = self._end()
        assert self._process.returncode == 0, errors

    def _end(self) -> str:
        """Returns its standard error output."""
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        with self._process:
            # A kill may have cut off the last record.
            self._ledger.add(split_records(self._process.stdout.read())[0])
            return self._process.stderr.read().decode()


async def check(store: tierlog.SegmentStore, ledger: Ledger) -> int:
    """Every acked event is there exactly once, in order, at its acked offset; nothing else is there. Returns
    how many events there are."""
    assert ledger.problems == []
    events = 0
    for segment in SEGMENTS:
        found = SegmentCheck(segment, ledger.writers)
        if segment in await store.list_segments(segment):
            while block := await store.read(segment, found.bytes, 1 << 20):
                found.feed(block)
        assert found.finish() == []
        events += found.events
    return events


# --- the program --------------------------------------------------------------------------------


class FencedError(Exception):
    """Another owner took over."""


class FencedStore:
    """A store whose fence ends the process; the chaos scripts' writers would retry."""

    def __init__(self, store: tierlog.SegmentStore) -> None:
        self._store = store

    async def append(self, name: str, data: bytes, **identity: Any) -> int | None:
        try:
            offset: int | None = await self._store.append(name, data, **identity)
            return offset
        except tierlog.NotOwner as error:
            raise FencedError from error

    async def append_many(self, name: str, events: list[bytes], **identity: Any) -> int | None:
        try:
            offset: int | None = await self._store.append_many(name, events, **identity)
            return offset
        except tierlog.NotOwner as error:
            raise FencedError from error


async def write(store: tierlog.SegmentStore, plan: WriterPlan, random: Random) -> None:
    with suppress(tierlog.SegmentExists):
        await store.create_segment(plan.segment)
    last = await store.last_event_number(plan.segment, plan.id)
    number = 0 if last is None else last + 1
    if number > plan.first:
        # Events of unknown outcome when the process before this one ended: they are there.
        print_record(Record(Outcome.ACKED, plan.index, plan.first, number - plan.first))
    plan = msgspec.structs.replace(plan, first=number)
    await EventWriter(plan, FencedStore(store), random, 0.0, print_record).run()


async def flush(store: tierlog.SegmentStore, random: Random) -> None:
    while True:
        await anyio.sleep(random.random() * 0.05)
        with suppress(tierlog.OutcomeUnknown):
            await store.flush()


async def main(folder: str, seed: int, plans: list[WriterPlan]) -> None:
    random = Random(seed)
    try:
        async with (
            tierlog.open_store(folder, config=CONFIG, take_over=True) as store,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(flush, store, random)
            for plan in plans:
                tasks.start_soon(write, store, plan, random)
    except* (FencedError, tierlog.NotOwner):
        print("fenced", file=sys.stderr)


if __name__ == "__main__":
    folder, seed = sys.argv[1], int(sys.argv[2])
    plans = msgspec.json.decode(sys.argv[3], type=list[WriterPlan])
    anyio.run(main, folder, seed, plans, backend="trio" if seed % 2 else "asyncio")
