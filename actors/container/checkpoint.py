"""Checkpoints: when they are due, how they are written, and up to where the log may be truncated.

Owns: the sequence begin, parts, end, truncate (rules C7, W5). Does not own: the snapshot (``state.py``), nor
the removal of files (the log).

Order: the end names the lowest group that recovery needs, which is the group of the begin or an older one
with bytes that are not flushed yet. The log is truncated only once the end is durable. A checkpoint without
its end does not exist. Bytes of a segment that hold back the truncation for too long are logged again first
(rule F4).

A checkpoint has the segments in memory. So that it, and the next opening, depend on what was logged lately
and not on the number of segments, those that are idle are unloaded first (rule M5).

Parts are small and travel in the internal lane between appends. Cancellation and crash: an unfinished
checkpoint is ignored."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import anyio.lowlevel
from msgspec import Struct

from ...journal.group_payload import PayloadBuilder
from ...journal.log.contract import DurableDataLog
from ...journal.operations.attribute_rows import SpillAttributes
from ...journal.operations.checkpoint import (
    CheckpointBegin,
    CheckpointCounters,
    CheckpointEnd,
    CheckpointImages,
    CheckpointPart,
    CheckpointPiece,
    CheckpointRows,
)
from ...journal.operations.checkpoint_closures import CheckpointClosures
from ...journal.operations.ended_transactions import CheckpointEnds
from ...journal.operations.log_element import CheckpointManifest
from ...journal.operations.operation import Operation
from ...journal.operations.relog_data import RelogData
from ...journal.operations.segment_image import SegmentStatus
from ..kernel.slices import in_slices
from ..read.tail_cache import TailCache
from ..read.unflushed import UnflushedBytes
from .operations.cold import unload
from .requests import LogRequest, Request, SnapshotRequest
from .segments import SegmentState
from .snapshot import Records, Snapshot
from .state import NO_CYCLE, ContainerState

if TYPE_CHECKING:
    from .statistics import CheckpointStatistics

TAG_CHECKPOINT_END = 1
"""The tag of a group with a ``CheckpointEnd``: recovery finds it without decoding payloads."""
_PART_RECORDS = 256
_PART_BYTES = 1 << 20
_ENDS_BYTES = 512
"""What a group adds to its records, and what begin and end take together, at most."""
_CLOSING_SHARE = 64
"""A clean close writes a checkpoint after this fraction of the log that makes one due otherwise."""
_RELOG_BYTES = 1 << 20
_CLOSURES_MAX = 4096
"""Changes in one record; each takes 24 bytes."""
_UNLOAD_STEP = 512
"""Segments that are unloaded in one step."""


class CheckpointOptions(Struct, frozen=True):
    wal_bytes: int = 64 << 20
    """A checkpoint is due after this many logged bytes, or four times the size of the last one if that is
    more."""
    pinned_groups_bytes: int = 256 << 20
    """Log bytes without unflushed data above which a segment that keeps them is re-logged."""
    small_file_bytes: int = 4 << 20
    """Log files are small that hold less than this on average: less than one that rolls."""
    files_max: int = 8
    """A checkpoint is due when the log has so many more small files than the last one left."""
    costly_files_max: int = 0
    """The same, if it is more, for what costs more than a checkpoint: one at an opening, which waits for it,
    and to log many unflushed bytes again, since which the log grows by so many files."""
    few_segments: int = 16
    """To log the unflushed bytes of so many segments again, 1 MiB in all, costs little."""
    idle_segments: int = 1024
    """Segments in memory whose images the runs have, up to which none of them is unloaded."""


class Checkpointer:
    def __init__(
        self,
        state: ContainerState,
        cache: TailCache,
        unflushed: UnflushedBytes,
        log: DurableDataLog,
        ask: Callable[[Request, int], Awaitable[Any]],
        options: CheckpointOptions,
    ) -> None:
        self._state = state
        self._cache = cache
        self._unflushed = unflushed
        self._log = log
        self._ask = ask
        self._options = options
        self._written = 0
        self._count = 0
        self._cycle = NO_CYCLE
        """The newest complete flush cycle in a checkpoint of this owner."""
        # Bytes in the log at the opening count too, or an owner that crashes often would never write a
        # checkpoint.
        self._last_at = -log.statistics().retained_bytes
        self._files_left = 0
        """Log files that the newest checkpoint of this owner left."""
        self._files_needed = 0
        """Log files that were left since all unflushed bytes were logged again, or 0."""
        self._relogged = 0
        self._size = 0
        """Of the next checkpoint, on a full disk."""

    def is_due(self, *, closing: bool = False) -> bool:
        # The disk is nearly full, and files with flushed bytes can leave the log. If none can, a checkpoint
        # would only use up the reserve (rule W6).
        if self._state.cycle != self._cycle and self._log.can_shrink() and not self._log.has_room(0):
            return True

        logged = self._log.statistics().appended_bytes - self._last_at
        if closing and self._should_unload():
            return True

        enough = self._options.wal_bytes // (_CLOSING_SHARE if closing else 1)
        # After four times its size, so that a large state takes at most a fifth of what is logged.
        return logged > max(enough, 4 * self._state.checkpoint_bytes) or self._has_many_files()

    def _has_many_files(self, *, costly: bool = False) -> bool:
        """Whether owners that lived briefly left many small files, each of which makes an opening slower, and
        there is room to log again what is in them: on a full disk, in the reserve, or that would keep the
        container from opening (rule W6)."""
        log = self._log.statistics()
        # As many as a large state's checkpoint is worth.
        large = max(log.retained_bytes, 4 * self._state.checkpoint_bytes) // self._options.small_file_bytes
        if costly and self._options.costly_files_max > self._options.files_max:
            files_max = self._files_needed + self._options.costly_files_max
        else:
            files_max = self._files_left + self._options.files_max
        if log.files <= files_max + large:
            return False

        size = self._cache.unflushed_bytes + max(self._state.checkpoint_bytes, _PART_BYTES)
        return self._log.has_reserve(size + self._state.manifest.size)

    async def run(self, wake: Callable[[], anyio.Event]) -> None:
        """Write a checkpoint whenever one is due. ``wake()`` gives an event that is set when more was
        logged."""
        while True:
            # First: what is logged from here on sets it.
            event = wake()
            if self.is_due() and await self.has_room():
                await self.checkpoint()
            else:
                await event.wait()

    async def has_room(self) -> bool:
        """Whether a checkpoint fits into the log. On a full disk it must fit into the reserve: one that does
        not would end the owner, and every later one (rule W6)."""
        self._size = 0
        if self._log.has_room(0):
            return True

        # Encoded and not logged: nothing else knows the size.
        snapshot = self._state.begin_snapshot()
        size = 2 * _ENDS_BYTES + snapshot.manifest.size
        try:
            while self._log.has_reserve(size):
                if snapshot.is_complete:
                    self._size = size
                    return True

                if (records := snapshot.take(_PART_RECORDS, _PART_BYTES)).size:
                    size += records.size + _ENDS_BYTES
                await anyio.lowlevel.checkpoint()
        finally:
            self._state.end_snapshot()
        return False

    async def checkpoint(self, *, closing: bool = False, all_cold: bool = False) -> None:
        """``all_cold``: without idle segments, however few they are."""
        if all_cold or self._should_unload():
            await self._unload_idle(closing=closing)
        self._count += 1
        # Unique in the log: parts of a dead owner's unfinished checkpoint may follow the begin, and recovery
        # must not take them.
        number = self._state.epoch << 32 | self._count
        # Before the begin, so that the end of this checkpoint already names the higher address.
        is_relogged = await self._relog_old_bytes()
        begin_group, snapshot = await self._ask(SnapshotRequest(number), 0)
        try:
            # Without data it notes the highest segment id, which is in no part once that segment is deleted
            # (rule C7).
            await self._ask(LogRequest(RelogData(self._state.newest_segment, 0, b"")), 0)
            for op, op_size in _manifest(number, snapshot):
                await self._ask(LogRequest(op), op_size)
            size = await self._write_parts(number, snapshot)
        finally:
            # Without its end the checkpoint does not exist (C7). An open snapshot would go on encoding each
            # segment before its first change, and refuse the next begin.
            self._state.end_snapshot()

        end = CheckpointEnd(number, begin_group, snapshot.sequence, snapshot.cycle)
        # After the parts: what was flushed meanwhile raises the address.
        truncate_before = await self._oldest_unflushed(begin_group)
        await self._ask(LogRequest(end, tag=TAG_CHECKPOINT_END, truncate_before=truncate_before), 64)
        await self._completed(snapshot, size, is_relogged=is_relogged, closing=closing)

    def _should_unload(self) -> bool:
        """Whether many segments in memory are idle, and the log has room to say that they are unloaded: on a
        full disk a checkpoint must get by with the room that was found for it (rule W6)."""
        segments = self._state.segments
        # What is not unpublished is idle but for a few, and nothing need be visited to count it.
        idle = segments.count - self._state.unpublished_segments
        return idle > self._options.idle_segments and self._log.has_room(0)

    async def _unload_idle(self, *, closing: bool) -> None:
        """Unload the idle segments that did not change since the checkpoint before; at a clean close all idle
        ones, because nobody uses them for now."""
        state = self._state
        unchanged_since = state.sequence if closing else state.checkpoint_sequence
        for sids in in_slices(state.segments.ids(), _UNLOAD_STEP):
            segments = filter(None, map(state.segments.get, sids))
            await unload(self._ask, (s.sid for s in segments if s.is_idle and s.touched <= unchanged_since))
            await anyio.lowlevel.checkpoint()

    async def compact(self, publish: Callable[[Sequence[Operation], int], None]) -> None:
        """Call it after recovery, before anything else is logged. If brief owners left many small log files,
        log a small state and all unflushed bytes as one group, so that no older file is needed.

        Owners that are killed soon, one after the other, thus leave a bounded number of files: each leaves
        this group whole, or none of it (C7). ``publish`` makes it visible, by its number."""
        if not self._has_many_files(costly=True) or (data := await self._small_backlog()) is None:
            return

        self._count += 1
        group = self._log.next_group
        made = whole_checkpoint(self._state, self._count, group, data)
        if made is None:
            return

        ops, snapshot, size = made
        # To the log itself: the pipeline does not run yet.
        await log_checkpoint(self._state, self._log, ops)
        publish(ops, group)
        await self._completed(snapshot, size, is_relogged=True)

    async def _completed(
        self, snapshot: Snapshot, size: int, *, is_relogged: bool, closing: bool = False
    ) -> None:
        self._written += 1
        self._cycle = snapshot.cycle
        self._state.checkpoint_bytes = size + snapshot.manifest.size
        self._state.checkpoint_sequence = snapshot.sequence
        self._last_at = self._log.statistics().appended_bytes
        # W5: the address became durable with the end.
        await self._log.truncate(closing=closing)
        left = self._files_left = self._log.statistics().files
        self._files_needed = left if is_relogged else min(left, self._files_needed)

    async def _write_parts(self, number: int, snapshot: Snapshot) -> int:
        """Log the snapshot in groups of about ``_PART_BYTES``; returns its size."""
        total = 0
        while not snapshot.is_complete:
            records = snapshot.take(_PART_RECORDS, _PART_BYTES)
            for op, size in _operations(number, records):
                await self._ask(LogRequest(op), size)
            total += records.size
            await anyio.lowlevel.checkpoint()
        return total

    async def _oldest_unflushed(self, default: int) -> int:
        """The oldest group with bytes that are not flushed, ``default`` at most.

        Found in slices: a reference may only move to a later group meanwhile, and stays with its
        segment, so the result is never too high. What a commit flushed that is not durable yet does not
        count: a checkpoint's end comes after it in the log."""
        lowest = default
        for segments in in_slices(self._unflushed_segments()):
            lowest = min([lowest, *(group for s in segments for _, group in s.log_references)])
            await anyio.lowlevel.checkpoint()
        return lowest

    def _unflushed_segments(self) -> Iterator[SegmentState]:
        return (
            s
            for s in self._state.segments.dirty_segments()
            if s.log_references and s.status is not SegmentStatus.DELETED
        )

    async def _relog_old_bytes(self) -> bool:
        """Log the oldest unflushed bytes again if they keep too much else in the log (rule F4), or all of
        them if they keep too many files. Returns whether that was done."""
        horizon = self._log.next_group
        is_little = self._cache.unflushed_bytes <= _RELOG_BYTES and not any(
            islice(self._unflushed_segments(), self._options.few_segments, None)
        )
        is_all = self._has_many_files(costly=not is_little)
        if not is_all:
            # What is logged again frees at least as much, or an outage of long-term storage would log its
            # backlog over and over.
            unflushed = self._cache.unflushed_bytes
            needless = self._log.statistics().retained_bytes - unflushed
            if needless <= max(self._options.pinned_groups_bytes, unflushed):
                return False
            # W6: on a full disk the checkpoint alone lets some files go.
            if not await self._has_room_to_relog():
                return False

            oldest = await self._oldest_unflushed(horizon)
            horizon = oldest + (horizon - oldest) // 2
        for segments in in_slices(self._unflushed_segments()):
            for segment in segments:
                # A cycle may have flushed it while the one before was re-logged.
                if min((group for _, group in segment.log_references), default=horizon) < horizon:
                    await self._relog(segment)
            await anyio.lowlevel.checkpoint()
        return is_all

    async def _has_room_to_relog(self) -> bool:
        """Whether all unflushed bytes fit into the log beside the checkpoint; on a full disk, into the
        reserve."""
        size = self._cache.unflushed_bytes
        if self._log.has_room(size):
            return True

        for segments in in_slices(self._unflushed_segments()):
            size += len(segments) * _ENDS_BYTES
            await anyio.lowlevel.checkpoint()
        return self._log.has_reserve(self._size + size)

    async def _relog(self, segment: SegmentState) -> None:
        """Log the segment's own bytes again."""
        async with aclosing(self._unflushed_pieces(segment)) as pieces:
            async for piece in pieces:
                await self._ask(LogRequest(piece), len(piece.data))
                self._relogged += len(piece.data)

    async def _small_backlog(self) -> Sequence[RelogData] | None:
        """All unflushed bytes; None if they are more than a part of a checkpoint may have."""
        if self._cache.unflushed_bytes > _PART_BYTES:
            return None

        found: list[RelogData] = []
        for segment in list(self._unflushed_segments()):
            found += [piece async for piece in self._unflushed_pieces(segment)]
        return found

    async def _unflushed_pieces(self, segment: SegmentState) -> AsyncGenerator[RelogData, None]:
        """The segment's own bytes from the flushed offset to the present durable end."""
        # After a recovery the log references need not be in offset order: the last one may end before
        # another.
        position, end = segment.flushed, max(end for end, _ in segment.log_references)
        while position < end:
            piece_end = min(end, position + _RELOG_BYTES)
            if data := b"".join(await self._unflushed.read(segment.sid, position, piece_end)):
                yield RelogData(segment.sid, position, data)
                position += len(data)
            else:
                # A merged source is here, or the bytes were flushed or deleted meanwhile.
                position = self._cache.next_unflushed(segment.sid, position) or end

    def statistics(self) -> CheckpointStatistics:
        from .statistics import CheckpointStatistics

        return CheckpointStatistics(self._written, self._state.checkpoint_bytes, self._relogged)


