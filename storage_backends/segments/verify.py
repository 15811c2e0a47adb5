"""Verify a chunk: it exists, is long enough, and its bytes match their checksums (rule S5)."""

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
    """What is wrong with a chunk, and at which offset in it."""

    message: str
    offset: int = 0


async def find_flaws(chunks: ChunkStorage, record: ChunkRecord, advance: Callable[[int], None]) -> list[Flaw]:
    """Read all recorded bytes of the chunk and return what is wrong with them. ``advance`` is called with the
    number of bytes of each step."""
    # First: the reads below would raise for a missing chunk, and report each range of a short one.
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
    """Return a flaw if the chunk is missing or shorter than its recorded length. Reads no bytes."""
    try:
        length = (await chunks.info(record.name)).length
    except ChunkNotFound as error:
        return Flaw(f"a chunk of {record.length} B is missing: {error}")

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
