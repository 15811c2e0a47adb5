"""Requests that wait until cold segments are loaded, in order (rules C4, M4). Pure.

A request enters the queue of each segment that it names. It is decided once it is the first in all of them
and what it needs was looked up; requests that need nothing themselves wait behind it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping

from msgspec import Struct, field

from ...storage_backends.base.errors import Throttled
from ...storage_backends.sorted_runs.rows import Row
from .requests import Request
from .segments import NotLoaded

_OVERHEAD = 512
"""Bytes for a request that waits, beside its data."""
ATTEMPTS_MAX = 10
"""A lookup is repeated if rows were released after it, which happens once per flush cycle."""


class ParkedOptions(Struct, frozen=True):
    count: int = 4096
    size_bytes: int = 16 << 20
    """Requests that wait, at most; further ones are ``Throttled``."""


class Parked(Struct, eq=False):
    request: Request
    names: tuple[str, ...]
    missing: NotLoaded | None
    """What must be looked up for it; None if it only waits for others."""
    attempts: int = 0
    rows: Mapping[bytes, Row | None] = field(default_factory=dict)
    """What was looked up for it alone: those behind it may come after changes of these rows."""

    @property
    def size(self) -> int:
        return _OVERHEAD + self.request.size


class ParkedRequests:
    def __init__(self, options: ParkedOptions) -> None:
        self._options = options
        self.queues: dict[str, deque[Parked]] = {}
        """By the name of a segment. Not empty: while there are none, nothing else is asked for a request."""
        self._waiting: dict[Parked, None] = {}
        """All, in the order in which they came."""
        self.size = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Parked]:
        return iter(self._waiting)

    def is_blocked(self, request: Request) -> bool:
        """Whether the request must not overtake one that waits."""
        return any(name in self.queues for name in request.named())

    def park(self, request: Request, missing: NotLoaded | None) -> None:
        """Raises ``Throttled``. Internal requests, which name segments by their ids, pass: they relieve what
        makes others wait (rule C6)."""
        parked = Parked(request, tuple(dict.fromkeys(request.named())), missing)
        is_full = len(self) >= self._options.count or self.size + parked.size > self._options.size_bytes
        # One that is larger than the limit waits alone.
        if is_full and len(self) and parked.names:
            raise Throttled(
                f"{len(self)} requests wait for segments that are not in memory: slow down and try again"
            )

        self._waiting[parked] = None
        self.size += parked.size
        for name in parked.names:
            self.queues.setdefault(name, deque()).append(parked)

    def is_first(self, parked: Parked) -> bool:
        return all(self.queues[name][0] is parked for name in parked.names)

    def remove(self, parked: Parked) -> list[Parked]:
        """It is answered. Returns those behind it that are first now."""
        del self._waiting[parked]
        self.size -= parked.size
        behind: dict[Parked, None] = {}
        for name in parked.names:
            queue = self.queues[name]
            queue.remove(parked)
            if queue:
                behind[queue[0]] = None
            else:
                del self.queues[name]
        return [each for each in behind if self.is_first(each)]

    def wanted(self, count: int) -> list[Parked]:
        """The first ``count`` that need a lookup."""
        found: list[Parked] = []
        for parked in self._waiting:
            if parked.missing is not None and self.is_first(parked):
                found.append(parked)
                if len(found) == count:
                    break
        return found

    def clear(self) -> list[Request]:
        """Remove all of them."""
        requests = [parked.request for parked in self._waiting]
        self._waiting.clear()
        self.queues.clear()
        self.size = 0
        return requests
