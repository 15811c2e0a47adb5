"""The block cache: verified blocks and tails of all runs of a process, up to a number of bytes (rule M5).

The least recently used leave first. Scans do not enter what they read, so one scan does not evict what
lookups use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from .statistics import BlockCacheStatistics

T = TypeVar("T")
RunKey = tuple[str, int]
"""A run's name and CRC32C, as in the name of its local file."""
_ENTRY_MEMORY = 200
"""Bytes of memory for an entry besides its content."""


class BlockCache(Generic[T]):
    def __init__(self, capacity: int) -> None:
        """``capacity`` is in bytes."""
        self._capacity = capacity
        self._entries: dict[tuple[RunKey, int], tuple[T, int]] = {}  # In the order of their use.
        self._held = self._hits = self._loads = self._evictions = 0

    def get(self, run: RunKey, number: int) -> T | None:
        """What was put for this run and number."""
        key = (run, number)
        # Taken out and put back: a dict keeps the order of insertion, which becomes that of use.
        entry = self._entries.pop(key, None)
        if entry is None:
            return None

        self._entries[key] = entry
        self._hits += 1
        return entry[0]

    def put(self, run: RunKey, number: int, content: T, size: int) -> None:
        """Enter ``content`` of ``size`` bytes. What is larger than the whole cache is not entered."""
        self._loads += 1
        # Many small blocks take more memory than their bytes.
        size += _ENTRY_MEMORY
        if size > self._capacity:
            return

        replaced = self._entries.pop((run, number), None)
        self._held += size - (replaced[1] if replaced else 0)
        self._entries[run, number] = (content, size)
        while self._held > self._capacity:
            oldest = next(iter(self._entries))
            self._held -= self._entries.pop(oldest)[1]
            self._evictions += 1

    def clear(self) -> None:
        self._entries.clear()
        self._held = 0

    def statistics(self) -> BlockCacheStatistics:
        from .statistics import BlockCacheStatistics

        return BlockCacheStatistics(self._held, self._hits, self._loads, self._evictions)
