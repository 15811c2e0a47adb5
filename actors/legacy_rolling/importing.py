"""Import of legacy segments: on demand, and at the first access to a name that the container does not know.

An import reads all bytes of the segment once, and each block gets its checksum (rule S5). The commit makes
the records and the container's segment in one step.

At first access a missing name costs two requests to long-term storage before its caller gets
``SegmentNotFound``. An import claims the segment's files (``file_claims.py``).
There is one import of a name at a time, and a name is imported once in a container's life (rule S14).

The files stay where they are, and become chunks like any other except that nothing is appended to them (rule
S3). The collector deletes them once their segment does not need them; the import never does. Names below
``containers/`` are this store's own chunks, and a header that lists such chunks was exported by it: neither
is imported. What lies below ``_system/`` is the store's own too.

Nobody may change the files meanwhile. Cancellation and crash: the container's import happened, or nothing
that a reader can see; the next caller starts again."""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress

from ...storage_backends.base.chunk_storage import ChunkStorage
from ...storage_backends.base.errors import (
    ChunkNotFound,
    DataCorruption,
    InvalidArgument,
    SegmentExists,
    SegmentNotFound,
    TierlogError,
)
from ...storage_backends.base.names import SYSTEM_SCOPE
from ...storage_backends.segments.chain import Chain
from ...storage_backends.segments.records import BLOCK, ChunkRecord, imported_key
from ...storage_backends.segments.records.chunk import extended_crcs
from ..telemetry.logging import get_logger
from .container_access import ContainerAccess
from .file_claims import claim_files
from .find import FoundChunk, LegacySegment, find

_log = get_logger("legacy")

OWN_CHUNKS = "containers/"
"""Where this package keeps its own chunks."""
_READ_BYTES = 4 * BLOCK
Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes found to do) since the last call."""


def no_progress(done: int, found: int) -> None:
    """Reports to nobody."""


async def import_segment(container: ContainerAccess, name: str, progress: Progress = no_progress) -> int:
    """Import ``name`` on demand; returns its length in bytes. Raises ``SegmentNotFound``, ``SegmentExists``,
    ``InvalidArgument``, ``DataCorruption``."""
    try:
        async with container.imports.exclusive(name):
            return await _import(container, name, progress)
    except (SegmentExists, SegmentNotFound, InvalidArgument, DataCorruption):
        await (
            container.wait_durable()
        )  # a fenced owner must not refuse by what it knew, or by files deleted since
        raise


async def import_missing(container: ContainerAccess, name: str) -> None:
    """Import ``name``, which the container does not know, if there are files of it that were not imported
    yet. Raises why files that are there cannot be imported."""
    if await container.metadata.get(imported_key(name)) is not None:
        return

    with suppress(SegmentNotFound, SegmentExists):  # it may have come into being meanwhile
        async with container.imports.exclusive(name):
            if await container.metadata.get(imported_key(name)) is not None:
                return  # another caller has just imported it

            try:
                await _import(container, name, no_progress)
            except (SegmentNotFound, SegmentExists):
                raise
            except TierlogError as error:
                _log.warning("import_failed", segment=name, error=str(error))
                await container.wait_durable()
                raise


async def _import(container: ContainerAccess, name: str, progress: Progress) -> int:
    await container.imports.check_free(name)  # the one before in line may have imported it
    found = await _find(container.chunks, name)
    # Before the reading too: a file that is released now may be gone, with its record, when the import is
    # decided.
    await container.imports.check_free(name, (chunk.name for chunk in found.chunks))
    # Before anything is claimed: a damaged file refuses the import and leaves no trace.
    chain = await read_chain(container.chunks, found, container.rolling_size, progress)
    # W8: the claims of the files are the first thing that this import writes to long-term storage.
    await container.claim_storage()
    await claim_files(container.chunks, name, (chunk.name for _, chunk in chain.chunks))
    await container.imports.import_chain(name, chain)
    _log.info("imported", segment=name, length=found.length, chunks=len(found.chunks))
    return found.length


async def _find(chunks: ChunkStorage, name: str) -> LegacySegment:
    found = None if name.startswith(OWN_CHUNKS) else await find(chunks, name)
    if found is None or any(chunk.name.startswith((OWN_CHUNKS, SYSTEM_SCOPE)) for chunk in found.chunks):
        raise SegmentNotFound(
            f"the legacy layout has no segment {name!r} that could be imported", segment=name
        )

    return found


# --- reading the files --------------------------------------------------------------------------


async def read_chain(
    chunks: ChunkStorage, found: LegacySegment, rolling_size: int, progress: Progress = no_progress
) -> Chain:
    """The segment's chunks with their checksums; reads every byte. ``rolling_size`` counts where the header
    gives none."""
    progress(0, found.stored_bytes)
    records = [(each.start, await _read_record(chunks, each, progress)) for each in found.chunks]
    return Chain(
        found.length, found.start_offset, found.sealed, found.max_size or rolling_size, tuple(records)
    )


async def _read_record(chunks: ChunkStorage, found: FoundChunk, progress: Progress) -> ChunkRecord:
    """The file's record. It has no append starts: where appends began is not known."""
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
