"""The clients of a run: each carries out its actions one after the other and reports every call to the
checker.

A client stays with its process while that serves. A zombie keeps one client, which calls it until it answers
``NotOwner``. A client whose process died, or that abandons a frozen one, has lost its call. No client waits
forever: tails have an end, and everything else is answered or the run fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from functools import partial
from random import Random
from typing import Any

import attrs
import trio

from tierlog.actors.kernel.use_guard import GuardedGenerator
from tierlog.journal.operations.segment_image import SegmentStatus
from tierlog.storage_backends.base.errors import (
    ClosedError,
    DataCorruption,
    InvalidArgument,
    NotOwner,
    TierlogError,
    TransactionNotFound,
)

from .configuration import Pending
from .intents import Memory, calls_of
from .model_calls import Append, Info, NextBlock, Op, Read
from .model_transactions import LookUp, listed
from .parked import Ahead
from .plan import Action, Verb
from .process import Process
from .run_state import Ending, Outcome, RunState
from .tails import MissedWakeup, NoBlock, await_block
from .view import View, observe, staged_names

BLOCKS_MAX = 8
BLOCK_SIZES = (50, 400, 5000)
WATCH_SECONDS = 0.02
OBSERVATION_SECONDS = 60.0


class WrongAnswer(AssertionError):
    """A call outside the model was answered in a way that nothing allows."""


class Client:
    def __init__(self, number: int, actions: Sequence[Action], run: RunState) -> None:
        self.number = number
        self.name = f"c{number}"
        self._actions = actions
        self._run = run
        self._memory = Memory(number, {segment.name: segment.imported for segment in run.plan.legacy})
        self._process: Process | None = None

    async def run(self) -> None:
        for action in self._actions:
            await self._run.reach(action.number)
            if action.pause:
                await trio.sleep(action.pause)
            await self._act(action)

    async def _act(self, action: Action) -> None:
        names = self._run.plan.families[action.family]
        match action.verb:
            case Verb.FLUSH:
                await self._flush(action)
            case Verb.WRONG:
                await self._wrong(action, names)
            case Verb.READ_ALL:
                await self._read_all(action, names[action.segment])
            case Verb.TAIL:
                name = names[action.segment]
                await self._tail(action, name, self._memory.starts.get(name, 0))
            case Verb.WATCH:
                await self._watch(action, names)
            case Verb.TRANSACTIONS:
                process = await self._attached()
                self._leave_if_replaced(
                    process, await self.list_transactions(process, names[0], action.patience)
                )
            case _:
                for op in calls_of(action, names, self._memory, self._run.plan.clients):
                    await self._call(op, action.patience)

    async def _attached(self) -> Process:
        """The process to ask now."""
        run, process = self._run, self._process
        if (
            process is None
            or not process.alive
            or (process is not run.current and run.zombie_clients.get(process.number) != self.number)
        ):
            process = self._process = await run.serving()
        return process

    # --- calls of the model ----------------------------------------------------------------------

    async def visit(self, process: Process, op: Op) -> None:
        """One call to a process that others have left."""
        await self._check_call(process, op, None, op.send)

    async def list_transactions(
        self, process: Process, family: str, patience: int | None = None, seconds: float | None = None
    ) -> Outcome:
        """All of a family, reported to the checker as one query of each."""
        run = self._run
        checker = run.checkers[family]
        calls = {key: checker.begin(LookUp(*key), process.number) for key in run.expiries[family].keys}
        with run.listing(family, process.number, calls):
            outcome = await run.attempt(
                process, f"{self.name} lists transactions", partial(listed, family), patience, seconds
            )
        run.trace.note(self.name, f"P{process.number} transactions of {family}: {_brief(outcome)}")
        if outcome.ending is not Ending.ANSWERED:
            for call in calls.values():
                self._check_outcome(process, call, call.op, outcome)
            return outcome

        found = {(info.target, info.transaction_id): info for info in outcome.value}
        for key in {**calls, **found}:
            call = calls.get(key) or checker.begin(LookUp(*key), process.number)
            missing = Outcome(Ending.REFUSED, TransactionNotFound("it is not listed", segment=key[0]))
            self._check_outcome(
                process, call, call.op, Outcome(Ending.ANSWERED, found[key]) if key in found else missing
            )
        return outcome

    async def _call(self, op: Op, patience: int | None = None) -> Outcome:
        process = await self._attached()
        return await self._check_call(process, op, patience, op.send)

    async def _check_call(self, process: Process, op: Op, patience: int | None, send: Any) -> Outcome:
        """Make the call, and tell the checker when it begins and how it ends."""
        op = op.begun(trio.current_time())
        self._run.expiries[op.family].note(op)
        self._run.extend_listings(op.family, process.number)
        self._run.expect_access(op, process.number)
        call = self._run.checkers[op.family].begin(op, process.number)
        self._run.trace.note(self.name, f"P{process.number} #{call.number} {op}")
        ahead = Ahead.of(op, process)
        outcome = await self._run.attempt(process, f"{self.name} {op}", send, patience)
        if isinstance(outcome.value, NoBlock):
            outcome = attrs.evolve(outcome, ending=Ending.CANCELLED)
        self._run.trace.note(self.name, f"#{call.number} {_brief(outcome)}")
        self._run.check_no_theft(process)
        self._check_outcome(process, call, op, outcome)
        if outcome.ending is Ending.ANSWERED:
            ahead.check_decided(op)
        if outcome.ending in (Ending.ANSWERED, Ending.REFUSED):
            self._run.check_invariants(process)
        self._leave_if_replaced(process, outcome)
        return outcome

    def _check_outcome(self, process: Process, call: Pending, op: Op, outcome: Outcome) -> None:
        checker = self._run.checkers[op.family]
        self._run.pass_time(op.family)
        match outcome.ending:
            case Ending.ANSWERED:
                self._run.counts["acked"] += isinstance(op, Append)
                self._memory.answered(op, outcome.value)
                checker.answered(call, outcome.value)
            case Ending.REFUSED:
                self._memory.refused(op, outcome.value)
                checker.refused(call, outcome.value, corruption_expected=self._run.may_meet_damage(process))
            case Ending.CANCELLED:
                self._memory.doubtful(op)
                checker.doubtful(call)
            case Ending.LOST:
                self._memory.doubtful(op)
                checker.lost(call)

    def _leave_if_replaced(self, process: Process, outcome: Outcome) -> None:
        """Leave a process that is not the owner any more; without a successor, one is started."""
        if outcome.ending is Ending.REFUSED and isinstance(outcome.value, (NotOwner, DataCorruption)):
            self._run.counts[type(outcome.value).__name__] += 1
            self._process = None
            if self._run.is_crippled(process):
                self._run.retire(process)

    async def _read_all(self, action: Action, name: str) -> None:
        """Read from the start to the end that the first answer gave, block by block."""
        info = await self._call(Info(name))
        if info.ending is not Ending.ANSWERED:
            return

        offset, size = info.value.start_offset, Random(f"block {action.chance}").choice(BLOCK_SIZES)
        for _ in range(BLOCKS_MAX):
            outcome = await self._call(Read(name, offset, size), action.patience)
            if outcome.ending is not Ending.ANSWERED or not outcome.value:
                return
            offset += len(outcome.value)

    async def _watch(self, action: Action, names: Sequence[str]) -> None:
        """Wait at the end of a segment while a merge or a commit, and perhaps nothing else, imports_on_access
        bytes to it."""
        name = names[action.segment]
        info = await self._call(Info(name))
        if info.ending is not Ending.ANSWERED:
            return

        async def bring() -> None:
            await trio.sleep(WATCH_SECONDS)
            for op in calls_of(action, names, self._memory, self._run.plan.clients):
                await self._call(op, action.patience)

        async with trio.open_nursery() as nursery:
            for part in (partial(self._tail, action, name, info.value.length), bring):
                nursery.start_soon(self._run.site.or_all_end, part)

    async def _tail(self, action: Action, name: str, offset: int) -> None:
        """Follow a segment for a while: each block that is waited for is one read that is never empty, unless
        the segment is sealed."""
        random = Random(f"tail {action.chance}")
        size = random.choice(BLOCK_SIZES)
        process, followed = await self._attached(), 0
        tail = process.store.tail(name, offset, block_size=size)
        assert isinstance(tail, GuardedGenerator)
        async with aclosing(tail) as blocks:
            for _ in range(random.randint(1, BLOCKS_MAX)):
                op = NextBlock(name, offset, size, followed)
                outcome = await self._check_call(
                    process, op, None, partial(await_block, process.gate, op, blocks)
                )
                if isinstance(outcome.value, NoBlock) and outcome.value.withheld:
                    raise MissedWakeup(
                        f"a tail of P{process.number} waits on and did not get: {outcome.value.withheld}"
                    )
                if outcome.ending is not Ending.ANSWERED or not outcome.value:
                    return
                offset, followed = offset + len(outcome.value), outcome.value.segment_id

    # --- calls beside the model ------------------------------------------------------------------

    async def _flush(self, action: Action) -> None:
        """Afterwards everything that was durable before is in long-term storage."""
        process = await self._attached()
        before = {
            c.index: {s.sid: s.durable_length for s in c.state.segments.by_id.values()}
            for c in process.containers()
        }
        sequences = {c: c.state.client_sequence for c in process.containers()}
        self._run.trace.note(self.name, f"P{process.number} flush")
        outcome = await self._run.attempt(
            process, f"{self.name} flush", lambda store: store.flush(), action.patience
        )
        self._run.trace.note(self.name, f"flush {_brief(outcome)}")
        self._leave_if_replaced(process, outcome)
        if outcome.ending is not Ending.ANSWERED:
            return

        self._run.check_invariants(process)
        for container in process.containers():
            newest = container.state.manifest.newest
            cut = 0 if newest is None else newest.progress.cut
            if cut < sequences.get(container, 0):
                raise WrongAnswer(
                    f"a flush of P{process.number} returned, but long-term storage says of container "
                    f"{container.index} that it is complete up to {cut}, not {sequences[container]}"
                )
            for sid, length in before.get(container.index, {}).items():
                segment = container.state.segments.by_id.get(sid)
                if segment is not None and segment.status is SegmentStatus.LIVE and segment.flushed < length:
                    raise WrongAnswer(
                        f"a flush of P{process.number} returned, but {segment!r} had {length} durable bytes "
                        f"before it"
                    )

    async def _wrong(self, action: Action, names: Sequence[str]) -> None:
        """A call that no state makes right: the store's door refuses it, and nothing happens."""
        process = await self._attached()
        name = names[action.segment]
        random = Random(f"wrong {action.chance}")
        wrong = random.choice(
            (
                lambda store: store.append(name, b"." * (store.append_bytes_max + 1)),
                lambda store: store.append(name, b"x", writer_id="w0"),
                lambda store: store.append(
                    name, b"x", writer_id="w0", event_number=3, previous_event_number=3
                ),
                lambda store: store.read(name, -1, 10),
                lambda store: store.truncate_segment(name, -1),
                lambda store: store.create_segment("_system/x"),
                lambda store: store.merge_segments(name, ()),
                lambda store: store.merge_segments(name, (names[1], names[1])),
                lambda store: store.update_attributes(name, ()),
                lambda store: store.expire_writers(name, ()),
            )
        )
        outcome = await self._run.attempt(process, f"{self.name} wrong call", wrong)
        if outcome.ending is Ending.ANSWERED or (
            outcome.ending is Ending.REFUSED and not isinstance(outcome.value, (InvalidArgument, ClosedError))
        ):
            raise WrongAnswer(
                f"P{process.number}: a wrong call was {_brief(outcome)}, not refused as InvalidArgument"
            )


