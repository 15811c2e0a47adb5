"""How long to wait before the next attempt: exponential, bounded, with jitter."""

from __future__ import annotations

from random import Random

from msgspec import Struct

from ...storage_backends.base.errors import InvalidArgument


class Backoff(Struct, frozen=True):
    """Attempt ``n`` (from 0) waits ``first * factor ** n`` seconds, at most ``maximum``, less a random part
    of up to ``jitter`` of that. Raises ``InvalidArgument`` for impossible values."""

    first: float
    maximum: float
    factor: float = 2.0
    jitter: float = 0.5
    """0 to 1: the random share of the wait, which spreads the attempts of callers that failed together."""

    def __post_init__(self) -> None:
        if self.first < 0 or self.maximum < self.first or self.factor < 1 or not 0 <= self.jitter <= 1:
            raise InvalidArgument(f"invalid {self}: 0 <= first <= maximum, factor >= 1, 0 <= jitter <= 1")

    def delay(self, attempt: int, random: Random) -> float:
        """Seconds to wait after attempt ``attempt`` (0 is the first) failed."""
        # Past 64 doublings the bound holds in any case, and a large power would overflow.
        full = min(self.maximum, self.first * self.factor ** min(attempt, 64))
        return full * (1 - self.jitter * random.random())
