"""The storage writer: flush cycles, one after the other (PDP-40).

Owns: when a cycle begins, its cut, its end record, and the answers to those that wait for it. Does not own:
the order (``flush_order.py``), one segment's flush (``segment_flusher.py``), deferred work
(``deferred_work.py``), deletion (the collector).

A cycle: fix the cut and capture what is to be flushed (sync); wait until the cut is durable; claim long-term
storage (rule W8); flush wave by wave; do some steps of deferred work; log ``CycleComplete``. A segment that
fails does not stop the cycle: its metadata keeps its flushed length (rule F4), it is tried again in a later
cycle, and a requested flush gets its error. Only ``NotOwner``, and a claim that is not this owner's, end the
writer.

Rules: F1 to F6. Cancellation: the cycle stays incomplete. Crash: the next owner reads from the metadata how
far each segment got."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

import anyio
import attrs

from ...journal.operations.cycle_complete import CycleComplete
from ...journal.operations.operation import Operation
from ...journal.operations.segment_image import SegmentStatus
from ...storage_backends.base.errors import (
    CLAIM_REFUSED,
    MetadataConflict,
    NotOwner,
    SegmentNotFound,
    StorageFull,
    TierlogError,
)
from ...storage_backends.base.statistics import counter, gauge
from ..kernel.reply import Reply
from ..telemetry.logging import get_logger
from .aggregation import FlushableSegment, SegmentFlush, capture
from .deferred_work import DeferredWork, DeferredWorkStorage
from .flush_order import schedule
from .segment_flusher import SegmentFlusher

_log = get_logger("writer")


class FlushSource(Protocol):
    """What the writer sees of its container."""

    @property
    def epoch(self) -> int: ...
    @property
    def sequence(self) -> int: ...
    @property
    def client_sequence(self) -> int: ...
    def all_segments(self) -> Iterable[FlushableSegment]: ...
    def segment_of(self, sid: int) -> FlushableSegment | None: ...
    async def wait_durable(self) -> None: ...
    async def log(self, op: Operation) -> object: ...


class CycleObserver(Protocol):
    def cycle_begins(self, cycle: int) -> None: ...
    def cycle_completed(self, cycle: int) -> None: ...


@attrs.frozen
class WriterOptions:
    flush_age: float = 30.0
    """Seconds after which an unflushed operation makes a full cycle due."""
    concurrent_segments: int = 8
    error_pause: float = 1.0
    """Seconds between a cycle with a failure and the next one."""
    deferred_steps: int = 32
    """Steps of deferred work in one cycle, at most (rule F6)."""
    deferred_pause: float = 0.1
    """Seconds between two cycles for deferred work alone."""


@attrs.frozen
class WriterStatistics:
    cycles: int = attrs.field(metadata=counter("Flush cycles begun."))
    flushed_bytes: int = attrs.field(metadata=counter("Bytes written to long-term storage."))
    failing_segments: int = attrs.field(metadata=gauge("Segments whose last flush failed."))
    last_cut: int = attrs.field(
        metadata=gauge("The operation sequence up to which the newest full cycle flushed.")
    )
    due_segments: int = attrs.field(metadata=gauge("Segments with enough unflushed bytes for a cycle."))
    deferred_work: int = attrs.field(
        metadata=gauge("Deferred work of metadata operations in long-term storage.")
    )
    deferred_steps: int = attrs.field(metadata=counter("Steps of deferred work done."))
    newer_deferred_work: int = attrs.field(
        metadata=gauge("Deferred work of kinds that only a newer version of tierlog can run.")
    )


@attrs.frozen
class Due:
    """When a flush cycle is due."""

    now: bool
    full: bool = False
    """Whether every segment takes part."""
    wait: float | None = None
    """Seconds until a cycle is due by age; None if none will be."""


def decide_due(
    *,
    requested: bool,
    segments_by_size: int,
    dirty_since: float | None,
    now: float,
    flush_age: float,
    not_before: float,
    deferred_due: float | None = None,
) -> Due:
    """Decide by size, age and request (rule F5). All times are monotonic seconds of one ownership (rule C8).

    ``dirty_since``: when the oldest operation of a client outside a full cycle was first seen.
    ``not_before``: the end of the pause after a failure. ``deferred_due``: when a step of deferred work is
    due (rule F6), if one is."""
    aged = dirty_since is not None and now >= dirty_since + flush_age
    if requested or aged or segments_by_size:
        if now < not_before:
            return Due(False, wait=not_before - now)

        return Due(True, full=requested or aged)

    if deferred_due is not None and now >= deferred_due:
        return Due(True)

    times = [
        time
        for time in (None if dirty_since is None else dirty_since + flush_age, deferred_due)
        if time is not None
    ]
    return Due(False, wait=max(0.0, min(times) - now) if times else None)


class StorageWriter:
    def __init__(
        self,
        source: FlushSource,
        flusher: SegmentFlusher,
        storage: DeferredWorkStorage,
        observer: CycleObserver,
        claim: Callable[[], Awaitable[None]],
        options: WriterOptions,
    ) -> None:
        """``claim()`` returns once this owner may write to long-term storage."""
        self._source = source
        self._flusher = flusher
        self._observer = observer
        self._claim = claim
        self._options = options
        self._deferred = DeferredWork(
            storage,
            claim,
            steps=options.deferred_steps,
            pause=options.deferred_pause,
            error_pause=options.error_pause,
        )
        self._cut = 0
        self._cycle = 0
        self._room_made = False
        """Whether this cycle has committed a truncation alone, because long-term storage is full."""
        self._due: dict[int, None] = {}
        self.failing: dict[int, TierlogError] = {}
        """Segments whose last flush failed, and the error (rule F4). Admission reads it for every append;
        only the writer changes it."""
        self._waiting: list[tuple[int, Reply[None]]] = []
        self._requested = False
        self._stopped: TierlogError | None = None
        self._dirty_since: float | None = None
        self._not_before = 0.0
        self._wake = anyio.Event()
        self._flushed_bytes = 0
        self.progress = anyio.Event()
        """Set and replaced after each cycle, when memory was freed."""

    # --- from the container, synchronous ---------------------------------------------------------

    def segment_due(self, sid: int) -> None:
        """A segment has enough unflushed bytes."""
        if sid not in self._due and sid not in self.failing:
            self._due[sid] = None
            self._wake.set()

    def operations_logged(self) -> None:
        """More became durable: start the age timer."""
        if self._dirty_since is None and self._source.client_sequence > self._cut:
            self._dirty_since = anyio.current_time()
            self._wake.set()

    def request_cycle(self) -> None:
        """Make a full cycle due now."""
        self._requested = True
        self._wake.set()

    async def flush(self) -> None:
        """Return when a full cycle is complete whose cut is at or after everything acked so far. Raises the
        error that kept a segment from being flushed."""
        if self._stopped is not None:
            raise self._stopped

        reply: Reply[None] = Reply()
        self._waiting.append((self._source.sequence, reply))
        self.request_cycle()
        await reply.wait()

    def stop(self, error: TierlogError) -> None:
        """Fail all flushes that wait, and later ones, with ``error``."""
        self._stopped = error
        for _, reply in self._waiting:
            reply.fail(error)
        self._waiting.clear()
        # Admission delays appends until there is progress; there will be none.
        self.progress.set()

    # --- the loop --------------------------------------------------------------------------------

    async def run(self, last_cut: int) -> None:
        """Run cycles until cancelled. ``last_cut``: the cut of the newest full cycle that recovery found."""
        self._cut = last_cut
        self.operations_logged()
        await self._deferred.load()
        while True:
            # Before the decision: what becomes due after it sets this event.
            self._wake = anyio.Event()
            due = decide_due(
                requested=self._requested,
                segments_by_size=len(self._due),
                dirty_since=self._dirty_since,
                now=anyio.current_time(),
                flush_age=self._options.flush_age,
                not_before=self._not_before,
                deferred_due=self._deferred.due_at,
            )
            if due.now:
                await self.cycle(full=due.full)
                continue

            with anyio.move_on_after(float("inf") if due.wait is None else due.wait):
                await self._wake.wait()

    async def cycle(self, *, full: bool) -> None:
        """One flush cycle."""
        self._cycle += 1
        self._room_made = False
        self._observer.cycle_begins(self._cycle)
        cut, plans = self._fix_cut(full)
        failed = await self._flush_to(plans)
        if failed:
            self._not_before = anyio.current_time() + self._options.error_pause
            for sid, error in failed.items():
                _log.warning(
                    "flush_failed", segment=plans[sid].name if sid in plans else hex(sid), error=str(error)
                )

            # A full cycle follows the pause.
            self._dirty_since = anyio.current_time() - self._options.flush_age
        steps = await self._deferred.run(self._is_awaited)
        if steps or self._room_made or len(failed) < len(plans) or (full and not plans):
            # A cycle that flushed nothing logs nothing: an outage of long-term storage must not fill the log
            # (rule S7).
            await self._source.log(CycleComplete(self._source.epoch, self._cycle, cut, full and not failed))
            self._observer.cycle_completed(self._cycle)
            self._report_progress()
        if full:
            self._end_full_cycle(cut, failed)

    def _is_awaited(self) -> bool:
        """Whether a caller waits for the end of this cycle, or the next one is due: deferred work can wait
        (rule F6)."""
        return bool(self._waiting or self._due or self._requested)

    def _fix_cut(self, full: bool) -> tuple[int, dict[int, SegmentFlush]]:
        """The sync step of a cycle: captures everything up to the cut at one moment (rule F1)."""
        due, self._due = self._due, {}
        if full:
            self._requested = False
            self._dirty_since = None
            wanted = [s for s in self._source.all_segments() if s.needs_flush]
        else:
            wanted = [s for s in map(self._source.segment_of, due) if s is not None and s.needs_flush]

        return self._source.sequence, self._capture(wanted)

    def _capture(self, wanted: Iterable[FlushableSegment]) -> dict[int, SegmentFlush]:
        """The wanted segments and everything merged into them (rule F3)."""
        plans: dict[int, SegmentFlush] = {}
        stack = list(wanted)
        while stack:
            segment = stack.pop()
            if segment.sid in plans:
                continue

            plan = plans[segment.sid] = capture(segment)
            if not plan.deleted:
                sources = (self._source.segment_of(merge.source) for merge in plan.merges)
                stack.extend(source for source in sources if source is not None)

        return plans

    async def _flush_to(self, plans: dict[int, SegmentFlush]) -> dict[int, TierlogError]:
        """Flush what was captured; returns the errors by segment."""
        failed: dict[int, TierlogError] = {}
        if not plans:
            return failed

        await self._source.wait_durable()
        try:
            await self._claim()
        except CLAIM_REFUSED:
            raise
        except TierlogError as error:
            return dict.fromkeys(plans, error)

        sources = {
            sid: [m.source for m in plan.merges if m.source in plans]
            for sid, plan in plans.items()
            if not plan.deleted
        }
        for wave in schedule({sid: plan.name for sid, plan in plans.items()}, sources):
            await self._flush_wave([plans[sid] for sid in wave], sources, failed)

        return failed

    async def _flush_wave(
        self, wave: list[SegmentFlush], sources: dict[int, list[int]], failed: dict[int, TierlogError]
    ) -> None:
        limit = anyio.CapacityLimiter(self._options.concurrent_segments)

        async def flush_one(plan: SegmentFlush) -> None:
            async with limit:
                await self._flush_segment(plan, failed)

        async with anyio.create_task_group() as tasks:
            for plan in wave:
                broken = next((s for s in sources.get(plan.sid, ()) if s in failed), None)
                if broken is not None:
                    # F3: a splice needs its source flushed and sealed.
                    failed[plan.sid] = failed[broken]
                else:
                    tasks.start_soon(flush_one, plan)

    async def _flush_segment(self, plan: SegmentFlush, failed: dict[int, TierlogError]) -> None:
        try:
            self._flushed_bytes += await self._flusher.flush(plan)
        except NotOwner:
            raise
        except (SegmentNotFound, MetadataConflict) as error:
            # It was deleted or merged meanwhile: the next cycle flushes what is left of it. A segment that is
            # still live was not flushed.
            segment = self._source.segment_of(plan.sid)
            if segment is not None and segment.needs_flush:
                self._due[plan.sid] = None
                if segment.status is SegmentStatus.LIVE:
                    failed[plan.sid] = error
        except StorageFull as error:
            failed[plan.sid] = self.failing[plan.sid] = error
            await self._make_room(plan)
        except TierlogError as error:
            failed[plan.sid] = self.failing[plan.sid] = error
        else:
            self.failing.pop(plan.sid, None)

    async def _make_room(self, plan: SegmentFlush) -> None:
        """The segment's data does not fit. Commit its truncation alone, and count the cycle, so that chunks
        are deleted (rule F2)."""
        try:
            self._room_made |= await self._flusher.make_room(plan)
        except NotOwner:
            raise
        except TierlogError as error:
            _log.warning("truncation_failed", segment=plan.name, error=str(error))

    def _end_full_cycle(self, cut: int, failed: dict[int, TierlogError]) -> None:
        for sid in [sid for sid in self.failing if self._source.segment_of(sid) is None]:
            del self.failing[sid]

        if failed:
            outcome: TierlogError | None = next(iter(failed.values()))
        else:
            self._cut = cut
            outcome = None
            if self._source.client_sequence <= cut:
                self._dirty_since = None  # only the cycle's own operations started the timer (rule F5)
        self.operations_logged()
        waiting, self._waiting = self._waiting, []
        for sequence, reply in waiting:
            if sequence > cut:
                self._waiting.append((sequence, reply))
                self._requested = True
            elif outcome is None:
                reply.resolve(None)
            else:
                reply.fail(outcome)

    def _report_progress(self) -> None:
        progress, self.progress = self.progress, anyio.Event()
        progress.set()

    def statistics(self) -> WriterStatistics:
        return WriterStatistics(
            self._cycle,
            self._flushed_bytes,
            len(self.failing),
            self._cut,
            len(self._due),
            self._deferred.open,
            self._deferred.steps_done,
            len(self._deferred.newer),
        )
