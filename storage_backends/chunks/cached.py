"""``CachedChunkStorage``: a chunk storage with a local chunk cache in front of it (rules K1 to K6).

What the cache has is read from it, everything else from the storage. Bytes are cached when the storage has
acked them or returned them, so what is cached was in the storage; only ``read`` is ever answered from here.
A chunk that another machine deleted may still be read: its name is used once, so the bytes are the right
ones (rule K1).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractContextManager, aclosing
from typing import TYPE_CHECKING

import attrs

from ..base.checksum import Buffer
from ..base.chunk_storage import (
    Capabilities,
    ChunkInfo,
    ChunkRange,
    ChunkStorage,
    check_chunk_name,
)
from .chunk_cache import ChunkCache

if TYPE_CHECKING:
    from ..base.storage_statistics import ChunkStorageStatistics


class CachedChunkStorage(ChunkStorage):
    def __init__(self, inner: ChunkStorage, cache: ChunkCache) -> None:
        self._inner = inner
        self._cache = cache

    @property
    def capabilities(self) -> Capabilities:
        return self._inner.capabilities

    async def open(self) -> None:
        await self._inner.open()
        await self._cache.open()

    async def close(self) -> None:
        self._cache.close()
        await self._inner.close()

    def admit(self, name: str) -> None:
        self._inner.admit(name)

    def retry_in(self) -> float:
        return self._inner.retry_in()

    def notifying(self, notify: Callable[[], None]) -> AbstractContextManager[None]:
        return self._inner.notifying(notify)

    async def exists(self, name: str) -> bool:
        return await self._inner.exists(name)

    async def info(self, name: str) -> ChunkInfo:
        return await self._inner.info(name)

    async def create(self, name: str) -> None:
        await self._inner.create(name)

    async def create_with_content(self, name: str, data: Sequence[Buffer]) -> int:
        with self._cache.filling(name) as fill:
            size = await self._inner.create_with_content(name, data)
            if self._cache.holds(name, size):
                await self._cache.fill(name, 0, data, fill)
        return size

    async def write(self, name: str, offset: int, data: Sequence[Buffer]) -> int:
        with self._cache.filling(name) as fill:
            end = await self._inner.write(name, offset, data)
            if self._cache.holds(name, end):
                await self._cache.fill(name, offset, data, fill)
        return end

    async def read(self, name: str, offset: int, size: int) -> bytes:
        check_chunk_name(name)
        if size <= 0 or offset < 0 or not self._cache.holds(name, offset + size):
            return await self._inner.read(name, offset, size)

        with self._cache.filling(name) as fill:
            found = await self._cache.look_up(name, offset, size)
            # The rest in one request. Also if the chunk ends there: only the storage knows that.
            if len(found) < size:
                at = offset + len(found)
                rest = await self._inner.read(name, at, size - len(found))
                await self._cache.fill(name, at, [rest], fill)
                return b"".join((found, rest)) if found else rest
        return found if isinstance(found, bytes) else bytes(found)

    async def drop_copy(self, name: str) -> bool:
        check_chunk_name(name)
        if not self._cache.holds(name, 0):
            return await self._inner.drop_copy(name)
        await self._cache.remove(name)
        return True

    async def delete(self, name: str) -> None:
        check_chunk_name(name)
        try:
            await self._inner.delete(name)
        finally:
            # Whatever the outcome: without it, the chunk is read from the storage again.
            if self._cache.holds(name, 0):
                await self._cache.remove(name)

    async def delete_many(self, names: Sequence[str]) -> Sequence[str]:
        for name in names:
            check_chunk_name(name)
        try:
            return await self._inner.delete_many(names)
        finally:
            for name in names:
                if self._cache.holds(name, 0):
                    await self._cache.remove(name)

    async def concat(self, name: str, ranges: Sequence[ChunkRange]) -> int:
        return await self._inner.concat(name, ranges)

    async def replace(self, name: str, ranges: Sequence[ChunkRange]) -> int:
        check_chunk_name(name)
        try:
            return await self._inner.replace(name, ranges)
        finally:
            if self._cache.holds(name, 0):
                await self._cache.remove(name)

    async def set_read_only(self, name: str, read_only: bool) -> None:
        await self._inner.set_read_only(name, read_only)

    async def list(self, prefix: str, after: str = "") -> AsyncGenerator[ChunkInfo, None]:
        async with aclosing(self._inner.list(prefix, after)) as infos:
            async for info in infos:
                yield info

    async def used_space(self) -> int:
        return await self._inner.used_space()

    async def sweep(self) -> None:
        await self._inner.sweep()

    def statistics(self) -> ChunkStorageStatistics:
        inner, cache = self._inner.statistics(), self._cache.statistics()
        return attrs.evolve(
            inner,
            reads=inner.reads + cache.hits,
            bytes_read=inner.bytes_read + cache.hit_bytes,
            cache=cache,
        )
