"""Defrag: adjacent small chunks become one, a run at a time (rules S8, S9).

Owns: the walk over a segment's chunks, and which of them a plan may see. Does not own: the plan
(``defrag_rules.py``) nor the joining (``joining.py``). A chunk that this owner may still append to is never
joined, unless the segment is sealed: its next write would begin another small chunk.

One step looks at a bounded window of chunks (``maintenance_records``) and joins at most one run, in one
transaction; the offset that it gives back is where the next step goes on, also after a restart. So a defrag
can be given up between any two steps, and costs no more for it. Of more chunks in a row than a window holds,
some joins across two windows may be missed until a later pass.

Ordering, cancellation and crash: as in ``joining.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from ...base.errors import DataCorruption
from ..core import Core
from ..defrag_rules import Run, plan_packed, plan_tiers
from ..records import ChunkRecord, SegmentRecord
from ..segment_transaction import SegmentTransaction
from .join_chunks import Source, replace


@attrs.frozen
class DefragStep:
    next_offset: int | None
    """Where the next step begins, as an offset of the segment; None when there is nothing left to look at."""
    run: Run | None
    """What was joined, if anything; its places count from the step's first chunk."""


@attrs.frozen
class DefragResult:
    """What defragmenting a segment did, in chunks and bytes."""

    joined: int
    """Chunks that were replaced."""
    made: int
    """Chunks that took their places."""
    copied: int
    """Bytes of the new chunks."""


async def defrag_segment(core: Core, segment: int) -> DefragResult:
    """Pack a whole segment, pass by pass, until a pass finds nothing. Each step is a transaction of its
    own."""
    result = DefragResult(0, 0, 0)
    while True:
        before, step = result.made, DefragStep(0, None)
        while step.next_offset is not None:
            step = await _pack(core, segment, step.next_offset)
            if step.run:
                result = DefragResult(
                    result.joined + step.run.chunks, result.made + 1, result.copied + step.run.length
                )
        if result.made == before:
            return result


async def _pack(core: Core, segment: int, offset: int) -> DefragStep:
    with SegmentTransaction(core, segment, create=False, rolling_size=None) as txn:
        async with txn.operation():
            step = await defrag_step(txn, offset, packed=True)
        if step.run:
            await txn.commit()
        return step


async def defrag_step(
    txn: SegmentTransaction, offset: int, *, packed: bool, pass_damage: bool = False
) -> DefragStep:
    """Look at the chunks from ``offset`` on, and join the first run that is worth it.

    ``pass_damage``: a run with a damaged chunk is left as it is and passed, for those who would only meet it
    again and again.
    """
    segment = await txn.segment()
    offset = max(offset, segment.start_offset)
    window = await _window(txn, segment, offset) if offset < segment.length else []
    if not window:
        return DefragStep(None, None)

    lengths = [chunk.length for _, chunk in window]
    plan = plan_packed if packed else plan_tiers
    runs = plan(lengths, txn.core.options.defrag, segment.rolling_size)
    if not runs:
        is_last = _end(window) >= segment.length or len(window) < txn.core.options.maintenance_records
        return DefragStep(None if is_last else window[len(window) // 2][0], None)

    run = runs[0]
    chunks = window[run.first : run.end]
    try:
        await _join(txn, segment, chunks)
    except DataCorruption:
        if not pass_damage:
            raise
        txn.core.joins_refused += 1
        return DefragStep(_end(chunks), None)

    # What was packed is not looked at again in this pass; in tiers it may grow further with what follows.
    return DefragStep(_end(chunks) if packed else window[0][0], run)


async def defrag_from(txn: SegmentTransaction, offset: int) -> bool:
    """Some steps from ``offset`` on inside one transaction, as of a segment that grows. Whether they came to
    the end."""
    step = DefragStep(offset, None)
    for _ in range(txn.core.options.inline_records):
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
        before = await txn.metadata.chunk(found.name)
    await replace(txn, segment, before, start, [Source(chunk) for _, chunk in chunks])
    txn.core.chunks_joined += len(chunks)


async def _window(
    txn: SegmentTransaction, segment: SegmentRecord, offset: int
) -> list[tuple[int, ChunkRecord]]:
    """(start, record) of a bounded number of chunks from the one at ``offset`` on, without a tail that may
    still grow."""
    found: list[tuple[int, ChunkRecord]] = []
    start, located = await txn.locate(offset)
    name = located.name
    while name and len(found) < txn.core.options.maintenance_records:
        chunk = await txn.metadata.chunk(name)
        if not chunk.next_chunk and not segment.sealed and txn.room(segment, chunk):
            break
        found.append((start, chunk))
        start, name = start + chunk.length, chunk.next_chunk
    return found


def _end(chunks: Sequence[tuple[int, ChunkRecord]]) -> int:
    start, chunk = chunks[-1]
    return start + chunk.length
