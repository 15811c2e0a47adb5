"""A table: memtables that take rows, frozen ones on their way to runs, and the run list.

Records of long-term storage have a memtable of their own: a flush cycle publishes the records up to its end,
and all other rows up to its cut (rule F10). No key is in both kinds.

Every method is synchronous. ``view`` captures all of it in one step; the I/O that a lookup needs comes after,
on the captured view (``lookup.py``, ``scan.py``), and no later change disturbs it (rule M3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import repeat

from msgspec import Struct

from .memtable import SLICE_KEYS, Memtable, newest_rows
from .rows import Row
from .run_list import RunList

_FROZEN_MAX = 4
"""The most frozen memtables of a kind: a lookup asks each."""


def _is_clean(memtable: Memtable, runs: RunList) -> bool:
    """Whether the runs have all of its rows, but those that are held back."""
    return memtable.max_version <= runs.clean_to(is_record=memtable.is_records)


class TableView(Struct, frozen=True, eq=False):
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
        was written first after the view began, which is work too. While rows are held back there may be
        others too."""
        for memtable in reversed(self.memtables):
            is_clean = _is_clean(memtable, self.runs) and not self.runs.held
            start: bytes | None = None if is_clean else b""
            while start is not None:
                rows, start = memtable.batch(start, None, self.version, SLICE_KEYS)
                yield from rows
                if start is not None:
                    yield from repeat(None, SLICE_KEYS - len(rows))


