"""Names that wait for deletion, in the order in which their delays end (rule G2). Pure; a call costs what it
moves, however many names wait.

What was taken is still known to the queue until it is dropped; to try it again, put it again."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import count, islice

from ...storage_backends.base.sharded_dict import ShardedDict
from .rules import Garbage


class GarbageQueue:
    __slots__ = ("_delays", "_entries", "_numbers")

    def __init__(self) -> None:
        self._entries: ShardedDict[str, Garbage] = ShardedDict()
        # What is in the heap counts only if it is the entry: changes leave the old one behind.
        self._delays: list[tuple[float, int, Garbage]] = []
        """(due, a number that breaks ties, what)."""
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def some(self, limit: int) -> list[Garbage]:
        return [self._entries[name] for name in islice(self._entries, limit)]

    def put(self, garbage: Garbage) -> None:
        self._entries[garbage.name] = garbage
        heappush(self._delays, (garbage.due, next(self._numbers), garbage))

    def drop(self, name: str) -> None:
        self._entries.pop(name, None)

    def take(self, now: float, limit: int) -> list[Garbage]:
        """Names whose delay is over, found among the next ``limit``. None are left of these if ``next_due``
        is later than ``now``."""
        found: list[Garbage] = []
        for _ in range(limit):
            if self.next_due() > now:
                break
            garbage = heappop(self._delays)[2]
            if self._entries.get(garbage.name) is garbage:
                found.append(garbage)
        return found

    def next_due(self) -> float:
        """When the next delay is over; infinite if none is running."""
        return self._delays[0][0] if self._delays else float("inf")
