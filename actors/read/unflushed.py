"""Unflushed bytes, from the tail cache or, where they were spilled, from the log (rule C10). Readers, flushes
and checkpoints all get them here.

The log is read in windows, one after the other, and the last few are kept: a segment is read in order, and
segments that were appended to at the same time share their windows. What was read is copied out, so that a
few bytes do not keep a window alive. Flushes load what they need in the order of the log, so that a window
with bytes of many segments is read once for all of them; what they read piece by piece shares the limit of
what is loaded (rule F8). A read that found nothing, or failed, is tried again if the bytes have moved
meanwhile: they were flushed, logged again, or deleted. Cancellation leaves nothing behind."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
from msgspec import Struct
from msgspec.structs import replace

from ...journal.group_payload import decode_group
from ...journal.log.contract import DurableDataLog, GroupPayload
from ...journal.operations.append import Append
from ...journal.operations.relog_data import RelogData
from ...storage_backends.base.checksum import Buffer
from ...storage_backends.base.codec import DecodeError
from ...storage_backends.base.errors import DataCorruption, TierlogError
from .log_extents import LogExtent
from .tail_cache import TailCache

if TYPE_CHECKING:
    from .statistics import UnflushedStatistics

_KEPT_BYTES = 4 << 20
"""Windows of about this size are kept; the newest one whatever its size."""


class _Run(Struct, eq=False):
    """Contiguous bytes of a segment."""

    start: int
    end: int
    parts: list[Buffer]


class _Window(Struct, frozen=True, eq=False):
    """What one window of the log holds of each segment."""

    size: int
    runs: Mapping[int, Sequence[_Run]]

    def copy(self, sid: int, offset: int, end: int) -> bytes:
        """Bytes from ``offset`` on, at least one if the window holds it."""
        for run in self.runs.get(sid, ()):
            if run.start <= offset < run.end:
                return bytes(memoryview(run.parts[0])[offset - run.start : end - run.start])

        return b""


class UnflushedBytes:
    def __init__(self, cache: TailCache, log: DurableDataLog, *, load_bytes: int = 0) -> None:
        """``load_bytes``: the most bytes that are loaded for flushes at a time."""
        self._cache = cache
        self._log = log
        self._load_bytes = load_bytes
        self._share = max(1, load_bytes // 2)
        """The most for one segment: half is left to others if its flush hangs (rule F7)."""
        self._reserved: dict[int, int] = {}
        """Bytes that may be loaded of each segment."""
        self._loaded: dict[int, list[tuple[int, Buffer]]] = {}
        """The loaded bytes of each segment, in offset order, without a gap."""
        self._kept: OrderedDict[int, _Window] = OrderedDict()
        self._turn = anyio.Lock()
        """One window is read at a time: memory is bounded, and whoever waited may find it kept."""
        self._room_turn = anyio.Lock()
        self._room_freed = anyio.Event()
        self._windows_read = self._window_bytes = 0

    async def read(self, sid: int, offset: int, end: int) -> Sequence[Buffer]:
        """Unflushed bytes from ``offset`` on, without a gap, up to ``end`` or fewer. Empty if those at
        ``offset`` are flushed, or their segment was deleted. Raises ``DataCorruption`` (file, offset) if the
        log is damaged there."""
        while True:
            if slices := self._cache.slices(sid, offset, end):
                return slices

            extent = self._cache.extent_at(sid, offset)
            if extent is None:
                return ()

            if loaded := self._find_loaded(sid, offset, end):
                return (loaded,)

            try:
                data = await self._read_log(extent.window, sid, offset, min(end, extent.end))
            except DataCorruption:
                if self._is_still(sid, offset, extent):
                    raise
                continue

            if data:
                return (data,)

            if self._is_still(sid, offset, extent):
                raise DataCorruption(
                    f"the groups from {extent.window} on do not hold offset {offset} of segment {sid:#x}",
                    file=f"group {extent.window}",
                )

    async def read_all(self, sid: int, offset: int, end: int) -> Sequence[Buffer]:
        """All unflushed bytes from ``offset`` to ``end``; fewer if ``read`` finds none."""
        found: list[Buffer] = []
        while offset < end and (some := await self.read(sid, offset, end)):
            found += some
            offset += _size(some)
        return found

    async def load_oldest(
        self, ranges: Mapping[int, tuple[int, int]], *, by_segment: bool, bytes_max: int | None = None
    ) -> Mapping[int, int]:
        """Load spilled bytes of ``ranges``, (start, end) by segment id, for their flushes: those that were
        logged first, or with ``by_segment`` as much as possible of the segments that were logged first; at
        most ``bytes_max`` bytes, and of one segment at most half of the limit.

        Returns up to where each of these segments is loaded from its start on; ``release`` must follow. Empty
        if nothing is spilled, or too much is loaded already."""
        taken = self._oldest(ranges, by_segment, bytes_max)
        limits = {sid: extent.end for sid, extent in taken}
        for sid, end in limits.items():
            # Before the first read, so that no other flush takes the same room meanwhile.
            self._reserved[sid] = end - ranges[sid][0]
            self._loaded[sid] = []
        failed: set[int] = set()
        for sid, extent in sorted(taken, key=lambda each: each[1].window):
            if sid in failed:
                continue

            try:
                found = await self.read_all(sid, extent.start, extent.end)
            except TierlogError:
                failed.add(sid)  # its flush reads these bytes again, and reports the error (rule F4)
                continue

            position = extent.start
            for data in found:
                self._loaded[sid].append((position, data))
                position += len(data)
        for sid in limits:
            self._loaded[sid].sort(key=_first)
        return limits

    def _oldest(
        self, ranges: Mapping[int, tuple[int, int]], by_segment: bool, bytes_max: int | None
    ) -> Sequence[tuple[int, LogExtent]]:
        """What to load next, within the limit."""
        free = self._free
        taken: list[tuple[int, LogExtent]] = []
        if free < self._load_bytes // 2:
            return taken  # many small chunks would come of little room

        free = free if bytes_max is None else min(free, bytes_max)
        sizes: dict[int, int] = {}
        heads = []
        for sid, (start, end) in ranges.items():
            extents = self._cache.spilled_extents(sid, start, end)
            if (extent := next(extents, None)) is not None:
                heads.append((extent.window, sid, extent, extents))
        heapify(heads)
        while heads and free:
            order, sid, extent, rest = heappop(heads)
            size = extent.end - extent.start
            if size > free and taken:
                break

            room = min(free, self._share - sizes.get(sid, 0))
            if size > room:
                if sid in sizes:
                    continue  # its window would be read again for the rest
                size = room
                extent = replace(extent, end=extent.start + size)
            taken.append((sid, extent))
            sizes[sid] = sizes.get(sid, 0) + size
            free -= size
            if (following := next(rest, None)) is not None:
                heappush(heads, (order if by_segment else following.window, sid, following, rest))
        return taken

    @asynccontextmanager
    async def take(self, sid: int, start: int, end: int) -> AsyncIterator[Sequence[Buffer]]:
        """The unflushed bytes ``start .. end``, for a flush; empty if the segment was deleted.

        Waits for room for spilled bytes that are not loaded, and keeps it until the body ends. A call gets at
        most half of the limit (rule F8): if more bytes are spilled, those at the end are left out."""
        # A round has loaded it, so its room is reserved already.
        if sid in self._reserved:
            data = await self.read_all(sid, start, end)
            yield data if _size(data) == end - start else ()
        elif self._cache.cached_from(sid, start, end) == start:
            yield self._cache.slices(sid, start, end)
        else:
            stop = await self._wait_for_room(sid, start, end)
            try:
                # Taken before the log is read: what is spilled meanwhile would need room too.
                cached = self._cache.slices(sid, stop, end)
                spilled = await self.read_all(sid, start, stop)
                yield [*spilled, *cached] if _size(spilled) == stop - start else ()
            finally:
                self.release(sid)

    async def _wait_for_room(self, sid: int, start: int, end: int) -> int:
        """Reserve room for spilled bytes from ``start`` on; returns up to where. First come, first served, so
        that large pieces get theirs."""
        async with self._room_turn:
            while True:
                size = min(self._cache.cached_from(sid, start, end) - start, self._share)
                # The turn is kept while it waits: others with smaller pieces would take the room each time.
                if size <= self._free:
                    self._reserved[sid] = size
                    return start + size

                self._room_freed = anyio.Event()
                await self._room_freed.wait()

    @property
    def _free(self) -> int:
        return self._load_bytes - sum(self._reserved.values())

    @property
    def has_spilled(self) -> bool:
        """Whether bytes of any segment are in the log only."""
        return self._cache.unflushed_bytes > self._cache.pinned_bytes

    def is_spilled(self, sid: int, start: int, end: int) -> bool:
        """Whether some of the unflushed bytes ``start .. end`` are in the log only."""
        return next(self._cache.spilled_extents(sid, start, end), None) is not None

    def release(self, sid: int) -> None:
        """The segment's flush has ended, or does not begin: forget what was loaded for it."""
        self._reserved.pop(sid, None)
        self._loaded.pop(sid, None)
        self._room_freed.set()

    def _find_loaded(self, sid: int, offset: int, end: int) -> Buffer:
        loaded = self._loaded.get(sid, ())
        index = bisect_right(loaded, offset, key=_first) - 1
        if index < 0:
            return b""

        start, data = loaded[index]
        return memoryview(data)[offset - start : end - start]

    def _is_still(self, sid: int, offset: int, extent: LogExtent) -> bool:
        """Whether the bytes at ``offset`` have not moved since ``extent`` was found."""
        now = self._cache.extent_at(sid, offset)
        return now is not None and now.window == extent.window

    async def _read_log(self, number: int, sid: int, offset: int, end: int) -> bytes:
        async with self._turn:
            kept = self._kept.get(number)
            if kept is not None and (data := kept.copy(sid, offset, end)):
                self._kept.move_to_end(number)
                return data

            # Not read yet, or read when the log's newest window had fewer groups.
            window = await self._parse(await self._log.read_window(number))
            self._windows_read += 1
            self._window_bytes += window.size
            self._keep(number, window)
        return window.copy(sid, offset, end)

    def _keep(self, number: int, window: _Window) -> None:
        self._kept[number] = window
        self._kept.move_to_end(number)
        while len(self._kept) > 1 and sum(each.size for each in self._kept.values()) > _KEPT_BYTES:
            self._kept.popitem(last=False)

    async def _parse(self, groups: Sequence[GroupPayload]) -> _Window:
        runs: dict[int, list[_Run]] = {}
        for number, payload in groups:
            try:
                _, operations = decode_group(payload)
            except DecodeError as error:
                raise DataCorruption(
                    f"group {number} of the log does not decode: {error}", file=f"group {number}"
                ) from error

            for op in operations:
                if isinstance(op, (Append, RelogData)) and op.data:
                    _add(runs.setdefault(op.sid, []), op.offset, op.data)
            await anyio.lowlevel.checkpoint()  # decoding is bound by the CPU
        for run in (run for each in runs.values() for run in each):
            if len(run.parts) > 1:
                run.parts = [b"".join(run.parts)]
        return _Window(sum(len(payload) for _, payload in groups), runs)

    def statistics(self) -> UnflushedStatistics:
        from .statistics import UnflushedStatistics

        return UnflushedStatistics(self._windows_read, self._window_bytes, sum(self._reserved.values()))


def _size(data: Sequence[Buffer]) -> int:
    return sum(map(len, data))


def _first(loaded: tuple[int, Buffer]) -> int:
    return loaded[0]


def _add(runs: list[_Run], offset: int, data: Buffer) -> None:
    """Add bytes to the run that they continue. Re-logged ones make runs of their own."""
    end = offset + len(data)
    for run in runs:
        if run.end == offset:
            run.parts.append(data)
            run.end = end
            return

    runs.append(_Run(offset, end, [data]))
