"""Merges sorted sources of rows into one, without any I/O: for scans and for compaction.

The caller feeds batches to the sources that ``drained`` names, until there are none. Of several rows of a key
the one with the highest version comes out (rule M1).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush, heapreplace

from .rows import Row

_Head = tuple[bytes, int, int, Row, Iterator[Row]]
"""Key, minus the version, and number of the source, which decide the order; the row, and those behind it."""


class Merger:
    def __init__(self, sources: int) -> None:
        self.drained = list(range(sources))
        """The sources whose next rows are unknown."""
        self._heads: list[_Head] = []
        self._key = b""

    def feed(self, source: int, rows: Iterable[Row]) -> None:
        """Add the next rows of a drained source, whose keys ascend; none if it has ended."""
        self.drained.remove(source)
        rest = iter(rows)
        for row in rest:
            # The source makes heads distinct, so that rows and iterators are never compared.
            heappush(self._heads, (row.key, -row.version, source, row, rest))
            return

    def rows(self) -> Iterator[Row]:
        """The next merged rows, until a source is drained or all have ended. May be left and called again."""
        heads = self._heads
        while heads and not self.drained:
            key, _, source, row, rest = heads[0]
            following = next(rest, None)
            if following is None:
                heappop(heads)
                self.drained.append(source)
            else:
                # One step of the heap instead of a pop and a push.
                heapreplace(heads, (following.key, -following.version, source, following, rest))
            # Rows of one key come from new to old; those after the first are superseded.
            if key != self._key:
                self._key = key
                yield row
