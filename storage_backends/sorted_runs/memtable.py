"""The memtable: rows that no run has yet, in key order (rule M5).

A key keeps, beside its newest row, those older ones that an open reader of this memtable sees; they go with
the next write of the key after the reader has closed. Freezing is one assignment: the frozen memtable is read
only, and the table continues with another one. Nothing here suspends.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping
from itertools import islice, pairwise

from sortedcontainers import SortedDict

from .rows import ABSENT, Row, successor

ROW_MEMORY = 280
"""Bytes of memory for a row beside its key and value (measured: two ``bytes`` objects, an int, two tuples and
a place in the order)."""


class Memtable:
    def __init__(self) -> None:
        self._rows: SortedDict[bytes, tuple[Row, ...]] = SortedDict()
        """By key, each from new to old."""
        self._readers: list[int] = []
        """The versions that open readers see, ascending."""
        self._frozen = False
        self.memory = 0
        """Bytes that it takes in memory, about."""
        self.max_version = 0

    def freeze(self) -> None:
        """No row is put from now on."""
        self._frozen = True

    def put(self, row: Row) -> None:
        """Add a row whose version is greater than that of the key's other rows."""
        if self._frozen:
            raise RuntimeError("a frozen memtable takes no rows")

        before = self._rows.get(row.key, ())
        if before and before[0].version >= row.version:
            raise RuntimeError(f"version {row.version} follows {before[0].version}")
        rows = self._needed((row, *before)) if self._readers else (row,)
        self._rows[row.key] = rows
        self.memory += sum(map(_memory, rows)) - sum(map(_memory, before))
        self.max_version = max(self.max_version, row.version)

    def _needed(self, rows: tuple[Row, ...]) -> tuple[Row, ...]:
        """The newest row, and those that a reader sees: it sees the newest of at most its version."""
        older = (old for newer, old in pairwise(rows) if self._is_read(old.version, newer.version))
        return (rows[0], *older)

    def _is_read(self, first: int, end: int) -> bool:
        at = bisect_left(self._readers, first)
        return at < len(self._readers) and self._readers[at] < end

    def begin_reading(self, version: int) -> None:
        """Keep what is visible at ``version``, until ``end_reading``."""
        insort(self._readers, version)

    def end_reading(self, version: int) -> None:
        self._readers.remove(version)

    def find(self, key: bytes, version: int) -> Row | None:
        """The newest row of ``key`` up to ``version``."""
        return _visible(self._rows.get(key, ()), version)

    def batch(
        self, start: bytes, end: bytes | None, version: int, keys: int
    ) -> tuple[list[Row], bytes | None]:
        """The newest row up to ``version`` of each of the next ``keys`` keys in ``start .. end`` that has
        one, and where the batch after it starts, or None."""
        rows: list[Row] = []
        key = start
        for key in islice(self._rows.irange(start, end, inclusive=(True, False)), keys):
            if (row := _visible(self._rows[key], version)) is not None:
                rows.append(row)
            keys -= 1
        return rows, None if keys else successor(key)

    def newest_rows(self) -> Iterator[Row]:
        """The newest row of each key, in order: what a run takes from a frozen memtable."""
        return (rows[0] for rows in self._rows.values())


def _memory(row: Row) -> int:
    return ROW_MEMORY + len(row.key) + len(row.value or b"")


def _visible(rows: tuple[Row, ...], version: int) -> Row | None:
    return next((row for row in rows if row.version <= version), None)


def find_conflict(
    expected: Mapping[bytes, int], version_of: Callable[[bytes], int]
) -> tuple[bytes, int, int] | None:
    """The first condition of a commit that does not hold, as (key, expected version, present one), or None
    (rule M1). ``ABSENT`` expects that no live row has the key; what is not in ``expected`` may have any
    version."""
    for key, version in expected.items():
        present = version_of(key)
        if present != version:
            return key, version, present
    return None


def version_of(row: Row | None) -> int:
    """The version that conditions compare: a tombstone is as good as no row."""
    return ABSENT if row is None or row.value is None else row.version
