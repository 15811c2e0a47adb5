"""Compound faults: a fault at one call, and a second one that matters only because of the first.

The second is tied to the first by ``Fault.then``, so it follows soon after the call was hit and never without
it. What is still pending when the plan is over does not happen.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from random import Random
from typing import Any, NamedTuple, Protocol

import anyio.abc
import attrs
import trio

from support.live_segments import cold_images, live_ids
from tierlog.storage_backends.base.transactions import is_staged

from .bucket import REGISTER, SLOT
from .clients import Client
from .disk import Keep
from .faults import Fault, Kind, Nth, Target, Window
from .loop import after_steps
from .model_calls import Delete, Info, Merge, Op, Read, Seal, Truncate
from .plan import FaultKind, PlannedFault
from .process import Process
from .run_state import RunState
from .settings import ChunksKind, WalKind
from .world import FOLDER, Site

LOSSES: tuple[Keep, ...] = ("none", "none", "random")
"""A power loss that keeps all would undo the point of it."""
_SYNCS = (("Sync", ".wal"), ("SyncFolder", ""))
_CHUNK_SYNCS = (("Sync", FOLDER.chunks), ("SyncFolder", FOLDER.chunks), ("SyncFolder", FOLDER.chunks))
_FIRST_CALLS = ("SyncFolder", "SyncFolder", "SyncFolder", "MakeFolder", "Open", "Write", "Sync")
_SUCCESSION_SECONDS = 20.0
_FLUSH_SECONDS = 5.0


class _RemoteLog(NamedTuple):
    """The calls of a log that is elsewhere."""

    target: Target
    append: tuple[str, str]
    """The verb, and a part of the name."""
    raising: tuple[str, str]
    """The one that raises the epoch."""
    failing: Callable[[Site], Nth | Window] = lambda site: Nth()
    """How long an append must fail to end its owner."""


_REMOTE_LOGS: Mapping[WalKind, _RemoteLog] = {
    WalKind.SERVICE: _RemoteLog(Target.LOG, ("append", ""), ("open", "")),
    WalKind.BUCKET: _RemoteLog(
        Target.OBJECTS,
        ("put", SLOT),
        ("put", REGISTER),
        # Requests are repeated.
        lambda site: Window(2 * site.kind.s3_log.patience, 1.0),
    ),
    WalKind.LEDGERS: _RemoteLog(Target.LEDGERS, ("append", ""), ("replace", "")),
}


class ProcessControl(Protocol):
    """What is done to processes; the nemesis does it."""

    def kill(self, process: Process) -> None: ...

    def cut_power(self, keep: Keep) -> None: ...

    def make_zombie(self, process: Process, random: Random) -> None: ...

    async def resume_later(self, process: Process, seconds: float) -> None: ...


class CompoundFaults:
    def __init__(self, run: RunState, tasks: anyio.abc.TaskGroup, hands: ProcessControl) -> None:
        self._run = run
        self._site = run.site
        self._tasks = tasks
        self._hands = hands
        self._remote = _REMOTE_LOGS.get(run.site.kind.wal)
        self.acts: Mapping[FaultKind, Callable[[PlannedFault, Random], Awaitable[None]]] = {
            FaultKind.FAILED_SYNC: self._fail_a_sync,
            FaultKind.OPENING: self._lose_power_after_an_opening,
            FaultKind.HANGING_WRITE: self._hang_a_write,
            FaultKind.LOST_REPLY: self._lose_a_reply,
            FaultKind.CRASH_AT_DELETE: self._crash_at_a_delete,
            FaultKind.FREEZE_AT_WRITE: self._freeze_at_a_write,
            FaultKind.ZOMBIE_READ: self._read_of_a_zombie,
            FaultKind.FAILED_RAISE: self._fail_a_raise,
            FaultKind.SLOW_READ: self._read_slowly,
        }

    # --- power -----------------------------------------------------------------------------------

    async def _fail_a_sync(self, fault: PlannedFault, random: Random) -> None:
        """Bytes of a failed sync are lost, even if another process retries it."""
        in_files = self._site.kind.chunks is ChunksKind.FOLDER
        verb, part = random.choice((*_SYNCS, *_CHUNK_SYNCS, *_CHUNK_SYNCS) if in_files else _SYNCS)
        self._add(
            Fault(
                Target.FILES,
                Kind.BEFORE,
                verbs=(verb,),
                part=part,
                then=lambda process: self._soon(random, self._lose_power(random)),
            ),
            random,
        )

    async def _lose_power_after_an_opening(self, fault: PlannedFault, random: Random) -> None:
        """An owner dies with bytes in the page cache only; the next one reads them there, and shows them."""

        def wait(process: int) -> None:
            self._start(partial(self._at_the_opening_after, process, random))

        self._add(Fault(Target.FILES, Kind.KILL, verbs=("Sync",), part=".wal", then=wait), random)

    async def _at_the_opening_after(self, number: int, random: Random) -> None:
        run = self._run
        await run.until(lambda: run.current is not None and run.current.number > number)
        self._after_steps(random.choice((1, 1, 10, 40)), self._lose_power(random))

    def at_first_opening(self, fault: PlannedFault, random: Random) -> None:
        """The first opening of all fails in its middle, and the next one finds what it left. A power loss
        comes when that is long past."""
        kind, call = (
            random.choice((Kind.BEFORE, Kind.BEFORE, Kind.KILL)),
            Nth(random.choice((1, 1, 2, 2, 3, 4, 6, 9))),
        )

        def lose_power_later(process: int) -> None:
            self._run.counts["failed births"] += 1
            self._start(partial(self._at_the_step, random.randint(5, 150), self._lose_power(random)))

        self._site.faults.add(
            Fault(Target.FILES, kind, call, (random.choice(_FIRST_CALLS),), process=1, then=lose_power_later)
        )

    async def _at_the_step(self, number: int, act: Callable[[], None]) -> None:
        await self._run.until(lambda: self._run.reached >= number)
        self._unless_over(act)

    def _lose_power(self, random: Random) -> Callable[[], None]:
        return partial(self._hands.cut_power, random.choice(LOSSES))

    # --- calls that hang, or are in doubt --------------------------------------------------------

    async def _hang_a_write(self, fault: PlannedFault, random: Random) -> None:
        """A group does not become durable for a while, and then never does."""
        seconds = random.choice((0.05, 0.3, 1.0, 2.0))

        def kill_later(number: int) -> None:
            process = self._site.processes[number - 1]
            self._start(partial(self._after, seconds, partial(self._hands.kill, process)))
            self._run.at_hanging_log()

        def fail_its_sync(number: int) -> None:
            self._run.at_hanging_log()
            self._site.faults.add(Fault(Target.FILES, Kind.BEFORE, Nth(), ("Sync",), number, ".wal"))

        if self._remote is not None:
            self._add(self._at(self._remote.append, Kind.STALL, then=kill_later), random)
        elif random.random() < 0.5:
            self._add(Fault(Target.FILES, Kind.STALL, verbs=("Write",), part=".wal", then=kill_later), random)
        else:
            self._add(
                Fault(
                    Target.FILES,
                    Kind.STALL,
                    verbs=("Write",),
                    part=".wal",
                    seconds=seconds,
                    then=fail_its_sync,
                ),
                random,
            )

    async def _lose_a_reply(self, fault: PlannedFault, random: Random) -> None:
        """The same segment goes on being appended to and flushed by the same owner."""
        self._add(
            Fault(
                Target.CHUNKS,
                random.choice((Kind.AFTER, Kind.PARTIAL)),
                verbs=("write",),
                keep=random.choice((1, 50)),
            ),
            random,
        )

    async def _crash_at_a_delete(self, fault: PlannedFault, random: Random) -> None:
        def kill_soon(number: int) -> None:
            kill = partial(self._hands.kill, self._site.processes[number - 1])
            self._after_steps(random.choice((1, 3, 8, 20, 60)), kill)

        self._add(Fault(Target.CHUNKS, Kind.STALL, verbs=("delete",), seconds=0.0, then=kill_soon), random)

    # --- zombies ---------------------------------------------------------------------------------

    async def _freeze_at_a_write(self, fault: PlannedFault, random: Random) -> None:
        """The owner stands still inside an append, and goes on when it has a successor."""

        def succeed(number: int) -> None:
            process = self._site.processes[number - 1]
            if process is self._run.current:
                self._hands.make_zombie(process, random)
            self._start(partial(self._hands.resume_later, process, fault.seconds))

        if self._remote is not None:
            self._add(self._at(self._remote.append, Kind.FREEZE, then=succeed), random)
        else:
            self._add(
                Fault(
                    Target.FILES,
                    Kind.FREEZE,
                    verbs=(random.choice(("Write", "Sync")),),
                    part=".wal",
                    then=succeed,
                ),
                random,
            )

    async def _fail_a_raise(self, fault: PlannedFault, random: Random) -> None:
        """A container fails and opens its log again. The raise of the epoch fails, and before it can try once
        more it has a successor."""
        process = self._run.current
        if process is None or process.frozen:
            return

        def succeed(number: int) -> None:
            if process is self._run.current and not self._run.is_over:
                process.freeze()
                self._hands.make_zombie(process, random)
                self._start(partial(self._hands.resume_later, process, random.choice((0.5, 2.0, 10.0))))

        kind = random.choice((Kind.BEFORE, Kind.BEFORE, Kind.AFTER))
        faults, owner = self._site.faults, process.number
        if self._remote is not None:
            failing = self._remote.failing(self._site)
            faults.add(self._at(self._remote.append, Kind.BEFORE, trigger=failing, process=owner))
            faults.add(self._at(self._remote.raising, kind, process=owner, then=succeed))
        else:
            faults.add(Fault(Target.FILES, Kind.BEFORE, Nth(), ("Sync",), owner, ".wal"))
            faults.add(
                Fault(
                    Target.FILES,
                    kind,
                    Nth(),
                    (random.choice(("Write", "Write", "Sync")),),
                    owner,
                    "/register",
                    then=succeed,
                )
            )

    async def _read_of_a_zombie(self, fault: PlannedFault, random: Random) -> None:
        """The owner stands still until it has a successor; its first call after that is a
        read."""
        process = self._run.current
        if process is None or process.frozen:
            return

        process.freeze()
        self._hands.make_zombie(process, random)
        self._start(partial(self._read_when_succeeded, process, random))

    async def _read_when_succeeded(self, process: Process, random: Random) -> None:
        run = self._run
        stored = _stored(process)  # before its successor removes runs
        with trio.move_on_after(_SUCCESSION_SECONDS):
            await run.until(lambda: run.current is not None and run.current is not process)
            await trio.sleep(random.choice((0.0, 0.05, 0.5)))
        names = random.choice(run.plan.families)
        name, offset = random.choice(names), random.choice((0, 0, 10, 100))
        visitor = Client(run.plan.clients, (), run)
        if stored and run.current not in (None, process) and random.random() < 0.6:
            # What it would read from a chunk is gone, and so is the chunk.
            name, offset, end = random.choice(stored)
            await self._change(run.current, visitor, random.choice((Truncate(name, end), Delete(name))))
            await trio.sleep(self._site.kind.limits.collect_after + 1.0)
        process.resume()
        if run.current is None or run.is_over or not process.alive:
            return

        await visitor.visit(
            process, random.choice((Read(name, offset, 400), Read(name, offset, 400), Info(name)))
        )

    # --- layouts ---------------------------------------------------------------------------------

    async def _read_slowly(self, fault: PlannedFault, random: Random) -> None:
        """While a chunk is read, its segment is truncated, or becomes part of another one, and that is
        flushed."""
        process = self._run.current
        stored = [] if process is None or process.frozen else _stored(process)
        if process is None or not stored:
            return

        name, offset, end = random.choice(stored)
        seconds = random.choice((0.3, 1.0, 2.0))
        for call in (1, 2):
            self._site.faults.add(
                Fault(Target.CHUNKS, Kind.STALL, Nth(call), ("read",), process.number, seconds=seconds)
            )
        visitors = [Client(self._run.plan.clients + number, (), self._run) for number in range(2)]
        self._start(partial(visitors[0].visit, process, Read(name, offset, 400)))
        self._start(
            partial(self._change_twice, process, visitors[1], name, random.randint(offset, end), random)
        )

    async def _change_twice(
        self, process: Process, visitor: Client, name: str, offset: int, random: Random
    ) -> None:
        others = [
            other for names in self._run.plan.families if name in names for other in names if other != name
        ]
        target = random.choice(others or [name])
        changes: tuple[list[Op], ...] = (
            [Truncate(name, offset)],
            [Seal(name), Merge(target, (name,))],
            [Delete(name)],
        )
        for ops in random.sample(changes, 2):
            await trio.sleep(0.05)
            for op in ops:
                await self._change(process, visitor, op)

    async def _change(self, process: Process | None, visitor: Client, op: Op) -> None:
        """And move it to long-term storage."""
        if process is not None and process.alive and not self._run.is_over:
            await visitor.visit(process, op)
            await self._run.attempt(
                process, f"{visitor.name} flush", lambda store: store.flush(), seconds=_FLUSH_SECONDS
            )

    # --- inside ----------------------------------------------------------------------------------

    def _add(self, fault: Fault, random: Random) -> None:
        """Add the fault at one of the next four calls that it can happen to."""
        self._site.faults.add(attrs.evolve(fault, trigger=Nth(random.randint(1, 4))))

    def _at(self, call: tuple[str, str], kind: Kind, **more: Any) -> Fault:
        """A fault of that call of a log that is elsewhere."""
        assert self._remote is not None
        return Fault(self._remote.target, kind, verbs=call[:1], part=call[1], **more)

    def _soon(self, random: Random, act: Callable[[], None]) -> None:
        if random.random() < 0.5:
            self._after_steps(random.choice((10, 40, 150, 500)), act)
        else:
            self._start(partial(self._after, random.choice((0.02, 0.2, 1.0, 3.0)), act))

    def _after_steps(self, count: int, act: Callable[[], None]) -> None:
        after_steps(count, partial(self._unless_over, act))

    async def _after(self, seconds: float, act: Callable[[], None]) -> None:
        await trio.sleep(seconds)
        self._unless_over(act)

    def _unless_over(self, act: Callable[[], None]) -> None:
        if not self._run.is_over:
            act()

    def _start(self, part: Callable[[], Awaitable[None]]) -> None:
        self._tasks.start_soon(self._site.or_all_end, part)


def _stored(process: Process) -> list[tuple[str, int, int]]:
    """What it would have to read from chunks: (segment, offset, where its flushed bytes end)."""
    found = []
    for container in process.containers():
        segments = container.state.segments
        cold = cold_images(container)
        for name, sid in sorted(live_ids(container).items()):
            segment, image = segments.by_id.get(sid), cold.get(sid)
            if image is not None and image.length > image.start_offset:
                found.append((name, image.start_offset, image.length))
            if segment is None or segment.flushed <= segment.start_offset or is_staged(name):
                continue

            cached = container.cache.slices(sid, segment.start_offset, segment.flushed)
            gap = segment.start_offset + sum(map(len, cached))
            if gap < segment.flushed:
                found.append((name, gap, segment.flushed))
    return found
