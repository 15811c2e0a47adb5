"""The lag of the event loop: how late a timer is, because a task's step held up the loop.

A timer is due twenty times a second. A longer step than that is always seen, and measured short by at most
the time until the timer was due; a shorter one is seen if the timer becomes due during it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from .statistics import EventLoopStatistics

INTERVAL = 0.05
WINDOW = 60.0


class LoopLag:
    def __init__(self) -> None:
        self._peaks: deque[tuple[float, float]] = deque()
        """Times and lags, those only that no later lag exceeds: the first is the longest."""

    async def watch(self) -> None:
        """Measure until cancelled."""
        while True:
            due = anyio.current_time() + INTERVAL
            await anyio.sleep_until(due)
            now = anyio.current_time()
            self.note(now, now - due)

    def note(self, now: float, lag: float) -> None:
        # An earlier lag that is not longer than this one is never the longest again.
        while self._peaks and self._peaks[-1][1] <= lag:
            self._peaks.pop()
        self._peaks.append((now, lag))
        while self._peaks[0][0] < now - WINDOW:
            self._peaks.popleft()

    def statistics(self) -> EventLoopStatistics:
        from .statistics import EventLoopStatistics

        return EventLoopStatistics(self._peaks[0][1] if self._peaks else 0.0)
