"""Verifying a chunk: is it there, is it long enough, do its bytes match their checksums (rule S5).

Owns: the one reading of a chunk for its own sake. Does not own: which chunks, nor what a flaw means to
anybody.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from ..base.checksum import crc32c
from ..base.chunk_storage import ChunkStorage
from ..base.errors import ChunkNotFound
from .records import BLOCK, ChunkRecord

_READ_BYTES = 4 * BLOCK


@attrs.frozen
class Flaw:
    """Something about a chunk that must not be. ``offset`` is in the chunk."""

    message: str
    offset: int = 0


async def find_flaws(chunks: ChunkStorage, record: ChunkRecord, advance: Callable[[int], None]) -> list[Flaw]:
    """What is wrong with the chunk's recorded bytes, all of which are read; ``advance`` is called with the
    bytes of each step."""
    flaw = await find_missing(chunks, record)
    if flaw is not None:
        advance(record.length)
        return [flaw]

    return [
        flaw
        for start in range(0, record.length, _READ_BYTES)
        for flaw in await _check(chunks, record, start, advance)
    ]


async def find_missing(chunks: ChunkStorage, record: ChunkRecord) -> Flaw | None:
    """Whether the chunk is missing, or shorter than its record says. Nothing is read."""
    try:
        length = (await chunks.info(record.name)).length
    except ChunkNotFound:
        return Flaw(f"a chunk of {record.length} bytes is missing")

    return (
        Flaw(f"the chunk is shorter than the {record.length} bytes that were committed", length)
        if length < record.length
        else None
    )


async def _check(
    chunks: ChunkStorage, record: ChunkRecord, start: int, advance: Callable[[int], None]
) -> list[Flaw]:
    size = min(_READ_BYTES, record.length - start)
    data = await chunks.read(record.name, start, size)
    advance(size)
    if len(data) < size:
        return [
            Flaw(
                f"the chunk is shorter than the {record.length} bytes that were committed", start + len(data)
            )
        ]

    view, crcs = memoryview(data), record.crcs[start // BLOCK :]
    bad = [at for at in range(0, size, BLOCK) if crc32c(view[at : at + BLOCK]) != crcs[at // BLOCK]]
    return [Flaw("the bytes of a block do not match their checksum", start + at) for at in bad]
