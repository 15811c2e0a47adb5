"""A bounded in-memory index of one segment's chain: where every so many chunks begin. For segments whose chunks
are small against the spacing of the persisted index records.

A chunk never moves inside its segment and its name is never used again, so an entry stays true over every
commit until its chunk leaves the chain. Then its record is gone, and the walk that notices drops the entry. So
the index outlives layouts, which each commit discards.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

ENTRIES_MAX = 4096
"""Entries of one segment; beyond this every second one is dropped and the stride doubles."""
_STRIDE = 16


class SparseIndex:
    def __init__(self, limit: int = ENTRIES_MAX) -> None:
        self._limit = limit
        self._starts: list[int] = []
        self._names: list[str] = []
        self.stride = _STRIDE
        """A walk adds an entry after this many chunks."""

    def __len__(self) -> int:
        return len(self._starts)

    def below(self, offset: int) -> tuple[int, str] | None:
        """(segment offset, name) of the nearest indexed chunk that begins at or before ``offset``."""
        index = bisect_right(self._starts, offset)
        return (self._starts[index - 1], self._names[index - 1]) if index else None

    def put(self, start: int, name: str) -> None:
        index = bisect_left(self._starts, start)
        if index < len(self._starts) and self._starts[index] == start:
            self._names[index] = name
            return

        self._starts.insert(index, start)
        self._names.insert(index, name)
        if len(self._starts) > self._limit:
            del self._starts[1::2], self._names[1::2]
            self.stride *= 2

    def drop(self, start: int) -> None:
        """Remove the entry of the chunk that began at ``start``."""
        index = bisect_left(self._starts, start)
        if index < len(self._starts) and self._starts[index] == start:
            del self._starts[index], self._names[index]
