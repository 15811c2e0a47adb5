"""The storage writer: flush cycles, one after the other (PDP-40).

Owns: when a cycle begins, its cut and its end record. Does not own: which segments did not reach the cut
(``flush_cycle.py``), the order (``flush_order.py``), the flushes under way (``flush_tasks.py``), one
segment's flush (``segment_flusher.py``), deferred work (``deferred_work.py``), what is published of a cut
(the container), deletion (the collector).

A cycle: fix the cut and capture what is to be flushed; wait until that is durable; claim long-term storage
(rule W8); flush in order; do some steps of deferred work; log ``CycleComplete``. A full cycle is then
published in long-term storage, alongside the next cycles (``cycle_publisher.py``), without the segments whose
flush did not reach the cut (rule F10). A full cycle that begins meanwhile flushes, and publishes nothing. A
segment that fails does not stop the cycle: its metadata keeps its flushed length (rule F4), it is tried again
in a later cycle, and a requested flush gets its error. One that hangs does not hold it up (rule F7). Only
``NotOwner``, and a claim that is not this owner's, end the writer.

Rules: F1 to F10. Cancellation: the cycle stays incomplete. Crash: the next owner reads from the metadata how
far each segment got."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import anyio
import anyio.abc
import anyio.lowlevel
from msgspec import Struct

from ...journal.manifest.element import HELD_MAX
from ...journal.operations.cycle_complete import CycleComplete
from ...journal.operations.operation import Operation
from ...journal.operations.segment_image import SegmentStatus
from ...storage_backends.base.errors import (
    CLAIM_REFUSED,
    ClaimOutdated,
    MetadataConflict,
    NotOwner,
    SegmentNotFound,
    StorageFull,
    StoreMismatch,
    TierlogError,
    Unavailable,
)
from ...storage_backends.base.sharded_dict import ShardedDict
from ..kernel.slices import clear_in_slices, in_slices
from ..telemetry.logging import get_logger
from .aggregation import FlushableSegment, SegmentFlush, capture
from .cycle_capture import capture_all
from .cycle_due import decide_due
from .cycle_publisher import CyclePublisher
from .deferred_work import DeferredWork, DeferredWorkStorage
from .flush_callers import FlushCallers
from .flush_cycle import CycleEvent, FlushCut, FlushCycle
from .flush_failures import FlushFailures
from .flush_tasks import FlushTasks
from .segment_flusher import SegmentFlusher
from .spilled_rounds import SpilledRounds

if TYPE_CHECKING:
    from .statistics import WriterStatistics

_log = get_logger("writer")


class FlushSource(Protocol):
    """What the writer sees of its container."""

    @property
    def epoch(self) -> int: ...
    @property
    def sequence(self) -> int: ...
    @property
    def client_sequence(self) -> int: ...
    @property
    def refuses_rows(self) -> bool:
        """Whether appends are refused until records are published."""
        ...

    @property
    def has_unpublished_rows(self) -> bool:
        """Whether records wait in memory for an element that names them."""
        ...

    @property
    def held(self) -> Collection[int]:
        """The segments that the newest published cycle holds back."""
        ...

    def begin_cut(self) -> FlushCut:
        """The cut of a full cycle, in this step. ``publish`` or ``abandon`` ends it before the next one."""
        ...

    async def abandon(self, cut: Any) -> None:
        """Nothing is published of this cut."""

    def dirty_segments(self) -> Iterable[FlushableSegment]:
        """The segments that long-term storage lacks something of, as of the call, sources of merges included.
        Work through them in slices."""
        ...

    def segment_of(self, sid: int) -> FlushableSegment | None: ...
    async def wait_durable(self) -> None: ...
    async def log(self, op: Operation) -> object: ...


class WriterOptions(Struct, frozen=True):
    flush_age: float = 30.0
    """Seconds after which an unflushed operation makes a full cycle due."""
    concurrent_segments: int = 8
    error_pause: float = 1.0
    """Seconds between a cycle with a failure and the next one."""
    size_interval: float = 0.1
    """Seconds from the beginning of a cycle by size to that of the next one: however little it flushes, a
    cycle takes 2 ms of the event loop and some syncs of the log's disk (rule F5)."""
    segment_deadline: float = 1.0
    """Seconds for which a cycle waits for one segment, and for one cycle's deferred work (rule F7)."""
    check_interval: float = 1.0
    """Seconds between two checks of the chain by cycles that segments made due by their size, and by steps of
    deferred work: those follow each other in milliseconds (rule J7)."""
    deferred_steps: int = 32
    """Steps of deferred work in one cycle, at most (rule F6)."""
    deferred_pause: float = 0.1
    """Seconds between two cycles for deferred work alone."""


