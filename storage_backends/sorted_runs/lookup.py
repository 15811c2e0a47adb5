"""Finds the newest rows of keys in a view: in memory first, then in the runs, from new to old (rule M3)."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from anyio.lowlevel import checkpoint

from ..base.codec import DecodeError
from ..base.errors import DataCorruption
from .block import find_in_block
from .reader import RunReader
from .rows import Row
from .run_entry import RunEntry
from .run_list import RunList
from .table import TableView
from .tail import Tail, fingerprint

_SLICE_KEYS = 128
_SLICE_COMPARED = 512
"""The most keys times runs that one step looks up."""


def find_cached(runs: RunList, reader: RunReader, key: bytes) -> tuple[bool, Row | None]:
    """The newest row of ``key`` in ``runs``, if the cache alone shows it: (True, the row or None), else
    (False, None). Most keys of a commit are found or ruled out this way, without a turn of the loop. Raises
    ``DataCorruption``."""
    found: Row | None = None
    sought = fingerprint(key)
    for first, last, run, known_tail in reader.probes(runs, sought):
        if not first <= key <= last or (found and not _may_be_newer(run, found)):
            continue

        tail = known_tail() or reader.cached_tail(run)
        # Not known to the cache: `find_row` reads it.
        if tail is None:
            return False, None
        number = tail.find_block(key, sought)
        if number is None:
            continue

        block = reader.cached_block(run, number)
        if block is None:
            return False, None
        row = _find(run, tail, number, block, key)
        if row is not None and _is_newer(row, found):
            found = row
    return True, found


async def find_row(view: TableView, reader: RunReader, key: bytes) -> Row | None:
    """The newest row of ``key``, a tombstone too; None if the view has none. Raises ``Unavailable`` if a run
    cannot be read, and ``DataCorruption``."""
    return (await find_rows(view, reader, (key,))).get(key)


async def find_rows(view: TableView, reader: RunReader, keys: Iterable[bytes]) -> dict[bytes, Row]:
    """As ``find_row``, for any number of keys, in slices between which the loop gets a turn. Keys of one
    slice that lie in the same block read it once."""
    found: dict[bytes, Row] = {}
    rest = iter(tuple(keys))
    while part := tuple(islice(rest, _SLICE_KEYS)):
        await _find_some(view, reader, part, found)
        if len(part) == _SLICE_KEYS:
            await checkpoint()
    return found


async def _find_some(
    view: TableView, reader: RunReader, keys: Iterable[bytes], found: dict[bytes, Row]
) -> None:
    # A dict and not a set: the order of reads must not depend on hashes.
    unique = dict.fromkeys(keys)
    found.update({key: row for key in unique if (row := view.find_in_memory(key)) is not None})
    compared = 0
    # All of them: a row that was found rules out only runs whose versions are all lower (`_may_be_newer`).
    for run in view.runs:
        compared += len(unique)
        # Many runs that do not hold the keys cost time as well.
        if compared > _SLICE_COMPARED:
            compared = 0
            await checkpoint()
        wanted = [key for key in unique if run.covers(key) and _may_be_newer(run, found.get(key))]
        if not wanted:
            continue

        tail = reader.cached_tail(run) or await reader.tail(run)
        numbers = {key: number for key in wanted if (number := tail.find_block(key)) is not None}
        if numbers:
            blocks = await reader.some_blocks(run, tail, dict.fromkeys(numbers.values()))
            for key, number in numbers.items():
                row = _find(run, tail, number, blocks[number], key)
                if row is not None and _is_newer(row, found.get(key)):
                    found[key] = row


def _may_be_newer(run: RunEntry, row: Row | None) -> bool:
    return row is None or row.version < run.summary.max_version


def _is_newer(row: Row, other: Row | None) -> bool:
    return other is None or other.version < row.version


def _find(run: RunEntry, tail: Tail, number: int, block: bytes, key: bytes) -> Row | None:
    try:
        return find_in_block(block, key)
    except DecodeError as error:
        raise DataCorruption(
            f"a sorted run is malformed: {error}", file=run.name, offset=tail.offsets[number]
        ) from error
