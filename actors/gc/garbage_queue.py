"""Names that wait for deletion, by what they wait for: their delay, then the end of a flush cycle (rules G1
and F2). Pure; a call costs what it moves, however many names wait.

What was taken is still known to the queue until it is dropped; to try it again, put it again."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import count

from ...storage_backends.base.sharded_dict import ShardedDict
from .rules import Garbage


class GarbageQueue:
    __slots__ = ("_cycles", "_delays", "_entries", "_numbers")

    def __init__(self) -> None:
        self._entries: ShardedDict[str, Garbage] = ShardedDict()
        # What is in the heaps counts only if it is the entry: changes leave the old one behind.
        self._delays: list[tuple[float, int, Garbage]] = []
        """(due, a number that breaks ties, what)."""
        self._cycles: list[tuple[int, int, Garbage]] = []
        """(after cycle, number, what): the delay is over."""
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def put(self, garbage: Garbage) -> None:
        self._entries[garbage.name] = garbage
        heappush(self._delays, (garbage.due, next(self._numbers), garbage))

    def drop(self, name: str) -> None:
        self._entries.pop(name, None)

    def take(self, now: float, completed_cycle: int, limit: int) -> list[Garbage]:
        """Names whose delay is over and whose cycle is complete, at most ``limit``. None are left of these if
        it returns none and ``next_due`` is later than ``now``."""
        moved = 0
        while self._delays and self._delays[0][0] <= now and moved < limit:
            _, number, garbage = heappop(self._delays)
            heappush(self._cycles, (garbage.after_cycle, number, garbage))
            moved += 1
        found: list[Garbage] = []
        while self._cycles and self._cycles[0][0] <= completed_cycle and len(found) < limit:
            garbage = heappop(self._cycles)[2]
            if self._entries.get(garbage.name) is garbage:
                found.append(garbage)
        return found

    def next_due(self) -> float:
        """When the next delay is over; infinite if none is running. The end of a cycle is not in it."""
        return self._delays[0][0] if self._delays else float("inf")
