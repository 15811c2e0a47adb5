"""The trace of a run: lines ``time process event``, a bounded tail of them, and a running digest of all.

Nothing in a line may depend on the machine: no address, no wall clock, no order of a set.
"""

from __future__ import annotations

import hashlib
from collections import deque

import trio

_BATCH = 256
"""Lines that are digested at a time: one call for each would cost more than the lines."""


class Trace:
    """``keep``: how many of the last lines to remember; ``everything`` keeps them all in ``lines``."""

    def __init__(self, keep: int = 200, *, everything: bool = False) -> None:
        self.lines: list[str] = []
        """All lines, if everything is kept; else empty."""
        self.count = 0
        self._tail: deque[str] = deque(maxlen=keep)
        self._everything = everything
        self._digest = hashlib.sha256()
        self._fresh: list[str] = []

    def note(self, source: str, text: str) -> None:
        """Add a line, stamped with the virtual time."""
        line = f"{trio.current_time():.6f} {source} {text}"
        self.count += 1
        self._tail.append(line)
        self._fresh.append(line)
        if self._everything:
            self.lines.append(line)
        if len(self._fresh) >= _BATCH:
            self._absorb()

    def _absorb(self) -> None:
        self._digest.update(("\n".join(self._fresh) + "\n").encode())
        self._fresh.clear()

    def tail(self) -> list[str]:
        """The last lines, oldest first."""
        return list(self._tail)

    def digest(self) -> str:
        """The hexadecimal digest of all lines so far."""
        if self._fresh:
            self._absorb()
        return self._digest.hexdigest()
