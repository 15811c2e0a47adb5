"""Reads ranges of a view in pages.

A page ends at a limit of rows or bytes, and names where the next one starts; that position is a key, so it
outlives the view, the process and any merge. Blocks are read ahead, in growing steps up to 256 KiB, and are
not entered into the cache.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, MutableMapping, Sequence
from itertools import chain, takewhile

from anyio.lowlevel import checkpoint
from msgspec import Struct

from ..base.errors import DataCorruption, TierlogError, Unavailable
from ..base.tables import PAGE_BYTES
from .memtable import Memtable
from .merging import Merger
from .reader import RunReader
from .rows import Row, successor
from .run_entry import RunEntry
from .table import TableView
from .tail import Tail

SLICE_ROWS = 256
"""Rows between two checkpoints: about a millisecond of the loop."""
_READ_FIRST = 32 << 10
_READ_MAX = 256 << 10
_CONSIDERED_MIN = 2 << 10
"""Bytes that each row counts for that is considered."""


class KeyRange(Struct, frozen=True, eq=False):
    """The keys from ``start`` up to ``end``, which is not part of it; None is no limit."""

    start: bytes = b""
    end: bytes | None = None

    def overlaps(self, run: RunEntry) -> bool:
        before_end = self.end is None or run.summary.first_key < self.end
        return before_end and self.start <= run.summary.last_key


PAGE_CONSIDERED_MAX = 8 << 20
"""Of the rows that a page for one request passes, in bytes: 4,096 small ones. The rows of a table used as a
queue were removed up to where it goes on; without a limit, a client that hung up would be served for
seconds."""


class PageLimits(Struct, frozen=True, eq=False):
    rows: int = 1000
    size: int = PAGE_BYTES
    """Bytes of keys and values. The row that reaches it is the page's last."""
    considered: int | None = None
    """Bytes of the rows that are considered, shown or not, each of which counts as 2 KiB at least. The row
    that reaches it is the last one, so a page may have no rows, and not be the last. None is no limit: then
    every page but the last has a row."""


class Page(Struct, frozen=True):
    rows: list[Row]
    resume: bytes | None
    """Where the next page starts; None if there is nothing more."""


async def scan_rows(
    view: TableView,
    reader: RunReader,
    keys: KeyRange,
    limits: PageLimits,
    *,
    changed_after: int | None = None,
    unread: MutableMapping[str, TierlogError] | None = None,
) -> Page:
    """A page of the live rows in ``keys``, in order; with ``changed_after`` of the rows with a greater
    version, tombstones included. Raises ``Unavailable`` if a run cannot be read, and ``DataCorruption``.

    ``unread``: runs, by name, that are left out, and so are those that turn out not to be readable, which are
    added: a row that they have is missing, or an older one of its key is in its place."""
    least = -1 if changed_after is None else changed_after
    cursors: list[_MemtableCursor | _RunCursor] = [
        _MemtableCursor(memtable, keys, view.version)
        for memtable in view.memtables
        if memtable.max_version > least
    ]
    for generation in view.runs.generations():
        # A newer row of the same key is in another one, which is read.
        runs = [run for run in generation if keys.overlaps(run) and run.summary.max_version > least]
        if unread:
            runs = [run for run in runs if run.name not in unread]
        if runs:
            cursors.append(_RunCursor(reader, runs, keys, least, unread))

    merger = Merger(len(cursors))
    rows: list[Row] = []
    size = considered = considered_size = 0
    while merger.drained:
        for source in tuple(merger.drained):
            merger.feed(source, await cursors[source].batch())
        for row in merger.rows():
            considered += 1
            row_size = len(row.key) + len(row.value or b"")
            considered_size += max(row_size, _CONSIDERED_MIN)
            # A tombstone hides older rows, and is none of a page of live ones.
            if row.version > least and (row.value is not None or changed_after is not None):
                rows.append(row)
                size += row_size
            if (
                len(rows) >= limits.rows
                or size >= limits.size
                or (limits.considered is not None and considered_size >= limits.considered)
            ):
                # By key and not by position: blocks and runs may be others by then.
                return Page(rows, successor(row.key))
            if considered % SLICE_ROWS == 0:
                await checkpoint()
    return Page(rows, None)


class _MemtableCursor:
    """Batches of a memtable's rows. Each is taken in one step, so the memtable may change between them."""

    def __init__(self, memtable: Memtable, keys: KeyRange, version: int) -> None:
        self._memtable = memtable
        self._keys = keys
        self._version = version
        self._start: bytes | None = keys.start

    async def batch(self) -> Sequence[Row]:
        while self._start is not None:
            rows, self._start = self._memtable.batch(self._start, self._keys.end, self._version, SLICE_ROWS)
            if rows:
                return rows
            await checkpoint()  # All are newer than the view.
        return ()


class _RunCursor:
    """Batches of the rows of runs whose key ranges are disjoint and ascend."""

    def __init__(
        self,
        reader: RunReader,
        runs: list[RunEntry],
        keys: KeyRange,
        least: int,
        unread: MutableMapping[str, TierlogError] | None,
    ) -> None:
        """Blocks without a version above ``least`` are not read. ``unread``: as for ``scan_rows``."""
        self._reader = reader
        self._runs = runs
        self._keys = keys
        self._least = least
        self._unread = unread
        self._number: int | None = None
        """The next block of the first run."""
        self._read_bytes = _READ_FIRST

    async def batch(self) -> Iterator[Row]:
        while self._runs:
            run = self._runs[0]
            try:
                rows = await self._next_rows(run)
            except (Unavailable, DataCorruption) as error:
                if self._unread is None:
                    raise
                self._unread[run.name] = error
                rows = None
            if rows is None:
                del self._runs[0]
                self._number = None
                continue

            within = rows if self._keys.end is None else takewhile(self._is_before_end, rows)
            for row in within:
                return chain((row,), within)
        return iter(())

    async def _next_rows(self, run: RunEntry) -> Iterator[Row] | None:
        """The rows of the run's next blocks; None at its end."""
        tail = await self._reader.tail(run)
        first, end = self._next_blocks(tail)
        if first == end:
            return None

        self._number = end
        self._read_bytes = min(2 * self._read_bytes, _READ_MAX)
        blocks = await self._reader.blocks(run, tail, first, end)
        return chain.from_iterable(
            tail.rows_of_block(number, block, run.name, self._keys.start)
            for number, block in enumerate(blocks, first)
        )

    def _next_blocks(self, tail: Tail) -> tuple[int, int]:
        """The next blocks to read at once; equal numbers if there are none."""
        first = tail.block_at(self._keys.start) if self._number is None else self._number
        limit = tail.blocks if self._keys.end is None else bisect_left(tail.separators, self._keys.end)
        versions, least = tail.versions, self._least
        while first < limit and versions[first] <= least:
            first += 1
        if first >= limit:
            return first, first

        end = first + 1
        while (
            end < limit
            and versions[end] > least
            and tail.offsets[end + 1] - tail.offsets[first] <= self._read_bytes
        ):
            end += 1
        return first, end

    def _is_before_end(self, row: Row) -> bool:
        assert self._keys.end is not None
        return row.key < self._keys.end
