"""How much a container's garbage is, found by a listing."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from contextlib import aclosing, suppress

from msgspec import Struct

from ...storage_backends.base.chunk_storage import ChunkInfo, ChunkStorage
from ...storage_backends.base.errors import ChunkNotFound

_COUNTED_AT_ONCE = 1000


async def list_parts(
    chunks: ChunkStorage, prefixes: Sequence[str], size: int
) -> AsyncGenerator[list[ChunkInfo], None]:
    """The objects below ``prefixes``, in lists of at most ``size``."""
    part: list[ChunkInfo] = []
    for prefix in prefixes:
        async with aclosing(chunks.list(prefix)) as listed:
            async for info in listed:
                part.append(info)
                if len(part) == size:
                    yield part
                    part = []
    if part:
        yield part


class GarbageTotal(Struct, frozen=True):
    chunks: int
    bytes: int


async def count_garbage(
    chunks: ChunkStorage,
    prefixes: Sequence[str],
    garbage_among: Callable[[Sequence[str]], Awaitable[Collection[str]]],
    released: Sequence[str],
) -> GarbageTotal:
    """The objects below ``prefixes`` that are garbage, and the files ``released`` that still exist."""
    count = size = 0
    async with aclosing(list_parts(chunks, prefixes, _COUNTED_AT_ONCE)) as parts:
        async for part in parts:
            lengths = {info.name: info.length for info in part}
            for name in await garbage_among(list(lengths)):
                count, size = count + 1, size + lengths[name]
    for name in released:
        with suppress(ChunkNotFound):
            size += (await chunks.info(name)).length
            count += 1
    return GarbageTotal(count, size)
