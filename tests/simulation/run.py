"""One seed: a plan, a world, clients and faults, and at the end everything that must hold then.

The end: clients finish, faults are healed, zombies ended, the last owner is replaced by one more that
recovers, everything is flushed and collected, the store is idle, closes cleanly, and opens once more with the
same content.

A violation ends the run at once and is the verdict; an exception of another kind is the simulator's own and
is raised. A run whose calls in doubt have too many possible orders ends there, counted as undecided.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from random import Random

import anyio
import trio

from support.table_rows import records_of
from tierlog.actors.kernel.exits import leaves

from . import copied_backups, copies, pinned, recovered, reopened, supervised
from .bucket_invariants import check_objects
from .chunk_caches import check_cache, leave_foreign, leave_unlisted, small_blocks
from .clients import Client, WrongAnswer, list_transactions, observe_family
from .configuration import TooManyConfigurations
from .faults import Fault, Kind, Nth, Target
from .invariants import Broken
from .ledger_invariants import check_ledgers
from .legacy import lay
from .legacy_invariants import LegacyFilesLeft
from .linearize import Violation
from .local_runs import check_copies, held_back, left_over_copies, may_leave_copies
from .loop import Deadlock, Rounds, run_virtual
from .lts_alone import CutNotes, check_alone
from .model_calls import Append
from .nemesis import CannotServe, Nemesis
from .plan import Plan
from .plan import keep as keep_steps
from .planner import make_plan
from .process import Process
from .records import unfinished
from .run_state import Foreign, RunState
from .sessions.world import FIRST_WITH_SESSIONS, SessionsRun
from .special_seeds import FIRST_IN_BUCKET, FIRST_ON_LEDGERS
from .storage_invariants import check_stored, left_over
from .table_clients import TableClients
from .tails import MissedWakeup
from .trace import Trace
from .verdict import Verdict
from .view import SegmentView, TornObservation, View
from .world import Site

COLLECT_SECONDS = 120.0
WHOLE_SECONDS = 120.0
IDLE_SECONDS = 600.0
SETTLE_SECONDS = 5.0
SHORT_LEASE = 30.0
"""Longer ones, and longer tombstones, outlive a run."""
TOMBSTONE_SECONDS = 30.0
FLUSHES = 20
LOOKS = 8
ROUNDS_AT_ONE_TIME = 100_000
"""More than an opening needs on a full disk without delays, where each lookup reads 25 runs from long-term
storage."""
ROUNDS_AT_LEAST = 1_000_000
ROUNDS_PER_ACTION = 1000
"""Bounds of a run's work: about fifty times of what most runs need, and twice of what one needs whose cache
of the system table is small and whose disk had no room for copies of runs, so that each of 1,300 steps of
deferred work reads eight runs from long-term storage."""
VIOLATIONS = (Violation, Broken, TornObservation, WrongAnswer, MissedWakeup, Foreign, CannotServe, Deadlock)


def run_seed(
    seed: int,
    *,
    operations: int = 200,
    keep: Collection[int] | None = None,
    full_trace: bool = False,
) -> Verdict:
    """Run what ``seed`` decides; of its steps only those that ``keep`` names. Some worlds have none."""
    if any(first <= seed < last for first, last in _SEEDS_WITHOUT_STEPS):
        return _run_without_steps(seed, Trace(everything=full_trace))

    plan = make_plan(seed, operations)
    if keep is not None:
        plan = keep_steps(plan, keep)
    return run_plan(plan, Trace(everything=full_trace))


def run_plan(plan: Plan, trace: Trace | None = None) -> Verdict:
    """Run ``plan``, a seed's own or one that was changed."""
    return _Run(plan, trace or Trace()).verdict()


