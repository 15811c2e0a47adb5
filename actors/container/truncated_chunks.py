"""Chunks of which long-term storage alone needs nothing although the newest element may name them: all that
it names of them was truncated (rule G6).

A segment whose data does not fit into long-term storage is held back, and its truncation with it. What the
truncation has dropped makes the room. Which chunks these are is read from the runs that count: not all that
left the chain was truncated, because joins and relocations replace chunks whose bytes are still needed."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio.lowlevel
from msgspec import Struct

from ...storage_backends.base.errors import DataCorruption, Unavailable
from ...storage_backends.segments.records import ChunkRecord, SegmentRecord, chunk_key, segment_key
from ...storage_backends.segments.transaction import decode_record
from ...storage_backends.sorted_runs.lookup import find_row, find_rows
from ...storage_backends.sorted_runs.run_list import RunList
from ...storage_backends.sorted_runs.table import Table, TableView

if TYPE_CHECKING:
    from .container import Container

_STEP = 128
"""Chunks that one step goes through."""


class _Walk(Struct, eq=False):
    """The chunks of a segment in the runs that count, from the first one up to where its start is now."""

    next_chunk: str
    position: int
    """Where ``next_chunk`` begins."""
    names: set[str]
    """Of those before it."""


class TruncatedChunks:
    def __init__(self, container: Container) -> None:
        self._container = container
        self._state = container.state
        self._runs: tuple[str, ...] = ()
        """The names of the runs that the walks have read."""
        self._walks: dict[int, _Walk] = {}

    async def among(self, segment: int, names: Collection[str]) -> set[str]:
        """Which of ``names``, chunks that left the segment's chain, have nothing but truncated bytes in the
        newest element. None of them while another element is on its way, and if that cannot be read now."""
        manifest = self._state.manifest
        with suppress(Unavailable, DataCorruption):
            found = await self._look_up(segment, names, manifest.runs)
            # G6: a cycle that has frozen its records may publish the segment with chunks that left it since.
            if self._state.manifest is manifest and not self._is_publishing:
                return found

        return set()

    @property
    def _is_publishing(self) -> bool:
        cut = self._state.cut
        return self._state.manifest.intent is not None or (cut is not None and cut.end > 0)

    async def _look_up(self, segment: int, names: Collection[str], runs: RunList) -> set[str]:
        with Table(runs).view() as view:
            keys = {name: chunk_key(name).encode() for name in names}
            rows = await find_rows(view, self._container.runs, keys.values())
            named = {name for name, key in keys.items() if (row := rows.get(key)) and row.value is not None}
            truncated = await self._truncated(segment, view) if named else set()
        return {name for name in names if name not in named or name in truncated}

    async def _truncated(self, segment: int, view: TableView) -> set[str]:
        """The chunks that end at or below the segment's start as it is now."""
        names = tuple(run.name for run in view.runs)
        if names != self._runs:
            self._runs, self._walks = names, {}
        key = segment_key(segment)
        if (record := await self._container.metadata.get(key)) is None:
            return set()

        start = decode_record(SegmentRecord, key, record[1]).start_offset
        walk = self._walks.get(segment)
        if walk is None:
            if (value := await self._published(view, key)) is None:
                return set()
            first = decode_record(SegmentRecord, key, value)
            walk = self._walks[segment] = _Walk(first.first_chunk, first.first_chunk_start, set())
        await self._walk_to(start, walk, view)
        return walk.names

    async def _walk_to(self, start: int, walk: _Walk, view: TableView) -> None:
        while walk.next_chunk and walk.position < start:
            key = chunk_key(walk.next_chunk)
            if (value := await self._published(view, key)) is None:
                return
            chunk = decode_record(ChunkRecord, key, value)
            if walk.position + chunk.length > start:
                return
            walk.names.add(chunk.name)
            walk.next_chunk, walk.position = chunk.next_chunk, walk.position + chunk.length
            if len(walk.names) % _STEP == 0:
                await anyio.lowlevel.checkpoint()

    async def _published(self, view: TableView, key: str) -> bytes | None:
        row = await find_row(view, self._container.runs, key.encode())
        return None if row is None else row.value
