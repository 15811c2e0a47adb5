"""The nemesis carries out the plan's faults, and starts the next process whenever none serves.

After each start it observes every family in full and reports to the checkers which owners are fenced; clients
wait for that. It heals everything at the end, or when nothing makes progress. A start that fails is tried
again; after some attempts everything is healed, and from then on a failure is a violation. A few zombies may
live at a time; each keeps one client."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from random import Random

import anyio.abc
import trio

from tierlog.actors.container.container import Container
from tierlog.storage_backends.base.errors import NotOwner, TierlogError
from tierlog.storage_backends.base.transactions import is_staged

from .backups import Backups
from .beside import BesideTheWriter
from .bucket_faults import BucketFaults
from .chunk_caches import ChunkCacheFaults
from .clients import list_staged, list_transactions, observe_family
from .compound_faults import CompoundFaults
from .disk import Keep
from .faults import Fault, Kind, Nth, Target, Window, any_fault
from .full_storage import FullStorage
from .gates import Killed
from .gc_orders import GarbageOrders
from .graceful_ends import GracefulEnds
from .held_layouts import HeldLayouts
from .ledger_faults import LedgerFaults
from .local_runs import LocalRunFaults
from .loop import after_steps, waiting_tasks
from .plan import FaultKind, PlannedFault
from .process import Process, ProcessDied
from .records import OWN_CHUNKS
from .remote_log_faults import RemoteLogFaults
from .run_state import Ending, RunState
from .settings import WalKind
from .stale_owners import StaleOwners
from .view import View
from .world import FOLDER

STARTS_BEFORE_HEALING = 4
STARTS_AT_MOST = 12
START_SECONDS = 60.0
ZOMBIES_AT_MOST = 2
STALLED_SECONDS = 120.0
CLOCK_JUMPS = (-86_400.0, -10.0, 3600.0, 1e7)
KEEPS: tuple[Keep, ...] = ("none", "all", "random")


class CannotServe(AssertionError):
    """Nothing is wrong with the world any more, but the store cannot be opened, or nothing moves."""


class Nemesis:
    def __init__(self, run: RunState, tasks: anyio.abc.TaskGroup) -> None:
        """``tasks`` holds the processes."""
        self._run = run
        self._site = run.site
        self._tasks = tasks
        self._undo: list[Callable[[], None]] = []
        self._log_damage: Callable[[], None] | None = None
        self._watermarks_hold = True
        self._zombies: list[Process] = []
        make = _REMOTE_LOGS.get(run.site.kind.wal)
        self._remote = None if make is None else make(run, tasks, self)
        self._targets = (Target.FILES, run.site.log_target, Target.CHUNKS)
        self._compound = CompoundFaults(run, tasks, self)
        self._graceful = GracefulEnds(run)
        self.backups = Backups(run, tasks)
        self.gc_orders = GarbageOrders(run, tasks)
        acts = {
            **LocalRunFaults(run, tasks, self).acts,
            **self.backups.acts,
            **self.gc_orders.acts,
            **FullStorage(run, tasks, self._undo_later).acts,
            **HeldLayouts(run, tasks).acts,
            **ChunkCacheFaults(run.site).acts,
            **({} if self._remote is None else self._remote.acts),
            **StaleOwners(run, tasks, self).acts,
        }
        self.beside = BesideTheWriter(run, tasks, acts)
        self._act: Mapping[FaultKind, Callable[[PlannedFault, Random], Awaitable[None]]] = {
            FaultKind.ADVANCE: self._advance,
            FaultKind.STOP: self._stop,
            FaultKind.GRACEFUL_END: self._stop,
            FaultKind.KILL: self._kill_later,
            FaultKind.KILL_AT_CALL: self._kill_at_call,
            FaultKind.KILL_RECOVERY: self._kill_recovery,
            FaultKind.FAILOVER: self._fail_over,
            FaultKind.TAKE_OVER: self._take_over,
            FaultKind.POWER_LOSS: self._lose_power,
            FaultKind.FILE_ERROR: self._one_error,
            FaultKind.FILE_ERRORS: self._many_errors,
            FaultKind.LOG_ERROR: self._one_error,
            FaultKind.CHUNK_ERROR: self._one_error,
            FaultKind.CHUNK_ERRORS: self._many_errors,
            FaultKind.DISK_FULL: self._fill_disk,
            FaultKind.DAMAGE: self._damage,
            FaultKind.LOG_DAMAGE: self._damage_log,
            FaultKind.CLOCK_JUMP: self._jump_clock,
            FaultKind.FIRST_OPENING: self._nothing,
            **self._compound.acts,
        }

    # --- the plan's faults ----------------------------------------------------------------------------------

    def begin(self) -> None:
        """What goes wrong before anything else happens."""
        for fault in self._run.plan.faults:
            if fault.kind is FaultKind.FIRST_OPENING:
                acts = self._remote or self._compound
                acts.at_first_opening(fault, Random(f"fault {fault.chance}"))

    async def run(self) -> None:
        """Carry out each fault when an action after it begins."""
        run = self._run
        for fault in run.plan.faults:
            await run.until(partial(self._is_due, fault))
            run.trace.note("nemesis", f"{fault.number} {fault.kind}: {fault.count}, {fault.seconds:g} s")
            run.counts[fault.kind.value] += 1
            await self._act[fault.kind](fault, Random(f"fault {fault.chance}"))

    def _is_due(self, fault: PlannedFault) -> bool:
        return self._run.reached > fault.number

    async def _nothing(self, fault: PlannedFault, random: Random) -> None:
        """It was begun before the first action."""

    async def _advance(self, fault: PlannedFault, random: Random) -> None:
        self._run.hold()
        await trio.sleep(fault.seconds)
        self._run.release()

    async def _stop(self, fault: PlannedFault, random: Random) -> None:
        process = self._run.current
        if process is None or process.frozen:
            return

        self._run.hold()
        with trio.move_on_after(START_SECONDS):
            await process.stop()
        self._run.release()
        self._graceful.note(process)
        self._end(process)

    async def _kill_later(self, fault: PlannedFault, random: Random) -> None:
        after_steps(fault.count * 5, self._kill_newest)

    async def _kill_at_call(self, fault: PlannedFault, random: Random) -> None:
        self._site.faults.add(Fault(random.choice(self._targets), Kind.KILL, Nth(fault.count)))

    async def _kill_recovery(self, fault: PlannedFault, random: Random) -> None:
        for again in range(random.randint(2, 4)):
            after_steps(1 + again * fault.count * 3, self._kill_newest)

    def _kill_newest(self) -> None:
        if self._site.processes and not self._run.is_over:
            self.kill(self._site.processes[-1])

    def kill(self, process: Process) -> None:
        if process.alive:
            self._run.counts["kills"] += 1
        self._end(process)

    def _end(self, process: Process) -> None:
        process.kill()
        self._run.mark_dead(process)

    async def _fail_over(self, fault: PlannedFault, random: Random) -> None:
        process = self._run.current
        if process is None:
            return

        process.freeze()
        self.make_zombie(process, random)
        self._tasks.start_soon(self.resume_later, process, fault.seconds)

    async def _take_over(self, fault: PlannedFault, random: Random) -> None:
        process = self._run.current
        if process is not None:
            self.make_zombie(process, random)

    def make_zombie(self, process: Process, random: Random) -> None:
        """``process`` lives on, but another process is to serve."""
        self._run.counts["zombies"] += 1
        # A client that waits for an answer right now tests the zombie best.
        self._run.zombie_clients[process.number] = random.choice(
            self._run.callers(process) or range(self._run.plan.clients)
        )
        self._zombies = [zombie for zombie in self._zombies if zombie.alive] + [process]
        for oldest in self._zombies[:-ZOMBIES_AT_MOST]:
            self.kill(oldest)
        self._run.give_up_on(process)

    async def resume_later(self, process: Process, seconds: float) -> None:
        await trio.sleep(seconds)
        process.resume()

    async def _lose_power(self, fault: PlannedFault, random: Random) -> None:
        self.cut_power(random.choice(KEEPS))

    def cut_power(self, keep: Keep) -> None:
        self._run.counts["power_losses"] += 1
        self._mend_log("met a power loss")
        self._watermarks_hold = False
        self._site.lose_power(keep)
        for process in self._site.processes:
            self._run.mark_dead(process)

    def _target_of(self, kind: FaultKind) -> Target:
        return self._site.log_target if kind is FaultKind.LOG_ERROR else _TARGETS[kind]

    async def _one_error(self, fault: PlannedFault, random: Random) -> None:
        target = self._target_of(fault.kind)
        self._site.faults.add(any_fault(target, Nth(fault.count), fault.seconds, random))

    async def _many_errors(self, fault: PlannedFault, random: Random) -> None:
        target = self._target_of(fault.kind)
        for _ in range(random.randint(1, 3)):
            window = Window(fault.seconds, random.choice((0.02, 0.1, 0.5, 1.0)))
            self._site.faults.add(any_fault(target, window, fault.seconds, random))

    async def _fill_disk(self, fault: PlannedFault, random: Random) -> None:
        if not self._undo:
            self._undo_later(self._site.damage.fill_disk(random.choice((0, 1000, 5000))), fault.seconds)

    async def _damage(self, fault: PlannedFault, random: Random) -> None:
        """A chunk is damaged at rest, and mended later: meanwhile reads of it may be refused, but never
        answered wrongly."""
        contents = {
            name: data
            for name, data in self._site.chunk_contents().items()
            if data and name.startswith(OWN_CHUNKS)
        }
        if not contents or self._undo:
            return

        name = random.choice(sorted(contents))
        damage, size = self._site.damage, len(contents[name])
        undo = (
            damage.flip_chunk(name, random.randrange(8 * size))
            if random.random() < 0.5
            else damage.cut_chunk(name, random.randrange(size))
        )
        self._run.is_damaged = True

        def mend() -> None:
            undo()
            self._run.is_damaged = False
            self._run.damaged_up_to = len(self._site.processes)

        self._undo_later(mend, fault.seconds)

    async def _damage_log(self, fault: PlannedFault, random: Random) -> None:
        """All processes die, then a file or an object of a log is damaged: the next owner refuses it, or
        nothing acked is missing.

        Not after a power loss, which may have taken the note of how far the log reached (rule W3).
        """
        paths = [
            path
            for path in self._site.disk.files_below(f"{FOLDER.wal}/")
            if path.endswith(".wal") and self._site.disk.content(path)
        ]
        if not (paths or self._remote) or self._log_damage is not None or not self._watermarks_hold:
            return

        for process in self._site.processes:
            self.kill(process)
        if self._remote is not None:
            self._log_damage = self._remote.damage(random)
            return

        path, damage = random.choice(sorted(paths)), self._site.damage
        size = 8 * len(self._site.disk.content(path))
        undo = (
            damage.flip_file(path, random.randrange(size))
            if random.random() < 0.5
            else damage.cut_file(path, random.randrange(size) // 8)
        )
        self._log_damage = undo

    def _undo_later(self, undo: Callable[[], None], seconds: float) -> None:
        async def wait() -> None:
            await trio.sleep(seconds)
            if undo in self._undo:
                self._undo.remove(undo)
                undo()

        self._undo.append(undo)
        self._tasks.start_soon(wait)

    async def _jump_clock(self, fault: PlannedFault, random: Random) -> None:
        if self._run.current is not None:
            self._run.current.jump_clock(random.choice(CLOCK_JUMPS))

    # --- healing --------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """Nothing is wrong with the world any more; what is frozen goes on."""
        self._run.trace.note("nemesis", "heals everything")
        self._site.faults.clear()
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()
        for process in self._site.processes:
            process.resume()

    async def watch_progress(self) -> None:
        """If no call ends for a long time, heal; if that does not help, a call is never answered."""
        run, healed = self._run, False
        while True:
            before = run.progress
            await trio.sleep(STALLED_SECONDS)
            if run.progress != before:
                healed = False
            elif healed:
                raise CannotServe(
                    "\n".join(("calls are never answered", *run.waiting(), "tasks wait:", *waiting_tasks()))
                )
            else:
                self.heal()
                healed = True

    async def finish(self) -> None:
        """The plan is over: heal, let zombies do what they still do, then end them."""
        self._run.is_over = True
        self.heal()
        await trio.sleep(max(5.0, self._site.faults.late_until - trio.current_time()))
        last = self._run.current
        for process in self._site.processes:
            if process is not last:
                self._end(process)
        if last is not None:
            # One that was frozen in its opening may have fenced it.
            await self._run.attempt(
                last, "a last call", lambda store: store.list_segments(), seconds=START_SECONDS
            )
            if self._run.is_crippled(last) or any(map(_is_fenced, last.containers())):
                self._end(last)

    # --- processes ------------------------------------------------------------------------------------------

    async def keep_serving(self) -> None:
        """Start a process whenever none serves."""
        while True:
            await self._run.until(lambda: self._run.current is None)
            await self.bring_up()

    async def bring_up(self) -> None:
        run, last = self._run, "it was killed"
        for attempt in range(STARTS_AT_MOST):
            if attempt >= STARTS_BEFORE_HEALING:
                self.heal()
            process, problem = await self._start()
            if process is not None:
                self._mend_log("was accepted")
                problem = await self._show(process)
                if not problem:
                    self._watermarks_hold = True
                    run.current = process
                    run.change()
                    return

                self._end(process)
            self._mend_log("was refused")
            last = problem or last
            run.trace.note("nemesis", f"start failed: {last}")
            await trio.sleep(0.1 * attempt)

        raise CannotServe(f"the store cannot be opened, though nothing is wrong any more: {last}")

    def _mend_log(self, what: str) -> None:
        undo, self._log_damage = self._log_damage, None
        if undo is not None:
            self._run.counts[f"log damage that {what}"] += 1
            undo()

    async def _start(self) -> tuple[Process | None, str]:
        with trio.move_on_after(START_SECONDS):
            try:
                process = await self._site.start(self._tasks)
            except (TierlogError, OSError, ProcessDied, Killed) as error:
                return None, f"{type(error).__name__}: {error}"
            self._graceful.check(process)
            self._tasks.start_soon(self._mark_dead_at_the_end, process)
            return (None, "it stands still in its opening") if process.frozen else (process, "")
        self._end(self._site.processes[-1])
        return None, f"no start within {START_SECONDS:g} s"

    async def _mark_dead_at_the_end(self, process: Process) -> None:
        await process.ended.wait()
        self._run.mark_dead(process)

    async def _show(self, process: Process) -> str:
        """Tell each checker what the new owner shows; or why it shows nothing."""
        run = self._run
        for family, checker in run.checkers.items():
            view: View | None = None
            staged: list[str] | None = None
            # A lease may end while the transactions are listed.
            while view is None or staged != sorted(filter(is_staged, view)):
                view, problem = await observe_family(run, process, family)
                if view is None:
                    return problem
                # What earlier owners did by themselves is known before they are fenced.
                problem = await list_transactions(run, process, family)
                if problem:
                    return problem
                staged, problem = await list_staged(run, process, family)
                if staged is None:
                    return problem
            run.pass_time(family)
            checker.fence(process.number, view)
        run.check_invariants(process)
        return ""

    async def replace(self, random: Random) -> None:
        """The owner ends in one way or another; the next one serves."""
        process = await self._run.serving()
        match random.choice(("stop", "kill", "power")):
            case "stop":
                await self._stop_cleanly(process)
            case "kill":
                self._end(process)
            case _:
                self.cut_power(random.choice(KEEPS))
        await self.bring_up()

    async def restart(self) -> None:
        """A clean end, and the next owner."""
        await self._stop_cleanly(await self._run.serving())
        await self.bring_up()

    async def close(self) -> None:
        await self._stop_cleanly(await self._run.serving())

    async def flush(self, tries: int = 1) -> None:
        process = await self._run.serving()
        for left in reversed(range(tries)):
            outcome = await self._run.attempt(
                process, "the last flush", lambda store: store.flush(), seconds=START_SECONDS
            )
            if outcome.ending is Ending.ANSWERED:
                return

            if not left:
                raise CannotServe(
                    f"nothing is wrong any more, but a flush was {outcome.ending.value}: {outcome.value!r}"
                )
            await trio.sleep(1.0)

    async def _stop_cleanly(self, process: Process) -> None:
        with trio.move_on_after(START_SECONDS) as scope:
            await process.stop()
        if scope.cancelled_caught:
            raise CannotServe(
                "\n".join((f"P{process.number} does not stop; these tasks wait:", *waiting_tasks()))
            )
        if process.error is not None:
            raise CannotServe(f"P{process.number} did not stop cleanly: {process.error!r}")
        self._graceful.note(process, is_undisturbed=True)
        self._run.mark_dead(process)


_REMOTE_LOGS: Mapping[WalKind, type[RemoteLogFaults]] = {
    WalKind.BUCKET: BucketFaults,
    WalKind.LEDGERS: LedgerFaults,
}
_TARGETS = {
    FaultKind.FILE_ERROR: Target.FILES,
    FaultKind.FILE_ERRORS: Target.FILES,
    FaultKind.CHUNK_ERROR: Target.CHUNKS,
    FaultKind.CHUNK_ERRORS: Target.CHUNKS,
}


def _is_fenced(container: Container) -> bool:
    """Also if the container has not ended, because it met that at a read only, or not yet."""
    try:
        container.log.check_owner()
    except NotOwner:
        return True
    return False
