"""Publishes full flush cycles in long-term storage, alongside the cycles (rule J5).

The creation of an element takes as long as long-term storage does; nothing that is flushed waits for it (rule
F7). One cycle is published at a time. What cannot be published is tried again after a pause, as it was
captured.

Cancellation: the cycle is not published. Crash: the next owner creates an element that was recorded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from math import inf
from typing import Any

import anyio

from ...storage_backends.base.errors import CLAIM_REFUSED, TierlogError
from .flush_callers import FlushCallers
from .flush_cycle import CycleEvent, CyclePhase, FlushCycle


class CyclePublisher:
    def __init__(
        self,
        publish: Callable[[Any], Awaitable[None]],
        callers: FlushCallers,
        on_published: Callable[[], None],
        retry_in: Callable[[], float],
        error_pause: float,
    ) -> None:
        """``publish(cut)`` returns once an element counts that records the cycle of this cut. ``retry_in()``:
        for how many seconds long-term storage refuses every change; ``error_pause``: seconds between two
        attempts, at least."""
        self._publish = publish
        self._callers = callers
        self._on_published = on_published
        self._retry_in = retry_in
        self._error_pause = error_pause
        self._newest: FlushCycle | None = None
        self.newest_cut = -1
        """The cut of the newest cycle that was or is being published."""
        self.begun_at = -inf
        """When its publication began."""
        self._wake = anyio.Event()
        self._resume = anyio.Event()

    @property
    def is_busy(self) -> bool:
        """Whether a cycle is not published yet."""
        return self._newest is not None and self._newest.phase is CyclePhase.PUBLISHING

    def begin(self, cycle: FlushCycle) -> None:
        """Publish a cycle. One at a time."""
        cycle.step(CycleEvent.PUBLISH)
        self._newest, self.newest_cut, self.begun_at = cycle, cycle.sequence, anyio.current_time()
        self._wake.set()

    def resume(self) -> None:
        """End the pause after an attempt that failed."""
        self._resume.set()

    async def run(self) -> None:
        """Publish what ``begin`` gives until cancelled. Raises ``CLAIM_REFUSED``."""
        while True:
            self._wake = anyio.Event()
            cycle = self._newest
            if cycle is None or cycle.phase is not CyclePhase.PUBLISHING:
                await self._wake.wait()
                continue

            attempt, cut = self._callers.begin(), cycle.cut
            try:
                await self._publish(cut)
            except CLAIM_REFUSED:
                raise
            except TierlogError as error:
                # It is tried again, which may take hours in an outage.
                cycle.step(CycleEvent.FAIL)
                self._callers.fail(error, attempt)
                self._resume = anyio.Event()
                with anyio.move_on_after(max(self._error_pause, self._retry_in())):
                    await self._resume.wait()
                continue

            cycle.step(CycleEvent.COUNT)
            if cut is not None and not cut.held:
                self._callers.published(cut.cut)
            self._on_published()
