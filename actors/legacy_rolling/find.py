"""Finds a legacy segment in chunk storage: its header and its data files, measured. It reads headers, each
twice, and asks for lengths; no byte of data is read.

A chunk ends where the next one starts; the last one ends with its file. Bytes of a file behind its chunk's
end do not count. Data files that are missing at the front were truncated away, and the segment begins at the
first one that is there. One that is missing or too short further on is ``DataCorruption``. The segment is
sealed if its header file is read-only, or its only file if it has no header. Nobody may change the files
meanwhile: stop the legacy software first."""

from __future__ import annotations

import attrs

from ...storage_backends.base.chunk_storage import ChunkInfo, ChunkStorage, check_chunk_name
from ...storage_backends.base.errors import ChunkNotFound, DataCorruption, InvalidArgument
from .header import HEADER_SUFFIX, LegacyChunk, LegacyHeader, header_name, is_legacy_file, parse_header

_READ_BYTES = 4 << 20
_HEADER_BYTES_MAX = 64 << 20
"""The largest header that is read, in bytes: that of some 200,000 data files with the longest names."""
_LENGTH_MAX = (1 << 63) - 1


@attrs.frozen
class FoundChunk:
    """A data file and its range of the segment; ``length`` is at least 1."""

    name: str
    start: int
    length: int


@attrs.frozen
class LegacySegment:
    """A segment according to its files."""

    name: str
    length: int
    start_offset: int
    sealed: bool
    max_size: int | None
    """The size in bytes at which its files roll; None without a header."""
    chunks: tuple[FoundChunk, ...]
    """The chunks that hold bytes, in order, without gaps."""

    @property
    def stored_bytes(self) -> int:
        return self.length - self.start_offset


async def find(chunks: ChunkStorage, name: str) -> LegacySegment | None:
    """The segment ``name``, or None if the legacy layout has none. Raises ``DataCorruption`` (file, offset)
    if its files contradict each other."""
    try:
        check_chunk_name(header_name(name))
    except InvalidArgument:
        return None  # no file can have that name

    found = await _info(chunks, header_name(name))
    if found is None:
        return await _find_plain(chunks, name)

    data = await _read(chunks, found)
    # It has no checksum, and with another number in it a part of the segment would be missing.
    if await _read(chunks, found) != data:
        raise DataCorruption("two reads of the header differ", file=found.name)
    header = parse_header(data, found.name)
    return None if header is None else await _measure(chunks, name, found, header)


async def list_segments(chunks: ChunkStorage, prefix: str = "") -> list[str]:
    """The names of the segments that begin with ``prefix`` and have a header, sorted. Segments without a
    header look like other files."""
    # An empty header is a creation that was interrupted: there is no segment.
    names = [
        info.name async for info in chunks.list(prefix) if info.name.endswith(HEADER_SUFFIX) and info.length
    ]
    return sorted(name.removesuffix(HEADER_SUFFIX) for name in names)


async def _info(chunks: ChunkStorage, name: str) -> ChunkInfo | None:
    try:
        return await chunks.info(name)
    except ChunkNotFound:
        return None


async def _read(chunks: ChunkStorage, info: ChunkInfo) -> bytes:
    if info.length > _HEADER_BYTES_MAX:
        raise DataCorruption(
            f"a header of {info.length} bytes; {_HEADER_BYTES_MAX} are the most, so it is not a header",
            file=info.name,
            offset=_HEADER_BYTES_MAX,
        )

    pieces = [
        await chunks.read(info.name, at, min(_READ_BYTES, info.length - at))
        for at in range(0, info.length, _READ_BYTES)
    ]
    data = b"".join(pieces)
    if len(data) != info.length:
        raise DataCorruption("the header became shorter while it was read", file=info.name, offset=len(data))

    return data


async def _find_plain(chunks: ChunkStorage, name: str) -> LegacySegment | None:
    """A segment without a header: one file of its name."""
    found = None if is_legacy_file(name) else await _info(chunks, name)
    if found is None:
        return None

    inside = (FoundChunk(name, 0, found.length),) if found.length else ()
    return LegacySegment(name, found.length, 0, found.read_only, None, inside)


async def _measure(chunks: ChunkStorage, name: str, info: ChunkInfo, header: LegacyHeader) -> LegacySegment:
    _check_names(header, info.name)
    # A header has no lengths: a file ends where the next one starts, and the last one where the file itself
    # ends.
    ends = [*(chunk.start for chunk in header.chunks), None][1:]
    found: list[FoundChunk] = []
    position: int | None = None
    """Where the next file must start; None while all were truncated away."""
    for chunk, end in zip(header.chunks, ends, strict=True):
        measured = await _measure_chunk(chunks, chunk, end)
        if measured is None:
            # Missing at the front means truncated away. A missing file of no bytes leaves no gap.
            if position is not None and end != position:
                raise DataCorruption(f"a data file of segment {name!r} is missing", file=chunk.name)
            continue

        position = measured.start + measured.length
        if measured.length:
            found.append(measured)
    if header.chunks and position is None:
        raise DataCorruption(f"all data files of segment {name!r} are missing", file=header.chunks[-1].name)

    # A header without data files is an empty segment.
    length = position or 0
    if length > _LENGTH_MAX:
        raise DataCorruption(f"segment {name!r} would be {length} bytes long", file=info.name)
    return LegacySegment(
        name, length, found[0].start if found else length, info.read_only, header.max_size, tuple(found)
    )


async def _measure_chunk(chunks: ChunkStorage, chunk: LegacyChunk, end: int | None) -> FoundChunk | None:
    """The file's part in the segment, up to ``end`` or to its own end; None if there is no such file."""
    info = await _info(chunks, chunk.name)
    if info is None:
        return None

    length = info.length if end is None else end - chunk.start
    if info.length < length:
        raise DataCorruption(
            f"the data file is shorter than the {length} bytes of its range",
            file=chunk.name,
            offset=info.length,
        )

    return FoundChunk(chunk.name, chunk.start, length)


def _check_names(header: LegacyHeader, file: str) -> None:
    """A header must name valid chunks, each once: a name twice would make the chain a cycle."""
    seen: set[str] = set()
    for name in (chunk.name for chunk in header.chunks):
        try:
            check_chunk_name(name)
        except InvalidArgument as error:
            raise DataCorruption(
                f"the header names {name[:80]!r}, which cannot be a file here", file=file
            ) from error
        if name in seen:
            raise DataCorruption(f"the header names {name} twice", file=file)
        seen.add(name)
