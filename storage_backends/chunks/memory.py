"""``MemoryChunkStorage``: chunks in memory, for tests, simulations and stores without persistence.

Storages that share one ``MemoryChunkState`` see the same chunks, as hosts share a bucket. Every verb takes
effect in one synchronous step, so no cancellation or concurrent call sees a part of it. Capabilities can be
switched off, to behave like an object store or a file system.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

import attrs
from anyio.lowlevel import checkpoint

from ..base.checksum import Buffer
from ..base.chunk_storage import Capabilities, ChunkInfo, ChunkRange
from ..base.errors import ChunkExists, ChunkNotFound, ChunkReadOnly
from ..base.sorted_dict import SortedDict, with_prefix
from .base import BaseChunkStorage, bad_offset

_PART_BYTES = 1 << 20
"""Bytes that are copied in one step, which takes a fraction of a millisecond."""


class MemoryChunk:
    """A chunk's bytes, in parts: one buffer that grows to 64 MiB is copied in steps of up to 25 ms."""

    __slots__ = ("_parts", "read_only")

    def __init__(self, data: bytearray, read_only: bool = False) -> None:
        self._parts = [data]
        self.read_only = read_only

    @property
    def length(self) -> int:
        return sum(map(len, self._parts))

    @property
    def data(self) -> bytearray:
        """All bytes, to be looked at or changed."""
        if len(self._parts) > 1:
            self._parts = [bytearray().join(self._parts)]
        return self._parts[0]

    @data.setter
    def data(self, data: bytearray) -> None:
        self._parts = [data]

    def add(self, data: Buffer) -> None:
        if len(self._parts[-1]) >= _PART_BYTES:
            self._parts.append(bytearray())
        self._parts[-1] += data

    def read(self, offset: int, size: int) -> bytes:
        found = []
        for part in self._parts:
            found.append(memoryview(part)[max(0, offset) : max(0, offset + size)])
            offset -= len(part)
        return b"".join(found)


@attrs.define
class MemoryChunkState:
    """The chunks by name, in name order."""

    chunks: SortedDict[str, MemoryChunk] = attrs.field(factory=SortedDict)


class MemoryChunkStorage(BaseChunkStorage):
    def __init__(
        self,
        state: MemoryChunkState | None = None,
        *,
        append: bool = True,
        concat: bool = True,
        reads_are_durable: bool = True,
        delete_many: bool = False,
    ) -> None:
        super().__init__()
        self.state = MemoryChunkState() if state is None else state
        self._capabilities = Capabilities(
            append=append, concat=concat, delete_many=delete_many, reads_are_durable=reads_are_durable
        )

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    async def _exists(self, name: str) -> bool:
        await checkpoint()
        return name in self.state.chunks

    async def _info(self, name: str) -> ChunkInfo:
        await checkpoint()
        chunk = self._chunk(name)
        return ChunkInfo(name, chunk.length, chunk.read_only)

    async def _create(self, name: str) -> None:
        await checkpoint()
        self._add(name, MemoryChunk(bytearray()))

    async def _create_with_content(self, name: str, data: Sequence[Buffer]) -> int:
        await checkpoint()
        chunk, size = MemoryChunk(bytearray()), 0
        for piece in data:
            chunk.add(piece)
            size += len(piece)
            if size >= _PART_BYTES:
                size = 0
                await checkpoint()
        return self._add(name, chunk)

    async def _write(self, name: str, offset: int, data: Sequence[Buffer]) -> int:
        await checkpoint()
        # One step from here to the end, so that of two appends at one offset one is refused, as on a file
        # system.
        chunk = self._writable(name)
        before = chunk.length
        if offset != before:
            raise bad_offset(name, before, offset)

        chunk.add(b"".join(data))
        return chunk.length

    async def _read(self, name: str, offset: int, size: int) -> bytes:
        await checkpoint()
        return self._chunk(name).read(offset, size)

    async def _delete(self, name: str) -> None:
        await checkpoint()
        self._chunk(name)
        del self.state.chunks[name]

    async def _delete_many(self, names: Sequence[str]) -> Sequence[str]:
        await checkpoint()
        return [name for name in names if self.state.chunks.pop(name, None) is None]

    async def _concat(self, name: str, ranges: Sequence[ChunkRange]) -> int:
        await checkpoint()
        return self._add(name, MemoryChunk(bytearray().join(map(self._range, ranges))))

    async def _set_read_only(self, name: str, read_only: bool) -> None:
        await checkpoint()
        self._chunk(name).read_only = read_only

    async def _list(self, prefix: str, after: str) -> AsyncGenerator[ChunkInfo, None]:
        for name in with_prefix(self.state.chunks.runs_from(max(prefix, after)), prefix):
            if name <= after:
                continue  # of the first run
            await checkpoint()
            # It may have been deleted since the listing began.
            if chunk := self.state.chunks.get(name):
                yield ChunkInfo(name, chunk.length)

    async def _used_space(self) -> int:
        await checkpoint()
        return sum(chunk.length for chunk in self.state.chunks.values())

    def _chunk(self, name: str) -> MemoryChunk:
        chunk = self.state.chunks.get(name)
        if chunk is None:
            raise ChunkNotFound(f"there is no chunk {name}", chunk=name)

        return chunk

    def _writable(self, name: str) -> MemoryChunk:
        chunk = self._chunk(name)
        if chunk.read_only:
            raise ChunkReadOnly(f"chunk {name} is read-only", chunk=name)

        return chunk

    def _range(self, part: ChunkRange) -> bytes:
        chunk = self._chunk(part.name)
        if part.offset + part.length > chunk.length:
            raise bad_offset(part.name, chunk.length, part.offset + part.length)

        return chunk.read(part.offset, part.length)

    def _add(self, name: str, chunk: MemoryChunk) -> int:
        if name in self.state.chunks:
            raise ChunkExists(f"chunk {name} exists already", chunk=name)

        self.state.chunks[name] = chunk
        return chunk.length
