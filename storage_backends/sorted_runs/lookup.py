"""Finds the newest rows of keys in a view: in memory first, then in the runs, from new to old (rule M3)."""

from __future__ import annotations

from collections.abc import Iterable

from ..base.codec import DecodeError
from ..base.errors import DataCorruption
from .block import find_in_block
from .reader import RunReader
from .rows import Row
from .run_entry import RunEntry
from .table import TableView
from .tail import Tail


async def find_row(view: TableView, reader: RunReader, key: bytes) -> Row | None:
    """The newest row of ``key``, a tombstone too; None if the view has none. Raises ``Unavailable`` if a run
    cannot be read, and ``DataCorruption``."""
    return (await find_rows(view, reader, (key,))).get(key)


async def find_rows(view: TableView, reader: RunReader, keys: Iterable[bytes]) -> dict[bytes, Row]:
    """As ``find_row``, for several keys: each block is read once."""
    unique = dict.fromkeys(keys)
    found = {key: row for key in unique if (row := view.find_in_memory(key)) is not None}
    for run in view.runs:
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
    return found


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
