"""Export of segments to the legacy layout: a header file over chunks that are already there. No byte of data
is touched.

What the format cannot express (rule S15):

* A start inside a chunk. The header begins at the first chunk's start, and a legacy reader sees the bytes
  from there on (``Exported.start_offset``).
* An end before the file's end. Legacy readers take the last file's length, so a last chunk with bytes of an
  unfinished write after its recorded length is refused. The next flush or a defrag ends that.
* A segment that was truncated to its end and is not empty: without a chunk there is no offset. Refused.
* A segment whose name cannot be a file's. Refused.
* A seal, where the storage has no read-only objects. ``Exported.sealed`` is False then.

Ordering: the header is created whole and conditionally; then it is made read-only if the segment is sealed.
An existing header with the same content is left alone. With ``replace``, one that only grew is appended to,
and any other is deleted and written again; without it, it is refused. Crash: the same call again, with
``replace``, completes it."""

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
    MetadataConflict,
    SegmentNotFound,
    Unsupported,
    WrongSegmentKind,
)
from ...storage_backends.segments.records import ChunkRecord, ImportedRecord, SegmentRecord, imported_key
from .container_access import ContainerAccess
from .header import LegacyChunk, LegacyHeader, format_header, header_name
from .importing import OWN_CHUNKS


@attrs.frozen
class Exported:
    """What a legacy reader will find."""

    header: str
    """The header file's name."""
    chunks: int
    length: int
    start_offset: int
    """Where the segment begins for a legacy reader: at its first chunk."""
    hidden_bytes: int
    """Truncated bytes that a legacy reader sees again."""
    sealed: bool
    """Whether a legacy reader finds it sealed; False where the storage has no read-only objects."""


async def export_segment(container: ContainerAccess, name: str, *, replace: bool) -> Exported:
    """Write the header of what is flushed of ``name``. Raises ``SegmentNotFound``, ``WrongSegmentKind``,
    ``Unsupported``, ``InvalidArgument``."""
    if name.startswith(OWN_CHUNKS):
        raise InvalidArgument(
            f"{name!r} cannot be exported: names below {OWN_CHUNKS!r} are those of this store's chunks"
        )
    segment = await container.cold.find(name)
    if segment is None:
        raise SegmentNotFound(f"no segment {name!r}", segment=name)

    if segment.is_table:
        raise WrongSegmentKind.of(name, is_table=True)

    await container.claim_storage()
    await container.wait_durable()
    if not segment.has_record:
        raise Unsupported(f"nothing of {name!r} is in long-term storage: append to it, flush, then export it")
    # S14: before the header exists, which would bring the segment back after its deletion.
    await mark_imported(container, name, segment.sid)
    # The record of it too, before the header.
    await container.wait_durable()
    storage = container.storage
    record = await storage.info(segment.sid)
    return await export_header(
        container.chunks, name, record, await storage.chunks(segment.sid), replace=replace
    )


async def mark_imported(container: ContainerAccess, name: str, sid: int) -> None:
    """Record that ``name`` is never searched for in the legacy layout again (rule S14). It comes before this
    store's first header for it, which would otherwise bring a deleted segment back. A record that was there
    is durable after ``wait_durable``."""
    key = imported_key(name)
    if await container.metadata.get(key) is not None:
        return

    try:
        await container.metadata.commit({key: 0}, {key: ImportedRecord(sid).encode()})
    except MetadataConflict:
        await container.wait_durable()  # the other commit of the record may not be durable yet


async def export_header(
    chunks: ChunkStorage,
    name: str,
    segment: SegmentRecord,
    chain: Sequence[tuple[int, ChunkRecord]],
    *,
    replace: bool = False,
    trusted: bool = False,
) -> Exported:
    """Write the header of segment ``name``. Raises ``Unsupported``, ``InvalidArgument`` (another header is
    there), ``DataCorruption``.

    ``trusted``: check the last chunk's end only, and not whether every chunk is there.
    """
    chain = [(start, record) for start, record in chain if start + record.length > segment.start_offset]
    header = _header_of(name, segment, chain)
    await _check_files(chunks, chain[-1:] if trusted else chain)
    file = header_name(name)
    was_there = await _put(chunks, file, format_header(header), replace=replace)
    # Also if it is not sealed: a header that was there may be read-only from an earlier segment.
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
            f"segment {name!r} was truncated to its end at {segment.length}: the legacy layout cannot "
            f"express that"
        )

    return LegacyHeader(
        segment.rolling_size, tuple(LegacyChunk(start, record.name) for start, record in chain)
    )


async def _check_files(chunks: ChunkStorage, chain: Sequence[tuple[int, ChunkRecord]]) -> None:
    """Legacy readers go by the files: all must be there, and the last one must end where its record does."""
    for number, (_, record) in enumerate(chain, 1):
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
        if number == len(chain) and length > record.length:
            raise Unsupported(
                f"the last chunk {record.name} has {length - record.length} bytes of an unfinished write "
                f"behind its end, which a legacy reader would see: append something, flush, and export again"
            )


async def _show_seal(chunks: ChunkStorage, file: str, *, sealed: bool) -> bool:
    """Make the header read-only or not; returns whether readers see a seal. A header that was there may have
    been sealed with an earlier segment of the name."""
    try:
        await chunks.set_read_only(file, sealed)
    except Unsupported:
        return False
    return sealed


async def _put(chunks: ChunkStorage, file: str, content: bytes, *, replace: bool) -> bool:
    """Create the file; returns True if it was there already with this content."""
    try:
        await chunks.create_with_content(file, [content])
    except ChunkExists:
        # One byte more, so that a longer header is not taken for this one.
        found = await chunks.read(file, 0, len(content) + 1)
        if found == content:
            return True
        if not replace:
            raise InvalidArgument(
                f"{file} exists with other content: replace it on purpose, or leave it"
            ) from None
        await _replace(chunks, file, found, content)
    return False


async def _replace(chunks: ChunkStorage, file: str, found: bytes, content: bytes) -> None:
    """A header that only grew is appended to, as legacy software does. Any other is deleted first, and so is
    a read-only one: it is of an earlier segment of that name, or of a sealed one whose chunks were joined."""
    if found and chunks.capabilities.append and content.startswith(found):
        with suppress(ChunkReadOnly):
            await chunks.write(file, len(found), [content[len(found) :]])
            return
    await chunks.delete(file)
    await chunks.create_with_content(file, [content])