_WITHOUT_STEPS = (
    (FIRST_WITH_SESSIONS, SessionsRun),
    (supervised.FIRST_SUPERVISED, supervised.SupervisedRun),
    (copied_backups.FIRST_COPIED, copied_backups.CopiedBackupsRun),
    (pinned.FIRST_PINNED, pinned.PinnedRun),
    (recovered.FIRST_RECOVERED, recovered.RecoveredRun),
    (reopened.FIRST_REOPENED, reopened.ReopenedRun),
    (copies.FIRST, copies.CopiesRun),
)
"""The first seeds of worlds that have no steps, from the last one on."""


_SEEDS_WITHOUT_STEPS = (
    (copies.FIRST, FIRST_IN_BUCKET),
    (supervised.FIRST_SUPERVISED, FIRST_ON_LEDGERS),
    (FIRST_WITH_SESSIONS, FIRST_WITH_SESSIONS + (1 << 32)),
)
"""All such seeds: from the first up to the last, which is not one of them."""


def _run_without_steps(seed: int, trace: Trace) -> Verdict:
    violation, run, seconds = None, None, 0.0
    make = next(make for first, make in _WITHOUT_STEPS if seed >= first)

    async def body() -> None:
        nonlocal run, seconds
        run = make(seed, trace)
        try:
            await run.site.or_all_end(run.body)
        finally:
            seconds = trio.current_time()

    try:
        with small_blocks():
            run_virtual(body, seed, rounds=_rounds(1))
    except BaseException as error:
        found = _violation(error)
        if found is None:
            raise
        violation = f"{type(found).__name__}: {found}"
    assert run is not None
    counts, shown = {run.title: 1}, trace.lines or trace.tail()
    return Verdict(seed, violation, tuple(shown), trace.digest(), (), run.operations, seconds, counts)


