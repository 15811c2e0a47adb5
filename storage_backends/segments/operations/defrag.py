"""Defrag: adjacent small chunks become one, one run at a time; and relocation: the live end of a mostly
truncated first chunk moves to a new chunk (rules S8, S9, S10).

``defrag_rules.py`` plans, ``join_chunks.py`` copies. A chunk that this owner may still append to is left
alone, unless the segment is sealed: otherwise its next write would begin another small chunk.

One step of a defrag reads a bounded window of chunks (``maintenance_records``) and joins at most one run, in
one transaction. The offset that it returns is where the next step continues, also after a restart. If a
segment has more small chunks in a row than a window holds, some joins across two windows wait for a later
pass.

Relocation is never part of a truncation, which changes records only: it follows as deferred work, or on
request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import anyio.lowlevel
import attrs

from ...base.errors import DataCorruption
from ..context import StorageContext
from ..defrag_rules import Run, plan_packed, plan_tiers, relocates
from ..records import ChunkRecord, SegmentRecord
from ..segment_transaction import SegmentTransaction
from .inspect import info
from .join_chunks import Source, replace

_RECORDS_AT_ONCE = 64


@attrs.frozen(eq=False, repr=False)
class DefragStep:
    next_offset: int | None
    """The segment offset at which the next step begins; None at the end."""
    run: Run | None
    """What was joined, if anything, counted from the step's first chunk."""


@attrs.frozen(eq=False, repr=False)
class DefragResult:
    """What defragmenting a segment did, in chunks and bytes."""

    joined: int
    """Chunks that were replaced."""
    made: int
    """Chunks that replaced them."""
    copied: int
    """Bytes of the new chunks."""


async def defrag_segment(
    context: StorageContext, segment: int, claim: Callable[[], Awaitable[None]]
) -> DefragResult:
    """Pack a whole segment, pass by pass, until a pass finds nothing. Each step is its own transaction, so
    that a flush waits for one step at most; what is flushed meanwhile begins no step, or it might not end.
    ``claim()`` comes before each step."""
    result = DefragResult(0, 0, 0)
    end = (await info(context, segment)).length
    while True:
        before, step = result.made, DefragStep(0, None)
        while step.next_offset is not None and step.next_offset <= end:
            await claim()
            step = await _pack(context, segment, step.next_offset)
            if step.run:
                result = DefragResult(
                    result.joined + step.run.chunks, result.made + 1, result.copied + step.run.length
                )
        if result.made == before:
            return result


async def _pack(context: StorageContext, segment: int, offset: int) -> DefragStep:
    with SegmentTransaction(context, segment, create=False, rolling_size=None) as txn:
        async with txn.operation():
            step = await defrag_step(txn, offset, packed=True)
        if step.run:
            await txn.commit()
        return step


async def defrag_step(
    txn: SegmentTransaction, offset: int, *, packed: bool, pass_damage: bool = False
) -> DefragStep:
    """Join the first worthwhile run of chunks from ``offset`` on.

    ``pass_damage``: skip a run with a damaged chunk instead of raising, for callers that would meet it again
    and again.
    """
    segment = await txn.segment()
    offset = max(offset, segment.start_offset)
    window = await _window(txn, segment, offset) if offset < segment.length else []
    if not window:
        return DefragStep(None, None)

    lengths = [chunk.length for _, chunk in window]
    plan = plan_packed if packed else plan_tiers
    runs = plan(lengths, txn.context.options.defrag, segment.rolling_size)
    if not runs:
        is_last = _end(window) >= segment.length or len(window) < txn.context.options.maintenance_records
        # The next window overlaps half of this one, so that runs across its end are found.
        return DefragStep(None if is_last else window[len(window) // 2][0], None)

    run = runs[0]
    chunks = window[run.first : run.end]
    try:
        await _join(txn, segment, chunks)
    except DataCorruption:
        if not pass_damage:
            raise
        txn.context.joins_refused += 1
        return DefragStep(_end(chunks), None)

    # A packed chunk is not examined again in this pass; in tiers it may grow further with what follows.
    return DefragStep(_end(chunks) if packed else window[0][0], run)


async def defrag_from(txn: SegmentTransaction, offset: int) -> bool:
    """A bounded number of steps from ``offset`` on inside one transaction, for a segment that grows. Returns
    whether they reached the end."""
    step = DefragStep(offset, None)
    for _ in range(txn.context.options.inline_records):
        if step.next_offset is None:
            break
        step = await defrag_step(txn, step.next_offset, packed=False, pass_damage=True)
    return step.next_offset is None


async def _join(
    txn: SegmentTransaction, segment: SegmentRecord, chunks: Sequence[tuple[int, ChunkRecord]]
) -> None:
    start = chunks[0][0]
    before = None
    if start > segment.first_chunk_start:
        _, found = await txn.locate(start - 1)
        # Read through the transaction, which needs its version to change its link.
        before = await txn.metadata.chunk(found.name)
    await replace(txn, segment, before, start, [Source(chunk) for _, chunk in chunks])
    txn.context.chunks_joined += len(chunks)


async def _window(
    txn: SegmentTransaction, segment: SegmentRecord, offset: int
) -> list[tuple[int, ChunkRecord]]:
    """(start, record) of a bounded number of chunks from the one at ``offset`` on, without a last chunk that
    may still grow."""
    found: list[tuple[int, ChunkRecord]] = []
    start, located = await txn.locate(offset)
    name = located.name
    while name and len(found) < txn.context.options.maintenance_records:
        chunk = await txn.metadata.chunk(name)
        if not chunk.next_chunk and not segment.sealed and txn.room(segment, chunk):
            break
        found.append((start, chunk))
        start, name = start + chunk.length, chunk.next_chunk
        # Records in memory are read without a turn of the event loop, and then take 10 µs each.
        if len(found) % _RECORDS_AT_ONCE == 0:
            await anyio.lowlevel.checkpoint()
    return found


def _end(chunks: Sequence[tuple[int, ChunkRecord]]) -> int:
    start, chunk = chunks[-1]
    return start + chunk.length


# --- relocation -----------------------------------------------------------------------------------


def relocation_is_due(txn: SegmentTransaction, segment: SegmentRecord, first: ChunkRecord) -> bool:
    """Whether the segment's first chunk is worth relocating now."""
    dead = segment.start_offset - segment.first_chunk_start
    may_grow = not first.next_chunk and not segment.sealed and txn.room(segment, first) > 0
    return relocates(first.length, dead, txn.context.options.defrag) and not may_grow


async def relocate(txn: SegmentTransaction, *, pass_damage: bool = False) -> bool:
    """Copy the live end of the first chunk to a new one, if that is worthwhile. Returns whether it did.
    ``pass_damage``: leave a damaged chunk without raising."""
    segment = await txn.segment()
    if not segment.first_chunk:
        return False

    first = await txn.metadata.chunk(segment.first_chunk)
    if not relocation_is_due(txn, segment, first):
        return False

    try:
        await replace(
            txn,
            segment,
            None,
            segment.start_offset,
            [Source(first, segment.start_offset - segment.first_chunk_start)],
        )
    except DataCorruption:
        if not pass_damage:
            raise
        txn.context.joins_refused += 1
        return False

    txn.context.chunks_relocated += 1
    return True
