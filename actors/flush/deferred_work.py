"""Deferred work: what metadata-only operations left to be done in long-term storage, some steps in each flush
cycle (rules F6, S11).

Owns: how many steps a cycle does, which work waits after a failure, and when the next cycle for deferred work
is due. Does not own: the steps (``ChunkedSegmentStorage.run_deferred``), their order (``work_queue.py``), nor
the cycle around them (``writer.py``).

A step that fails ends the cycle's deferred work and makes a pause. Its own work waits for a growing time, so
that the rest goes on. While long-term storage refuses calls, nothing is tried (rule S7). Work of a kind that
only a newer version knows is left alone, logged once and counted. Only ``NotOwner``, and a claim that is not
this owner's, end the writer. Cancellation and crash: deferred work is in records, which the next owner
reads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

import anyio
import anyio.lowlevel

from ...storage_backends.base.errors import CLAIM_REFUSED, MetadataConflict, NotOwner, TierlogError
from ...storage_backends.segments.records import DeferredWorkRecord
from ..telemetry.logging import get_logger
from .work_queue import WorkQueue

_log = get_logger("writer")

_NAMED = 10
"""The most items that one log event names."""
PAUSE_MAX = 60.0
"""Seconds; the longest pause of work that fails again and again."""


class DeferredWorkStorage(Protocol):
    """What deferred work needs of long-term storage."""

    async def deferred_changes(self) -> Mapping[str, DeferredWorkRecord | None]:
        """Some of the changes since they were last given; empty if none is left."""
        ...

    def has_deferred_changes(self) -> bool:
        """Whether ``deferred_changes`` may return any."""
        ...

    def newer_deferred_work(self) -> frozenset[str]: ...
    async def run_deferred(self, work: DeferredWorkRecord) -> bool: ...

    def retry_in(self) -> float:
        """Seconds for which long-term storage refuses every change."""
        ...

    def notifying(self, notify: Callable[[], None]) -> AbstractContextManager[None]:
        """Inside the body ``notify()`` is called when it accepts them again."""


class DeferredWork:
    """The deferred work of one ownership."""

    def __init__(
        self,
        storage: DeferredWorkStorage,
        claim: Callable[[], Awaitable[None]],
        *,
        steps: int,
        pause: float,
        error_pause: float,
    ) -> None:
        """``claim()`` returns once this owner may write to long-term storage (rules W8 and J7). ``steps``:
        in one cycle. ``pause`` and ``error_pause``: seconds between two cycles for deferred work, and after
        the first failure of one."""
        self._storage = storage
        self._claim = claim
        self._steps = steps
        self._pause = pause
        self._error_pause = error_pause
        self._not_before = 0.0
        self._queue = WorkQueue()
        self._last_failure: type[TierlogError] | None = None
        self.due_at: float | None = None
        """When a cycle for deferred work is due, in monotonic seconds of this ownership; None if there is no
        deferred work."""
        self.newer: frozenset[str] = frozenset()
        """The keys of items that only a newer version knows how to run."""
        self.steps_done = 0
        """Steps done."""

    @property
    def open(self) -> int:
        """How many items there were when they were last read."""
        return len(self._queue)

    @property
    def is_idle(self) -> bool:
        """Whether ``run`` would find nothing to do, and nothing that changed."""
        return not self._queue and not self._storage.has_deferred_changes()

    async def load(self) -> None:
        """Read the deferred work that an earlier owner left (rule F6)."""
        await self._refresh()
        self._plan()

    async def run(self, is_wanted: Callable[[], bool]) -> None:
        """Do the steps of one cycle. Stops after a step if ``is_wanted()``: somebody waits for the cycle's
        end."""
        await self._refresh()
        for _ in range(self._steps):
            work = self._next()
            # S7: one failure in a cycle. If long-term storage is down, the other items would fail too.
            if work is None or not await self._run_step(work):
                break

            self.steps_done += 1
            await self._refresh()
            if is_wanted():
                break
        self._plan()

    async def _refresh(self) -> None:
        try:
            while changes := await self._storage.deferred_changes():
                for key, work in changes.items():
                    if work is None:
                        self._queue.drop(key)
                    else:
                        self._queue.put(work)
                await anyio.lowlevel.checkpoint()
        except NotOwner:
            raise
        except TierlogError as error:
            # Flushes go on: deferred work only costs space, and bytes are waiting.
            _log.error("deferred_work_unreadable", error=str(error))
            return

        newer = self._storage.newer_deferred_work()
        if unlogged := newer - self.newer:
            _log.warning("deferred_work_unsupported", count=len(newer), work=sorted(unlogged)[:_NAMED])
        self.newer = newer

    def _next(self) -> DeferredWorkRecord | None:
        now = anyio.current_time()
        if now < self._not_before or self._storage.retry_in():
            return None

        return self._queue.first(now)

    async def _run_step(self, work: DeferredWorkRecord) -> bool:
        """Do one step; returns whether it was done."""
        try:
            # J7: a cycle that had nothing to flush has not claimed long-term storage.
            await self._claim()
        except CLAIM_REFUSED:
            raise
        except TierlogError as error:
            self._fail(work, error)
            return False

        try:
            await self._storage.run_deferred(work)
        except NotOwner:
            raise
        except TierlogError as error:
            self._fail(work, error)
            return False

        self._queue.succeeded(work.key)
        self._last_failure = None
        return True

    def _fail(self, work: DeferredWorkRecord, error: TierlogError) -> None:
        now = anyio.current_time()
        # The exponent is bounded as well: a float overflows after about a thousand failures.
        pause = min(PAUSE_MAX, self._error_pause * 2 ** min(self._queue.failures(work.key), 16))
        self._queue.failed(work.key, now + pause)
        self._not_before = now + self._error_pause
        # A conflict is not a failure: the segment was deleted meanwhile, and the next cycle has the work of
        # that. What fails as the step before it did is counted, and logged once (rule S7).
        if not isinstance(error, MetadataConflict) and type(error) is not self._last_failure:
            self._last_failure = type(error)
            _log.warning("deferred_work_failed", work=work.key, open=self.open, error=str(error), pause=pause)

    def _plan(self) -> None:
        now = anyio.current_time()
        earliest = self._queue.earliest(now)
        self.due_at = (
            None
            if earliest is None
            else max(earliest, self._not_before, now + max(self._pause, self._storage.retry_in()))
        )