def _brief(outcome: Outcome) -> str:
    value = outcome.value
    if isinstance(value, TierlogError):
        return f"{outcome.ending.value} {type(value).__name__}: {value}"
    if isinstance(value, bytes) and len(value) > 24:
        return f"{outcome.ending.value} {len(value)} bytes {value[:12]!r}"
    return f"{outcome.ending.value} {value!r}"


async def observe_family(run: RunState, process: Process, family: str) -> tuple[View | None, str]:
    """What ``process`` shows of the segments, or why it shows nothing."""
    checker, targets = run.checkers[family], run.names_of(family)
    outcome = await run.attempt(
        process,
        f"observes {family}",
        lambda store: observe(store, family, checker.writers, targets),
        seconds=OBSERVATION_SECONDS,
    )
    if outcome.ending is Ending.ANSWERED:
        return outcome.value, ""
    return None, f"{outcome.ending.value}: {outcome.value!r}"


async def list_staged(run: RunState, process: Process, family: str) -> tuple[list[str] | None, str]:
    """The staged segments that ``process`` has now, or why it shows nothing."""
    outcome = await run.attempt(
        process,
        f"lists staged segments of {family}",
        lambda store: staged_names(store, run.names_of(family)),
        seconds=OBSERVATION_SECONDS,
    )
    if outcome.ending is Ending.ANSWERED:
        return sorted(outcome.value), ""
    return None, f"{outcome.ending.value}: {outcome.value!r}"


async def list_transactions(run: RunState, process: Process, family: str) -> str:
    """Tell the checker what ``process`` knows of transactions; or why that cannot be, else ""."""
    outcome = await Client(run.plan.clients, (), run).list_transactions(
        process, family, seconds=OBSERVATION_SECONDS
    )
    return "" if outcome.ending is Ending.ANSWERED else f"{outcome.ending.value}: {outcome.value!r}"
