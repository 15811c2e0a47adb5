"""Unflushed bytes, from the tail cache or, where they were spilled, from the log (rule C10). Readers, flushes
and checkpoints all get them here.

The log is read in windows, one after the other, and the last few are kept: a segment is read in order, and
segments that were appended to at the same time share their windows. What was read is copied out, so that a
few bytes do not keep a window alive. A read that found nothing, or failed, is tried again if the bytes have
moved meanwhile: they were flushed, logged again, or deleted. Cancellation leaves nothing behind."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

import anyio
import anyio.lowlevel
import attrs

from ...journal.group_payload import decode_group
from ...journal.log.contract import DurableDataLog, GroupPayload
from ...journal.operations.append import Append
from ...journal.operations.relog_data import RelogData
from ...storage_backends.base.checksum import Buffer
from ...storage_backends.base.codec import DecodeError
from ...storage_backends.base.errors import DataCorruption
from ...storage_backends.base.statistics import counter
from .log_extents import LogExtent
from .tail_cache import TailCache

_KEPT_BYTES = 4 << 20
"""Windows of about this size are kept; the newest one whatever its size."""


@attrs.define
class _Run:
    """Contiguous bytes of a segment."""

    start: int
    end: int
    parts: list[Buffer]


@attrs.frozen
class _Window:
    """What one window of the log holds of each segment."""

    size: int
    runs: Mapping[int, Sequence[_Run]]

    def copy(self, sid: int, offset: int, end: int) -> bytes:
        """Bytes from ``offset`` on, at least one if the window holds it."""
        for run in self.runs.get(sid, ()):
            if run.start <= offset < run.end:
                return bytes(memoryview(run.parts[0])[offset - run.start : end - run.start])

        return b""


@attrs.frozen
class UnflushedStatistics:
    windows_read: int = attrs.field(metadata=counter("Windows of the log read for unflushed bytes."))
    window_bytes: int = attrs.field(metadata=counter("Bytes of groups in those windows."))


class UnflushedBytes:
    def __init__(self, cache: TailCache, log: DurableDataLog) -> None:
        self._cache = cache
        self._log = log
        self._kept: OrderedDict[int, _Window] = OrderedDict()
        self._turn = anyio.Lock()
        """One window is read at a time: memory is bounded, and whoever waited may find it kept."""
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
            offset += sum(map(len, some))
        return found

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
        return UnflushedStatistics(self._windows_read, self._window_bytes)


def _add(runs: list[_Run], offset: int, data: Buffer) -> None:
    """Add bytes to the run that they continue. Re-logged ones make runs of their own."""
    end = offset + len(data)
    for run in runs:
        if run.end == offset:
            run.parts.append(data)
            run.end = end
            return

    runs.append(_Run(offset, end, [data]))
