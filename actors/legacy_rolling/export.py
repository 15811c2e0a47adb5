"""Export: the header file that lets software of the legacy layout read a segment of chunk records. No byte of
data is touched.

Owns: what can be said in that format, and the one object that says it. Does not own: the records (they are
given), nor who may write.

What the format cannot say (rule S15):

* A start inside a chunk. The header begins at the first chunk's start, and an older reader sees the bytes
  from there on (``Exported.start_offset`` tells where that is).
* An end before the file's end. Older readers take the last file's length, so a last chunk with garbage behind
  its recorded length is refused; the next flush or a defrag ends that.
* A segment that was truncated to its end and is not empty: without a chunk there is no offset. Refused.
* A segment whose name cannot be a file's. Refused.
* A seal, where the storage knows no read-only objects. Told.

Ordering: the header is created whole and conditionally; then it is made read-only if the segment is sealed.
One that is there already is left if it says the same, and else refused or, with ``replace``, appended to
where it only grew, and deleted and written again where not. Crash: the same call again, with ``replace``,
completes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import attrs

from ...storage_backends.base.chunk_storage import ChunkStorage, check_chunk_name
from ...storage_backends.base.errors import (
    ChunkExists,
    ChunkNotFound,
    ChunkReadOnly,
    DataCorruption,
    InvalidArgument,
    Unsupported,
)
from ...storage_backends.segments.records import ChunkRecord, SegmentRecord
from .header import LegacyChunk, LegacyHeader, format_header, header_name


@attrs.frozen
class Exported:
    """What an older reader will find."""

    header: str
    """The header file's name."""
    chunks: int
    length: int
    start_offset: int
    """Where the segment begins for an older reader: at its first chunk."""
    hidden_bytes: int
    """Truncated bytes that an older reader sees again."""
    sealed: bool
    """Whether an older reader finds it sealed; no where a storage knows no read-only objects."""


async def export(
    chunks: ChunkStorage,
    name: str,
    segment: SegmentRecord,
    chain: Sequence[tuple[int, ChunkRecord]],
    *,
    replace: bool = False,
    trusted: bool = False,
) -> Exported:
    """Write the header of segment ``name``. ``Unsupported``, ``InvalidArgument`` (another header is there),
    ``DataCorruption``.

    ``trusted``: do not ask for every chunk whether it is there, but for the last one's end only.
    """
    chain = [(start, record) for start, record in chain if start + record.length > segment.start_offset]
    header = _header_of(name, segment, chain)
    await _check_files(chunks, chain[-1:] if trusted else chain)
    file = header_name(name)
    was_there = await _place(chunks, file, format_header(header), replace=replace)
    sealed = await _show_seal(chunks, file, sealed=segment.sealed) if segment.sealed or was_there else False
    start = chain[0][0] if chain else 0
    return Exported(file, len(chain), segment.length, start, segment.start_offset - start, sealed)


def _header_of(name: str, segment: SegmentRecord, chain: Sequence[tuple[int, ChunkRecord]]) -> LegacyHeader:
    try:
        check_chunk_name(header_name(name))
    except InvalidArgument as error:
        raise Unsupported(f"segment {name!r} cannot be exported: no file can have its name") from error

    if segment.length and not chain:
        raise Unsupported(
            f"segment {name!r} was truncated to its end at {segment.length}: the legacy layout cannot say "
            f"that"
        )

    return LegacyHeader(
        segment.rolling_size, tuple(LegacyChunk(start, record.name) for start, record in chain)
    )


async def _check_files(chunks: ChunkStorage, chain: Sequence[tuple[int, ChunkRecord]]) -> None:
    """Older readers go by the files: all must be there, and the last one must end where its record says."""
    for place, (_, record) in enumerate(chain, 1):
        try:
            length = (await chunks.info(record.name)).length
        except ChunkNotFound as error:
            raise DataCorruption("a chunk is missing", file=record.name) from error

        if length < record.length:
            raise DataCorruption(
                f"the chunk is shorter than its {record.length} committed bytes",
                file=record.name,
                offset=length,
            )
        if place == len(chain) and length > record.length:
            raise Unsupported(
                f"the last chunk {record.name} has {length - record.length} bytes of an unfinished write "
                f"behind its end, which an older "
                f"reader would see: append something, flush, and export again"
            )


async def _show_seal(chunks: ChunkStorage, file: str, *, sealed: bool) -> bool:
    """Whether readers see a seal. A header that was there may show one of an earlier segment of the name,
    which says the same else."""
    try:
        await chunks.set_read_only(file, sealed)
    except Unsupported:
        return False
    return sealed


async def _place(chunks: ChunkStorage, file: str, content: bytes, *, replace: bool) -> bool:
    """Whether it was there already, word for word."""
    try:
        await chunks.create_with_content(file, [content])
    except ChunkExists:
        found = await chunks.read(file, 0, len(content) + 1)
        if found == content:
            return True
        if not replace:
            raise InvalidArgument(
                f"{file} is there already and says something else: replace it on purpose, or leave it"
            ) from None
        await _replace(chunks, file, found, content)
    return False


async def _replace(chunks: ChunkStorage, file: str, found: bytes, content: bytes) -> None:
    """A header that only grew is appended to, as software of the legacy layout does; else it is gone for a
    moment. So is one that is read-only: it is of an earlier segment of that name, or of a sealed one whose
    chunks were joined."""
    if found and chunks.capabilities.append and content.startswith(found):
        with suppress(ChunkReadOnly):
            await chunks.write(file, len(found), [content[len(found) :]])
            return
    await chunks.delete(file)
    await chunks.create_with_content(file, [content])