class StorageWriter:
    def __init__(
        self,
        source: FlushSource,
        flusher: SegmentFlusher,
        storage: DeferredWorkStorage,
        claim: Callable[[float], Awaitable[None]],
        publish: Callable[[Any], Awaitable[None]],
        options: WriterOptions,
    ) -> None:
        """``claim(age)`` returns once this owner may write to long-term storage, as of ``age`` seconds ago at
        most (rule J7); ``publish(cut)`` once an element counts that records the cycle of this cut (rule
        J5)."""
        self._source = source
        self._flusher = flusher
        self._storage = storage
        self._claim = claim
        self._callers = FlushCallers()
        self._publisher = CyclePublisher(
            publish, self._callers, self._cycle_published, storage.retry_in, options.error_pause
        )
        self._options = options
        self._flushes = FlushTasks(
            self._flush_segment,
            storage.retry_in,
            self._wait_for_late,
            self._late_ended,
            limit=options.concurrent_segments,
            deadline=options.segment_deadline,
        )
        self._spilled = SpilledRounds(
            flusher, self._flushes, source.segment_of, storage.retry_in, self._report_progress
        )
        self._deferred = DeferredWork(
            storage,
            lambda: claim(options.check_interval),
            steps=options.deferred_steps,
            pause=options.deferred_pause,
            error_pause=options.error_pause,
        )
        self._deferred_is_late = False
        """Whether the deferred work of an earlier cycle is still under way."""
        self._recorded_steps = 0
        """Steps of deferred work that a ``CycleComplete`` covers."""
        self._cycle = FlushCycle(0, 0, 0, None)
        """The newest one."""
        self._flushed_to = 0
        """The cut of the newest full cycle that flushed everything."""
        self._room_made = False
        """Whether a truncation was committed alone since the last ``CycleComplete``, to make room."""
        self._due: ShardedDict[int, None] = ShardedDict()
        self._waiting_for_late: ShardedDict[int, None] = ShardedDict()
        """Segments that a late flush keeps from being flushed: due when one has ended."""
        self._late_attempt = 0
        """The newest full cycle that left something late; 0 once that has ended."""
        self.held_back: Collection[int] = ()
        """The segments that the newest full cycle held back (rule F10)."""
        self.failures = FlushFailures(source.segment_of)
        """Segments whose last flush failed (rule F4)."""
        self._requested = self._element_requested = False
        """``_element_requested``: deletions wait for an element that has the rows in memory (rule G6)."""
        self._dirty_since: float | None = None
        self._not_before, self._flushed_bytes, self._may_resume, self._resumed_in = 0.0, 0, True, 0
        """Whether a pause ends once long-term storage accepts changes again; the last cycle when one did."""
        self._by_size_at = 0.0
        """When the next cycle by size may begin."""
        self._wake = anyio.Event()
        self.progress = anyio.Event()
        """Set and replaced after each cycle and round, when memory was freed."""

    # --- from the container, synchronous ---------------------------------------------------------

    def segment_due(self, sid: int) -> None:
        """A segment has enough unflushed bytes."""
        # F7: no other flush of the segment begins before the late one has ended.
        if self._flushes.is_late(sid):
            self._waiting_for_late[sid] = None
        # A failing segment waits for the full cycle after the pause (F4): its bytes grow on, and their size
        # would make one cycle after the other due.
        elif sid not in self._due and sid not in self.failures.errors:
            self._due[sid] = None
            self._wake.set()

    def operations_logged(self) -> None:
        """More became durable: start the age timer."""
        # F5: what the store logs for itself makes no cycle due.
        if self._dirty_since is None and self._source.client_sequence > self._flushed_to:
            self._dirty_since = anyio.current_time()
            self._wake.set()

    def request_cycle(self) -> None:
        """Make a full cycle due now."""
        self._requested = True
        self._wake.set()

    def request_element(self) -> None:
        """Make a full cycle due now that publishes the rows in memory, also if segments fail: on a full
        storage they fail until something is deleted (rule G6)."""
        self._element_requested = True
        self.request_cycle()

    async def flush(self) -> None:
        """Return when a full cycle is complete whose cut is at or after everything acked so far. Raises the
        error that kept a segment from being flushed in a cycle that began after the call."""
        reply = self._callers.add(self._source.sequence)
        self.request_cycle()
        await reply.wait()

    def stop(self, error: TierlogError) -> None:
        """Fail all flushes that wait, and later ones, with ``error``."""
        self._callers.stop(error)
        # Admission delays appends until there is progress; there will be none.
        self.progress.set()

    # --- the loop --------------------------------------------------------------------------------

    async def run(self, last_cut: int) -> None:
        """Run cycles until cancelled. ``last_cut``: the cut of the newest full cycle that recovery found."""
        self._flushed_to = last_cut
        # C8: ages begin anew with each ownership. What recovery replayed is as old as the opening.
        self.operations_logged()
        await self._deferred.load()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._publisher.run)
            with self._storage.notifying(self._storage_is_back):
                await self._run_cycles(tasks)

    async def _run_cycles(self, tasks: anyio.abc.TaskGroup) -> NoReturn:
        while True:
            self._wake = anyio.Event()
            due = decide_due(
                requested=self._requested,
                segments_by_size=len(self._due) + self._is_unrecorded,
                # F7: what a late flush did is recorded at once.
                by_size_at=0.0 if self._is_unrecorded else self._by_size_at,
                dirty_since=self._dirty_since,
                now=anyio.current_time(),
                flush_age=self._options.flush_age,
                not_before=self._not_before,
                deferred_due=None if self._deferred_is_late else self._deferred.due_at,
            )
            if due.now:
                await self.cycle(tasks, full=due.full)
                continue

            with anyio.move_on_after(float("inf") if due.wait is None else due.wait):
                await self._wake.wait()

    def _storage_is_back(self) -> None:
        """A change has succeeded while all others were refused: nobody waits for the rest of a pause (rule
        S7)."""
        self._flushes.be_bold()
        # Once until something is flushed. Where deletions succeed and writes fail, each deletion would make
        # another cycle due.
        if self._may_resume:
            self._may_resume, self._resumed_in = False, self._cycle.number
            self._not_before = 0.0
            self._publisher.resume()
            self._wake.set()

    @property
    def _is_unrecorded(self) -> bool:
        """Whether something late has ended that no ``CycleComplete`` covers yet (rule F2)."""
        return not self._deferred_is_late and bool(self._flushes.done or self._unrecorded_steps)

    @property
    def _unrecorded_steps(self) -> int:
        return self._deferred.steps_done - self._recorded_steps

    async def cycle(self, tasks: anyio.abc.TaskGroup, *, full: bool) -> None:
        """One flush cycle. What is late goes on in ``tasks``."""
        if not full:
            self._by_size_at = anyio.current_time() + self._options.size_interval
        cycle, plans = await self._capture(full=full)
        is_empty = not plans
        is_claimed = await self._flush_to(tasks, plans, full=full)
        await clear_in_slices(plans)
        await self._run_deferred(tasks)
        steps = self._unrecorded_steps
        progressed = bool(self._flushes.done or steps or self._room_made)
        # All in one step: what a late flush commits from here on, and its error, count for the next cycle
        # (F2, F10).
        cycle.end(self._flushes.take_errors())
        await self._note_failures(cycle.failed)
        self._may_resume |= progressed
        if progressed or (cycle.is_whole and is_empty):
            # A cycle that flushed nothing logs nothing: an outage of long-term storage must not fill the log
            # (rule S7).
            self._recorded_steps += steps
            self._room_made = False
            await self._source.log(
                CycleComplete(self._source.epoch, cycle.number, cycle.sequence, cycle.is_whole)
            )
            self._report_progress()
        if full:
            await self._end_full_cycle(cycle, is_claimed=is_claimed, progressed=progressed)

    def _is_awaited(self) -> bool:
        """Whether a caller waits for the end of this cycle, or the next one is due: deferred work can wait
        (rule F6)."""
        is_due = bool(self._due) and anyio.current_time() >= self._by_size_at
        return bool(is_due or self._callers or self._requested)

    async def _capture(self, *, full: bool) -> tuple[FlushCycle, list[SegmentFlush]]:
        """Begin a cycle, and capture in slices: as of its cut if it can be published, otherwise what came
        meanwhile, too (rule F1)."""
        due, self._due = self._due, ShardedDict()
        # F1: in the step that fixes the cut. What becomes dirty later has a higher sequence and is left to
        # the next cycle.
        cut = self._source.begin_cut() if full and not self._publisher.is_busy else None
        sequence = self._source.sequence
        attempt = self._callers.begin() if full else 0
        cycle = self._cycle = FlushCycle(self._cycle.number + 1, sequence, attempt, cut)
        if full:
            self._requested = False
            self._dirty_since = None
            wanted = self._source.dirty_segments()
        else:
            wanted = (s for s in map(self._source.segment_of, due) if s is not None)
        plans, left_out = await capture_all(
            wanted,
            (lambda segment: capture(segment, sequence)) if cut is None else cut.flush_of,
            segment_of=self._source.segment_of,
            is_under_way=lambda sid: sid in self._flushes,
            leave_out=lambda sid: self._wait_for_late((sid,)),
        )
        if full:
            for part in in_slices(chain(left_out, (plan.sid for plan in plans), self._flushes.late_sids())):
                cycle.unreached.update(dict.fromkeys(part))
                await anyio.lowlevel.checkpoint()
        return cycle, plans

    async def _flush_to(self, tasks: anyio.abc.TaskGroup, plans: list[SegmentFlush], *, full: bool) -> bool:
        """Flush what was captured. Returns whether this owner may write to long-term storage."""
        if not plans:
            return True

        # A capture includes operations that are not durable yet. A crash may still undo those, and long-term
        # storage must not have them then (C1).
        await self._source.wait_durable()
        try:
            await self._claim(0.0 if full else self._options.check_interval)
        except CLAIM_REFUSED:
            raise
        except StorageFull as error:
            plans = await self._make_room_unclaimed(plans, error)
        except TierlogError as error:
            self._flushes.be_cautious()
            await self._flushes.fail((plan.sid for plan in plans), error)
            return False

        if self._flusher.has_spilled:
            await self._flush_spilled(tasks, plans)
        if plans:
            await self._flushes.run(tasks, plans)
            await self._make_room_of_targets(plans)
        return True

    async def _flush_spilled(self, tasks: anyio.abc.TaskGroup, plans: list[SegmentFlush]) -> None:
        """Flush what is not in memory (rule F8). What is late, or waits for late ones, leaves ``plans``."""
        left = await self._spilled.flush(
            tasks, plans, is_probe=lambda: self.failures.is_failing and not self._flushes.done
        )
        self._wait_for_late(left.waiting)
        self._due.update(left.ended)
        await self._make_room_of_targets(plan for plan in plans if plan.sid in left.failed)
        kept: list[SegmentFlush] = []
        for part in in_slices(plans):
            kept += [plan for plan in part if plan.sid not in left]
            await anyio.lowlevel.checkpoint()
        plans[:] = kept

    async def _run_deferred(self, tasks: anyio.abc.TaskGroup) -> None:
        """Do some steps of deferred work. A step that is late goes on by itself (rule F7)."""
        if self._deferred_is_late or self._deferred.is_idle:
            return

        is_over = False
        ended = anyio.Event()

        async def work() -> None:
            await self._deferred.run(lambda: is_over or self._is_awaited())
            ended.set()
            if self._deferred_is_late:
                self._deferred_is_late = False
                self._late_ended({})

        tasks.start_soon(work)
        with anyio.move_on_after(self._options.segment_deadline):
            await ended.wait()
        is_over = True
        self._deferred_is_late = not ended.is_set()

    def _wait_for_late(self, sids: Iterable[int]) -> None:
        """Flush these segments once what is late has ended, not in this cycle."""
        self._waiting_for_late.update(dict.fromkeys(sids))

    def _late_ended(self, failed: Mapping[int, TierlogError]) -> None:
        """Something late has ended: a cycle follows, which records it, and flushes what waited for it."""
        waiting, self._waiting_for_late = self._waiting_for_late, ShardedDict()
        if len(waiting) > len(self._due):
            waiting, self._due = self._due, waiting  # the larger one stays as it is
        self._due.update(waiting)
        if failed:
            self._not_before = anyio.current_time() + self._options.error_pause
            self._callers.fail(next(iter(failed.values())), self._late_attempt)
        if self._late_attempt and not self._is_late:
            self._late_attempt = 0
            self._requested = True  # what was held back for it can be published (F10)
        self._report_progress()
        self._wake.set()

    async def _flush_segment(self, plan: SegmentFlush) -> TierlogError | None:
        """Flush one segment; returns its error."""
        try:
            self._flushed_bytes += await self._flusher.flush(plan)
            if plan.limit is not None:
                return None
            self._cycle.flushed(plan)
        except (NotOwner, StoreMismatch, ClaimOutdated):
            raise
        except TierlogError as error:
            segment = self._source.segment_of(plan.sid)
            is_deleted = segment is None or segment.status is SegmentStatus.DELETED
            is_refused = isinstance(error, SegmentNotFound | MetadataConflict)
            if not is_refused and (plan.deleted or not is_deleted):
                self.failures.failed(plan.sid, error)
                if isinstance(error, StorageFull):
                    await self._make_room(plan)
                return error

            # It changed meanwhile. What is left of a deleted one, maybe deleted with its merge target, is
            # removed by the next cycle (rule F4); a merged one's bytes are in its target's flush.
            if segment is not None and segment.needs_flush:
                self._due[plan.sid] = None
                if plan.deleted:
                    # What conflicts with a deletion is no change of the segment, so it may still be there.
                    self._not_before = anyio.current_time() + self._options.error_pause
            if segment is not None and not is_deleted and not segment.is_flushed:
                return error
        finally:
            self._flusher.release(plan.sid)

        self.failures.flushed(plan.sid)
        return None

    async def _make_room(self, plan: SegmentFlush) -> None:
        """The segment's data does not fit. Commit its truncation alone, and count the cycle, so that chunks
        are deleted (rule F2)."""
        try:
            self._room_made |= await self._flusher.make_room(plan)
        except NotOwner:
            raise
        except TierlogError as error:
            _log.warning("truncation_failed", segment=plan.name, error=str(error))

    async def _make_room_of_targets(self, plans: Iterable[SegmentFlush]) -> None:
        """Those whose flush was not tried, because a source found no room: they are held back for it, too."""
        for part in in_slices(plans):
            for plan in part:
                error = self._flushes.errors.get(plan.sid) if plan.merges else None
                # F7: a late flush, of what came before the source, has the segment until it ends.
                if isinstance(error, StorageFull) and plan.sid not in self._flushes:
                    self.failures.failed(plan.sid, error)
                    await self._make_room(plan)
            await anyio.lowlevel.checkpoint()

    async def _make_room_unclaimed(self, plans: list[SegmentFlush], error: StorageFull) -> list[SegmentFlush]:
        """There is no room for a claim, so nothing may be written. Returns the deletions, which go on."""
        deleted: list[SegmentFlush] = []
        for part in in_slices(plans):
            for plan in part:
                if plan.deleted:
                    deleted.append(plan)
                else:
                    self.failures.failed(plan.sid, error)
                    await self._make_room(plan)
            await anyio.lowlevel.checkpoint()
        await self._flushes.fail((plan.sid for plan in plans if not plan.deleted), error)
        return deleted

    async def _note_failures(self, failed: Mapping[int, TierlogError]) -> None:
        """Pause after a failure; a full cycle follows the pause (rule F4)."""
        refused_for = self._storage.retry_in()
        if failed:
            self._retry_after(refused_for)
        await self.failures.note(failed, is_refused=bool(refused_for))

    def _retry_after(self, pause: float) -> None:
        now = anyio.current_time()
        if self._resumed_in != self._cycle.number:
            self._not_before = now + max(self._options.error_pause, pause)
        self._dirty_since = now - self._options.flush_age

    async def _end_full_cycle(self, cycle: FlushCycle, *, is_claimed: bool, progressed: bool) -> None:
        if self._is_late:
            self._late_attempt = cycle.attempt
        if cycle.failed:
            self._callers.fail(next(iter(cycle.failed.values())), cycle.attempt)
        # Without one, the cycle that is being published comes first: its end requests another one for the
        # callers.
        if cycle.cut is not None:
            await self._end_with_cut(cycle, cycle.cut, may_publish=is_claimed, progressed=progressed)
        self.operations_logged()

    async def _end_with_cut(
        self, cycle: FlushCycle, cut: FlushCut, *, may_publish: bool, progressed: bool
    ) -> None:
        for _ in cut.hold_back():
            await anyio.lowlevel.checkpoint()
        self.held_back = cut.held
        is_news = self._is_news(cycle, cut, progressed=progressed)
        refused_for = self._storage.retry_in()
        is_published = is_news and may_publish and not refused_for and len(cut.held) <= HELD_MAX  # S7, F10
        if is_published:
            self._publisher.begin(cycle)
        else:
            await self._source.abandon(cut)
            cycle.step(CycleEvent.ABANDON)
        if is_published or not is_news:
            self._element_requested = False
        if cycle.is_whole:
            self._is_flushed_to(cycle.sequence)
            if not is_news:
                self._callers.published(cycle.sequence)  # all of it was published before
            elif not is_published:
                self._retry_after(refused_for)
                if refused_for:
                    pause = f"nothing is published for {refused_for:.1f} s"
                    error = Unavailable(f"long-term storage does not answer: {pause}")
                    self._callers.fail(error, cycle.attempt)
        # A segment was deleted during its flush: the next cycle removes what is left of it.
        elif not (cycle.failed or self._is_late):
            self._requested |= bool(self._callers)

    @property
    def _is_late(self) -> bool:
        return bool(self._flushes.late)

    def _is_news(self, cycle: FlushCycle, cut: FlushCut, *, progressed: bool) -> bool:
        """Whether a full cycle has something to publish."""
        is_wanted = (self._element_requested or bool(self._callers)) and self._source.has_unpublished_rows
        # A cycle with failures is repeated after a short pause: what the others changed meanwhile waits.
        if cycle.failed and anyio.current_time() < self._publisher.begun_at + self._options.flush_age:
            return is_wanted

        # F5: the store's own operations need no element: an idle store creates none. M12: there may be room
        # for unpublished rows now. What is due takes them along. F10: an earlier cycle may have flushed what
        # was late, while another one was being published.
        changed = progressed or self._source.client_sequence > self._publisher.newest_cut
        return changed or is_wanted or self._source.refuses_rows or len(cut.held) < len(self._source.held)

    def _is_flushed_to(self, cut: int) -> None:
        self._flushed_to = cut
        if self._source.client_sequence <= cut:
            self._dirty_since = None  # only the cycle's own operations started the timer (rule F5)

    def _cycle_published(self) -> None:
        # Those that are left called after the cut, or wait for what is held back.
        if self._callers and not self._is_late:
            self.request_cycle()

    def _report_progress(self) -> None:
        progress, self.progress = self.progress, anyio.Event()
        progress.set()

    def statistics(self) -> WriterStatistics:
        from .statistics import WriterStatistics

        return WriterStatistics(
            self._cycle.number,
            self._flushed_bytes,
            len(self.failures.errors),
            self._flushes.late,
            self._flushed_to,
            len(self._due),
            self._deferred.open,
            self._deferred.steps_done,
            len(self._deferred.newer),
        )
