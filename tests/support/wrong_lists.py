"""Chunk storages whose ``list`` or ``sweep`` is wrong on purpose, each in one promise (see
``wrong_chunks.py``)."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from support.wrong_chunks import Right
from tierlog.storage_backends.base.chunk_storage import ChunkInfo


class ListsUnsorted(Right):
    async def list(self, prefix: str, after: str = "") -> AsyncGenerator[ChunkInfo, None]:
        for info in reversed(await self.all_of(prefix, after)):
            yield info


class ListsFoldersFirst(Right):
    async def list(self, prefix: str, after: str = "") -> AsyncGenerator[ChunkInfo, None]:
        for info in sorted(await self.all_of(prefix, after), key=lambda info: info.name.split("/")):
            yield info


class ListsWholeFoldersOnly(Right):
    async def list(self, prefix: str, after: str = "") -> AsyncGenerator[ChunkInfo, None]:
        for info in await self.all_of(prefix, after):
            if info.name == prefix or not prefix or info.name.startswith(prefix.rstrip("/") + "/"):
                yield info


class ListsOnePage(Right):
    async def list(self, prefix: str, after: str = "") -> AsyncGenerator[ChunkInfo, None]:
        for info in (await self.all_of(prefix, after))[:100]:
            yield info


class ListsFromTheBeginning(Right):
    async def list(self, prefix: str, after: str = "") -> AsyncGenerator[ChunkInfo, None]:
        for info in await self.all_of(prefix):
            yield info


class ListsTheLastNameAgain(Right):
    async def list(self, prefix: str, after: str = "") -> AsyncGenerator[ChunkInfo, None]:
        if after and after.startswith(prefix) and self.has(after):
            yield await self.info(after)
        for info in await self.all_of(prefix, after):
            yield info


class ListsNothingAfterWhatIsGone(Right):
    async def list(self, prefix: str, after: str = "") -> AsyncGenerator[ChunkInfo, None]:
        for info in await self.all_of(prefix, after) if not after or self.has(after) else []:
            yield info


class ListsAfterAnything(Right):
    async def list(self, prefix: str, after: str = "") -> AsyncGenerator[ChunkInfo, None]:
        for info in await self.all_of(prefix):
            if info.name > after:
                yield info


class SweepsChunks(Right):
    async def sweep(self) -> None:
        self.memory.state.chunks.popitem()


class ListsNoLengths(Right):
    async def list(self, prefix: str, after: str = "") -> AsyncGenerator[ChunkInfo, None]:
        for info in await self.all_of(prefix, after):
            yield ChunkInfo(info.name, 0)
