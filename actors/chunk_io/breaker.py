"""The breaker: long-term storage that keeps failing is not called, but for one probe at each interval (rules
A16 and S7).

Closed: all callers pass. After ``failures_max`` failures in a row it opens: nobody passes, except one probe
per ``interval``. A probe that never reports, because its caller went away, blocks the next one for one
interval only. Any success closes. Synchronous and pure: times are arguments, in seconds of one monotonic
clock.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from ...storage_backends.base.errors import InvalidArgument
from ...storage_backends.base.state_table import StateTable

if TYPE_CHECKING:
    from .statistics import BreakerStatistics


class BreakerState(enum.Enum):
    CLOSED = "closed"
    OPEN = "open"
    PROBING = "probing"


class BreakerEvent(enum.Enum):
    SUCCESS = "success"
    FAILURE = "failure"
    LIMIT = "limit"
    """The last failure that is allowed in a row."""
    PROBE = "probe"
    """A caller passes to try."""


STATES: StateTable[BreakerState, BreakerEvent] = StateTable(
    {
        (BreakerState.CLOSED, BreakerEvent.SUCCESS): BreakerState.CLOSED,
        (BreakerState.CLOSED, BreakerEvent.FAILURE): BreakerState.CLOSED,
        (BreakerState.CLOSED, BreakerEvent.LIMIT): BreakerState.OPEN,
        (BreakerState.OPEN, BreakerEvent.SUCCESS): BreakerState.CLOSED,
        (BreakerState.OPEN, BreakerEvent.FAILURE): BreakerState.OPEN,
        (BreakerState.OPEN, BreakerEvent.LIMIT): BreakerState.OPEN,
        (BreakerState.OPEN, BreakerEvent.PROBE): BreakerState.PROBING,
        (BreakerState.PROBING, BreakerEvent.SUCCESS): BreakerState.CLOSED,
        (BreakerState.PROBING, BreakerEvent.FAILURE): BreakerState.OPEN,
        (BreakerState.PROBING, BreakerEvent.LIMIT): BreakerState.OPEN,
        (BreakerState.PROBING, BreakerEvent.PROBE): BreakerState.PROBING,
    }
)
"""A probe in the closed state is not among the steps: there everybody passes."""


class Breaker:
    __slots__ = (
        "_failures",
        "_failures_max",
        "_interval",
        "_opened",
        "_probes",
        "_refused",
        "_since",
        "_state",
    )

    def __init__(self, failures_max: int, interval: float) -> None:
        if failures_max < 1 or interval <= 0:
            raise InvalidArgument(
                f"a breaker needs failures_max >= 1 and interval > 0, not {failures_max} and {interval}"
            )

        self._failures_max = failures_max
        self._interval = interval
        self._state = BreakerState.CLOSED
        self._since = 0.0
        self._failures = 0
        self._opened = 0
        self._probes = 0
        self._refused = 0

    def __repr__(self) -> str:
        return f"<Breaker {self._state.value}, {self._failures} failures in a row>"

    @property
    def state(self) -> BreakerState:
        return self._state

    @property
    def failures(self) -> int:
        return self._failures

    def admit(self, now: float) -> bool:
        """Whether the caller may pass. While the breaker is open, the caller that passes is the probe, and
        must go on to use the storage."""
        if self._state is BreakerState.CLOSED:
            return True

        # Also while probing: a probe whose caller was cancelled before its call never reports, and must not
        # block the storage for good.
        if now < self._since + self._interval:
            self._refused += 1
            return False

        self._probes += 1
        self._step(BreakerEvent.PROBE, now)
        return True

    def retry_in(self, now: float) -> float:
        """Seconds until the next probe may pass."""
        return 0.0 if self._state is BreakerState.CLOSED else max(0.0, self._since + self._interval - now)

    def success(self, now: float) -> bool:
        """Returns whether it closes by this."""
        was_closed = self._state is BreakerState.CLOSED
        self._failures = 0
        self._step(BreakerEvent.SUCCESS, now)
        return not was_closed

    def failure(self, now: float) -> None:
        # Counted while open as well: calls that were begun before it opened may still fail, and health
        # reports how many.
        self._failures += 1
        self._step(BreakerEvent.LIMIT if self._failures >= self._failures_max else BreakerEvent.FAILURE, now)

    def _step(self, event: BreakerEvent, now: float) -> None:
        old = self._state
        self._state = STATES.next(old, event)
        # A late failure while open must not postpone the next probe. But where only lists are called, which
        # need no admission, a failure once the probe is due has been the probe.
        if self._state is not old or event is BreakerEvent.PROBE or now >= self._since + self._interval:
            self._since = now
            self._opened += self._state is BreakerState.OPEN

    def statistics(self) -> BreakerStatistics:
        from .statistics import BreakerStatistics

        return BreakerStatistics(
            state=self._state.value,
            failures=self._failures,
            opened=self._opened,
            probes=self._probes,
            refused=self._refused,
        )
