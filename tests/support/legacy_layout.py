"""Segments of the legacy layout for tests: their files in a chunk storage, written as its software wrote
them."""

from __future__ import annotations

from collections.abc import Sequence

from simulation.legacy import data_name

from tierlog.actors.legacy_rolling.header import (
    LegacyChunk,
    LegacyHeader,
    format_header,
    header_name,
)
from tierlog.storage_backends.base.chunk_storage import ChunkStorage


async def write_legacy(
    chunks: ChunkStorage,
    name: str,
    *parts: bytes,
    max_size: int = 1 << 20,
    start: int = 0,
    sealed: bool = False,
) -> None:
    """A segment whose files hold ``parts``; the first one begins at ``start``."""
    listed: list[LegacyChunk] = []
    for part in parts:
        listed.append(LegacyChunk(start, data_name(name, start)))
        await chunks.create_with_content(listed[-1].name, [part])
        start += len(part)
    await write_header(chunks, name, format_header(LegacyHeader(max_size, tuple(listed))), sealed=sealed)


async def write_header(chunks: ChunkStorage, name: str, content: bytes, *, sealed: bool = False) -> None:
    await chunks.create_with_content(header_name(name), [content])
    if sealed:
        await chunks.set_read_only(header_name(name), True)


async def write_files(chunks: ChunkStorage, files: Sequence[tuple[str, bytes]]) -> None:
    for name, content in files:
        await chunks.create_with_content(name, [content])
