"""Windows: the bytes of extents in order, verified (rule S5), in buffers that are used again.

A window has free room in front of its bytes: whoever divides them into records that straddle windows puts the
rest of the last one there, and nothing else is copied. A window is valid until the next one is asked for.

Reads that were begun ahead are waited for when the generator is closed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import cycle
from typing import NamedTuple

import attrs

from ...storage_backends.base.checksum import BLOCK
from ...storage_backends.base.errors import DataCorruption
from ...storage_backends.base.segment_layout import ChunkExtent
from ...storage_backends.segments.verify import bad_blocks
from .storage import DirectStorage

ROOM = 64 << 10
"""Free bytes in front of a window."""


class Window(NamedTuple):
    offset: int
    """Of its first byte, in the segment."""
    buffer: bytearray
    begin: int
    """Where its bytes are in the buffer; there is room for at least ``ROOM`` bytes before."""
    end: int


@attrs.define
class _Part:
    """Consecutive whole blocks of one extent."""

    extent: ChunkExtent
    offset: int
    """In the chunk."""
    size: int


def windows(storage: DirectStorage, extents: Sequence[ChunkExtent], start: int, end: int) -> Iterator[Window]:
    """The bytes ``start .. end`` of a segment; both lie in the extents. Raises ``ChunkNotFound``,
    ``DataCorruption``, ``Unavailable``."""
    if extents and extents[0].begin > start:
        raise DataCorruption(f"byte {start} is missing: the chunks begin at {extents[0].begin}")

    plans = _plans(extents, start, end, storage.piece_bytes)
    if not storage.ahead:
        buffer = bytearray(ROOM + storage.piece_bytes)
        for parts in plans:
            yield _window(parts, buffer, _fill(storage, parts, buffer), start, end)
        return

    # One more than are read ahead: the caller has returned a window when it asks for the next one.
    buffers = cycle([bytearray(ROOM + storage.piece_bytes) for _ in range(storage.ahead + 1)])
    coming: deque[tuple[list[_Part], bytearray, Future[int]]] = deque()
    with ThreadPoolExecutor(storage.ahead + 1, "tierlog-chunks") as threads:
        for parts in plans:
            buffer = next(buffers)
            coming.append((parts, buffer, threads.submit(_fill, storage, parts, buffer)))
            if len(coming) > storage.ahead:
                yield _first(coming, start, end)
        while coming:
            yield _first(coming, start, end)


def _plans(extents: Iterable[ChunkExtent], start: int, end: int, size: int) -> Iterator[list[_Part]]:
    """What to read into each window: up to ``size`` bytes, of several small chunks if need be."""
    parts, room = list[_Part](), size
    for extent in extents:
        # From the block on that has the first byte of the range.
        offset = max(extent.block, (start - extent.start) // BLOCK) * BLOCK
        behind = min(extent.end, end) - extent.start
        while offset < behind:
            # The checksum of a block covers all of it (rule S5); a chunk's last block may be shorter.
            block = min(BLOCK, extent.length - offset)
            if block > room:
                yield parts
                parts, room = [], size
            if parts and parts[-1].extent is extent:
                parts[-1].size += block
            else:
                parts.append(_Part(extent, offset, block))
            offset, room = offset + block, room - block
    if parts:
        yield parts


def _fill(storage: DirectStorage, parts: list[_Part], buffer: bytearray) -> int:
    """Read and verify; returns where in the buffer the bytes end."""
    view, at = memoryview(buffer), ROOM
    for part in parts:
        extent, target = part.extent, view[at : at + part.size]
        got = storage.read_into(extent.chunk, part.offset, target)
        if got < part.size:
            raise DataCorruption(
                f"the chunk is shorter than the {extent.length} bytes that were committed",
                file=extent.chunk,
                offset=part.offset + got,
            )

        crcs = extent.checksums()[part.offset // BLOCK - extent.block :]
        for bad in bad_blocks(target, crcs):
            raise DataCorruption(
                "the bytes of a block do not match their checksum",
                file=extent.chunk,
                offset=part.offset + bad,
            )
        at += part.size
    return at


def _first(coming: deque[tuple[list[_Part], bytearray, Future[int]]], start: int, end: int) -> Window:
    parts, buffer, filled = coming.popleft()
    return _window(parts, buffer, filled.result(), start, end)


def _window(parts: list[_Part], buffer: bytearray, filled: int, start: int, end: int) -> Window:
    """The bytes of the range; blocks are larger."""
    first = parts[0].extent.start + parts[0].offset
    skipped, behind = max(0, start - first), max(0, first + filled - ROOM - end)
    return Window(first + skipped, buffer, ROOM + skipped, filled - behind)
