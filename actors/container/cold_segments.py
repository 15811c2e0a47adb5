"""Cold segments: those that are not in memory, looked up in the system table (rules M4, M13). What is found
here changes nothing: reads, infos and listings load no segment."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing

from anyio.lowlevel import checkpoint
from msgspec import Struct

from ...journal.operations.load_segment import LoadSegment
from ...storage_backends.base.errors import DataCorruption
from ...storage_backends.base.list_pages import Part
from ...storage_backends.base.transactions import is_staged
from ...storage_backends.sorted_runs.lookup import find_row, find_rows
from ...storage_backends.sorted_runs.reader import RunReader
from ...storage_backends.sorted_runs.rows import Row, decoded, label_of, prefix_end
from ...storage_backends.sorted_runs.scan import (
    PAGE_CONSIDERED_MAX,
    SLICE_ROWS,
    KeyRange,
    PageLimits,
    scan_rows,
)
from ...storage_backends.sorted_runs.table import TableView
from ..kernel.slices import in_slices
from .segment_rows import image_key, load_of_row, loaded, name_key, name_of_key, sid_of_row
from .segments import SegmentState
from .state import ContainerState
from .writer_rows import state_of, writer_key

_PAGE = PageLimits(256)


class Lookup(Struct, frozen=True):
    """What one view of the system table has."""

    records_to: int
    """That of the view's runs. The lookup is valid until the number is another one: until then all segments
    that were cold are, or have a row or an image in memory."""
    sids: dict[str, int | None]
    """By name; None if there is no such segment."""
    loads: dict[int, LoadSegment | None]
    """By id; None if there is no such segment, or it was in memory."""
    rows: dict[bytes, Row]
    """Others that were asked for, by key."""


class ColdSegments:
    def __init__(self, state: ContainerState, runs: RunReader) -> None:
        self._state = state
        self._runs = runs

    async def look_up(
        self, names: Iterable[str], sids: Iterable[int] = (), keys: Iterable[bytes] = ()
    ) -> Lookup:
        """Segments by name and by id, and rows by key, as of one view. Raises ``Unavailable``,
        ``DataCorruption``."""
        with self._state.table.view() as view:
            found = await self._sids(view, tuple(names))
            images = {sid: image_key(sid) for sid in (*sids, *found.values()) if sid is not None}
            rows = await self._find(view, (*images.values(), *keys))
            loads = {sid: decoded(load_of_row, rows.get(key), key) for sid, key in images.items()}
            return Lookup(view.runs.records_to, found, loads, rows)

    async def _sids(self, view: TableView, names: Sequence[str]) -> dict[str, int | None]:
        keys = {name: name_key(name) for name in names}
        rows = await self._find(view, tuple(keys.values()))
        return {name: decoded(sid_of_row, rows.get(key), key) for name, key in keys.items()}

    async def _find(self, view: TableView, keys: Sequence[bytes]) -> dict[bytes, Row]:
        return await find_rows(view, self._runs, keys) if keys else {}

    async def find(self, name: str) -> SegmentState | None:
        """The segment of that name as of now, for readers; None if there is none. Its creation is durable, if
        it is cold. Raises ``Unavailable``, ``DataCorruption``."""
        segments, table = self._state.segments, self._state.table
        while (segment := segments.in_memory(name)) is None:
            lookup = await self.look_up((name,))
            sid = lookup.sids[name]
            row = table.find_in_memory(name_key(name))
            # Otherwise it may have been loaded, changed and unloaded, or deleted, since.
            if table.runs.records_to == lookup.records_to and (row is None or sid_of_row(row) == sid):
                if sid is None:
                    return None
                if segments.in_memory(name) is None:
                    return segments.note_reader(self._found(name, sid, lookup))

        return segment

    @staticmethod
    def _found(name: str, sid: int, lookup: Lookup) -> SegmentState:
        load = lookup.loads[sid]
        if load is None:
            raise without_image(name, sid)
        return checked(sid, load, name)

    async def last_event(self, segment: SegmentState, writer: bytes) -> int | None:
        """The last event number of a writer of a segment, cold or not, as of now. Raises ``Unavailable``,
        ``DataCorruption``."""
        known = segment.writers.get(writer)
        if known is None and writer not in segment.expired and segment.has_writer_rows:
            with self._state.table.view() as view:
                row = await find_row(view, self._runs, writer_key(segment.sid, writer))
            if row is not None and row.value is not None:
                known = decoded(state_of, row.value, row.key)
        return None if known is None else known.last_event

    async def sid_of(self, name: str) -> int | None:
        """The id of the live segment of that name, as of now."""
        if (sid := self._state.segments.sid_of(name)) is not None:
            return sid

        with self._state.table.view() as view:
            return (await self._sids(view, (name,)))[name]

    async def lengths(self, sids: Iterable[int]) -> dict[int, int]:
        """Of the cold ones among these segments."""
        segments = self._state.segments
        # The image of one that is in memory may be older: also if it is deleted, or merged.
        lookup = await self.look_up((), (sid for sid in sids if sid not in segments))
        return {sid: checked(sid, load).length for sid, load in lookup.loads.items() if load is not None}

    async def page(self, prefix: str, start: str, limit: int) -> Part[str]:
        """Names that a listing of ``prefix`` shows, from ``start`` on, as of now, in order: staged ones only
        if ``prefix`` names them (rules M22, T1). Raises ``Unavailable``, ``DataCorruption``."""
        first = name_key(prefix)
        keys = KeyRange(max(first, name_key(start)), prefix_end(first))
        with self._state.table.view() as view:
            page = await scan_rows(view, self._runs, keys, PageLimits(limit, considered=PAGE_CONSIDERED_MAX))
        names: list[str] = []
        for rows in in_slices(page.rows, SLICE_ROWS):
            names += [name for name, _ in _live(rows) if is_listed(name, prefix)]
            await checkpoint()
        return names, None if page.resume is None else decoded(name_of_key, page.resume, page.resume)

    async def live(self) -> AsyncGenerator[list[SegmentState], None]:
        """All live segments of a state that does not change, in the order of their names."""
        async with aclosing(self.pages()) as pages:
            async for page in pages:
                lookup = await self.look_up((), (sid for _, sid in page if sid not in self._state.segments))
                yield [self._state.segments.get(sid) or self._found(name, sid, lookup) for name, sid in page]

    async def pages(self, prefix: str = "") -> AsyncGenerator[list[tuple[str, int]], None]:
        """Names that begin with ``prefix``, and ids, as of the first page, in order."""
        start: bytes | None = name_key(prefix)
        end = prefix_end(name_key(prefix))
        with self._state.table.view() as view:
            while start is not None:
                page = await scan_rows(view, self._runs, KeyRange(start, end), _PAGE)
                yield _live(page.rows)
                start = page.resume


def _live(rows: Iterable[Row]) -> list[tuple[str, int]]:
    """The names and ids in rows of names. Raises ``DataCorruption``."""
    return [
        (decoded(name_of_key, row.key, row.key), sid)
        for row in rows
        if (sid := decoded(sid_of_row, row, row.key)) is not None
    ]


def checked(sid: int, load: LoadSegment, name: str = "") -> SegmentState:
    """The segment ``sid`` as ``load`` brings it. Raises ``DataCorruption`` if it does not decode, or is
    another one, or not that of ``name``: a row may be damaged behind a right checksum (rule M4)."""
    segment = decoded(loaded, load, image_key(sid))
    if segment.sid != sid or (name and segment.name != name):
        raise DataCorruption(
            f"the runs have segment {segment.sid:#x} {segment.name!r} in place of {sid:#x} {name!r}",
            file=label_of(image_key(sid)),
        )
    return segment


def without_image(name: str, sid: int) -> DataCorruption:
    return DataCorruption(
        f"the runs have the name {name!r}, and not the image of its segment {sid:#x}",
        file=label_of(name_key(name)),
    )


def is_listed(name: str, prefix: str) -> bool:
    """Whether a listing of ``prefix`` shows a name (rule T1)."""
    return is_staged(prefix) or not is_staged(name)
