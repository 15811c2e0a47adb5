"""Memory of bodies and answers goes back to the system.

Once glibc has freed a large buffer it takes buffers of that size, up to 32 MiB, from its heap, and keeps what
it frees below a piece that is still in use: a host that held 256 MiB for clients that did not read would keep
them for good."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

PEAK_BYTES = 64 << 20
"""Less memory than this stays in the heap for the next requests."""
IDLE_DELAY = 15.0
"""Seconds that the memory must have been free: the next requests may need it, and read-ahead holds windows
for some seconds after their readers have left."""
BUSY_DELAY = 300.0
"""Seconds for which it must have been free in a host that is never idle."""


def trim_heap() -> None:
    """Return all free pages of the heap to the system; about 40 us for each MiB. Does nothing where the C
    library is not glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class HeapTrimmer:
    """Trims the heap once after most of a lot of memory was freed, when no request has arrived since the
    check before: trimming keeps every other thread from allocating, for 10 to 20 ms."""

    def __init__(
        self,
        held: Callable[[], int],
        requests: Callable[[], int],
        clock: Callable[[], float],
        trim: Callable[[], None] = trim_heap,
    ) -> None:
        """``held()``: the bytes that are in use now. ``requests()``: how many there were so far."""
        self._held = held
        self._requests = requests
        self._clock = clock
        self._trim = trim
        self._peak = 0
        self._seen = 0
        self._free_since: float | None = None

    def check(self) -> None:
        held, requests, now = self._held(), self._requests(), self._clock()
        is_idle, self._seen = requests == self._seen, requests
        self._peak = max(self._peak, held)
        if self._peak < PEAK_BYTES or held > self._peak // 4:
            self._free_since = None
        elif self._free_since is None:
            self._free_since = now
        elif now - self._free_since >= (IDLE_DELAY if is_idle else BUSY_DELAY):
            self._trim()
            self._peak, self._free_since = held, None
