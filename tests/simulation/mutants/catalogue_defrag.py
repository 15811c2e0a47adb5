"""Bugs in joining and relocating chunks, and in the deferred work that ask for it.

Left out on purpose: a tail that may still grow is joined (its segment only gets another small chunk), growth
that is not waited for, a truncation that relocates at once, and other waste: bytes stay right, and plain
tests count what they cost. A joined chunk whose name was not tracked: the next owner lists what is stored and
finds it. Sources that are not verified: damage seldom meets a chunk just before it is joined, and plain tests
put it there.
"""

from __future__ import annotations

from .mutant import Edit, Mutant, mutant

_JOINING = "storage_backends/segments/operations/join_chunks.py"
_DEFRAG = "storage_backends/segments/operations/defrag.py"
_RELOCATE = "storage_backends/segments/operations/relocate.py"
_DEFERRED_WORK = "storage_backends/segments/operations/deferred_work.py"

DEFRAG: tuple[Mutant, ...] = (
    mutant(
        "join-deletes-its-sources",
        "joined chunks are deleted before the records say so: a crash between the two leaves a segment with "
        "a hole",
        "S8, F2",
        _JOINING,
        "        await txn.drop_chunk(source.record)\n",
        "        await txn.drop_chunk(source.record)\n        await "
        "txn.core.chunks.delete(source.record.name)\n",
    ),
    mutant(
        "joined-sources-are-never-released",
        "the chunks that were joined stay in long-term storage until the next owner",
        "S8",
        _JOINING,
        "        await txn.drop_chunk(source.record)\n",
        "        txn.metadata.drop(source.record)\n",
    ),
    mutant(
        "join-in-the-wrong-order",
        "the bytes of a joined chunk are those of its sources, the last one first",
        "S8",
        _JOINING,
        "async def _make_chunk(txn: SegmentTransaction, start: int, sources: Sequence[Source]) -> "
        "ChunkRecord:\n",
        "async def _make_chunk(txn: SegmentTransaction, start: int, sources: Sequence[Source]) -> "
        "ChunkRecord:\n"
        "    sources = sources[::-1]\n",
    ),
    mutant(
        "joined-chunk-starts-too-late",
        "the last chunk is joined with those before it, and reads of the tail go to the wrong place",
        "S8",
        _JOINING,
        "last_chunk=chunk.name, last_chunk_start=start)",
        "last_chunk=chunk.name)",
    ),
    mutant(
        "join-forgets-the-chunk-before",
        "the chunk in front of a joined one still points to the first of its sources",
        "S8",
        _JOINING,
        "        txn.metadata.put(attrs.evolve(before, next_chunk=chunk.name))\n",
        "        txn.metadata.put(before)\n",
    ),
    mutant(
        "join-forgets-what-follows",
        "the chain of a segment ends with a chunk that was joined in its middle",
        "S8",
        _JOINING,
        "next_chunk=last.record.next_chunk)",
        'next_chunk="")',
    ),
    Mutant(
        "join-leaves-the-index",
        "index records go on naming chunks that were joined, and are gone: a read that begins there finds "
        "damage where there is none",
        "S8",
        (
            Edit(
                _JOINING, "    await txn.drop_index(txn.id, start - first.skip, start + chunk.length)\n", ""
            ),
            Edit(_JOINING, "    txn.grow_index(chunk.name, start, start, start + chunk.length)\n", ""),
        ),
    ),
    mutant(
        "relocation-keeps-the-old-start",
        "the live end of a truncated chunk moves, and the segment goes on counting from where the chunk "
        "began",
        "S10",
        _JOINING,
        "first_chunk=chunk.name, first_chunk_start=start)",
        "first_chunk=chunk.name)",
    ),
    mutant(
        "relocation-moves-the-dead-part",
        "what was truncated is moved to the new chunk, in the place of what was not",
        "S10",
        _RELOCATE,
        "segment.start_offset, [Source(first, segment.start_offset - segment.first_chunk_start)])",
        "segment.start_offset, [Source(first, first.length - segment.start_offset + "
        "segment.first_chunk_start)])",
    ),
    mutant(
        "defrag-goes-round-in-circles",
        "the deferred work of small chunks begins anew when it is done: an idle store is never quiet",
        "S9, F5",
        _DEFERRED_WORK,
        "    return None if step.next_offset is None else",
        "    return attrs.evolve(work, position=0) if step.next_offset is None else",
    ),
    mutant(
        "defrag-never-comes-to-its-end",
        "a run of small chunks is looked at again and again, and never joined",
        "S9",
        _DEFRAG,
        "    run = runs[0]\n",
        "    return DefragStep(window[0][0], None)\n    run = runs[0]\n",
    ),
)
