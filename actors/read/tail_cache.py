"""The tail cache of one container: the newest bytes of its segments, and every byte that is not in long-term
storage yet.

Blocks are kept by (segment id, offset). Only durable bytes are put here (rule C1).

Bytes at or above a segment's flushed offset are *pinned*: they are the only copy outside the log. Flushed
ones are dropped when the total exceeds the limit, of the least recently written segment first. Adjacent small
appends are joined into blocks of up to 64 KiB, and every block is charged a fixed overhead, so a million
one-byte appends cost about a megabyte (rule C9). All calls are synchronous. The log rebuilds the cache after
a crash."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict

import attrs

from ...storage_backends.base.checksum import Buffer
from ...storage_backends.base.statistics import counter, gauge

BLOCK_BYTES = 64 << 10
BLOCK_OVERHEAD = 160
_BY_REFERENCE = 32 << 10
"""Data of at least this size is kept as it is instead of being copied into a block."""


class _Tail:
    """One segment's blocks, contiguous runs in offset order. Invariant: blocks never overlap."""

    __slots__ = ("blocks", "flushed", "starts")

    def __init__(self, flushed: int) -> None:
        self.starts: list[int] = []
        self.blocks: list[bytes | bytearray] = []
        self.flushed = flushed


@attrs.frozen
class TailCacheStatistics:
    segments: int = attrs.field(metadata=gauge("Segments with cached bytes."))
    total_bytes: int = attrs.field(metadata=gauge("Charged bytes: data plus overhead."))
    pinned_bytes: int = attrs.field(metadata=gauge("Data that is only in the log and the cache."))
    limit_bytes: int = attrs.field(metadata=gauge("The limit of charged bytes."))
    evicted_bytes: int = attrs.field(metadata=counter("Data dropped to make room."))


