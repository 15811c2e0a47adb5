"""The lag of the event loop: how late a timer is, because a task's step held up the loop.

A timer is due twenty times a second. A longer step than that is always seen, and measured short by at most
the time until the timer was due; a shorter one is seen if the timer becomes due during it."""

from __future__ import annotations

from collections import deque

import anyio
import attrs

from ...storage_backends.base.statistics import gauge
from ...storage_backends.base.values import Value

INTERVAL = 0.05
WINDOW = 60.0


@attrs.frozen(eq=False, repr=False)
class EventLoopStatistics(Value):
    lag_max_seconds: float = attrs.field(
        metadata=gauge("The longest lag of the process's event loop in the last minute.")
    )


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
        return EventLoopStatistics(self._peaks[0][1] if self._peaks else 0.0)
