"""Debts: the steps that do what a metadata-only operation left undone (rule S11).

Owns: which debts are due, and one bounded step of each kind; the parts of ``delete``, ``truncate`` and
``concat`` that grow with a segment's chunks are here alone. The operation itself does the first few records,
so that what is small leaves no debt.

Ordering: a step is one transaction on the segment that holds the chunks. It changes records and writes the
debt down anew in the same commit, so a crash at any moment leaves a debt that is exact. Index records are
hints to readers: one that is missing, or that lies below the first chunk, costs time and nothing else. A step
never makes another debt larger. Cancellation: as of any transaction.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from ..core import Core
from ..records import DeferredWorkKind, DeferredWorkRecord, IndexRecord, SegmentRecord
from ..records.header import changed
from ..segment_transaction import SegmentTransaction
from .defrag import defrag_step
from .relocate import is_due, relocate

Step: TypeAlias = Callable[
    [SegmentTransaction, DeferredWorkRecord, int, bool], Awaitable[DeferredWorkRecord | None]
]
"""(transaction, debt, records it may look at, whether it may copy chunks) -> what is left, None for
nothing."""


async def due_debts(core: Core) -> list[DeferredWorkRecord]:
    """What a step can be done on now, in the order in which it should be."""
    return [debt for debt in await core.debts.read() if _is_due(core, debt)]


def _is_due(core: Core, debt: DeferredWorkRecord) -> bool:
    if debt.kind is DeferredWorkKind.DEFRAG:
        return 0 < core.options.defrag.loose_chunks <= debt.chunks
    return debt.kind is not DeferredWorkKind.ADOPT or debt.segment not in core.adopting


async def pay_step(core: Core, debt: DeferredWorkRecord) -> bool:
    """One step in one transaction, on what the stored record says, not ``debt``. Whether something is
    left."""
    with SegmentTransaction(core, _holder(debt), create=False, rolling_size=None) as txn:
        async with txn.operation():
            stored = await txn.debt(debt.kind, debt.segment)
            if stored is None:
                return False

            left = await _STEPS[debt.kind](txn, stored, core.options.maintenance_records, True)
            _write_down(txn, stored, left)
        await txn.commit()
        return left is not None


async def begin_debt(txn: SegmentTransaction, debt: DeferredWorkRecord) -> None:
    """Inside the operation that makes ``debt``: its first records at once, and what is left is written down.
    A debt of that kind that the segment has already goes on instead."""
    stored = await txn.debt(debt.kind, debt.segment)
    _write_down(
        txn, stored, await _STEPS[debt.kind](txn, stored or debt, txn.core.options.inline_records, False)
    )


async def count_loose(txn: SegmentTransaction, segment: SegmentRecord, offset: int, chunks: int) -> None:
    """``chunks`` more small chunks, from ``offset`` on, wait to be joined (rule S9). What they may be joined
    with lies at most one rolling size before them."""
    options = txn.core.options.defrag
    if not chunks or not options.loose_chunks or not options.small_max:
        return

    debt = await txn.debt(DeferredWorkKind.DEFRAG)
    debt = debt or DeferredWorkRecord(
        DeferredWorkKind.DEFRAG, txn.id, position=max(0, offset - segment.rolling_size)
    )
    txn.owe(changed(debt, chunks=debt.chunks + chunks))


def _holder(debt: DeferredWorkRecord) -> int:
    """The segment whose transaction pays it."""
    return debt.target if debt.kind is DeferredWorkKind.SPLICE else debt.segment


def _write_down(
    txn: SegmentTransaction, stored: DeferredWorkRecord | None, left: DeferredWorkRecord | None
) -> None:
    if left is not None:
        txn.owe(left)
    elif stored is not None:
        txn.metadata.drop(stored)


async def _drop_index(
    txn: SegmentTransaction, segment: int, start: int, end: int, limit: int
) -> tuple[int, int]:
    """Delete the first ``limit`` index records of ``start .. end``: (the offset below which none is left, how
    many were looked at)."""
    offsets = txn.multiples(start, end)
    stop = offsets[limit] if len(offsets) > limit else end
    await txn.drop_index(segment, start, stop)
    return stop, min(limit, len(offsets))


# --- delete -------------------------------------------------------------------------------------


async def _delete_step(
    txn: SegmentTransaction, debt: DeferredWorkRecord, limit: int, _may_copy: bool
) -> DeferredWorkRecord | None:
    name, chunks = debt.chunk, debt.chunks
    while name and limit:
        chunk = await txn.metadata.chunk(name)
        await txn.drop_chunk(chunk)
        name, chunks, limit = chunk.next_chunk, max(1, chunks - 1), limit - 1
    index_offset, _ = await _drop_index(txn, debt.segment, debt.index_offset, debt.end, limit)
    if not name and index_offset == debt.end:
        return None

    return changed(debt, chunk=name, chunks=chunks if name else 0, index_offset=index_offset)


# --- truncate -----------------------------------------------------------------------------------


async def _truncate_step(
    txn: SegmentTransaction, debt: DeferredWorkRecord, limit: int, may_copy: bool
) -> DeferredWorkRecord | None:
    """Leading chunks below the start leave the chain. Then the first one may be worth moving, which is never
    part of the operation."""
    debt, is_first_live = await _drop_leading(txn, debt, limit)
    segment = await txn.segment()
    if not is_first_live:
        return debt

    if segment.first_chunk and is_due(txn, segment, await txn.metadata.chunk(segment.first_chunk)):
        if not may_copy:
            return debt
        await relocate(txn, pass_damage=True)
    return None


async def _drop_leading(
    txn: SegmentTransaction, debt: DeferredWorkRecord, limit: int
) -> tuple[DeferredWorkRecord, bool]:
    """What is left, and whether the first chunk holds the start now, or there is none."""
    segment = await txn.segment()
    name, start, index_offset = segment.first_chunk, segment.first_chunk_start, debt.index_offset
    dropped, is_first_live = 0, False
    while limit and not is_first_live:
        index_offset, looked = await _drop_index(txn, txn.id, index_offset, start, limit)
        limit -= looked
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
    return changed(debt, index_offset=index_offset), is_first_live


# --- splice -------------------------------------------------------------------------------------


async def _splice_step(
    txn: SegmentTransaction, debt: DeferredWorkRecord, limit: int, _may_copy: bool
) -> DeferredWorkRecord | None:
    """The source's index records go, the target's appear. Where the target is gone too, its own debt covers
    what was spliced into it."""
    index_offset, looked = await _drop_index(txn, debt.segment, debt.index_offset, debt.end, limit)
    debt = changed(debt, index_offset=index_offset)
    target, end = await txn.load(debt.target), debt.offset + debt.end
    if target is None:
        debt = changed(debt, position=end, chunk="")
    else:
        debt = await _build_index(txn, debt, target, limit - looked)
    return None if (debt.index_offset, debt.position) == (debt.end, end) else debt


async def _build_index(
    txn: SegmentTransaction, debt: DeferredWorkRecord, target: SegmentRecord, limit: int
) -> DeferredWorkRecord:
    """Go on from the debt's position, chunk by chunk. Its ``chunk`` begins there, unless it was joined with
    others meanwhile."""
    end, position, name = debt.offset + debt.end, debt.position, debt.chunk
    if position < target.first_chunk_start:
        position, name = target.first_chunk_start, target.first_chunk
    while limit > 0 and txn.multiples(position, end):
        start, chunk = position, await txn.metadata.find_chunk(name) if name else None
        if chunk is None:
            start, chunk = await txn.locate(position)
        offsets = txn.multiples(position, start + chunk.length)
        taken = offsets[: max(1, limit - 1)]
        for offset in taken:
            await _put_index(txn, IndexRecord(txn.id, offset, chunk.name, start))
        limit -= 1 + len(taken)
        position, name = (
            (start + chunk.length, chunk.next_chunk)
            if len(taken) == len(offsets)
            else (offsets[len(taken)], "")
        )
    if not txn.multiples(position, end):
        position, name = end, ""
    return changed(debt, position=position, chunk=name)


async def _put_index(txn: SegmentTransaction, record: IndexRecord) -> None:
    if await txn.metadata.index(record.segment, record.offset) != record:
        txn.metadata.put(record)


# --- defrag -------------------------------------------------------------------------------------


async def _defrag_step(
    txn: SegmentTransaction, debt: DeferredWorkRecord, _limit: int, _may_copy: bool
) -> DeferredWorkRecord | None:
    segment = await txn.load(txn.id)
    if segment is None:
        return None

    step = await defrag_step(txn, debt.position, packed=segment.sealed, pass_damage=True)
    return None if step.next_offset is None else changed(debt, position=step.next_offset)


# --- adopt --------------------------------------------------------------------------------------


async def _adopt_step(
    txn: SegmentTransaction, debt: DeferredWorkRecord, limit: int, _may_copy: bool
) -> DeferredWorkRecord | None:
    """Records that were laid go, chunks before the index. Their chunks are not released: no segment has ever
    had them (rule S14)."""
    name, chunks = debt.chunk, debt.chunks
    while chunks and limit:
        chunk = await txn.metadata.chunk(name)
        txn.metadata.drop(chunk)
        name, chunks, limit = chunk.next_chunk, chunks - 1, limit - 1
    index_offset, _ = await _drop_index(txn, debt.segment, debt.index_offset, debt.end, limit)
    if not chunks and index_offset == debt.end:
        return None

    return changed(debt, chunk=name if chunks else "", chunks=chunks, index_offset=index_offset)


_STEPS: Mapping[DeferredWorkKind, Step] = {
    DeferredWorkKind.DELETE: _delete_step,
    DeferredWorkKind.TRUNCATE: _truncate_step,
    DeferredWorkKind.SPLICE: _splice_step,
    DeferredWorkKind.DEFRAG: _defrag_step,
    DeferredWorkKind.ADOPT: _adopt_step,
}
