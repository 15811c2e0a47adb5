"""Verify a chunk: it exists, is long enough, and its bytes match their checksums (rule S5)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import attrs

from ..base.checksum import crc32c
from ..base.chunk_storage import ChunkStorage
from ..base.errors import ChunkNotFound
from ..base.parallel import in_parallel
from ..base.values import Value
from .records import BLOCK, ChunkRecord

_READS = 16
"""Reads of one chunk that are begun together."""
_AT_ONCE = 2
"""One read is checked during the next."""
_READ_BYTES = 4 * BLOCK


@attrs.frozen(eq=False, repr=False)
class Flaw(Value):
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

    flaws: list[Flaw] = []
    for first in range(0, record.length, _READS * _READ_BYTES):
        starts = range(first, min(first + _READS * _READ_BYTES, record.length), _READ_BYTES)
        checks = [partial(_check, chunks, record, start, advance) for start in starts]
        for found in await in_parallel(_AT_ONCE, checks):
            flaws += found
    return flaws


async def find_missing(chunks: ChunkStorage, record: ChunkRecord) -> Flaw | None:
    """Return a flaw if the chunk is missing or shorter than its recorded length. Reads no bytes."""
    try:
        length = (await chunks.info(record.name)).length
    except ChunkNotFound as error:
        return Flaw(f"a chunk of {record.length} B is missing: {error}")

    return flaw_of_length(record, length)


def flaw_of_length(record: ChunkRecord, length: int | None) -> Flaw | None:
    """The same of a chunk that was listed with ``length``; None if it was not."""
    if length is None:
        return Flaw(f"a chunk of {record.length} B is missing")

    # Longer is sound: a flush writes before it commits.
    if length < record.length:
        return Flaw(f"the chunk is shorter than the {record.length} bytes that were committed", length)

    return None


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

    bad = bad_blocks(memoryview(data), record.crcs[start // BLOCK :])
    return [Flaw("the bytes of a block do not match their checksum", start + at) for at in bad]


def bad_blocks(data: memoryview, crcs: Sequence[int]) -> Iterator[int]:
    """Where in ``data``, which is whole blocks, a block does not match its checksum; ``crcs`` may be more
    than there are blocks."""
    for at, expected in zip(range(0, len(data), BLOCK), crcs, strict=False):
        if crc32c(data[at : at + BLOCK]) != expected:
            yield at