class TailCache:
    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._tails: OrderedDict[int, _Tail] = OrderedDict()
        self._total = 0
        self._data = 0
        self.pinned_bytes = 0
        """Data whose only other copy is in the log. Admission reads it for every append; only the cache
        changes it."""
        self._evicted = 0

    def open_segment(self, sid: int, flushed: int) -> None:
        """Begin to cache a segment whose first ``flushed`` bytes are in long-term storage."""
        self._tails[sid] = _Tail(flushed)

    def drop_segment(self, sid: int) -> None:
        tail = self._tails.pop(sid, None)
        if tail is None:
            return

        for start, block in zip(tail.starts, tail.blocks, strict=True):
            self._release(tail, start, block)

    def _release(self, tail: _Tail, start: int, block: Buffer) -> None:
        size = len(block)
        self._total -= size + BLOCK_OVERHEAD
        self._data -= size
        self.pinned_bytes -= max(0, start + size - max(start, tail.flushed))

    def append(self, sid: int, offset: int, data: Buffer) -> None:
        """Add durable bytes. ``offset`` is at or above the end of what is cached, or the bytes are known
        already (replay) and ignored."""
        tail = self._tails[sid]
        blocks, starts = tail.blocks, tail.starts
        size = len(data)
        if blocks:
            last_start = starts[-1]
            last = blocks[-1]
            end = last_start + len(last)
            if offset < end:
                self._insert_unknown(tail, offset, data)
                return

            if offset == end and type(last) is bytearray and len(last) + size <= BLOCK_BYTES:
                last += data
                self._total += size
                self._data += size
                self.pinned_bytes += size if offset >= tail.flushed else max(0, offset + size - tail.flushed)
                return

        starts.append(offset)
        blocks.append(bytes(data) if size >= _BY_REFERENCE else bytearray(data))
        self._total += size + BLOCK_OVERHEAD
        self._data += size
        self.pinned_bytes += size if offset >= tail.flushed else max(0, offset + size - tail.flushed)
        if self._total > self._limit and self._data - self.pinned_bytes > self._limit >> 4:
            self._tails.move_to_end(sid)
            self.evict()

    def _insert_unknown(self, tail: _Tail, offset: int, data: Buffer) -> None:
        """Replay only: re-logged bytes may come before, inside or after what is cached; insert the parts that
        are missing."""
        view = memoryview(data)
        end = offset + len(view)
        position = offset
        for start, block in list(zip(tail.starts, tail.blocks, strict=True)):
            stop = start + len(block)
            if stop <= position:
                continue

            if start >= end:
                break

            if position < start:
                self._insert(tail, position, bytes(view[position - offset : start - offset]))

            position = stop

        if position < end:
            self._insert(tail, position, bytes(view[position - offset :]))

    def _insert(self, tail: _Tail, offset: int, data: bytes) -> None:
        index = bisect_right(tail.starts, offset)
        tail.starts.insert(index, offset)
        tail.blocks.insert(index, data)
        self._total += len(data) + BLOCK_OVERHEAD
        self._data += len(data)
        self.pinned_bytes += max(0, offset + len(data) - max(offset, tail.flushed))

    def mark_flushed(self, sid: int, flushed: int) -> None:
        """The first ``flushed`` bytes are in long-term storage now: unpin them, and let them go if the cache
        is over its limit."""
        tail = self._tails.get(sid)
        if tail is None or flushed <= tail.flushed:
            return

        before = tail.flushed
        tail.flushed = flushed
        index = max(0, bisect_right(tail.starts, before) - 1)
        while index < len(tail.starts) and tail.starts[index] < flushed:
            start = tail.starts[index]
            stop = start + len(tail.blocks[index])
            self.pinned_bytes -= max(0, min(stop, flushed) - max(start, before))
            index += 1

        if self._total > self._limit:
            self.evict()

    def evict(self) -> None:
        """Drop flushed blocks until the total is within the limit or only pinned bytes are left.

        Appends call it only once a sixteenth of the limit can go, so that a cache full of pinned bytes is not
        searched each time.
        """
        for sid in list(self._tails):
            if self._total <= self._limit:
                return

            self._evict_segment(self._tails[sid])

    def _evict_segment(self, tail: _Tail) -> None:
        count = 0
        for start, block in zip(tail.starts, tail.blocks, strict=True):
            if self._total <= self._limit or start + len(block) > tail.flushed:
                break

            self._release(tail, start, block)
            self._evicted += len(block)
            count += 1

        del tail.starts[:count]
        del tail.blocks[:count]

    def slices(self, sid: int, offset: int, end: int) -> list[Buffer]:
        """The cached bytes from ``offset`` on, without a gap, at most up to ``end``; empty if ``offset`` is
        not cached. Not copied."""
        tail = self._tails.get(sid)
        found: list[Buffer] = []
        if tail is None:
            return found

        index = bisect_right(tail.starts, offset) - 1
        if index < 0:
            return found

        while offset < end and index < len(tail.starts):
            start, block = tail.starts[index], tail.blocks[index]
            if not start <= offset < start + len(block):
                break

            stop = min(end, start + len(block))
            if type(block) is bytearray and index < len(tail.starts) - 1:
                # It grows no more. As ``bytes`` it can be sent to storage without being copied again.
                block = tail.blocks[index] = bytes(block)
            if type(block) is bytes and offset == start and stop == start + len(block):
                found.append(block)
            elif type(block) is bytearray:
                # A copy: the last block may still grow, which a ``bytearray`` with a view cannot.
                found.append(bytes(memoryview(block)[offset - start : stop - start]))
            else:
                found.append(memoryview(block)[offset - start : stop - start])

            offset = stop
            index += 1

        return found

    def first_gap(self, sid: int, offset: int, end: int) -> int:
        """The first offset in ``offset .. end`` that is not cached; ``end`` if all are. Recovery checks the
        pinned range with it."""
        tail = self._tails.get(sid)
        if tail is None:
            return offset

        index = max(0, bisect_right(tail.starts, offset) - 1)
        while offset < end and index < len(tail.starts):
            start = tail.starts[index]
            if start > offset:
                break

            offset = max(offset, min(end, start + len(tail.blocks[index])))
            index += 1

        return offset

    def next_cached(self, sid: int, offset: int) -> int | None:
        """Where the first block that starts after ``offset`` begins."""
        tail = self._tails.get(sid)
        if tail is None:
            return None

        index = bisect_right(tail.starts, offset)
        return tail.starts[index] if index < len(tail.starts) else None

    def statistics(self) -> TailCacheStatistics:
        return TailCacheStatistics(
            len(self._tails), self._total, self.pinned_bytes, self._limit, self._evicted
        )

    def __contains__(self, sid: int) -> bool:
        return sid in self._tails
