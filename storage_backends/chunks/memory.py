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

_SLICE_BYTES = 1 << 20
"""Bytes of a new chunk that are copied in one step: about a millisecond."""


@attrs.define
class MemoryChunk:
    data: bytearray
    read_only: bool = False


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
    ) -> None:
        super().__init__()
        self.state = MemoryChunkState() if state is None else state
        self._capabilities = Capabilities(append=append, concat=concat, reads_are_durable=reads_are_durable)

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    async def _exists(self, name: str) -> bool:
        await checkpoint()
        return name in self.state.chunks

    async def _info(self, name: str) -> ChunkInfo:
        await checkpoint()
        chunk = self._chunk(name)
        return ChunkInfo(name, len(chunk.data), chunk.read_only)

    async def _create(self, name: str) -> None:
        await checkpoint()
        self._add(name, bytearray())

    async def _create_with_content(self, name: str, data: Sequence[Buffer]) -> int:
        await checkpoint()
        content, turn_at = bytearray(), _SLICE_BYTES
        for piece in data:
            content += piece
            if len(content) >= turn_at:
                turn_at = len(content) + _SLICE_BYTES
                await checkpoint()
        return self._add(name, content)

    async def _write(self, name: str, offset: int, data: Sequence[Buffer]) -> int:
        await checkpoint()
        # One step from here to the end, so that of two appends at one offset one is refused, as on a file
        # system.
        chunk = self._writable(name)
        before = len(chunk.data)
        if offset != before:
            raise bad_offset(name, before, offset)

        chunk.data += b"".join(data)
        return len(chunk.data)

    async def _read(self, name: str, offset: int, size: int) -> bytes:
        await checkpoint()
        return bytes(memoryview(self._chunk(name).data)[offset : offset + size])

    async def _delete(self, name: str) -> None:
        await checkpoint()
        self._chunk(name)
        del self.state.chunks[name]

    async def _concat(self, name: str, ranges: Sequence[ChunkRange]) -> int:
        await checkpoint()
        return self._add(name, bytearray(b"".join(map(self._range, ranges))))

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
                yield ChunkInfo(name, len(chunk.data))

    async def _used_space(self) -> int:
        await checkpoint()
        return sum(len(chunk.data) for chunk in self.state.chunks.values())

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
        data = self._chunk(part.name).data
        if part.offset + part.length > len(data):
            raise bad_offset(part.name, len(data), part.offset + part.length)

        return bytes(memoryview(data)[part.offset : part.offset + part.length])

    def _add(self, name: str, data: bytearray) -> int:
        if name in self.state.chunks:
            raise ChunkExists(f"chunk {name} exists already", chunk=name)

        self.state.chunks[name] = MemoryChunk(data)
        return len(data)
