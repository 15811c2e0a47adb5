"""Merges runs that are local files into new local files, as one I/O program (``base/files.py``).

It runs in a helper process (``merge_helper.py``), and on a simulated disk in the simulator. The same runs
give the same bytes. A new run lies under a temporary name until it is complete and synced, so a program that
was killed leaves only what the next start removes. Memory holds a step of each generation and the index of
one run.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import attrs

from ..base.errors import DataCorruption
from ..base.files import Close, FileHandle, IoCall, Open, Program, Read, Sync, Write
from .block import require_block
from .encoder import RUN_BYTES_MAX, RunEncoder
from .merging import Merger
from .rows import Row
from .run_entry import RunEntry
from .run_files import create_temporary, name_complete, path_of
from .tail import Tail, decode_tail

_OF_THE_PROCESS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Failures of the process, not of the file."""
_READ_BYTES = 256 << 10
_WRITE_BYTES = 1 << 20


@attrs.frozen(eq=False, repr=False)
class MergeOrder:
    folder: str
    """Where the runs lie and the new ones go (``run_files.py``)."""
    generations: Sequence[Sequence[RunEntry]]
    """What to merge, from new to old."""
    drop_tombstones_to: int
    name: str
    """The new runs' names are this, ``-`` and a number of four digits."""
    run_bytes_max: int = RUN_BYTES_MAX

    def name_of(self, number: int) -> str:
        return f"{self.name}-{number:04d}"

    def entry_of(self, encoder: RunEncoder) -> RunEntry:
        first, last = self.generations[-1][0].first_cycle, self.generations[0][0].last_cycle
        return RunEntry.of(encoder.finish(), first, last)


def merge_runs(
    order: MergeOrder, is_cancelled: Callable[[], bool] = lambda: False
) -> Program[list[RunEntry]]:
    """Write the merged runs and return their entries, in the order of keys; none if every row was a dropped
    tombstone. Raises ``DataCorruption`` with the name of a run that is damaged, missing or unreadable, and
    ``OSError``, soon after ``is_cancelled()`` becomes true as well."""
    sources = [_Source(order.folder, generation) for generation in order.generations]
    output = _Output(order)
    try:
        yield from _merge(order, sources, output, is_cancelled)
    except Exception:
        for source in sources:
            yield from source.close()
        yield from output.close()
        raise
    return output.entries


def _merge(
    order: MergeOrder, sources: Sequence[_Source], output: _Output, is_cancelled: Callable[[], bool]
) -> Program[None]:
    merger = Merger(len(sources))
    while merger.drained:
        if is_cancelled():
            raise OSError(errno.ECANCELED, "the merge was cancelled")
        for source in tuple(merger.drained):
            merger.feed(source, (yield from sources[source].batch()))
        for row in merger.rows():
            # M7: no older run is left whose row it would hide.
            is_dropped = row.value is None and row.version <= order.drop_tombstones_to
            if not is_dropped and output.add(row):
                yield from output.write()
    yield from output.end()


class _Source:
    """Batches of the rows of one generation, whose runs are read one after the other."""

    def __init__(self, folder: str, runs: Iterable[RunEntry]) -> None:
        self._folder = folder
        self._runs = list(runs)
        self._handle: FileHandle | None = None
        self._tail: Tail | None = None
        self._number = 0

    def batch(self) -> Program[Iterator[Row]]:
        while self._runs:
            if self._tail is None:
                yield from self._open(self._runs[0])
            assert self._tail is not None
            if self._number < self._tail.blocks:
                return (yield from self._read(self._runs[0], self._tail))
            yield from self.close()
            del self._runs[0]
        return iter(())

    def close(self) -> Program[None]:
        handle, self._handle, self._tail, self._number = self._handle, None, None, 0
        if handle is not None:
            yield Close(handle)

    def _open(self, run: RunEntry) -> Program[None]:
        start = run.length - run.tail_length
        self._handle = yield from _of_input(run, 0, Open(path_of(self._folder, run)))
        data = yield from _of_input(run, start, Read(self._handle, start, run.tail_length))
        self._tail = decode_tail(data, run.name, run.length)

    def _read(self, run: RunEntry, tail: Tail) -> Program[Iterator[Row]]:
        assert self._handle is not None
        first = end = self._number
        start = tail.offsets[first]
        # At least one block, however large.
        while end < tail.blocks and (end == first or tail.offsets[end + 1] - start <= _READ_BYTES):
            end += 1
        data = yield from _of_input(run, start, Read(self._handle, start, tail.offsets[end] - start))
        self._number = end
        return chain.from_iterable(
            _rows(run, tail, number, data[tail.offsets[number] - start : tail.offsets[number + 1] - start])
            for number in range(first, end)
        )


def _of_input(run: RunEntry, offset: int, call: IoCall) -> Program[Any]:
    """The result of ``call``. A file that is missing or unreadable is reported as a damaged one: with its
    name, so that it is fetched again."""
    try:
        return (yield call)
    except OSError as error:
        # To fetch the file again would not help.
        if error.errno in _OF_THE_PROCESS:
            raise
        raise DataCorruption(
            f"the local copy of a sorted run cannot be read: {error}", file=run.name, offset=offset
        ) from error


def _rows(run: RunEntry, tail: Tail, number: int, block: bytes) -> Iterator[Row]:
    require_block(block, run.name, tail.offsets[number])
    yield from tail.rows_of_block(number, block, run.name)


class _Output:
    """The run that is being written, and those that are complete."""

    def __init__(self, order: MergeOrder) -> None:
        self.entries: list[RunEntry] = []
        self._order = order
        self._encoder = RunEncoder(order.name_of(0))
        self._handle: FileHandle | None = None
        self._written = 0

    def add(self, row: Row) -> bool:
        """Whether it is time to write."""
        self._encoder.add(row)
        return self._encoder.length - self._written >= min(_WRITE_BYTES, self._order.run_bytes_max)

    def write(self) -> Program[None]:
        yield from self._write_pieces()
        if self._encoder.length >= self._order.run_bytes_max:
            yield from self.end()

    def end(self) -> Program[None]:
        """Complete the run, if it has rows, and begin the next one."""
        if not self._encoder.rows:
            return

        entry = self._order.entry_of(self._encoder)
        yield from self._write_pieces()
        assert self._handle is not None
        # Before it has its name: a name must never stand for bytes that a power loss can take.
        yield Sync(self._handle)
        yield from self.close()
        yield from name_complete(self._order.folder, entry)
        self.entries.append(entry)
        self._encoder, self._written = RunEncoder(self._order.name_of(len(self.entries))), 0

    def close(self) -> Program[None]:
        handle, self._handle = self._handle, None
        if handle is not None:
            yield Close(handle)

    def _write_pieces(self) -> Program[None]:
        if self._handle is None:
            name = self._order.name_of(len(self.entries))
            self._handle = yield from create_temporary(self._order.folder, name)
        pieces = self._encoder.take()
        yield Write(self._handle, self._written, pieces, bulk=True)
        self._written += sum(map(len, pieces))
