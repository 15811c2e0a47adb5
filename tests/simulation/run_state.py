"""What clients, faults and checks of one run share: which process serves, which others live, which calls are
under way.

``attempt`` is the one way in which a call is made, so that every call of a process that dies is lost at that
very moment. A call ends in exactly one of the ways of ``Ending``; a foreign exception out of a living store
is a violation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any

import attrs
import trio

from tierlog.actors.container.container import Container
from tierlog.actors.store.store import SegmentStore
from tierlog.storage_backends.base.errors import TierlogError

from .configuration import Pending
from .faults import Kind, Target
from .invariants import Broken, Watch
from .lease_expiry import LeaseExpiries
from .linearize import Checker
from .loop import after_steps
from .model import Key, State
from .model_calls import ImplicitImport, Op
from .model_transactions import LookUp
from .plan import FaultKind, Plan
from .process import Process, ProcessDied
from .published import PublishedChunks
from .storage_invariants import ChunkHistory
from .trace import Trace
from .world import Site

_FLIPS = f"{Target.CHUNKS} {Kind.FLIP}"


class Foreign(AssertionError):
    """A living store raised something that is no error of the store."""


class Ending(Enum):
    ANSWERED = "answered"
    REFUSED = "refused"
    CANCELLED = "cancelled"
    LOST = "lost"


@attrs.frozen
class Outcome:
    ending: Ending
    value: Any = None


@attrs.define(eq=False)
class _Calling:
    process: Process
    what: str
    since: float
    scope: trio.CancelScope


class RunState:
    def __init__(self, plan: Plan, site: Site, trace: Trace) -> None:
        self.plan = plan
        self.site = site
        self.trace = trace
        self.checkers = {names[0]: Checker(names[0], state=self._at_first(names)) for names in plan.families}
        tombstone = plan.site.limits.tombstone
        self.expiries = {
            family: LeaseExpiries(checker, tombstone, trio.current_time)
            for family, checker in self.checkers.items()
        }
        self.watch = Watch()
        self._truncated: dict[tuple[int, int], int] = {}
        published = PublishedChunks(site.chunk_names, site.stored_run, self.truncated_to)
        self.book = ChunkHistory(published.needs)
        site.faults.on_chunk_call = self.book.note
        self.counts: Counter[str] = Counter()
        self.current: Process | None = None
        """The process that clients should call; None while none serves."""
        self.zombie_clients: dict[int, int] = {}
        """The client that stays with a process that the others have left, by the process's
        number."""
        self.is_over = False
        """No more faults: what cannot be done now is a violation."""
        self.is_damaged = False
        """Stored bytes are damaged now, so reads of them may be refused."""
        self.damaged_up_to = 0
        """The last process that could have met damage."""
        self._flips = 0
        self.calls = 0
        """Calls that ended, as a sign of progress."""
        self._calling: list[_Calling] = []
        self._listings: list[tuple[str, int, dict[Key, Pending]]] = []
        self._work: dict[tuple[int, int], dict[str, int]] = {}
        self._changed = trio.Event()
        self._reached = 0
        self._held: trio.Event | None = None
        self._holds = self._releases = 0
        self.at_hanging_log: Callable[[], None] = lambda: None
        """Called when a write of the log hangs."""
        self.at_slow_runs: Callable[[], None] = lambda: None
        """Called when reads of runs become slow."""

    @property
    def was_full(self) -> bool:
        """Whether long-term storage was full at any time: then chunks that were truncated may have gone
        before an element shows it (rule G6)."""
        was_disk = self.counts[FaultKind.DISK_FULL.value] or self.counts[FaultKind.FULL_DISK.value]
        met = self.site.faults.met
        return bool(was_disk or any(met.get(f"{each} {Kind.FULL}") for each in (Target.CHUNKS, Target.FILES)))

    def truncated_to(self, container: int, sid: int) -> int:
        """Up to where the segment's chunks may have gone, because it was truncated on a full storage. It
        stays known of owners that have died since."""
        if not self.was_full:
            return 0

        starts = (
            segment.start_offset
            for process in self.site.processes
            if process.alive
            for each in process.containers()
            if each.index == container and (segment := each.state.segments.by_id.get(sid)) is not None
        )
        found = max(starts, default=0), self._truncated.get((container, sid), 0)
        self._truncated[container, sid] = max(found)
        return max(found)

    def _at_first(self, names: Sequence[str]) -> State:
        legacy = tuple(
            sorted((segment.name, segment.imported) for segment in self.plan.legacy if segment.name in names)
        )
        return State(legacy=legacy, imports_on_access=self.plan.site.layout.imports_legacy)

    # --- progress --------------------------------------------------------------------------------

    @property
    def reached(self) -> int:
        """The highest number of an action that has begun."""
        return self._reached

    @property
    def progress(self) -> int:
        """Grows as long as the run goes on: by calls that end, and where clients wait because the plan lets
        time pass."""
        return self.calls + self._releases

    async def reach(self, number: int) -> None:
        """An action begins, as soon as clients may go on."""
        while self._held is not None:
            await self._held.wait()
        if number > self._reached:
            self._reached = number
            self.change()

    def hold(self) -> None:
        """Let no further action begin, until ``release`` was called as often as this."""
        self._holds += 1
        if self._held is None:
            self._held = trio.Event()

    def release(self) -> None:
        self._holds -= 1
        if not self._holds and self._held is not None:
            held, self._held = self._held, None
            self._releases += 1
            held.set()

    def change(self) -> None:
        """Wake everybody who waits for a change of the run."""
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._changed.wait()

    # --- roles -----------------------------------------------------------------------------------

    async def serving(self) -> Process:
        """The process that clients should ask, once there is one."""
        await self.until(lambda: self.current is not None and self.current.alive)
        assert self.current is not None
        return self.current

    def is_crippled(self, process: Process) -> bool:
        """Whether one of its containers has stopped for good."""
        return process.alive and any(
            container._ended is not None for container in process.store.local_containers
        )

    def retire(self, process: Process | None) -> None:
        """No new call goes to ``process``: another one must serve."""
        if process is not None and self.current is process:
            self.current = None
            self.change()

    def give_up_on(self, process: Process) -> None:
        """All clients leave ``process`` but the one that stays with it: their calls are in doubt."""
        keeper = f"c{self.zombie_clients[process.number]} "
        for call in list(self._calling):
            if call.process is process and not call.what.startswith(keeper):
                call.scope.cancel()
        self.retire(process)

    def mark_dead(self, process: Process) -> None:
        """``process`` has died: its calls are lost."""
        if self.current is process:
            self.retire(process)
        self.change()

    # --- calls -----------------------------------------------------------------------------------

    async def attempt(
        self,
        process: Process,
        what: str,
        send: Callable[[SegmentStore], Awaitable[Any]],
        patience: int | None = None,
        seconds: float | None = None,
    ) -> Outcome:
        """One call to ``process``; it is cancelled after so many steps of the world, or after so many
        seconds."""
        with self._noted(process, what) as scope:
            if seconds is not None:
                scope.deadline = trio.current_time() + seconds
            if patience is not None:
                after_steps(patience, scope.cancel)
            outcome = await self._send(process, what, send)
        self.calls += 1
        if not process.alive:
            outcome = Outcome(Ending.LOST)
        elif scope.cancelled_caught:
            outcome = Outcome(Ending.CANCELLED)
        self.counts[outcome.ending.value] += 1
        return outcome

    @contextmanager
    def _noted(self, process: Process, what: str) -> Iterator[trio.CancelScope]:
        with trio.CancelScope() as scope:
            call = _Calling(process, what, trio.current_time(), scope)
            self._calling.append(call)
            try:
                yield scope
            finally:
                self._calling.remove(call)

    async def _send(
        self, process: Process, what: str, send: Callable[[SegmentStore], Awaitable[Any]]
    ) -> Outcome:
        try:
            return Outcome(Ending.ANSWERED, await process.call(send))
        except TierlogError as error:
            return Outcome(Ending.REFUSED, error)
        except ProcessDied:
            return Outcome(Ending.LOST)
        except Exception as error:
            if not process.alive:
                return Outcome(Ending.LOST)
            raise Foreign(
                f"P{process.number} {what}: raised {error!r}, which is no error of a store"
            ) from error

    def callers(self, process: Process) -> list[int]:
        """The clients that wait for an answer of ``process``."""
        callers = {call.what.partition(" ")[0] for call in self._calling if call.process is process}
        return [number for number in range(self.plan.clients) if f"c{number}" in callers]

    def waiting(self) -> list[str]:
        """The calls under way, for a report."""
        return [f"P{call.process.number} {call.what}, since {call.since:.3f}" for call in self._calling]

    def may_meet_damage(self, process: Process) -> bool:
        flips = self.site.faults.met.get(_FLIPS, 0)
        if flips != self._flips:
            # What was read wrong may have been remembered by anybody who segments.
            self._flips, self.damaged_up_to = flips, len(self.site.processes)
        return self.is_damaged or process.number <= self.damaged_up_to

    def check_no_theft(self, process: Process) -> None:
        """Rule W1: an owner that was superseded does not open again by itself."""
        newer = [other for other in self.site.processes[process.number :] if other.serving]
        epochs = {
            container.index: container.state.epoch for other in newer for container in other.containers()
        }
        for container in process.containers():
            if container.state.epoch > epochs.get(container.index, container.state.epoch):
                raise Broken(
                    f"it does not hold that a superseded owner stays so\nP{process.number} opened container "
                    f"{container.index} "
                    f"again as epoch {container.state.epoch}, after a newer process with epoch "
                    f"{epochs[container.index]}"
                )

    def names_of(self, family: str) -> tuple[str, ...]:
        return next(names for names in self.plan.families if names[0] == family)

    @contextmanager
    def listing(self, family: str, owner: int, calls: dict[Key, Pending]) -> Iterator[None]:
        """While the transactions of ``family`` are listed, ``calls`` gains a query of each that begins: the
        list may show it as it was at any moment from then on."""
        entry = (family, owner, calls)
        self._listings.append(entry)
        try:
            yield
        finally:
            self._listings.remove(entry)

    def extend_listings(self, family: str, owner: int) -> None:
        """A call to ``owner`` is about to begin that may begin a transaction. Other owners' lists cannot show
        it, and a fenced owner's list shows nothing that began since."""
        if self.checkers[family].is_fenced(owner):
            return

        for listed, asked, calls in self._listings:
            for key in self.expiries[family].keys if (listed, asked) == (family, owner) else ():
                if key not in calls:
                    calls[key] = self.checkers[family].begin(LookUp(*key), owner)

    def expect_access(self, op: Op, owner: int) -> None:
        """A call to ``owner`` is about to begin that may import what it is about."""
        for name in op.imports:
            self.expect_import(name, owner)

    def expect_import(self, name: str, owner: int) -> None:
        """As ``expect_access``, for one name."""
        if not self.plan.legacy:
            return

        op = ImplicitImport(name)
        checker = self.checkers[op.family]
        is_expected = any((call.op, call.owner) == (op, owner) for call in checker.pending)
        if not is_expected and any(state.awaits_import(name) for state in checker.states):
            checker.possible(op, owner)

    def pass_time(self, family: str) -> None:
        """Tell the checker what owners may have done by themselves until now."""
        first = max(0, self.checkers[family].bound - 1)
        self.expiries[family].tell((process.number, process.began) for process in self.site.processes[first:])

    def check_invariants(self, process: Process) -> None:
        """Ask every invariant about the containers of ``process``."""
        self.book.check()
        for container in process.containers():
            if process is not self.site.processes[-1] and not self._has_runs(container):
                continue  # a successor has deleted them, and this owner does not know it yet
            self.watch.check(container)
            self._work[container.index, container.state.epoch] = _work(container)

    def _has_runs(self, container: Container) -> bool:
        return {run.name for run in container.state.table.runs} <= set(self.site.chunk_names())

    def tally(self) -> dict[str, int]:
        """What happened, by name."""
        counts = Counter(self.counts)
        for work in self._work.values():
            counts.update(work)
        legacy = [segment for checker in self.checkers.values() for _, segment in checker.states[0].legacy]
        counts["imported"] = legacy.count(None)
        counts["faults"] = sum(self.site.faults.met.values())
        counts["kills"] += sum(
            count for what, count in self.site.faults.met.items() if what.endswith(f" {Kind.KILL}")
        )
        return dict(sorted(counts.items()))


def _work(container: Container) -> dict[str, int]:
    parts = container._components
    return {
        "checkpoints": parts.checkpointer._written,
        "relogged": parts.checkpointer._relogged,
        "cycles": parts.writer.statistics().cycles,
        "collected": parts.collector._deleted,
        "chunks": parts.storage._context.chunks_created,
        "joined": parts.storage._context.chunks_joined,
        "relocated": parts.storage._context.chunks_relocated,
        "deferred steps": parts.writer._deferred.steps_done,
        "evicted_bytes": container.cache._evicted,
        "delayed": parts.admission._delayed,
        "throttled": parts.admission._throttled,
        "transactions committed": parts.leases._committed,
        "transactions expired": parts.leases._expired,
    }
