"""Deferred work: what metadata-only operations left to be done in long-term storage, some steps in each flush
cycle (rules F6, S11).

Owns: how many steps a cycle does, which work waits after a failure, and when the next cycle for deferred work
is due. Does not own: the steps (``ChunkedSegmentStorage.run_deferred``), nor the cycle around them
(``writer.py``).

A step that fails ends the cycle's deferred work and makes a pause. Its own work waits for a growing time, so
that the rest goes on: while long-term storage is down, a cycle costs one attempt (rule S7). Work of a kind
that only a newer version knows is left alone, logged once and counted. Only ``NotOwner``, and a claim that is
not this owner's, end the writer. Cancellation and crash: deferred work is in records, which the next owner
reads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import anyio
import attrs

from ...storage_backends.base.errors import CLAIM_REFUSED, MetadataConflict, NotOwner, TierlogError
from ...storage_backends.segments.records import DeferredWorkRecord
from ..telemetry.logging import get_logger

_log = get_logger("writer")

_NAMED = 10
"""The most items that one log event names."""
PAUSE_MAX = 60.0
"""Seconds; the longest pause of work that fails again and again."""


class DeferredWorkStorage(Protocol):
    """What deferred work needs of long-term storage."""

    async def deferred_work(self) -> Sequence[DeferredWorkRecord]: ...
    def newer_deferred_work(self) -> frozenset[str]: ...
    async def run_deferred(self, work: DeferredWorkRecord) -> bool: ...


@attrs.frozen
class _Failure:
    count: int
    not_before: float


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
        """``claim()`` returns once this owner may write to long-term storage (rule W8). ``steps``: in one
        cycle. ``pause`` and ``error_pause``: seconds between two cycles for deferred work, and after the
        first failure of one."""
        self._storage = storage
        self._claim = claim
        self._steps = steps
        self._pause = pause
        self._error_pause = error_pause
        self._not_before = 0.0
        self._failures: dict[str, _Failure] = {}
        self.due_at: float | None = None
        """When a cycle for deferred work is due, in monotonic seconds of this ownership; None if there is no
        deferred work."""
        self.open = 0
        """How many items there were when they were last read."""
        self.newer: frozenset[str] = frozenset()
        """The keys of items that only a newer version knows how to run."""
        self.steps_done = 0
        """Steps done."""

    async def load(self) -> None:
        """Read the deferred work that an earlier owner left (rule F6)."""
        self._plan(await self._read())

    async def run(self, is_wanted: Callable[[], bool]) -> int:
        """Do the steps of one cycle; returns how many were done. Stops after a step if ``is_wanted()``:
        somebody waits for the cycle's end."""
        done = 0
        while done < self._steps and (work := self._next(await self._read())) is not None:
            # S7: one failure in a cycle. If long-term storage is down, the other items would fail too.
            if not await self._run_step(work):
                break

            done += 1
            if is_wanted():
                break

        self._plan(await self._read())
        self.steps_done += done
        return done

    async def _read(self) -> Sequence[DeferredWorkRecord]:
        try:
            pending = await self._storage.deferred_work()
        except NotOwner:
            raise
        except TierlogError as error:
            _log.error("deferred_work_unreadable", error=str(error))
            return ()

        newer = self._storage.newer_deferred_work()
        if unlogged := newer - self.newer:
            _log.warning("deferred_work_unsupported", count=len(newer), work=sorted(unlogged)[:_NAMED])
        self.newer = newer
        return pending

    def _next(self, pending: Sequence[DeferredWorkRecord]) -> DeferredWorkRecord | None:
        """The first item that may begin, one that has not failed before one that has."""
        now = anyio.current_time()
        return min((work for work in pending if self._may_begin(work) <= now), key=self._failed, default=None)

    def _failed(self, work: DeferredWorkRecord) -> int:
        failure = self._failures.get(work.key)
        return failure.count if failure else 0

    def _may_begin(self, work: DeferredWorkRecord) -> float:
        failure = self._failures.get(work.key)
        return max(self._not_before, failure.not_before if failure else 0.0)

    async def _run_step(self, work: DeferredWorkRecord) -> bool:
        """Do one step; returns whether it was done."""
        try:
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

        self._failures.pop(work.key, None)
        return True

    def _fail(self, work: DeferredWorkRecord, error: TierlogError) -> None:
        count = self._failures[work.key].count + 1 if work.key in self._failures else 1
        self._not_before = anyio.current_time() + self._error_pause
        pause = min(PAUSE_MAX, self._error_pause * 2 ** min(count - 1, 16))
        self._failures[work.key] = _Failure(count, anyio.current_time() + pause)
        # A conflict is no failure: the segment was deleted meanwhile, and the next cycle has the work of
        # that.
        if not isinstance(error, MetadataConflict):
            _log.warning("deferred_work_failed", work=work.key, error=str(error), pause=pause)

    def _plan(self, pending: Sequence[DeferredWorkRecord]) -> None:
        keys = {work.key for work in pending}
        self._failures = {key: failure for key, failure in self._failures.items() if key in keys}
        self.open = len(pending)
        earliest = min((self._may_begin(work) for work in pending), default=None)
        self.due_at = None if earliest is None else max(earliest, anyio.current_time() + self._pause)