class _Run:
    def __init__(self, plan: Plan, trace: Trace) -> None:
        self._plan = plan
        self._trace = trace
        self._site: Site
        self._run: RunState
        self._nemesis: Nemesis
        self._tables: TableClients
        self._cuts = CutNotes()
        self._seconds = 0.0

    def verdict(self) -> Verdict:
        violation, undecided = None, {}
        try:
            with self._cuts.noting(), small_blocks():
                run_virtual(self._body, self._plan.seed, rounds=_rounds(len(self._plan.actions)))
        except BaseException as error:
            found = _violation(error)
            if _is_undecided(error):
                undecided = {"undecided": 1}
            elif found is None:
                raise
            else:
                violation = f"{type(found).__name__}: {found}"
        shown = self._trace.lines or self._trace.tail()
        return Verdict(
            self._plan.seed,
            violation,
            tuple(shown),
            self._trace.digest(),
            self._plan.numbers,
            len(self._plan.actions),
            self._seconds,
            self._run.tally() | undecided,
        )

    async def _body(self) -> None:
        begin = trio.current_time()
        try:
            async with anyio.create_task_group() as tasks:
                self._site = Site(self._plan.site, Random(f"site {self._plan.seed}"), self._trace)
                lay(self._site, self._plan.legacy)
                leave_foreign(self._site, Random(f"foreign {self._plan.seed}"))
                self._run = RunState(self._plan, self._site, self._trace)
                self._nemesis = Nemesis(self._run, tasks)
                self._tables = TableClients(self._run)
                await self._site.or_all_end(self._through_the_plan)
                await self._site.or_all_end(self._to_the_end)
                tasks.cancel_scope.cancel()
        finally:
            self._seconds = trio.current_time() - begin

    async def _through_the_plan(self) -> None:
        plan, nemesis = self._plan, self._nemesis
        nemesis.begin()
        async with anyio.create_task_group() as helpers:
            for help_ in (
                nemesis.keep_serving,
                nemesis.run,
                nemesis.beside.carry_out,
                nemesis.watch_progress,
                *self._tables.helpers,
                self._look_at_storage_alone,
            ):
                helpers.start_soon(self._site.or_all_end, help_)
            async with anyio.create_task_group() as clients:
                for number in range(plan.clients):
                    actions = [action for action in plan.actions if action.client == number]
                    clients.start_soon(self._site.or_all_end, Client(number, actions, self._run).run)
            await nemesis.finish()
            await self._run.serving()
            helpers.cancel_scope.cancel()

    async def _look_at_storage_alone(self) -> None:
        """At random moments: what would be left if everything else were lost now (rule F10)."""
        random, last = Random(f"alone {self._plan.seed}"), self._plan.actions[-1].number
        for at in sorted(random.randint(0, last) for _ in range(LOOKS)):
            await self._run.until(lambda at=at: self._run.reached >= at)  # type: ignore[misc]
            await trio.sleep(random.choice((0.0, 0.01, 0.3)))
            await self._check_alone()

    async def _check_alone(self) -> None:
        if not self._run.is_damaged:
            contents = dict(self._site.chunk_contents())
            published = await check_alone(
                self._plan.site.containers, contents, self._cuts, self._run.truncated_to
            )
            self._run.counts["states of long-term storage alone"] += published

    # --- the end ---------------------------------------------------------------------------------

    async def _to_the_end(self) -> None:
        """The last owner ends in some way; one more recovers, and everything must hold."""
        await self._observe()
        await self._wait_until_whole()
        if Random(f"flush {self._plan.seed}").random() < 0.5:
            await self._flush_once_more()
        await self._nemesis.replace(Random(f"end {self._plan.seed}"))
        await self._let_leases_end()
        await self._nemesis.flush()
        await self._nemesis.backups.check_and_remove(await self._run.serving())
        await self._wait_for_the_collector()
        await self._nemesis.gc_orders.check(await self._run.serving(), self._nemesis.flush)
        await self._wait_for_the_collector()
        await self._tables.check()
        shown = await self._observe()
        process, legacy = await self._run.serving(), self._legacy_files_left
        check_stored(process.containers(), self._site.chunk_contents(), shown, legacy)
        check_copies(process.containers())
        await self._check_alone()
        await self._check_idle()
        check_stored(process.containers(), self._site.chunk_contents(), shown, legacy)
        check_cache(self._site)
        leave_unlisted(self._site)
        await self._nemesis.restart()
        await self._observe()
        await trio.sleep(SETTLE_SECONDS)
        check_cache(self._site)
        await check_objects(self._site, await self._run.serving())
        await check_ledgers(self._site, await self._run.serving())
        await self._nemesis.close()

    async def _wait_until_whole(self) -> None:
        """Merges under way end, and leave no file that nothing needs. What a slow flush held back is
        published, though nobody asks for it (F5, F10)."""
        process = await self._run.serving()
        if not may_leave_copies(self._plan):
            await self._wait_for_none(
                partial(left_over_copies, process.containers()), "failed runs leave no local copies"
            )
        if not self._run.may_meet_damage(process):
            await self._wait_for_none(
                partial(held_back, process.containers()), "nothing is held back once all is well"
            )

    async def _wait_for_none(self, find: Callable[[], list[str]], promise: str) -> None:
        end = trio.current_time() + WHOLE_SECONDS
        while left := find():
            if trio.current_time() > end:
                raise Broken(f"it does not hold that {promise}\nleft over: {', '.join(left)}")
            await trio.sleep(1.0)

    async def _flush_once_more(self) -> None:
        """Whatever the last owner went through: once nothing is wrong any more, it can move everything to
        long-term storage.

        Even if the answer of a write to a chunk is lost: it cannot be tried again there, and must not be
        tried there forever (rule S3).
        """
        process, random = await self._run.serving(), Random(f"last bytes {self._plan.seed}")
        if self._run.may_meet_damage(process):
            return

        visitor = Client(self._plan.clients, (), self._run)
        for lost in (False, True):
            if lost:
                self._site.faults.add(
                    Fault(Target.CHUNKS, random.choice((Kind.AFTER, Kind.PARTIAL)), Nth(), ("write",), keep=1)
                )
            for names in self._plan.families:
                await visitor.visit(
                    process, Append(random.choice(names), (b"<last>" * random.choice((1, 20)),))
                )
            await self._nemesis.flush(tries=FLUSHES)
        self._site.faults.clear()

    async def _observe(self) -> View:
        """Everything that the owner shows, which must be what the checkers expect."""
        process = await self._run.serving()
        shown: dict[str, SegmentView] = {}
        for family, checker in self._run.checkers.items():
            view, problem = await observe_family(self._run, process, family)
            if view is None:
                raise CannotServe(f"{family} cannot be read, though nothing is wrong any more: {problem}")

            self._run.pass_time(family)
            checker.observe(view)
            shown.update(view)
            problem = await list_transactions(self._run, process, family)
            if problem:
                raise CannotServe(
                    f"the transactions of {family} cannot be listed, though nothing is wrong any more: "
                    f"{problem}"
                )
        self._run.check_invariants(process)
        return shown

    async def _let_leases_end(self) -> None:
        """Rules T7 and T9: a lease ends at most a quarter late, and what has ended is forgotten in time."""
        process, tombstone = await self._run.serving(), self._plan.site.limits.tombstone
        await trio.sleep(1.25 * SHORT_LEASE + min(1.1 * tombstone, TOMBSTONE_SECONDS) + SETTLE_SECONDS)
        for container in process.containers():
            table = container.state.transactions
            for record in table.records.values():
                if record.lease / 1000 <= SHORT_LEASE:
                    raise Broken(f"it does not hold that leases end in time\n{record}")
            if table.ends and tombstone <= TOMBSTONE_SECONDS:
                raise Broken(f"it does not hold that tombstones end in time\n{table.ends} are left")

    async def _wait_for_the_collector(self) -> None:
        """Nothing is lost, and nothing is left over that no metadata refers to, once delays are over."""
        process, legacy = await self._run.serving(), self._legacy_files_left
        end = trio.current_time() + COLLECT_SECONDS
        while left := [
            *self._unfinished(process),
            *left_over(process.containers(), self._site.chunk_contents(), legacy),
        ]:
            if trio.current_time() > end:
                raise Broken(
                    f"it does not hold that deferred work runs and what nothing refers to is collected\nleft "
                    f"over: {', '.join(left)}"
                )
            await trio.sleep(1.0)

    @property
    def _legacy_files_left(self) -> LegacyFilesLeft:
        return LegacyFilesLeft(self._plan.legacy, self._plan.site.layout)

    def _unfinished(self, process: Process) -> list[str]:
        least = self._plan.site.limits.loose_chunks
        return [
            work for container in process.containers() for work in unfinished(records_of(container), least)
        ]

    async def _check_idle(self) -> None:
        """Rule F5: without requests, nothing is written, read, or listed."""
        # What is under way comes to its end: the collector deletes runs that nothing needs any more later.
        await trio.sleep(SETTLE_SECONDS + self._plan.site.limits.collect_after)
        before = self._site.calls
        await trio.sleep(IDLE_SECONDS)
        if self._site.calls != before:
            raise Broken(
                f"it does not hold that idle means quiet\n{self._site.calls - before} calls in "
                f"{IDLE_SECONDS:g} s"
            )


def _rounds(actions: int) -> Rounds:
    return Rounds(ROUNDS_AT_ONE_TIME, max(ROUNDS_AT_LEAST, ROUNDS_PER_ACTION * actions))


def _is_undecided(error: BaseException) -> bool:
    """Whether the checker gave up, and nothing else is wrong."""
    found = [leaf for leaf in leaves(error) if not isinstance(leaf, trio.Cancelled)]
    return bool(found) and all(isinstance(leaf, TooManyConfigurations) for leaf in found)


def _violation(error: BaseException) -> BaseException | None:
    """The first violation in it, if there is nothing worse."""
    worse = [leaf for leaf in leaves(error) if not isinstance(leaf, (*VIOLATIONS, trio.Cancelled))]
    return None if worse else next((leaf for leaf in leaves(error) if isinstance(leaf, VIOLATIONS)), None)
