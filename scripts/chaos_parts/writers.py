"""The writers of a run: processes with many writers each, and between two rounds the writers of long tails.

Each writer has one call in flight. A numbered writer sends one or more events at a time, with writer id and
event numbers, until they are acked. A plain writer sends each event once and gives up on an unknown outcome.
A call that takes longer than ``HANG`` is cancelled and reported as hung.

As a program this module is one writer process. It prints each outcome (``ledger.Record``) on a line of its
own. When its standard input ends it finishes the calls in flight and exits. A process that ends by itself is
a violation; on cancellation all are killed and waited for."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Protocol

import anyio
import anyio.abc
import msgspec

import tierlog
from chaos_parts.events import event_bytes
from chaos_parts.http_store import HttpStore
from chaos_parts.ledger import Ledger, Outcome, Record, Writer, split_records
from chaos_parts.processes import RunError, python_path
from tierlog.actors.gateway.wire.batch import BatchItem
from tierlog.storage_backends.base.names import container_of

HANG = 60.0
"""Far above any deadline of the clients."""
ENDING = 30.0
"""Seconds for which an ending writer repeats its last events."""
_BATCH_MAX = 20
_AFTER_ERROR = 0.02
_ERRORS = (
    (tierlog.StorageFull, Outcome.FULL),
    (tierlog.OutcomeUnknown, Outcome.UNKNOWN),
    ((tierlog.Unavailable, tierlog.Throttled, tierlog.NotOwner), Outcome.REJECTED),
)


class Store(Protocol):
    async def append(
        self, name: str, data: bytes, *, writer_id: str | None = None, event_number: int | None = None
    ) -> int | None: ...

    async def append_many(
        self, name: str, events: list[bytes], *, writer_id: str, first_event_number: int
    ) -> int | None: ...


class WriterPlan(msgspec.Struct, frozen=True):
    """The task of one writer."""

    index: int
    """In the ledger."""
    id: str
    segment: str
    numbered: bool
    first: int = 0
    """The number of its first event."""


class Plan(msgspec.Struct, frozen=True):
    """The task of one process; JSON in its first argument."""

    url: str
    client: str
    seed: str
    pace: float
    """Seconds between two calls of a writer."""
    writers: list[WriterPlan]


class EventWriter:
    def __init__(
        self, plan: WriterPlan, store: Store, random: Random, pace: float, report: Callable[[Record], None]
    ) -> None:
        self._plan = plan
        self._store = store
        self._random = random
        self._pace = pace
        self._report = report
        self._number = plan.first
        self._ending = float("inf")

    def end(self) -> None:
        self._ending = time.monotonic() + ENDING

    async def run(self) -> None:
        while self._ending == float("inf"):
            await (self.send_numbered() if self._plan.numbered else self.send_plain())
            await anyio.sleep(self._random.uniform(0, 2 * self._pace))
        self._report(Record(Outcome.ENDED, self._plan.index, self._number))

    async def send_numbered(self) -> None:
        """Send the next events until they are acked."""
        first, count = self._number, 1
        if self._random.random() >= 0.7:
            count = self._random.randint(2, _BATCH_MAX)
        self._number += count
        segment, writer = self._plan.segment, self._plan.id
        events = [event_bytes(writer, number) for number in range(first, first + count)]

        async def append() -> int | None:
            if count == 1:
                return await self._store.append(segment, events[0], writer_id=writer, event_number=first)
            return await self._store.append_many(segment, events, writer_id=writer, first_event_number=first)

        while await self._call(first, count, append) is not Outcome.ACKED:
            if time.monotonic() >= self._ending:
                return
            await anyio.sleep(_AFTER_ERROR)

    async def send_plain(self) -> None:
        number = self._number
        self._number += 1
        data = event_bytes(self._plan.id, number)
        await self._call(number, 1, lambda: self._store.append(self._plan.segment, data))

    async def _call(self, first: int, count: int, append: Callable[[], Awaitable[int | None]]) -> Outcome:
        """Make one call and report its outcome."""
        began, outcome, offset = time.monotonic(), Outcome.HUNG, None
        with anyio.move_on_after(HANG):
            try:
                offset = await append()
                outcome = Outcome.ACKED
            except tierlog.TierlogError as error:
                found = [outcome for kinds, outcome in _ERRORS if isinstance(error, kinds)]
                if not found:
                    raise
                outcome = found[0]
        outcomes = [outcome]
        if self._plan.numbered and outcome in (Outcome.UNKNOWN, Outcome.REJECTED):
            outcomes = [Outcome.RETRIED]
        elif not self._plan.numbered and outcome is Outcome.HUNG:
            outcomes.append(Outcome.UNKNOWN)
        elif not self._plan.numbered and outcome is Outcome.FULL:
            outcomes.append(Outcome.REJECTED)
        for each in outcomes:
            self._report(Record(each, self._plan.index, first, count, began, time.monotonic(), offset))
        return outcome


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

    def plan(self, number: int, segments: Sequence[str], *, plain: bool) -> list[WriterPlan]:
        """The writers of process ``number``: a numbered one for each segment, and perhaps a plain one."""
        made = [
            Writer(f"w{number}.{index}", segment, index, numbered=True)
            for index, segment in enumerate(segments)
        ]
        if plain:
            index = number % len(segments)
            made.append(Writer(f"p{number}", segments[index], index, numbered=False))
        return [
            WriterPlan(self._ledger.add_writer(each), each.id, each.segment, each.numbered) for each in made
        ]

    @asynccontextmanager
    async def running(
        self, plans: Sequence[Plan], command: Callable[..., list[str]] = lambda *given: [*given]
    ) -> AsyncIterator[None]:
        """They write while the body runs; after it every outcome is in the ledger. ``command`` runs a process
        where they are."""
        async with anyio.create_task_group() as tasks:
            try:
                for plan in plans:
                    process = await anyio.open_process(
                        command(*command_of_writer(plan)),
                        stderr=None,
                        env=python_path(),
                        start_new_session=True,
                    )
                    self._processes.append(process)
                    tasks.start_soon(self._record, process)
                yield
                await self._finish()
            finally:
                with anyio.CancelScope(shield=True):
                    self._ending = self._killed = True
                    for process in self._processes:
                        if process.returncode is None:
                            process.kill()
                        await process.wait()

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

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]


def command_of_writer(plan: Plan) -> list[str]:
    return [sys.executable, "-P", "-m", "chaos_parts.writers", msgspec.json.encode(plan).decode()]


async def write(plan: Plan) -> None:
    """The writer process: run every writer until the standard input ends."""
    client = HttpStore(plan.url) if plan.client == "raw" else tierlog.connect(plan.url)
    async with client as store, anyio.create_task_group() as tasks:
        writers = [
            EventWriter(each, store, Random(f"{plan.seed}/{each.index}"), plan.pace, print_record)
            for each in plan.writers
        ]
        for writer in writers:
            tasks.start_soon(writer.run)
        # A thread that waits for the parent would keep a failed process alive.
        await anyio.wait_readable(sys.stdin.fileno())
        while os.read(sys.stdin.fileno(), 1024):
            await anyio.wait_readable(sys.stdin.fileno())
        for writer in writers:
            writer.end()


def print_record(record: Record) -> None:
    # Unbuffered, and smaller than what a pipe takes atomically.
    os.write(sys.stdout.fileno(), record.encode())


# --- tails --------------------------------------------------------------------------------------

_TAIL_BATCH = 1000
_TAIL_LIMIT = 60.0


class TailWriters:
    """Long tails: so many operations in each container's log that its next owner has something to replay.
    Checked like all other writers."""

    def __init__(self, store: tierlog.Client, ledger: Ledger, segments: Sequence[str]) -> None:
        self._store = store
        self._ledger = ledger
        writers = [Writer(f"t{index}", name, index, numbered=True) for index, name in enumerate(segments)]
        self._writers = {ledger.add_writer(writer): writer for writer in writers}

    def end(self) -> None:
        self._ledger.add(Record(Outcome.ENDED, at, writer.next) for at, writer in self._writers.items())

    async def add(self, operations: int) -> None:
        """Append so many operations in every container. Raises ``RunError`` after 60 s."""
        async with anyio.create_task_group() as tasks:
            for index, writer in self._writers.items():
                tasks.start_soon(self._add, index, writer, operations)

    async def _add(self, index: int, writer: Writer, operations: int) -> None:
        goal = writer.next + operations
        with anyio.move_on_after(_TAIL_LIMIT):
            while writer.next < goal:
                await self._send(index, writer, range(writer.next, min(writer.next + _TAIL_BATCH, goal)))
            return
        missing = f"{goal - writer.next} of {operations} events were not acked within {_TAIL_LIMIT:g} s"
        raise RunError(f"{writer.segment}: {missing}")

    async def _send(self, index: int, writer: Writer, numbers: range) -> None:
        """One batch; the next one repeats what was not acked."""
        began, name = time.monotonic(), writer.id.encode()
        outcomes = await self._store.append_each(
            [BatchItem(writer.segment, event_bytes(writer.id, each), name, each, 1) for each in numbers]
        )
        failed = (at for at, outcome in enumerate(outcomes) if isinstance(outcome, Exception))
        if acked := next(failed, len(outcomes)):
            self._ledger.add([Record(Outcome.ACKED, index, numbers.start, acked, began, time.monotonic())])
        else:
            await anyio.sleep(_AFTER_ERROR)


def main() -> None:
    plan = msgspec.json.decode(sys.argv[1], type=Plan)
    try:
        anyio.run(write, plan, backend_options={"use_uvloop": True})
    except* tierlog.TierlogError as errors:
        sys.exit(f"a writer stops: {errors.exceptions[0]!r}")


if __name__ == "__main__":
    main()