def whole_checkpoint(
    state: ContainerState,
    count: int,
    group: int,
    data: Sequence[Operation] = (),
    *,
    size_max: int = _PART_BYTES,
) -> tuple[list[Operation], Snapshot, int] | None:
    """The operations of the checkpoint ``count`` of this owner, in one ``group``, with ``data`` before them,
    its snapshot and its size; None if it is larger than ``size_max``."""
    snapshot = state.begin_snapshot()
    # One part, whatever the number of its records: only its size is limited.
    records = snapshot.take(size_max, size_max)
    state.end_snapshot()
    if not snapshot.is_complete:
        return None

    number = state.epoch << 32 | count
    ops: list[Operation] = [*data, CheckpointBegin(number)]
    # The operations before the checkpoint change nothing that it holds, so it is the state after them as
    # well. Replay then starts behind them.
    snapshot.sequence += len(ops)
    ops.append(RelogData(state.newest_segment, 0, b""))
    ops += [op for op, _ in chain(_manifest(number, snapshot), _operations(number, records))]
    ops.append(CheckpointEnd(number, group, snapshot.sequence, snapshot.cycle))
    return ops, snapshot, records.size


async def log_checkpoint(state: ContainerState, log: DurableDataLog, ops: Sequence[Operation]) -> None:
    """Apply and log a whole checkpoint as the next group. Nothing before it is needed any more."""
    payload = PayloadBuilder(state.sequence + 1)
    for op in ops:
        state.apply(op)
        payload.add(op)
    await log.append(payload.parts, tag=TAG_CHECKPOINT_END, truncate_before=log.next_group)


