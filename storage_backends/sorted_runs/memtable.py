"""The memtable: rows that no run has yet, in key order (rule M5).

A key keeps, besides its newest row, those older ones that an open reader of this memtable sees; they go with
the next write of the key after the reader has closed. Freezing is one assignment: the frozen memtable is read
only, and the table continues with another one. Nothing here suspends.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import merge
from itertools import islice, pairwise
from typing import TypeVar

from sortedcontainers import SortedList

from ..base.sharded_dict import ShardedDict
from .rows import ABSENT, Row, successor

K = TypeVar("K")
SLICE_KEYS = 256
"""Keys that are visited in one step of the loop: at most about a millisecond."""
ROW_MEMORY = 230
"""Bytes of memory for a row besides its key and value (measured: two ``bytes`` objects, an int, a tuple and a
place in the order)."""


class Memtable:
    def __init__(self, after: int = 0, *, is_records: bool = False) -> None:
        """``after``: all rows will have greater versions. ``is_records``: they are records of long-term
        storage."""
        self.after = after
        self.is_records = is_records
        self._rows: ShardedDict[bytes, Row] = ShardedDict()
        self.newest: Callable[[bytes], Row | None] = self._rows.get
        """The newest row of a key."""
        self._keys: SortedList[bytes] = SortedList()
        """All keys, in order."""
        self._superseded: dict[bytes, tuple[Row, ...]] = {}
        """By key, from new to old: rows that a reader saw when the newest one was put."""
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

        key, version, value = row
        before = self._rows.get(key)
        if before is not None:
            if before.version >= version:
                raise RuntimeError(f"version {version} follows {before.version}")
            # Without open views, which is usual, a superseded row goes at once.
            if self._readers or self._superseded:
                self._keep_superseded(row, before)
            self.memory += len(value or b"") - len(before.value or b"")
        else:
            self._keys.add(key)
            self.memory += _memory(row)
        self._rows[key] = row
        self.max_version = max(self.max_version, version)

    def _keep_superseded(self, row: Row, before: Row) -> None:
        """``row`` replaces ``before``. Keep those rows of the key that a reader sees: the newest of at most
        its version."""
        superseded = self._superseded.pop(row.key, ())
        kept = tuple(
            old
            for newer, old in pairwise((row, before, *superseded))
            if self._is_read(old.version, newer.version)
        )
        self.memory += sum(map(_memory, kept)) - sum(map(_memory, superseded))
        if kept:
            self._superseded[row.key] = kept

    def _is_read(self, first: int, end: int) -> bool:
        at = bisect_left(self._readers, first)
        return at < len(self._readers) and self._readers[at] < end

    def begin_reading(self, version: int) -> None:
        """Keep what is visible at ``version``, until ``end_reading``."""
        insort(self._readers, version)

    def end_reading(self, version: int) -> None:
        self._readers.remove(version)

    def __len__(self) -> int:
        """How many keys have a row."""
        return len(self._keys)

    def free(self, count: int) -> bool:
        """Free up to ``count`` rows of a memtable that its table has released. Returns whether more can be
        freed now, since no open view reads them. To free many objects takes as long as other work on them."""
        if self._readers:
            return False

        for _ in range(min(count, len(self._keys))):
            # From the end, where the list moves nothing.
            key = self._keys.pop()
            del self._rows[key]
            self._superseded.pop(key, None)
        return bool(self._keys)

    def move_newer(self, version: int, target: Memtable) -> Iterator[None]:
        """Move the rows above ``version`` into ``target``, those of a few keys in each step. Nobody reads or
        writes meanwhile."""
        start: bytes | None = b""
        while start is not None and self.max_version > version:
            rows, start = self.batch(start, None, self.max_version, SLICE_KEYS)
            for row in rows:
                if row.version > version:
                    del self._rows[row.key]
                    self._keys.remove(row.key)
                    self.memory -= _memory(row)
                    target.put(row)
            yield
        self.max_version = min(self.max_version, version)

    def find(self, key: bytes, version: int) -> Row | None:
        """The newest row of ``key`` up to ``version``."""
        row = self._rows.get(key)
        if row is None or row.version <= version:
            return row
        return next((old for old in self._superseded.get(key, ()) if old.version <= version), None)

    def batch(
        self, start: bytes, end: bytes | None, version: int, keys: int
    ) -> tuple[list[Row], bytes | None]:
        """The newest row up to ``version`` of each of the next ``keys`` keys in ``start .. end`` that has
        one, and where the batch after it starts, or None."""
        rows: list[Row] = []
        key = start
        for key in islice(self._keys.irange(start, end, inclusive=(True, False)), keys):
            if (row := self.find(key, version)) is not None:
                rows.append(row)
            keys -= 1
        return rows, None if keys else successor(key)

    def newest_rows(self) -> Iterator[Row]:
        """The newest row of each key, in order: what a run takes from a frozen memtable."""
        return map(self._rows.__getitem__, self._keys)


def _memory(row: Row) -> int:
    return ROW_MEMORY + len(row.key) + len(row.value or b"")


def newest_rows(frozen: Iterable[Memtable]) -> Iterator[Row | None]:
    """The newest row of each key in these memtables, in the order of keys. None for each row that a newer one
    replaces, which is work too."""
    last = b""
    rows = (memtable.newest_rows() for memtable in frozen)
    for row in merge(*rows, key=lambda row: (row.key, -row.version)):
        yield None if row.key == last else row
        last = row.key


def find_conflict(expected: Mapping[K, int], version_of: Callable[[K], int]) -> tuple[K, int, int] | None:
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
