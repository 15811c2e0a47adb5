"""A table: one memtable that takes rows, frozen ones on their way to runs, and the run list.

Every method is synchronous. ``view`` captures all of it in one step; the I/O that a lookup needs comes after,
on the captured view (``lookup.py``, ``scan.py``), and no later change disturbs it (rule M3).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import repeat

import attrs

from .memtable import SLICE_KEYS, Memtable
from .rows import Row
from .run_list import RunList


@attrs.frozen(eq=False, repr=False)
class TableView:
    """What a table holds at one moment."""

    memtables: tuple[Memtable, ...]
    """From new to old."""
    runs: RunList
    version: int
    """The greatest version that it shows."""

    def find_in_memory(self, key: bytes) -> Row | None:
        """The newest row in memory; those of runs may be older, never newer."""
        for memtable in self.memtables:
            if (row := memtable.find(key, self.version)) is not None:
                return row
        return None

    def dirty_rows(self) -> Iterator[Row | None]:
        """The rows that no run of the view has, memtable by memtable, from old to new; None for a key that
        was written first after the view began, which is work too."""
        for memtable in reversed(self.memtables):
            start: bytes | None = None if memtable.max_version <= self.runs.rows_to else b""
            while start is not None:
                rows, start = memtable.batch(start, None, self.version, SLICE_KEYS)
                yield from rows
                if start is not None:
                    yield from repeat(None, SLICE_KEYS - len(rows))


class Table:
    def __init__(self, runs: RunList | None = None) -> None:
        self._runs = RunList() if runs is None else runs
        self._version = self._runs.records_to
        self._memtable = Memtable(self._version)
        self._frozen: tuple[Memtable, ...] = ()
        self._released: list[Memtable] = []
        """Memtables whose rows are all in runs. Views may still read them; their rows are freed in steps."""
        self.memory = 0
        """Bytes of rows in memory, about. Admission reads it for every append."""

    @property
    def runs(self) -> RunList:
        return self._runs

    @property
    def frozen(self) -> tuple[Memtable, ...]:
        """Memtables whose rows are to become a run, from new to old."""
        return self._frozen

    @property
    def version(self) -> int:
        """The greatest version of a row."""
        return self._version

    @property
    def rows(self) -> int:
        """Rows in memory."""
        return sum(len(memtable) for memtable in (self._memtable, *self._frozen))

    @property
    def unfrozen_memory(self) -> int:
        """Bytes of the rows that are not frozen, about."""
        return self._memtable.memory

    @property
    def is_dirty(self) -> bool:
        """Whether there are rows that the runs do not have."""
        rows_to = self._runs.rows_to
        return any(each.max_version > rows_to for each in (self._memtable, *self._frozen))

    def put(self, rows: Iterable[Row]) -> None:
        """Add the rows of a commit, whose versions are greater than all before."""
        memtable = self._memtable
        before = memtable.memory
        for row in rows:
            memtable.put(row)
        self.memory += memtable.memory - before
        self._version = max(self._version, memtable.max_version)

    def find_in_memory(self, key: bytes) -> Row | None:
        """The newest row of ``key``, if it is in memory."""
        row = self._memtable.newest(key)
        if row is None and self._frozen:
            return next((row for each in self._frozen if (row := each.newest(key)) is not None), None)
        return row

    @property
    def frozen_to(self) -> int:
        """The version up to which all rows are frozen, or in runs."""
        return self._memtable.after

    def freeze(self, version: int = 0) -> tuple[Memtable, ...]:
        """End the present memtable, continue with an empty one, and return ``frozen``. One assignment,
        however many rows there are. All later rows will have versions above ``version``."""
        self._version = max(self._version, version)
        if len(self._memtable):
            self._memtable.freeze()
            self._frozen = (self._memtable, *self._frozen)
        self._memtable = Memtable(self._version)
        return self._frozen

    def divide(self, version: int) -> Iterator[None]:
        """Freeze the rows up to ``version``, and continue with a memtable of the others, a few of which are
        moved in each step: as if the memtable had been frozen at that version, which replay learns later.
        Nobody reads or writes meanwhile."""
        if self._memtable.after < version and len(self._memtable):
            older, self._memtable = self._memtable, Memtable(version)
            older.freeze()
            self._frozen = (older, *self._frozen)
            yield from older.move_newer(version, self._memtable)
            self.use(self._runs)

    def use(self, runs: RunList) -> None:
        """These runs are the durable ones from now on. Memtables all of whose rows they have are released."""
        self._runs = runs
        # A merge that dropped tombstones may have left no row with the greatest version.
        self._version = max(self._version, runs.records_to)
        self._released += [each for each in self._frozen if each.max_version <= runs.rows_to]
        self._frozen = tuple(each for each in self._frozen if each.max_version > runs.rows_to)
        # Replay may bring rows that the runs have already.
        if self._memtable.max_version <= runs.rows_to:
            self._released.append(self._memtable)
            self._memtable = Memtable(self._version)
        self.memory = sum(memtable.memory for memtable in (self._memtable, *self._frozen))

    def free(self) -> bool:
        """Free some rows of released memtables; returns whether more can be freed now."""
        self._released = [each for each in self._released if len(each)]
        return any(each.free(SLICE_KEYS) for each in self._released)

    def begin_view(self) -> TableView:
        """As ``view``, until ``end_view``."""
        view = TableView((self._memtable, *self._frozen), self._runs, self._version)
        for memtable in view.memtables:
            memtable.begin_reading(view.version)
        return view

    @staticmethod
    def end_view(view: TableView) -> None:
        for memtable in view.memtables:
            memtable.end_reading(view.version)

    @contextmanager
    def view(self) -> Iterator[TableView]:
        """What the table holds now, whatever is put and published until the block ends."""
        view = self.begin_view()
        try:
            yield view
        finally:
            self.end_view(view)
