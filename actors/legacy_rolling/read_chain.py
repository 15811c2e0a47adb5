"""Import: a segment of the legacy layout becomes chunk records. Its files stay where they are.

Owns: the one reading of all its bytes, which gives every block its checksum (rule S5). Does not own: the
commit, which makes the records and the container's segment at once, nor where the files are (``find.py``).

An imported file is a chunk like any other, but that nobody appends to it: only what an instance created
itself may grow (rule S3). It is deleted when the collector is told of it, never by the import. Where appends
began is not known for it: its record keeps no starts. Cancellation and crash: nothing was changed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from ...storage_backends.base.chunk_storage import ChunkStorage
from ...storage_backends.base.errors import ChunkNotFound, DataCorruption
from ...storage_backends.segments.chain import Chain
from ...storage_backends.segments.records import BLOCK, ChunkRecord
from ...storage_backends.segments.records.chunk import extended_crcs
from .find import FoundChunk, LegacySegment

_READ_BYTES = 4 * BLOCK
Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes found to do) since the last call."""


def no_progress(done: int, found: int) -> None:
    """Nobody watches."""


async def read_chain(
    chunks: ChunkStorage, found: LegacySegment, rolling_size: int, progress: Progress = no_progress
) -> Chain:
    """The segment's chunks with their checksums; reads every byte. ``rolling_size`` counts where the legacy
    layout says none."""
    progress(0, found.stored_bytes)
    records = [(each.start, await _read_record(chunks, each, progress)) for each in found.chunks]
    return Chain(
        found.length, found.start_offset, found.sealed, found.max_size or rolling_size, tuple(records)
    )


async def _read_record(chunks: ChunkStorage, found: FoundChunk, progress: Progress) -> ChunkRecord:
    crcs: list[int] = []
    for offset in range(0, found.length, _READ_BYTES):
        size = min(_READ_BYTES, found.length - offset)
        data = await _read(chunks, found.name, offset, size)
        crcs += extended_crcs((), 0, [data])[0]
        progress(size, 0)
    return ChunkRecord(found.name, found.length, packed_crcs=struct.pack(f">{len(crcs)}I", *crcs))


async def _read(chunks: ChunkStorage, name: str, offset: int, size: int) -> bytes:
    try:
        data = await chunks.read(name, offset, size)
    except ChunkNotFound as error:
        raise DataCorruption("the data file vanished while it was imported", file=name) from error

    if len(data) != size:
        raise DataCorruption(
            "the data file became shorter while it was imported", file=name, offset=offset + len(data)
        )

    return data
