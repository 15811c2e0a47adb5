"""The tail cache of one container: the newest bytes of its segments, and where the log holds every byte that
is not in long-term storage yet.

Blocks are kept by (segment id, offset). Only durable bytes are put here (rule C1). When the total exceeds the
limit, flushed blocks go first; if they are few, the oldest unflushed ones are *spilled*: their bytes stay in
the log only, and their extents are their addresses there (rule C10; ``unflushed.py`` reads them). Adjacent
small appends are joined into blocks of up to 64 KiB, and every block is charged a fixed overhead, so a
million one-byte appends cost about a megabyte (rule C9). They are joined only when somebody asks for them, or
when there are enough: of a thousand segments, each with one append in a group, few are read at once. All
calls are synchronous. The log rebuilds the cache after a crash."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ...storage_backends.base.checksum import Buffer
from ...storage_backends.base.sharded_dict import ShardedDict
from .log_extents import LogExtent, LogExtents

if TYPE_CHECKING:
    from .statistics import TailCacheStatistics

BLOCK_BYTES = 64 << 10
BLOCK_OVERHEAD = 160
_BY_REFERENCE = 32 << 10
"""Data of at least this size is kept as it is instead of being copied into a block."""
_PIECE_BYTES = 8 << 10
"""Appends below this size become pieces, which are joined later."""
_PIECES = 16
"""So many pieces are joined at the latest."""
_PIECES_OVERHEAD = _PIECES * 48
"""Of all pieces of a segment, whatever their number: that of the lists, and of objects that become bytes of a
block."""


class _Tail:
    """One segment's blocks, contiguous runs in offset order. Invariants: blocks never overlap; what a block
    holds above ``flushed`` is in ``extents``."""

    __slots__ = (
        "_extents",
        "blocks",
        "end",
        "flushed",
        "newer",
        "older",
        "open",
        "pieces",
        "pieces_from",
        "starts",
        "window",
        "windows",
    )
    older: _Tail
    newer: _Tail
    """The neighbors in the ring of those with blocks or pieces. Not set without any."""

    def __init__(self, flushed: int) -> None:
        self.end = 0
        """Where the bytes end that were ever added."""
        self._extents = LogExtents()
        self.open = flushed
        """Where the bytes begin that are in no extent yet: those of ``open .. end`` are in ``window``. An
        append behind them in the same window moves ``end`` alone."""
        self.window = 0
        self.starts: list[int] = []
        self.blocks: list[bytes | bytearray] = []
        self.flushed = flushed
        self.pieces: list[bytes] = []
        """The bytes of the newest appends, ``pieces_from .. end``, that are in no block yet. All are
        unflushed."""
        self.windows: list[int] = []
        """The window of each piece."""
        self.pieces_from = 0

    @property
    def extents(self) -> LogExtents:
        """The extents of the unflushed bytes, cached or not. Not while there are pieces."""
        if self.open < self.end:
            self._extents.add(self.open, self.end, self.window)
            self.open = self.end
        return self._extents

    def begin_extent(self, offset: int, window: int) -> None:
        """The next bytes are added at ``offset`` and are in ``window``."""
        if self.open < self.end:
            self._extents.add(self.open, self.end, self.window)
        # In replay, bytes may be flushed already.
        self.open, self.window = max(offset, self.flushed), window

    def take_pieces(self) -> bytes:
        """The pieces, joined; their windows become extents. The caller puts them into a block."""
        position = self.pieces_from
        for piece, window in zip(self.pieces, self.windows, strict=True):
            if window != self.window:
                if self.open < position:
                    self._extents.add(self.open, position, self.window)
                self.open, self.window = position, window
            position += len(piece)
        data = self.pieces[0] if len(self.pieces) == 1 else b"".join(self.pieces)
        self.pieces.clear()
        self.windows.clear()
        return data

    def enter(self, ring: _Tail) -> None:
        """Become the newest one of ``ring``."""
        self.older, self.newer = ring.older, ring
        self.older.newer = ring.older = self

    def leave(self) -> None:
        self.older.newer, self.newer.older = self.newer, self.older
        # A tail that was dropped must not be kept in memory by one that is not.
        del self.older, self.newer


class TailCache:
    def __init__(self, limit_bytes: int, window_of: Callable[[int], int] | None) -> None:
        """``window_of(group)``: the window of the log that holds a durable group. None if the log cannot be
        read later: then unflushed bytes stay in memory, whatever they need."""
        self._limit = limit_bytes
        self._goal = limit_bytes - (limit_bytes >> 4)
        """What a spill leaves, so that not every append spills."""
        self._window_of = window_of
        self._group = self._window = 0
        """The newest group and its window: all appends of a group share one lookup."""
        self._tails: ShardedDict[int, _Tail] = ShardedDict()
        self._ring = _Tail(0)
        """Begin and end of the ring of those with blocks or pieces, roughly in the order in which they were
        last written."""
        self._ring.older = self._ring.newer = self._ring
        self._total = 0
        self._data = 0
        self.unflushed_bytes = 0
        """Data whose only durable copy is in the log. Admission reads it for every append; only the cache
        changes it."""
        self.pinned_bytes = 0
        """The part of it that is in memory."""
        self._evicted = self._spilled = 0

    def open_segment(self, sid: int, flushed: int) -> None:
        """Begin to cache a segment whose first ``flushed`` bytes are in long-term storage."""
        self._tails[sid] = _Tail(flushed)

    def _find(self, sid: int) -> _Tail | None:
        """The tail of a segment, with all of its bytes in blocks."""
        tail = self._tails.get(sid)
        if tail is not None and tail.pieces:
            self._join(tail)
        return tail

    def drop_segment(self, sid: int) -> None:
        tail = self._find(sid)
        if tail is None:
            return

        del self._tails[sid]
        if tail.blocks:
            tail.leave()
        self.unflushed_bytes -= tail.extents.size
        for start, block in zip(tail.starts, tail.blocks, strict=True):
            self._release(tail, start, block)

    def _release(self, tail: _Tail, start: int, block: Buffer) -> None:
        size = len(block)
        self._total -= size + BLOCK_OVERHEAD
        self._data -= size
        self.pinned_bytes -= max(0, start + size - max(start, tail.flushed))

    def append(self, sid: int, offset: int, data: Buffer, group: int) -> None:
        """Add bytes of durable group ``group``. ``offset`` is at or above the end of what was added, or some
        of the bytes are known already: they were logged again, or it is replay."""
        tail = self._tails[sid]
        size = len(data)
        end = offset + size
        if group != self._group:
            self._group = group
            self._window = group if self._window_of is None else self._window_of(group)
        if size < _PIECE_BYTES and offset == tail.end >= tail.flushed and type(data) is bytes:
            pieces = tail.pieces
            if not pieces:
                if not tail.blocks:
                    tail.enter(self._ring)
                tail.pieces_from = offset
                self._total += _PIECES_OVERHEAD
            pieces.append(data)
            tail.windows.append(self._window)
            tail.end = end
            self.unflushed_bytes += size
            self.pinned_bytes += size
            self._data += size
            self._total += size
            if len(pieces) >= _PIECES or end - tail.pieces_from >= BLOCK_BYTES:
                self._join(tail)
        else:
            self._append_block(tail, offset, data, end)
        if self._total > self._limit:
            self._make_room(tail)

    def _append_block(self, tail: _Tail, offset: int, data: Buffer, end: int) -> None:
        if tail.pieces:
            self._join(tail)
        # Out of order only in replay and after a checkpoint has logged bytes again; live appends come in
        # order (C1).
        if offset < tail.end:
            self._add_unknown(tail, offset, data)
            return

        if offset != tail.end or self._window != tail.window:
            tail.begin_extent(offset, self._window)
        tail.end = end
        size = end - offset
        unflushed = size if offset >= tail.flushed else max(0, end - tail.flushed)
        self.unflushed_bytes += unflushed
        self.pinned_bytes += unflushed
        self._data += size
        self._total += size
        if not tail.blocks:
            tail.enter(self._ring)
        self._put(tail, offset, data)

    def _join(self, tail: _Tail) -> None:
        """Put the pieces, of which there are some, into a block."""
        self._total -= _PIECES_OVERHEAD
        self._put(tail, tail.pieces_from, tail.take_pieces())

    def _put(self, tail: _Tail, offset: int, data: Buffer) -> None:
        """Put bytes behind all blocks; into the last one if they fit."""
        blocks, starts, size = tail.blocks, tail.starts, len(data)
        last = blocks[-1] if blocks else None
        if type(last) is bytearray and len(last) + size <= BLOCK_BYTES and starts[-1] + len(last) == offset:
            # In place: nobody has a view of a ``bytearray`` (see ``slices``), so it can grow.
            last += data
        else:
            starts.append(offset)
            # ``bytes`` of ``bytes`` is no copy.
            blocks.append(bytes(data) if size >= _BY_REFERENCE else bytearray(data))
            self._total += BLOCK_OVERHEAD

    def _add_unknown(self, tail: _Tail, offset: int, data: Buffer) -> None:
        """Re-logged and replayed bytes may come before, inside or after what is known: add the parts that are
        missing. From now on all of them are needed from the newest group only."""
        view = memoryview(data)
        start, end = max(offset, tail.flushed), offset + len(view)
        if start >= end:
            return

        for begin, stop in tail.extents.gaps(start, end):
            if not tail.blocks:
                tail.enter(self._ring)
            index = bisect_right(tail.starts, begin)
            tail.starts.insert(index, begin)
            # Copied: a view of a few missing bytes would keep a re-logged piece of 1 MiB alive.
            tail.blocks.insert(index, bytes(view[begin - offset : stop - offset]))
            self._total += stop - begin + BLOCK_OVERHEAD
            self._data += stop - begin
            self.pinned_bytes += stop - begin
        self.unflushed_bytes += tail.extents.move(start, end, self._window)
        tail.begin_extent(max(tail.end, end), self._window)
        tail.end = max(tail.end, end)

    def mark_flushed(self, sid: int, flushed: int) -> None:
        """The first ``flushed`` bytes are in long-term storage now: let them go if the cache is over its
        limit."""
        tail = self._find(sid)
        # Commits may be published after the segment was dropped.
        if tail is None or flushed <= tail.flushed:
            return

        before = tail.flushed
        tail.flushed = flushed
        self.unflushed_bytes -= tail.extents.drop_below(flushed)
        tail.open = max(tail.open, flushed)
        # Blocks below were counted out by earlier calls.
        index = max(0, bisect_right(tail.starts, before) - 1)
        while index < len(tail.starts) and tail.starts[index] < flushed:
            start = tail.starts[index]
            stop = start + len(tail.blocks[index])
            self.pinned_bytes -= max(0, min(stop, flushed) - max(start, before))
            index += 1

        if self._total > self._limit:
            self.evict()

    def _make_room(self, tail: _Tail) -> None:
        """The cache is over its limit after an append to the segment."""
        if tail.blocks or tail.pieces:
            tail.leave()
            tail.enter(self._ring)
        # Only once a sixteenth of the limit can go, so that flushed blocks are not searched each time.
        if self._data - self.pinned_bytes > self._limit >> 4:
            self.evict()
        if self._total > self._limit and self._window_of is not None:
            self._spill()

    def evict(self) -> None:
        """Drop flushed blocks until the total is within the limit or only unflushed ones are left."""
        tail = self._ring.newer
        while self._total > self._limit and tail is not self._ring:
            following = tail.newer  # a segment whose last block is dropped leaves the ring
            self._drop_oldest(tail, self._limit, tail.flushed)
            tail = following

    def _spill(self) -> None:
        """Drop the oldest blocks; those that are not flushed stay in the log."""
        while self._total > self._goal:
            oldest = self._ring.newer
            if oldest.pieces:
                self._join(oldest)
            self._drop_oldest(oldest, self._goal, oldest.end)

    def _drop_oldest(self, tail: _Tail, goal: int, below: int) -> None:
        """Drop a segment's first blocks that end at or below ``below``, until the total is at ``goal``."""
        data, pinned, count = self._data, self.pinned_bytes, 0
        for start, block in zip(tail.starts, tail.blocks, strict=True):
            if self._total <= goal or start + len(block) > below:
                break

            self._release(tail, start, block)
            count += 1

        del tail.starts[:count]
        del tail.blocks[:count]
        if not tail.blocks and not tail.pieces:
            tail.leave()
        spilled = pinned - self.pinned_bytes
        self._spilled += spilled
        self._evicted += data - self._data - spilled

    def slices(self, sid: int, offset: int, end: int) -> list[Buffer]:
        """The cached bytes from ``offset`` on, without a gap, at most up to ``end``; empty if ``offset`` is
        not cached. Not copied."""
        tail = self._find(sid)
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

    def first_missing(self, sid: int, offset: int, end: int) -> int:
        """The first unflushed offset in ``offset .. end`` that the log does not hold; ``end`` if it holds
        all. Recovery checks with it that nothing is lost."""
        tail = self._find(sid)
        return offset if tail is None else next(tail.extents.gaps(offset, end), (end, end))[0]

    def extent_at(self, sid: int, offset: int) -> LogExtent | None:
        """Where the log holds the unflushed bytes at ``offset``; None if they are flushed or unknown."""
        tail = self._find(sid)
        return None if tail is None else tail.extents.find(offset)

    def spilled_extents(self, sid: int, start: int, end: int) -> Iterator[LogExtent]:
        """Where the log holds the unflushed bytes from ``start`` to the last one before ``end`` that is not
        cached, in order; nothing if all are cached."""
        tail = self._find(sid)
        return iter(()) if tail is None else tail.extents.between(start, self.cached_from(sid, start, end))

    def cached_from(self, sid: int, start: int, end: int) -> int:
        """Where in ``start .. end`` the cached bytes begin that reach up to ``end``; ``start`` if the segment
        is unknown."""
        tail = self._find(sid)
        if tail is None:
            return start

        index = bisect_left(tail.starts, end) - 1
        while index >= 0 and start < end <= tail.starts[index] + len(tail.blocks[index]):
            end = tail.starts[index]
            index -= 1
        return max(start, end)

    def next_unflushed(self, sid: int, offset: int) -> int | None:
        """Where the next unflushed bytes after ``offset`` begin."""
        tail = self._find(sid)
        return None if tail is None else tail.extents.next_start(offset)

    def next_cached(self, sid: int, offset: int) -> int | None:
        """Where the first block that starts after ``offset`` begins."""
        tail = self._find(sid)
        if tail is None:
            return None

        index = bisect_right(tail.starts, offset)
        return tail.starts[index] if index < len(tail.starts) else None

    def statistics(self) -> TailCacheStatistics:
        from .statistics import TailCacheStatistics

        return TailCacheStatistics(
            len(self._tails),
            self._total,
            self.unflushed_bytes,
            self.pinned_bytes,
            self._limit,
            self._evicted,
            self._spilled,
        )

    def __contains__(self, sid: int) -> bool:
        return sid in self._tails
