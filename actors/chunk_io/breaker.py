"""The breaker: long-term storage in trouble is a state, and nothing feeds itself meanwhile (rules A16 and
S7).

Owns: the state machine, closed, open or probing, as a table; sync and pure, time comes in as an argument.
Does not own: what counts as a failure (the actor says), nor the refusal (whoever would name and track a chunk
asks first).

Closed: all may pass. After ``failures_max`` failures in a row it opens: nobody passes, except one probe per
``interval``. A probe that never reports, because its caller went away, blocks the next one for one interval
only. Any success closes.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

import attrs

from ...storage_backends.base.errors import InvalidArgument
from ...storage_backends.base.statistics import counter, gauge, state


class BreakerState(enum.Enum):
    CLOSED = "closed"
    OPEN = "open"
    PROBING = "probing"


class Signal(enum.Enum):
    SUCCESS = "success"
    FAILURE = "failure"
    LIMIT = "limit"
    """The failure that is one too many."""
    PROBE = "probe"
    """Somebody is let through to try."""


TABLE: Mapping[tuple[BreakerState, Signal], BreakerState] = {
    (BreakerState.CLOSED, Signal.SUCCESS): BreakerState.CLOSED,
    (BreakerState.CLOSED, Signal.FAILURE): BreakerState.CLOSED,
    (BreakerState.CLOSED, Signal.LIMIT): BreakerState.OPEN,
    (BreakerState.OPEN, Signal.SUCCESS): BreakerState.CLOSED,
    (BreakerState.OPEN, Signal.FAILURE): BreakerState.OPEN,
    (BreakerState.OPEN, Signal.LIMIT): BreakerState.OPEN,
    (BreakerState.OPEN, Signal.PROBE): BreakerState.PROBING,
    (BreakerState.PROBING, Signal.SUCCESS): BreakerState.CLOSED,
    (BreakerState.PROBING, Signal.FAILURE): BreakerState.OPEN,
    (BreakerState.PROBING, Signal.LIMIT): BreakerState.OPEN,
    (BreakerState.PROBING, Signal.PROBE): BreakerState.PROBING,
}
"""All steps. A probe in the closed state is not among them: there everybody passes."""


@attrs.frozen
class BreakerStatistics:
    state: str = attrs.field(
        metadata=state("Whether long-term storage is asked: closed (yes), open (no), half-open (one probe).")
    )
    failures: int = attrs.field(metadata=gauge("Failures in a row."))
    opened: int = attrs.field(metadata=counter("Times it opened, a failed probe included."))
    probes: int = attrs.field(metadata=counter("Calls let through to see whether long-term storage is back."))
    refused: int = attrs.field(metadata=counter("Calls refused while it was open."))


class Breaker:
    """See the module's head. Times are seconds of one monotonic clock."""

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
        """Whether the caller may pass. In trouble the caller that passes is the probe, and should go on to
        use the storage."""
        if self._state is BreakerState.CLOSED:
            return True

        if now < self._since + self._interval:
            self._refused += 1
            return False

        self._probes += 1
        self._step(Signal.PROBE, now)
        return True

    def retry_in(self, now: float) -> float:
        """Seconds until the next probe may pass."""
        return 0.0 if self._state is BreakerState.CLOSED else max(0.0, self._since + self._interval - now)

    def success(self, now: float) -> None:
        self._failures = 0
        self._step(Signal.SUCCESS, now)

    def failure(self, now: float) -> None:
        self._failures += 1
        self._step(Signal.LIMIT if self._failures >= self._failures_max else Signal.FAILURE, now)

    def _step(self, signal: Signal, now: float) -> None:
        old = self._state
        self._state = TABLE[old, signal]
        # A straggler's failure while open does not push the next probe away.
        if self._state is not old or signal is Signal.PROBE:
            self._since = now
            self._opened += self._state is BreakerState.OPEN

    def statistics(self) -> BreakerStatistics:
        return BreakerStatistics(
            state=self._state.value,
            failures=self._failures,
            opened=self._opened,
            probes=self._probes,
            refused=self._refused,
        )
