"""Owners and openers of a log in a bucket that stand still until others have truncated it, and go on (rules
L4 and L7). In these seeds an owner that appends never reads the register (L9), which would stop it too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from random import Random

import anyio.abc
import trio

from tierlog.journal.log.contract import DurableDataLog
from tierlog.journal.log.lifecycle import LogState
from tierlog.journal.log.s3_log import S3Log
from tierlog.journal.log.s3_register import S3Register
from tierlog.storage_backends.base.segments import AttributeUpdate, AttributeUpdateKind

from .bucket import REGISTER, SLOT
from .clients import Client
from .compound_faults import ProcessControl
from .faults import Fault, Kind, Nth, Target, Window
from .invariants import Broken
from .model_calls import Append, Op, UpdateAttributes
from .plan import FaultKind, PlannedFault
from .process import Process
from .run_state import RunState

_SECONDS = 60.0
"""A story that takes longer is given up."""
_FLUSH_SECONDS = 5.0
_BYTES = 1500


class StaleOwners:
    def __init__(self, run: RunState, tasks: anyio.abc.TaskGroup, hands: ProcessControl) -> None:
        self._run = run
        self._site = run.site
        self._tasks = tasks
        self._hands = hands
        self._is_busy = False
        self.acts: Mapping[FaultKind, Callable[[PlannedFault], None]] = {FaultKind.STALE_OWNER: self._strike}

    def _strike(self, fault: PlannedFault) -> None:
        random, process = Random(f"fault {fault.chance}"), self._run.current
        if process is None or process.frozen or self._is_busy:
            return
        self._is_busy = True
        story = random.choice((self._owner_sleeps, self._opener_sleeps))
        self._site.trace.note("nemesis", f"{story.__name__} beside {process.gate.name}")
        self._tasks.start_soon(self._site.or_all_end, partial(self._tell, story, process, random))

    async def _tell(
        self, story: Callable[[Process, Random], Awaitable[Process | None]], owner: Process, random: Random
    ) -> None:
        with trio.move_on_after(_SECONDS):
            sleeper = await story(owner, random)
            if sleeper is not None:
                begun = _being_opened(self._site.logs_of[sleeper.number])
                newest = await self._work_until_truncated(sleeper)
                self._site.trace.note("nemesis", f"{sleeper.gate.name} goes on")
                sleeper.resume()
                while sleeper.alive and not sleeper.serving:
                    _check_overtaken(begun, newest)
                    await trio.sleep(0.001)
                _check_overtaken(begun, newest)
                await self._append(sleeper, random)
                await self._update(sleeper, random)
        for process in self._site.processes:
            process.resume()
        self._is_busy = False

    async def _owner_sleeps(self, owner: Process, random: Random) -> Process | None:
        """In an append, whose slot is the next one's fence."""
        await self._freeze_at_a_put(owner.number, lambda: self._append(owner, random))
        self._hands.make_zombie(owner, random)
        return owner

    async def _opener_sleeps(self, owner: Process, random: Random) -> Process | None:
        """After it has read the log, when a put of the owner before arrives."""
        await self._freeze_at_a_put(owner.number, lambda: self._append(owner, random))
        opener = len(self._site.processes) + 1
        # Long-term storage would tell it that it has a successor: here its log alone must.
        self._site.faults.add(Fault(Target.CHUNKS, Kind.BEFORE, Window(2 * _SECONDS, 1.0), process=opener))
        await self._freeze_at_a_put(opener, lambda: self._succeed(owner, random))
        owner.resume()
        await trio.sleep(0.5)
        sleeper = self._site.processes[opener - 1]
        sleeper.opened.set()  # whoever waits for it finds it frozen
        # Nor does a later look at the register, which is no part of an opening.
        window = Window(2 * _SECONDS, 1.0)
        self._site.faults.add(Fault(Target.OBJECTS, Kind.BEFORE, window, ("get",), opener, REGISTER))
        return sleeper

    async def _succeed(self, owner: Process, random: Random) -> None:
        self._hands.make_zombie(owner, random)

    async def _freeze_at_a_put(self, number: int, begin: Callable[[], Awaitable[None]]) -> None:
        """At the process's next put of a slot, which ``begin`` leads to."""
        met = trio.Event()
        fault = Fault(
            Target.OBJECTS, Kind.FREEZE, Nth(), ("put",), number, SLOT, then=lambda process: met.set()
        )
        self._site.faults.add(fault)
        self._tasks.start_soon(self._site.or_all_end, begin)
        await met.wait()

    async def _work_until_truncated(self, sleeper: Process) -> dict[int, int]:
        """Until a successor's log begins behind all that the sleeper has read. Returns its epochs."""
        run = self._run
        await run.until(lambda: run.current is not None and run.current.number > sleeper.number)
        successor = await run.serving()
        ends = [_end(container.log) for container in successor.containers()]
        while successor.alive and not run.is_over:
            lows = [_register(container.log).low for container in successor.containers()]
            if len(lows) == len(ends) and all(low >= end for low, end in zip(lows, ends, strict=True)):
                run.counts["stale owners"] += 1
                return {each.index: _register(each.log).epoch for each in successor.containers()}
            for names in run.plan.families:
                await self._visit(successor, names[0])
            await run.attempt(successor, "flush", lambda store: store.flush(), seconds=_FLUSH_SECONDS)
            await trio.sleep(0.1)
        return {}

    async def _append(self, process: Process, random: Random) -> None:
        await self._visit(process, self._any_name(random))

    async def _update(self, process: Process, random: Random) -> None:
        """No bytes that wait to be flushed are a reason to refuse it."""
        update = AttributeUpdate("stale", random.randrange(1 << 30), AttributeUpdateKind.REPLACE)
        await self._call(process, UpdateAttributes(self._any_name(random), (update,)))

    def _any_name(self, random: Random) -> str:
        return random.choice(random.choice(self._run.plan.families))

    async def _visit(self, process: Process, name: str) -> None:
        await self._call(process, Append(name, (b"<stale>" * (_BYTES // 7),)))

    async def _call(self, process: Process, op: Op) -> None:
        if process.serving or process.frozen:
            await Client(self._run.plan.clients, (), self._run).visit(process, op)


def _being_opened(logs: Mapping[int, DurableDataLog]) -> dict[int, S3Log]:
    return {
        index: log
        for index, log in logs.items()
        if isinstance(log, S3Log) and log._life.state is LogState.OPENING
    }


def _check_overtaken(begun: Mapping[int, S3Log], newest: Mapping[int, int]) -> None:
    """L4: an opening that a newer one has overtaken fails, whatever it has read before."""
    for index, log in begun.items():
        if log._life.state in (LogState.OPEN, LogState.APPENDING):
            epoch = _register(log).epoch
            if epoch < newest.get(index, 0):
                raise Broken(
                    f"it does not hold that an opening that was overtaken fails\ncontainer {index} is open "
                    f"with epoch {epoch}, and its log was opened with {newest[index]}"
                )


def _end(log: object) -> int:
    assert isinstance(log, S3Log)
    return log._next_slot


def _register(log: object) -> S3Register:
    assert isinstance(log, S3Log)
    assert log._held is not None
    return log._held.register
