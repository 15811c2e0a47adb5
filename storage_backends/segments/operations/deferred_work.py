"""Deferred work: the steps that finish what a metadata-only operation left (rule S11).

Whatever grows with a segment's chunks in ``delete``, ``truncate`` and ``concat`` happens here. The operation
itself does the first few records, so that small ones leave nothing.

A step is one transaction on the segment that has the chunks. It changes records and rewrites the work record
in the same commit, so a crash at any moment leaves a record that is exact. Index records are hints to
readers: one that is missing, or that lies below the first chunk, costs time and nothing else. A step never
adds to other work.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from msgspec.structs import replace

from ..context import StorageContext
from ..records import DeferredWorkKind, DeferredWorkRecord, IndexRecord, SegmentRecord
from ..segment_transaction import SegmentTransaction

Step: TypeAlias = Callable[
    [SegmentTransaction, DeferredWorkRecord, int, bool], Awaitable[DeferredWorkRecord | None]
]
"""(transaction, work, records it may read, whether it may copy chunks) -> what is left, or None."""


async def due_work(context: StorageContext) -> list[DeferredWorkRecord]:
    """The work that can be done now, in the order in which to do it."""
    return [work for work in await context.deferred_work.read() if _is_due(context, work)]


async def changed_work(context: StorageContext) -> dict[str, DeferredWorkRecord | None]:
    """By key, some of the items that changed since they were last given, at first all; None for those that
    cannot be done now or are gone. Empty if none is left."""
    return {
        key: work if work is not None and _is_due(context, work) else None
        for key, work in (await context.deferred_work.changes()).items()
    }


def _is_due(context: StorageContext, work: DeferredWorkRecord) -> bool:
    if work.kind is DeferredWorkKind.DEFRAG:
        return 0 < context.options.defrag.loose_chunks <= work.chunks
    return work.kind is not DeferredWorkKind.ADOPT or work.segment not in context.adopting


async def run_step(context: StorageContext, work: DeferredWorkRecord) -> bool:
    """Do one step of the stored record, which may differ from ``work``. Returns whether something is left."""
    with SegmentTransaction(context, _holder(work), create=False, rolling_size=None) as txn:
        async with txn.operation():
            # As it is stored now: since the caller read it, an operation may have continued or ended it.
            stored = await txn.deferred(work.kind, work.segment)
            if stored is None:
                return False

            left = await _STEPS[work.kind](txn, stored, context.options.maintenance_records, True)
            _record(txn, stored, left)
        await txn.commit()
        return left is not None


async def begin_deferred(txn: SegmentTransaction, work: DeferredWorkRecord) -> None:
    """Do the first records of ``work`` inside the operation that makes it, and record what is left. Work of
    that kind that the segment already has continues instead."""
    stored = await txn.deferred(work.kind, work.segment)
    _record(
        txn, stored, await _STEPS[work.kind](txn, stored or work, txn.context.options.inline_records, False)
    )


async def count_loose(txn: SegmentTransaction, segment: SegmentRecord, offset: int, chunks: int) -> None:
    """Count ``chunks`` more small chunks from ``offset`` on towards the next defrag (rule S9). They may be
    joined with chunks up to one rolling size before them."""
    options = txn.context.options.defrag
    if not chunks or not options.loose_chunks or not options.small_max:
        return

    work = await txn.deferred(DeferredWorkKind.DEFRAG)
    work = work or DeferredWorkRecord(
        DeferredWorkKind.DEFRAG, txn.id, position=max(0, offset - segment.rolling_size)
    )
    txn.defer(replace(work, chunks=work.chunks + chunks))


def _holder(work: DeferredWorkRecord) -> int:
    """The segment whose transaction runs the work."""
    return work.target if work.kind is DeferredWorkKind.SPLICE else work.segment


def _record(
    txn: SegmentTransaction, stored: DeferredWorkRecord | None, left: DeferredWorkRecord | None
) -> None:
    if left is not None:
        txn.defer(left)
    elif stored is not None:
        txn.metadata.drop(stored)


async def _drop_index(
    txn: SegmentTransaction, segment: int, start: int, end: int, limit: int
) -> tuple[int, int]:
    """Delete the first ``limit`` index records of ``start .. end``. Returns (the offset below which none is
    left, how many were read)."""
    offsets = txn.multiples(start, end)
    stop = offsets[limit] if len(offsets) > limit else end
    await txn.drop_index(segment, start, stop)
    return stop, min(limit, len(offsets))


# --- delete -------------------------------------------------------------------------------------


async def _delete_step(
    txn: SegmentTransaction, work: DeferredWorkRecord, limit: int, _may_copy: bool
) -> DeferredWorkRecord | None:
    name, chunks = work.chunk, work.chunks
    while name and limit:
        chunk = await txn.metadata.chunk(name)
        await txn.drop_chunk(chunk)
        # The chain decides when this ends, whatever the count is: a work record that names a chunk and counts
        # none is refused as unsound.
        name, chunks, limit = chunk.next_chunk, max(1, chunks - 1), limit - 1
    index_offset, _ = await _drop_index(txn, work.segment, work.index_offset, work.end, limit)
    if not name and index_offset == work.end:
        return None

    return replace(work, chunk=name, chunks=chunks if name else 0, index_offset=index_offset)


# --- truncate -----------------------------------------------------------------------------------


async def _truncate_step(
    txn: SegmentTransaction, work: DeferredWorkRecord, limit: int, may_copy: bool
) -> DeferredWorkRecord | None:
    """Leading chunks below the start leave the chain. Then the first one may be worth relocating, which is
    never part of the operation."""
    work, is_first_live = await _drop_leading(txn, work, limit)
    segment = await txn.segment()
    if not is_first_live:
        return work

    from .defrag import relocate, relocation_is_due

    if segment.first_chunk and relocation_is_due(txn, segment, await txn.metadata.chunk(segment.first_chunk)):
        # S10: the operation itself changes records only.
        if not may_copy:
            return work
        await relocate(txn, pass_damage=True)
    return None


async def _drop_leading(
    txn: SegmentTransaction, work: DeferredWorkRecord, limit: int
) -> tuple[DeferredWorkRecord, bool]:
    """(what is left, whether the first chunk now holds the start or there is none)."""
    segment = await txn.segment()
    name, start, index_offset = segment.first_chunk, segment.first_chunk_start, work.index_offset
    dropped, is_first_live = 0, False
    while limit and not is_first_live:
        index_offset, read = await _drop_index(txn, txn.id, index_offset, start, limit)
        limit -= read
        # Truncated at its end: no chunk is left.
        if not name and index_offset == start:
            is_first_live = True
        elif limit:
            chunk = await txn.metadata.chunk(name)
            limit -= 1
            if start + chunk.length > segment.start_offset:
                is_first_live = True
            else:
                await txn.drop_chunk(chunk)
                name, start, dropped = chunk.next_chunk, start + chunk.length, dropped + 1
    if dropped:
        segment = txn.update(
            segment, first_chunk=name, first_chunk_start=start, chunk_count=segment.chunk_count - dropped
        )
        if not name:
            txn.update(segment, last_chunk="", last_chunk_start=start)
    return replace(work, index_offset=index_offset), is_first_live


# --- splice -------------------------------------------------------------------------------------


async def _splice_step(
    txn: SegmentTransaction, work: DeferredWorkRecord, limit: int, _may_copy: bool
) -> DeferredWorkRecord | None:
    """Replace the source's index records by the target's. If the target is gone too, its own work covers this
    part."""
    index_offset, read = await _drop_index(txn, work.segment, work.index_offset, work.end, limit)
    work = replace(work, index_offset=index_offset)
    target, end = await txn.load(work.target), work.offset + work.end
    if target is None:
        work = replace(work, position=end, chunk="")
    else:
        work = await _build_index(txn, work, target, limit - read)
    return None if (work.index_offset, work.position) == (work.end, end) else work


async def _build_index(
    txn: SegmentTransaction, work: DeferredWorkRecord, target: SegmentRecord, limit: int
) -> DeferredWorkRecord:
    """Continue from the work's position, chunk by chunk. Its ``chunk`` begins there, unless it was joined
    with others in the meantime."""
    end, position, name = work.offset + work.end, work.position, work.chunk
    # The target was truncated meanwhile. Below its first chunk no index is read.
    if position < target.first_chunk_start:
        position, name = target.first_chunk_start, target.first_chunk
    while limit > 0 and txn.multiples(position, end):
        start, chunk = position, await txn.metadata.find_chunk(name) if name else None
        if chunk is None:
            start, chunk = await txn.locate(position)
        offsets = txn.multiples(position, start + chunk.length)
        # At least one, so that every step makes progress in a chunk that spans many multiples.
        batch = offsets[: max(1, limit - 1)]
        for offset in batch:
            await _put_index(txn, IndexRecord(txn.id, offset, chunk.name, start))
        limit -= 1 + len(batch)
        position, name = (
            (start + chunk.length, chunk.next_chunk)
            if len(batch) == len(offsets)
            # In the middle of a chunk: the next step finds the chunk by its offset.
            else (offsets[len(batch)], "")
        )
    if not txn.multiples(position, end):
        position, name = end, ""
    return replace(work, position=position, chunk=name)


async def _put_index(txn: SegmentTransaction, record: IndexRecord) -> None:
    # A join may have written it already. What is equal need not be logged again.
    if await txn.metadata.index(record.segment, record.offset) != record:
        txn.metadata.put(record)


# --- defrag -------------------------------------------------------------------------------------


async def _defrag_step(
    txn: SegmentTransaction, work: DeferredWorkRecord, _limit: int, _may_copy: bool
) -> DeferredWorkRecord | None:
    # Deleted meanwhile: there is nothing left to join.
    segment = await txn.load(txn.id)
    if segment is None:
        return None

    from .defrag import defrag_step

    # S9: what is sealed does not grow, so packing copies each byte once. In a segment that grows it would
    # copy the first ones again with every pass.
    step = await defrag_step(txn, work.position, packed=segment.sealed, pass_damage=True)
    return None if step.next_offset is None else replace(work, position=step.next_offset)


# --- adopt --------------------------------------------------------------------------------------


async def _adopt_step(
    txn: SegmentTransaction, work: DeferredWorkRecord, limit: int, _may_copy: bool
) -> DeferredWorkRecord | None:
    """Delete the adopted records, chunks before the index. Their chunks are not released: no segment ever had
    them (rule S14)."""
    name, chunks = work.chunk, work.chunks
    # By the count and not to the chain's end: the last chunk that was written names one that may not be.
    while chunks and limit:
        chunk = await txn.metadata.chunk(name)
        txn.metadata.drop(chunk)
        name, chunks, limit = chunk.next_chunk, chunks - 1, limit - 1
    index_offset, _ = await _drop_index(txn, work.segment, work.index_offset, work.end, limit)
    if not chunks and index_offset == work.end:
        return None

    return replace(work, chunk=name if chunks else "", chunks=chunks, index_offset=index_offset)


_STEPS: Mapping[DeferredWorkKind, Step] = {
    DeferredWorkKind.DELETE: _delete_step,
    DeferredWorkKind.TRUNCATE: _truncate_step,
    DeferredWorkKind.SPLICE: _splice_step,
    DeferredWorkKind.DEFRAG: _defrag_step,
    DeferredWorkKind.ADOPT: _adopt_step,
}