def _manifest(number: int, snapshot: Snapshot) -> Iterator[tuple[Operation, int]]:
    """What logs the snapshot's counters, marks and manifest, if there is one, with sizes."""
    yield CheckpointCounters(number, snapshot.live_segments), 16
    if snapshot.has_spilled:
        yield SpillAttributes(0, 0), 16  # M19: code that would lose them refuses it
    for changes in in_slices(snapshot.closures, _CLOSURES_MAX):
        yield CheckpointClosures(number, tuple(changes)), 24 * len(changes)
    if snapshot.ends:
        yield CheckpointEnds(number, snapshot.ends), 16  # M21: likewise
    manifest = snapshot.manifest
    if manifest.head is not None or manifest.intent is not None:
        contents = [b"" if op is None else op.content for op in (manifest.head, manifest.intent)]
        yield CheckpointManifest(number, *contents), sum(map(len, contents))


def _operations(number: int, records: Records) -> Iterator[tuple[Operation, int]]:
    """What logs ``records``, with sizes: a part, or the pieces of an image that is larger than that."""
    if records.size <= _PART_BYTES or not records.images:
        if records.images:
            yield CheckpointImages(number, tuple(records.images)), records.size
        if records.transactions:
            yield CheckpointPart(number, (), (), tuple(records.transactions)), records.size
        if records.rows:
            yield CheckpointRows(number, tuple(records.rows)), records.size
        return

    [(_, image)] = records.images
    for start in range(0, len(image), _PART_BYTES):
        data = image[start : start + _PART_BYTES]
        # A group has at most 64 MiB, and an image with many writers or attributes may be larger than a part
        # should be.
        yield CheckpointPiece(number, start + len(data) == len(image), data), len(data)