class Table:
    def __init__(self, runs: RunList | None = None) -> None:
        self._runs = RunList() if runs is None else runs
        self._version = self._runs.records_to
        self._rows = Memtable(self._version)
        self._records = Memtable(self._version, is_records=True)
        self._frozen: tuple[Memtable, ...] = ()
        self._retired: tuple[Memtable, ...] = ()
        """Memtables whose rows the runs have, but for those that are held back: ``hold_back`` sorts them
        out."""
        self._held: Memtable | None = None
        """The rows of segments that are held back (rule F10)."""
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
    def _memtables(self) -> tuple[Memtable, ...]:
        """All, those of a kind from new to old."""
        held = () if self._held is None else (self._held,)
        return (self._rows, self._records, *self._frozen, *self._retired, *held)

    @property
    def rows(self) -> int:
        """Rows in memory."""
        return sum(map(len, self._memtables))

    @property
    def unfrozen_memory(self) -> int:
        """Bytes of the rows that are not frozen, about."""
        return self._rows.memory + self._records.memory

    @property
    def is_dirty(self) -> bool:
        """Whether there are rows that the runs do not have."""
        return self._held is not None or any(
            not _is_clean(each, self._runs) for each in (self._rows, self._records, *self._frozen)
        )

    def put(self, rows: Iterable[Row]) -> None:
        """Add the rows of a commit, whose versions are greater than all before."""
        self._put(self._rows, rows)

    def put_records(self, rows: Iterable[Row]) -> None:
        """As ``put``, of records of long-term storage."""
        self._put(self._records, rows)

    def put_held(self, rows: Iterable[Row]) -> None:
        """Recovery: add rows that were held back. A row may come twice, because a checkpoint has resident
        ones besides, and an earlier one of its key before it, from an older memtable."""
        held = self._held = Memtable() if self._held is None else self._held
        for row in rows:
            known = held.newest(row.key)
            if known is None or known.version < row.version:
                self._put(held, (row,))

    def _put(self, memtable: Memtable, rows: Iterable[Row]) -> None:
        before = memtable.memory
        for row in rows:
            memtable.put(row)
        self.memory += memtable.memory - before
        self._version = max(self._version, memtable.max_version)

    def find_in_memory(self, key: bytes) -> Row | None:
        """The newest row of ``key``, if it is in memory."""
        row = self._rows.newest(key)
        if row is None and (row := self._records.newest(key)) is None and (self._frozen or self._runs.held):
            return next((row for each in self._memtables if (row := each.newest(key)) is not None), None)
        return row

    @property
    def frozen_to(self) -> int:
        """The version up to which all rows but records are frozen, or in runs."""
        return self._rows.after

    def freeze_rows(self, version: int = 0) -> None:
        """End the present memtable of rows that are no records, and continue with an empty one. One
        assignment, however many rows there are. All later rows will have versions above ``version``."""
        self._version = max(self._version, version)
        self._rows = self._freeze(self._rows)

    def freeze_records(self, version: int = 0) -> None:
        """As ``freeze_rows``, of the records."""
        self._version = max(self._version, version)
        self._records = self._freeze(self._records)

    def _freeze(self, memtable: Memtable) -> Memtable:
        if len(memtable):
            memtable.freeze()
            self._frozen = (memtable, *self._frozen)
        return Memtable(self._version, is_records=memtable.is_records)

    def unpublished_rows(self) -> Iterator[Row | None]:
        """The newest row of each key that is frozen or held back, in the order of keys: what the next run
        holds. None for each row that a newer one replaces, which is work too."""
        held = () if self._held is None else (self._held,)
        return newest_rows((*self._frozen, *self._retired, *held))

    def merge_frozen(self) -> Iterator[None]:
        """If the cycles of many memtables were not published, make one memtable of them, a few rows in each
        step."""
        for is_records in (False, True):
            merged = [each for each in self._frozen if each.is_records == is_records]
            if len(merged) > _FROZEN_MAX:
                whole = Memtable(is_records=is_records)
                yield from _filled(whole, newest_rows(merged))
                # A freeze adds others before them, and runs that count take them away.
                if set(merged) <= set(self._frozen):
                    kept = (each for each in self._frozen if each not in merged)
                    self._frozen = (*kept, whole)
                    self._release(merged)

    def divide(self, runs: RunList) -> Iterator[None]:
        """Freeze the rows that ``runs`` have, and continue with memtables of the others, a few of which are
        moved in each step: as if the memtables had been frozen where the cycle froze them, which replay
        learns later. Nobody reads or writes meanwhile."""
        for memtable in (self._rows, self._records):
            version = runs.clean_to(is_record=memtable.is_records)
            if memtable.after < version and len(memtable):
                later = Memtable(version, is_records=memtable.is_records)
                if memtable.is_records:
                    self._records = later
                else:
                    self._rows = later
                memtable.freeze()
                self._frozen = (memtable, *self._frozen)
                yield from memtable.move_newer(version, later)
                self.use(self._runs)

    def use(self, runs: RunList) -> None:
        """These runs are the durable ones from now on. Memtables all of whose rows they have are released; if
        segments are held back, ``hold_back`` must follow."""
        is_other = runs.held != self._runs.held
        self._runs = runs
        # A merge that dropped tombstones may have left no row with the greatest version.
        self._version = max(self._version, runs.records_to)
        clean = [each for each in self._frozen if _is_clean(each, runs)]
        self._frozen = tuple(each for each in self._frozen if not _is_clean(each, runs))
        # Replay may bring rows that the runs have already.
        if len(self._rows) and _is_clean(self._rows, runs):
            clean.append(self._rows)
            self._rows = Memtable(self._version)
        if len(self._records) and _is_clean(self._records, runs):
            clean.append(self._records)
            self._records = Memtable(self._version, is_records=True)
        if clean or is_other:
            held = () if self._held is None else (self._held,)
            retired = (*clean, *self._retired, *held)
            self._held = None
            self._retired = retired if runs.held else ()
            self._release(() if runs.held else retired)

    def hold_back(self, is_held: Callable[[Row], bool]) -> Iterator[None]:
        """Of what the runs should have, keep the rows that are held back, and release the others, a few in
        each step."""
        while retired := self._retired:
            held = Memtable()
            rows = newest_rows(retired)
            yield from _filled(held, (row if row is not None and is_held(row) else None for row in rows))
            # Other runs may count by now.
            if self._retired is retired:
                self._retired, self._held = (), held if len(held) else None
                self._release(retired)

    def _release(self, memtables: Iterable[Memtable]) -> None:
        self._released += memtables
        self.memory = sum(memtable.memory for memtable in self._memtables)

    def free(self) -> bool:
        """Free some rows of released memtables; returns whether more can be freed now."""
        self._released = [each for each in self._released if len(each)]
        return any(each.free(SLICE_KEYS) for each in self._released)

    def begin_view(self) -> TableView:
        """As ``view``, until ``end_view``."""
        # An empty one gets rows that the view does not show.
        view = TableView(tuple(filter(len, self._memtables)), self._runs, self._version)
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


def _filled(memtable: Memtable, rows: Iterable[Row | None]) -> Iterator[None]:
    """Put ``rows``, a few in each step, and freeze ``memtable``."""
    for number, row in enumerate(rows, 1):
        if row is not None:
            memtable.put(row)
        if number % SLICE_KEYS == 0:
            yield
    memtable.freeze()
