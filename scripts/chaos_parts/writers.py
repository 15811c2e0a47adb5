"""The writers of a run: processes with many lanes each, and between two rounds the writers of long tails.

Each lane has one call in flight. An identified lane sends one or more events at a time, with writer id and
event numbers, until they are acked. A plain lane sends each event once and gives up on an unknown outcome. A
call that takes longer than ``HANG`` is cancelled and reported as hung.

As a program this module is one writer process. It prints each outcome (``ledger.Record``) on a line of its
own. When its standard input ends it finishes the calls in flight and exits. A writer that ends by itself is a
violation; on cancellation all are killed and waited for."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any, Protocol

import anyio
import anyio.abc
import msgspec

import tierlog
from chaos_parts.events import event_bytes
from chaos_parts.http_store import HttpStore
from chaos_parts.ledger import Lane, Ledger, Outcome, Record, split_records
from chaos_parts.processes import SCRIPTS, RunError
from tierlog.actors.gateway.wire.batch import BatchItem
from tierlog.storage_backends.base.names import container_of

HANG = 60.0
"""Far above any deadline of the clients."""
ENDING = 30.0
"""Seconds for which an ending lane repeats its last events."""
_BATCH_MAX = 20
_AFTER_ERROR = 0.02


class Store(Protocol):
    async def append(
        self, name: str, data: bytes, *, writer_id: str | None = None, event_number: int | None = None
    ) -> Any: ...

    async def append_many(
        self, name: str, events: list[bytes], *, writer_id: str, first_event_number: int
    ) -> Any: ...


class LanePlan(msgspec.Struct, frozen=True):
    """The task of one lane."""

    lane: int
    writer: str
    segment: str
    identified: bool


class Plan(msgspec.Struct, frozen=True):
    """The task of one process; JSON in its first argument."""

    url: str
    client: str
    seed: str
    pace: float
    """Seconds between two calls of a lane."""
    lanes: list[LanePlan]


class LaneWriter:
    def __init__(
        self, plan: LanePlan, store: Store, random: Random, pace: float, report: Callable[[Record], None]
    ) -> None:
        self._plan = plan
        self._store = store
        self._random = random
        self._pace = pace
        self._report = report
        self._number = 0
        self._ending = float("inf")

    def end(self) -> None:
        self._ending = time.monotonic() + ENDING

    async def run(self) -> None:
        while self._ending == float("inf"):
            await (self.send_identified() if self._plan.identified else self.send_plain())
            await anyio.sleep(self._random.uniform(0, 2 * self._pace))
        self._report(Record(Outcome.ENDED, self._plan.lane, self._number))

    async def send_identified(self) -> None:
        """Send the next events until they are acked."""
        first, count = self._number, 1
        if self._random.random() >= 0.7:
            count = self._random.randint(2, _BATCH_MAX)
        self._number += count
        segment, writer = self._plan.segment, self._plan.writer
        events = [event_bytes(writer, number) for number in range(first, first + count)]

        async def append() -> None:
            if count == 1:
                await self._store.append(segment, events[0], writer_id=writer, event_number=first)
            else:
                await self._store.append_many(segment, events, writer_id=writer, first_event_number=first)

        while await self._call(first, count, append) is not Outcome.ACKED:
            if time.monotonic() >= self._ending:
                return
            await anyio.sleep(_AFTER_ERROR)

    async def send_plain(self) -> None:
        number = self._number
        self._number += 1
        data = event_bytes(self._plan.writer, number)
        await self._call(number, 1, lambda: self._store.append(self._plan.segment, data))

    async def _call(self, first: int, count: int, call: Callable[[], Awaitable[object]]) -> Outcome:
        """Make one call and report its outcome."""
        began, outcome = time.monotonic(), Outcome.HUNG
        with anyio.move_on_after(HANG):
            outcome = await _outcome(call)
        outcomes = [outcome]
        if self._plan.identified and outcome in (Outcome.UNKNOWN, Outcome.REJECTED):
            outcomes = [Outcome.RETRIED]
        elif not self._plan.identified and outcome is Outcome.HUNG:
            outcomes.append(Outcome.UNKNOWN)
        elif not self._plan.identified and outcome is Outcome.FULL:
            outcomes.append(Outcome.REJECTED)
        for each in outcomes:
            self._report(Record(each, self._plan.lane, first, count, began, time.monotonic()))
        return outcome


async def _outcome(call: Callable[[], Awaitable[object]]) -> Outcome:
    try:
        await call()
    except tierlog.StorageFull:
        return Outcome.FULL
    except tierlog.OutcomeUnknown:
        return Outcome.UNKNOWN
    except (tierlog.Unavailable, tierlog.Throttled, tierlog.NotOwner):
        return Outcome.REJECTED
    return Outcome.ACKED


# --- processes ----------------------------------------------------------------------------------


def segment_names(prefix: str, containers: int) -> list[str]:
    """One name for each container, in the order of the containers."""
    names: dict[int, str] = {}
    number = 0
    while len(names) < containers:
        name = f"{prefix}/{number}"
        names.setdefault(container_of(name, containers), name)
        number += 1
    return [names[index] for index in range(containers)]


class WriterProcesses:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._processes: list[anyio.abc.Process] = []
        self._ending = self._killed = False

    def plan(self, number: int, segments: Sequence[str], *, plain: bool) -> list[LanePlan]:
        """The lanes of process ``number``: an identified one for each segment, and perhaps one plain."""
        lanes = [(f"w{number}.{index}", index, True) for index in range(len(segments))]
        if plain:
            lanes.append((f"p{number}", number % len(segments), False))
        return [
            LanePlan(
                self._ledger.add_lane(Lane(writer, segments[index], index, identified)),
                writer,
                segments[index],
                identified,
            )
            for writer, index, identified in lanes
        ]

    @asynccontextmanager
    async def running(self, plans: Sequence[Plan]) -> AsyncIterator[None]:
        """They write while the body runs; after it every outcome is in the ledger."""
        async with anyio.create_task_group() as tasks:
            try:
                for plan in plans:
                    tasks.start_soon(self._record, await self._start(plan))
                yield
                await self._finish()
            finally:
                with anyio.CancelScope(shield=True):
                    await self._end()

    async def _start(self, plan: Plan) -> anyio.abc.Process:
        process = await anyio.open_process(
            command_of_writer(plan),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None,
            env={**os.environ, "PYTHONPATH": str(SCRIPTS)},
            start_new_session=True,
        )
        self._processes.append(process)
        return process

    async def _record(self, process: anyio.abc.Process) -> None:
        assert process.stdout is not None
        rest = b""
        async for block in process.stdout:
            records, rest = split_records(rest + block)
            self._ledger.add(records)
        status = await process.wait()
        if (status and not self._killed) or not self._ending:
            self._ledger.fail(f"a writer ended by itself with exit status {status}; its error is above")

    async def _finish(self) -> None:
        """Let them finish, and wait."""
        self._ending = True
        with anyio.move_on_after(HANG + ENDING) as waiting:
            for process in self._processes:
                assert process.stdin is not None
                await process.stdin.aclose()
            for process in self._processes:
                await process.wait()
        if waiting.cancelled_caught:
            self._ledger.problems.append(f"a writer did not end within {HANG + ENDING:g} s")

    async def _end(self) -> None:
        self._ending = self._killed = True
        for process in self._processes:
            if process.returncode is None:
                process.kill()
            await process.wait()

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]


def command_of_writer(plan: Plan) -> list[str]:
    return [sys.executable, "-P", "-m", "chaos_parts.writers", msgspec.json.encode(plan).decode()]


async def write(plan: Plan) -> None:
    """The writer process: run every lane until the standard input ends."""
    client = HttpStore(plan.url) if plan.client == "raw" else tierlog.connect(plan.url)
    async with client as store, anyio.create_task_group() as tasks:
        lanes = [
            LaneWriter(lane, store, Random(f"{plan.seed}/{lane.lane}"), plan.pace, _print)
            for lane in plan.lanes
        ]
        for lane in lanes:
            tasks.start_soon(lane.run)
        # A thread that waits for the parent would keep a failed process alive.
        await anyio.wait_readable(sys.stdin.fileno())
        while os.read(sys.stdin.fileno(), 1024):
            await anyio.wait_readable(sys.stdin.fileno())
        for lane in lanes:
            lane.end()


def _print(record: Record) -> None:
    # Unbuffered, and smaller than what a pipe takes atomically.
    os.write(sys.stdout.fileno(), record.encode())


# --- tails --------------------------------------------------------------------------------------

_TAIL_BATCH = 1000
_TAIL_LIMIT = 60.0


class TailWriters:
    """Long tails: so many operations in each container's log that its next owner has something to replay.
    Checked like all other lanes."""

    def __init__(self, store: tierlog.Client, ledger: Ledger, segments: Sequence[str]) -> None:
        self._store = store
        self._ledger = ledger
        self._lanes = [
            ledger.add_lane(Lane(f"t{index}", segment, index, identified=True))
            for index, segment in enumerate(segments)
        ]

    def end(self) -> None:
        self._ledger.add(Record(Outcome.ENDED, lane, self._ledger.lanes[lane].next) for lane in self._lanes)

    async def add(self, operations: int) -> None:
        """Append so many operations in every container. Raises ``RunError`` after 60 s."""
        async with anyio.create_task_group() as tasks:
            for index in self._lanes:
                tasks.start_soon(self._add, index, self._ledger.lanes[index], operations)

    async def _add(self, index: int, lane: Lane, operations: int) -> None:
        goal = lane.next + operations
        with anyio.move_on_after(_TAIL_LIMIT):
            while lane.next < goal:
                await self._send(index, lane, range(lane.next, min(lane.next + _TAIL_BATCH, goal)))
            return
        raise RunError(
            f"{lane.segment}: {goal - lane.next} events of {operations} were not acked within "
            f"{_TAIL_LIMIT:g} s"
        )

    async def _send(self, index: int, lane: Lane, numbers: range) -> None:
        """One batch; the next one repeats what was not acked."""
        began = time.monotonic()
        writer = lane.writer.encode()
        outcomes = await self._store.append_each(
            [BatchItem(lane.segment, event_bytes(lane.writer, each), writer, each, 1) for each in numbers]
        )
        failed = (at for at, outcome in enumerate(outcomes) if isinstance(outcome, Exception))
        if acked := next(failed, len(outcomes)):
            self._ledger.add([Record(Outcome.ACKED, index, numbers.start, acked, began, time.monotonic())])
        else:
            await anyio.sleep(_AFTER_ERROR)


def main() -> int:
    plan = msgspec.json.decode(sys.argv[1], type=Plan)
    status = 0
    try:
        anyio.run(write, plan, backend_options={"use_uvloop": True})
    except* tierlog.TierlogError as errors:
        print(f"a writer stops: {errors.exceptions[0]!r}", file=sys.stderr)
        status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
