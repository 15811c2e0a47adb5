"""``MemoryChunkStorage``: chunks in memory, for tests, simulations and stores that may vanish.

Owns: ``MemoryChunkState``, which outlives its instances: several owners that share one see one storage, as hosts share a bucket.
Every verb takes effect in one synchronous step, so a cancellation never tears it and no parallel call sees a half of it.
Capabilities can be switched off, to behave like an object store or a file system.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

import attrs
from anyio.lowlevel import checkpoint
from sortedcontainers import SortedDict

from ..base.checksum import Buffer
from ..base.chunk_storage import Capabilities, ChunkInfo, ChunkRange
from ..base.errors import ChunkExists, ChunkNotFound, ChunkReadOnly, Unsupported
from .counted import CountedChunkStorage, bad_offset


@attrs.define
class MemoryChunk:
    data: bytearray
    read_only: bool = False


@attrs.define
class MemoryChunkState:
    """What survives an instance: the chunks by name, in name order."""

    chunks: SortedDict[str, MemoryChunk] = attrs.field(factory=SortedDict)


class MemoryChunkStorage(CountedChunkStorage):
    def __init__(
        self, state: MemoryChunkState | None = None, *, append: bool = True, concat: bool = True, reads_are_durable: bool = True
    ) -> None:
        super().__init__()
        self.state = MemoryChunkState() if state is None else state
        self._capabilities = Capabilities(append=append, concat=concat, reads_are_durable=reads_are_durable)

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    async def open(self) -> None:
        await checkpoint()
        self._is_open = True

    async def close(self) -> None:
        await checkpoint()
        self._is_open = False

    async def exists(self, name: str) -> bool:
        self._check(name)
        await checkpoint()
        return name in self.state.chunks

    async def info(self, name: str) -> ChunkInfo:
        self._check(name)
        await checkpoint()
        return ChunkInfo(name, len(self._chunk(name).data))

    async def create(self, name: str) -> None:
        self._check(name)
        self._check_append(name)
        await checkpoint()
        self._add(name, bytearray())

    async def create_with_content(self, name: str, data: Sequence[Buffer]) -> int:
        self._check(name)
        await checkpoint()
        return self._add(name, bytearray(b"".join(data)))

    async def write(self, name: str, offset: int, data: Sequence[Buffer]) -> int:
        self._check(name, offset)
        self._check_append(name)
        await checkpoint()
        chunk = self._chunk(name)
        if chunk.read_only:
            raise ChunkReadOnly(f"chunk {name} is read-only", chunk=name)

        before = len(chunk.data)
        if offset != before:
            raise bad_offset(name, before, offset)

        chunk.data += b"".join(data)
        self._count_write(len(chunk.data) - before)
        return len(chunk.data)

    async def read(self, name: str, offset: int, size: int) -> bytes:
        self._check(name, offset, size)
        await checkpoint()
        data = bytes(memoryview(self._chunk(name).data)[offset : offset + size])
        self._count_read(len(data))
        return data

    async def delete(self, name: str) -> None:
        self._check(name)
        await checkpoint()
        self._chunk(name)
        del self.state.chunks[name]
        self._deletes += 1

    async def concat(self, name: str, ranges: Sequence[ChunkRange]) -> int:
        self._check_concat(name, ranges)
        if not self.capabilities.concat:
            raise Unsupported("this chunk storage cannot concat; read the ranges and create the chunk with their content")

        await checkpoint()
        return self._add(name, bytearray(b"".join(map(self._range, ranges))))

    async def set_read_only(self, name: str, read_only: bool) -> None:
        self._check(name)
        await checkpoint()
        self._chunk(name).read_only = read_only

    async def list(self, prefix: str) -> AsyncGenerator[ChunkInfo, None]:
        self._check_open()
        for name in list(self.state.chunks.irange(prefix)):
            if not name.startswith(prefix):
                return
            await checkpoint()
            if chunk := self.state.chunks.get(name):
                yield ChunkInfo(name, len(chunk.data))

    async def used_space(self) -> int:
        self._check_open()
        await checkpoint()
        return sum(len(chunk.data) for chunk in self.state.chunks.values())

    def _chunk(self, name: str) -> MemoryChunk:
        chunk: MemoryChunk | None = self.state.chunks.get(name)
        if chunk is None:
            raise ChunkNotFound(f"there is no chunk {name}", chunk=name)

        return chunk

    def _range(self, part: ChunkRange) -> bytes:
        data = self._chunk(part.name).data
        if part.offset + part.length > len(data):
            raise bad_offset(part.name, len(data), part.offset + part.length)

        return bytes(memoryview(data)[part.offset : part.offset + part.length])

    def _add(self, name: str, data: bytearray) -> int:
        if name in self.state.chunks:
            raise ChunkExists(f"chunk {name} exists already", chunk=name)

        self.state.chunks[name] = MemoryChunk(data)
        self._count_create(len(data))
        return len(data)
