"""Write: append bytes to the segment's end, over as many chunks as they need.

A chunk is appended to only if this instance created it and its last write left exactly the recorded length
(rule S3). Otherwise, at the rolling size, and always without the append capability, a new chunk begins.

A failed append retires the chunk, except after ``Unavailable``, which promises that nothing happened. The
name of a chunk that was certainly not created is used again, so a storage that is down or full does not cost
a new name per attempt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from ...base.checksum import Buffer
from ...base.errors import BadOffset, InvalidArgument, OutcomeUnknown, SegmentSealed, StorageFull, Unavailable
from ..records import ChunkRecord, SegmentRecord
from ..segment_transaction import SegmentTransaction
from .deferred_work import count_loose


class _Source:
    """The caller's buffers and append starts, taken from the front without copying."""

    def __init__(self, offset: int, data: Sequence[Buffer], starts: Sequence[int]) -> None:
        # Sizes are in bytes, whatever the items of the caller's buffers are.
        self._views = [memoryview(buffer).cast("B") for buffer in data if len(buffer)]
        self.offset = offset
        self.end = offset + sum(map(len, self._views))
        self._starts = list(starts)
        if any(not offset <= start < self.end for start in starts) or self._starts != sorted(set(starts)):
            raise InvalidArgument(f"append starts must ascend inside {offset}..{self.end}")

    @property
    def left(self) -> int:
        return self.end - self.offset

    def take(self, size: int) -> tuple[list[memoryview], list[int]]:
        """The next ``size`` bytes, and the segment offsets at which appends begin in them."""
        views: list[memoryview] = []
        self.offset += size
        while size:
            view = self._views.pop(0)
            if len(view) > size:
                self._views.insert(0, view[size:])
                view = view[:size]
            views.append(view)
            size -= len(view)
        inside = [start for start in self._starts if start < self.offset]
        del self._starts[: len(inside)]
        return views, inside


async def write(txn: SegmentTransaction, offset: int, data: Sequence[Buffer], starts: Sequence[int]) -> int:
    segment = await txn.segment()
    if segment.sealed:
        raise SegmentSealed(f"segment {txn.id:016x} is sealed", segment=f"{txn.id:016x}")

    if offset != segment.length:
        message = (
            f"write at offset {offset} of segment {txn.id:016x}, which has {segment.length} bytes in tier 2"
        )
        raise BadOffset(message, segment=f"{txn.id:016x}", expected=segment.length, given=offset)

    source = _Source(offset, data, starts)
    while source.left:
        last = await txn.metadata.chunk(segment.last_chunk) if segment.last_chunk else None
        if last is not None and (room := txn.room(segment, last)):
            segment = await _append(txn, segment, last, source, min(room, source.left))
        else:
            segment = await _begin_chunk(txn, segment, last, source, min(segment.rolling_size, source.left))
    return segment.length


async def _append(
    txn: SegmentTransaction, segment: SegmentRecord, chunk: ChunkRecord, source: _Source, size: int
) -> SegmentRecord:
    # S7: before anything is taken from the source or forgotten, so that the refusal leaves all as it was.
    txn.context.chunks.admit(chunk.name)
    data, starts = source.take(size)
    # Forgotten before the call: whatever the call raises, no later append relies on a length that may be
    # wrong (S3).
    committed = txn.begin_append(chunk.name)
    try:
        length = await txn.context.chunks.write(chunk.name, chunk.length, data)
    except Unavailable:
        # Only ``Unavailable`` promises that nothing reached the chunk. After anything else no append follows
        # (S3).
        txn.undo_append(chunk.name, committed)
        raise
    if length != chunk.length + size:
        raise OutcomeUnknown(
            f"chunk {chunk.name} has {length} bytes after a write up to {chunk.length + size}; the next "
            f"write begins a new chunk"
        )

    return _record_growth(txn, segment, chunk, segment.last_chunk_start, data, starts, {})


async def _begin_chunk(
    txn: SegmentTransaction, segment: SegmentRecord, last: ChunkRecord | None, source: _Source, size: int
) -> SegmentRecord:
    data, starts = source.take(size)
    name = await txn.name_chunk(segment.length)
    try:
        await txn.context.chunks.create_with_content(name, data)
    # Both promise that nothing was created, so the name is as good as new.
    except (StorageFull, Unavailable):
        txn.spare_chunk(segment.length, name)
        raise

    txn.context.chunks_created += 1
    if last is None:
        segment = replace(segment, first_chunk=name)
    else:
        txn.link(last, name)
        # S9: only now is it certain that the chunk stays small.
        if last.length <= txn.context.options.defrag.small_max:
            await count_loose(txn, segment, segment.last_chunk_start, 1)
    added = {"last_chunk": name, "last_chunk_start": segment.length, "chunk_count": segment.chunk_count + 1}
    return _record_growth(txn, segment, ChunkRecord(name), segment.length, data, starts, added)


def _record_growth(
    txn: SegmentTransaction,
    segment: SegmentRecord,
    chunk: ChunkRecord,
    chunk_start: int,
    data: Sequence[Buffer],
    starts: Sequence[int],
    added: Mapping[str, Any],
) -> SegmentRecord:
    """Buffer the records after ``data`` reached the chunk. ``added``: further changes of the segment's
    record."""
    grown = chunk.grown(data, [start - chunk_start for start in starts])
    txn.metadata.put(grown)
    txn.end_append(grown.name, grown.length)
    length = chunk_start + grown.length
    txn.grow_index(grown.name, chunk_start, segment.length, length)
    txn.context.bytes_written += grown.length - chunk.length
    return txn.update(segment, length=length, **added)
