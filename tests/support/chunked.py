"""Chunked segment storage for tests: memory backends that several owners share, a sink that remembers, and a world with a seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

import attrs

from tierlog.storage_backends.base.checksum import Buffer
from tierlog.storage_backends.base.chunk_storage import ChunkStorage
from tierlog.storage_backends.base.errors import Unavailable
from tierlog.storage_backends.base.world import World
from tierlog.storage_backends.chunked.core import ChunkedOptions
from tierlog.storage_backends.chunked.memory_store import MemoryMetadataState, MemoryMetadataStore
from tierlog.storage_backends.chunked.metadata_store import ChunkMetadataStore
from tierlog.storage_backends.chunked.storage import ChunkedSegmentStorage
from tierlog.storage_backends.chunks.memory import MemoryChunkState, MemoryChunkStorage
from tierlog.testing.faulty_chunk_storage import FaultyChunkStorage

SID = 0x1_0000_0001
OTHER = 0x1_0000_0002


def world_of(seed: int) -> World:
    random = Random(seed)
    return World(wall_clock=lambda: 0.0, random=random, new_id=lambda: f"{random.getrandbits(128):032x}")


@attrs.define
class RememberingSink:
    """A ``GarbageSink`` that keeps what it was told."""

    tracked: list[str] = attrs.field(factory=list)
    kept: list[str] = attrs.field(factory=list)
    released: list[str] = attrs.field(factory=list)
    doubted: list[str] = attrs.field(factory=list)
    refuses: bool = False

    async def track(self, names: Sequence[str]) -> None:
        if self.refuses:
            raise Unavailable("scripted: nothing can be tracked")

        self.tracked += names

    def keep(self, names: Sequence[str]) -> None:
        self.kept += names

    def release(self, names: Sequence[str]) -> None:
        self.released += names

    def doubt(self, names: Sequence[str]) -> None:
        self.doubted += names


class FaultyMetadataStore(MemoryMetadataStore):
    """Raises ``error`` around the ``number``-th commit (from 1): before its effect, or after it."""

    def __init__(self, state: MemoryMetadataState, number: int, error: BaseException, *, after: bool) -> None:
        super().__init__(state)
        self._number = number
        self._error = error
        self._after = after
        self.commits = 0

    async def commit(self, expected: Mapping[str, int], writes: Mapping[str, bytes | None]) -> int:
        self.commits += 1
        if self.commits == self._number and not self._after:
            raise self._error

        version = await super().commit(expected, writes)
        if self.commits == self._number:
            raise self._error

        return version


@attrs.define
class Tier2:
    """What survives an owner: chunks, metadata, and what the sinks of all owners were told."""

    append: bool = True
    options: ChunkedOptions = attrs.field(factory=ChunkedOptions)
    chunks: MemoryChunkState = attrs.field(factory=MemoryChunkState)
    metadata: MemoryMetadataState = attrs.field(factory=MemoryMetadataState)
    sink: RememberingSink = attrs.field(factory=RememberingSink)

    async def owner(self, epoch: int = 1, *, metadata: ChunkMetadataStore | None = None) -> Owner:
        chunks = FaultyChunkStorage(MemoryChunkStorage(self.chunks, append=self.append))
        await chunks.open()
        store = metadata or MemoryMetadataStore(self.metadata)
        return Owner(self, chunks, storage_on(chunks, store, self.sink, epoch, self.options))

    def names(self) -> list[str]:
        return list(self.chunks.chunks)

    def referenced(self) -> list[str]:
        """The chunks that durable metadata names."""
        return [key[2:] for key in self.metadata.entries if key.startswith("c:")]


@attrs.define
class Owner:
    """One instance over a ``Tier2``."""

    tier2: Tier2
    chunks: FaultyChunkStorage
    storage: ChunkedSegmentStorage

    async def write(self, offset: int, *data: Buffer, sid: int = SID, rolling_size: int | None = None, seal: bool = False) -> None:
        with self.storage.begin(sid, create=True, rolling_size=rolling_size) as txn:
            await self.storage.write(txn, offset, data)
            if seal:
                await self.storage.seal(txn)
            await txn.commit()

    async def truncate(self, offset: int, sid: int = SID) -> None:
        with self.storage.begin(sid) as txn:
            await self.storage.truncate(txn, offset)
            await txn.commit()

    async def concat(self, source: int = OTHER, sid: int = SID) -> None:
        with self.storage.begin(sid, create=True) as txn:
            await self.storage.concat(txn, source)
            await txn.commit()

    async def delete(self, sid: int = SID) -> None:
        with self.storage.begin(sid) as txn:
            await self.storage.delete(txn)
            await txn.commit()

    async def content(self, sid: int = SID) -> bytes:
        """Everything that can be read."""
        info = await self.storage.info(sid)
        return await self.storage.read(sid, info.start_offset, info.length)

    async def lengths(self, sid: int = SID) -> list[int]:
        """The lengths of the segment's chunks."""
        return [record.length for _, record in await self.storage.chunks(sid)]


def storage_on(
    chunks: ChunkStorage,
    metadata: ChunkMetadataStore,
    sink: RememberingSink | None = None,
    epoch: int = 1,
    options: ChunkedOptions | None = None,
) -> ChunkedSegmentStorage:
    sink = sink or RememberingSink()
    return ChunkedSegmentStorage(chunks, metadata, container=0, epoch=epoch, world=world_of(epoch), garbage=sink, options=options)
