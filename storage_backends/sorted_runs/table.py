"""A table: one memtable that takes rows, frozen ones on their way to runs, and the run list.

Every method is synchronous. ``view`` captures all of it in one step; the I/O that a lookup needs comes after,
on the captured view (``lookup.py``, ``scan.py``), and no later change disturbs it (rule M3).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import attrs

from .compaction_policy import Merge
from .memtable import Memtable
from .rows import Row
from .run_entry import RunEntry
from .run_list import RunList


@attrs.frozen
class TableView:
    """What a table holds at one moment."""

    memtables: tuple[Memtable, ...]
    """From new to old."""
    runs: RunList
    version: int
    """The greatest version that it shows."""

    def find_in_memory(self, key: bytes) -> Row | None:
        """The newest row that has not left memory. Those of runs may be older, never newer."""
        for memtable in self.memtables:
            if (row := memtable.find(key, self.version)) is not None:
                return row
        return None

    def has_changes_since(self, version: int) -> bool:
        """Whether the changes since ``version`` are complete. If not, a reader of changes starts over, with a
        scan of all rows."""
        return version >= self.runs.changes_from


class Table:
    def __init__(self, runs: RunList | None = None) -> None:
        self._memtable = Memtable()
        self._frozen: list[Memtable] = []
        """From old to new."""
        self._runs = RunList() if runs is None else runs
        self._version = max(self._runs.max_version, self._runs.changes_from)

    @property
    def runs(self) -> RunList:
        return self._runs

    @property
    def version(self) -> int:
        """The greatest version of a row."""
        return self._version

    @property
    def memory(self) -> int:
        """Bytes of rows in memory, about."""
        return sum(memtable.memory for memtable in (self._memtable, *self._frozen))

    def put(self, rows: Iterable[Row]) -> None:
        """Add the rows of a durable commit, whose versions are greater than all before."""
        for row in rows:
            self._memtable.put(row)
        self._version = max(self._version, self._memtable.max_version)

    def freeze(self) -> Memtable:
        """End the present memtable and continue with an empty one; its rows are to become a run. One
        assignment, however many rows there are."""
        frozen = self._memtable
        frozen.freeze()
        self._frozen.append(frozen)
        self._memtable = Memtable()
        return frozen

    def publish(self, frozen: Memtable, runs: Sequence[RunEntry]) -> None:
        """The durable ``runs`` hold the rows of ``frozen``, the oldest frozen memtable; none if it was
        empty."""
        if not self._frozen or self._frozen[0] is not frozen:
            raise RuntimeError("memtables are published in the order in which they were frozen")
        self._runs = self._runs.replaced((), runs)
        del self._frozen[0]

    def compact(self, merge: Merge, winners: Sequence[RunEntry]) -> None:
        """The durable runs ``winners`` are the result of ``merge``."""
        self._runs = self._runs.replaced(merge.runs, winners, merge.drop_tombstones_to)

    @contextmanager
    def view(self) -> Iterator[TableView]:
        """What the table holds now, whatever is put, published or compacted until the block ends."""
        view = TableView((self._memtable, *reversed(self._frozen)), self._runs, self._version)
        memtable = self._memtable
        memtable.begin_reading(view.version)
        try:
            yield view
        finally:
            memtable.end_reading(view.version)
