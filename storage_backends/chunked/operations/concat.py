"""Concat: link a sealed segment's chunks behind the target's. Metadata only; no chunk is read, written or deleted (rule S4, hole 6).

Owns: the splice. The source's record and index records vanish, and the target's appear, in one commit; the chunk records stay as
they are but for the link, because a chunk's record does not say where it lies. Only chunks that lie on a multiple of the index
spacing are looked up.
"""

from __future__ import annotations

from ...base.errors import InvalidArgument, SegmentNotFound, SegmentNotSealed, SegmentSealed
from ..records import SegmentRecord
from ..segment_transaction import SegmentTransaction


async def concat(txn: SegmentTransaction, source_id: int) -> int:
    if source_id == txn.id:
        raise InvalidArgument(f"segment {txn.id:016x} cannot be appended to itself")

    target = await txn.segment()
    if target.sealed:
        raise SegmentSealed(f"segment {txn.id:016x} is sealed", segment=f"{txn.id:016x}")

    source = _check_source(source_id, await txn.take_source(source_id))
    await txn.drop_index(source_id, 0, source.length)
    txn.metadata.drop(source)
    if source.length:
        target = await _splice(txn, target, source)
    return target.length


def _check_source(source_id: int, source: SegmentRecord | None) -> SegmentRecord:
    if source is None:
        raise SegmentNotFound(f"source segment {source_id:016x} has no record in tier 2", segment=f"{source_id:016x}")

    if not source.sealed:
        raise SegmentNotSealed(f"source segment {source_id:016x} is not sealed in tier 2", segment=f"{source_id:016x}")

    if source.start_offset:
        raise InvalidArgument(
            f"source segment {source_id:016x} is truncated at {source.start_offset}; only a whole segment can be appended"
        )

    return source


async def _splice(txn: SegmentTransaction, target: SegmentRecord, source: SegmentRecord) -> SegmentRecord:
    if target.last_chunk:
        txn.link(await txn.metadata.chunk(target.last_chunk), source.first_chunk)
    else:
        target = txn.update(target, first_chunk=source.first_chunk)
    await _index_source(txn, target.length, source)
    return txn.update(
        target,
        length=target.length + source.length,
        last_chunk=source.last_chunk,
        last_chunk_start=target.length + source.last_chunk_start,
        chunk_count=target.chunk_count + source.chunk_count,
    )


async def _index_source(txn: SegmentTransaction, start: int, source: SegmentRecord) -> None:
    """The target's index records for the source's bytes, which begin at segment offset ``start``."""
    spacing, end = txn.core.options.index_spacing, start + source.length
    if (end - 1) // spacing == (start - 1) // spacing:
        return

    name = source.first_chunk
    while name:
        chunk = await txn.metadata.chunk(name)
        txn.grow_index(name, start, start, start + chunk.length)
        name, start = chunk.next_chunk, start + chunk.length
