"""Chunked segment storage for tests: memory backends that several owners share, a sink that remembers, and a
world with a seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from random import Random

import attrs
from simulation.disk import SimulatedDisk
from simulation.file_layer import SimulatedFiles

from tierlog.storage_backends.base.checksum import Buffer
from tierlog.storage_backends.base.chunk_storage import ChunkStorage
from tierlog.storage_backends.base.errors import OutcomeUnknown, Unavailable
from tierlog.storage_backends.base.world import World
from tierlog.storage_backends.chunks.filesystem import FileSystemChunkStorage
from tierlog.storage_backends.chunks.memory import MemoryChunkState, MemoryChunkStorage
from tierlog.storage_backends.segments.memory_store import MemoryMetadataState, MemoryMetadataStore
from tierlog.storage_backends.segments.metadata_store import ChunkMetadataStore
from tierlog.storage_backends.segments.options import ChunkedOptions
from tierlog.storage_backends.segments.storage import ChunkedSegmentStorage
from tierlog.testing.faulty_chunk_storage import FaultyChunkStorage

SID = 0x1_0000_0001
OTHER = 0x1_0000_0002


def world_of(seed: int) -> World:
    random = Random(seed)
    return World(wall_clock=lambda: 0.0, random=random, new_id=lambda: f"{random.getrandbits(128):032x}")


@attrs.define
class RememberingSink:
    """A ``GarbageSink`` that records its calls."""

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


class CountingStore(MemoryMetadataStore):
    """How many records were looked at and changed."""

    def __init__(self, state: MemoryMetadataState) -> None:
        super().__init__(state)
        self.records = 0

    async def get(self, key: str) -> tuple[int, bytes] | None:
        self.records += 1
        return await super().get(key)

    async def commit(self, expected: Mapping[str, int], writes: Mapping[str, bytes | None]) -> int:
        self.records += len(writes)
        return await super().commit(expected, writes)

    async def scan(self, prefix: str) -> list[str]:
        found = await super().scan(prefix)
        self.records += len(found)
        return found


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


class MetadataFault(Enum):
    """What becomes of one commit."""

    BEFORE = "refused"
    """It is refused; nothing was changed."""
    LOST = "lost"
    """It was not applied, and the caller cannot know."""
    AFTER = "applied"
    """It was applied; the answer is lost."""


class FailingMetadataStore(MemoryMetadataStore):
    """Its next commit meets ``fault``, if there is one; ``applied`` shows whether the newest one was applied
    all the same."""

    fault: MetadataFault | None = None
    applied = False

    async def commit(self, expected: Mapping[str, int], writes: Mapping[str, bytes | None]) -> int:
        fault, self.fault, self.applied = self.fault, None, False
        if fault is MetadataFault.BEFORE:
            raise Unavailable("scripted: the record store cannot be reached")
        if fault is MetadataFault.LOST:
            raise OutcomeUnknown("scripted: the record store was not reached, but the caller cannot know")

        version = await super().commit(expected, writes)
        self.applied = True
        if fault is MetadataFault.AFTER:
            raise OutcomeUnknown("scripted: the answer of the record store is lost")
        return version


@attrs.define
class Tier2:
    """What survives an owner: chunks, metadata, and the calls of all owners' sinks."""

    append: bool = True
    options: ChunkedOptions = attrs.field(factory=ChunkedOptions)
    chunks: MemoryChunkState = attrs.field(factory=MemoryChunkState)
    metadata: MemoryMetadataState = attrs.field(factory=MemoryMetadataState)
    sink: RememberingSink = attrs.field(factory=RememberingSink)
    owners: int = 0

    async def owner(self, epoch: int = 1, *, metadata: ChunkMetadataStore | None = None) -> Owner:
        chunks = FaultyChunkStorage(self.open_chunks())
        await chunks.open()
        store = metadata or MemoryMetadataStore(self.metadata)
        self.owners += 1
        return Owner(
            self, chunks, storage_on(chunks, store, self.sink, epoch, self.options, seed=self.owners)
        )

    def open_chunks(self) -> ChunkStorage:
        """The chunks as a new process meets them."""
        return MemoryChunkStorage(self.chunks, append=self.append)

    def names(self) -> list[str]:
        return list(self.chunks.chunks)

    def referenced(self) -> list[str]:
        """The chunks that durable metadata names."""
        return [key[2:] for key in self.metadata.entries if key.startswith("c:")]


@attrs.define
class DiskTier2(Tier2):
    """The chunks are files on a simulated disk; a new process meets what a power loss has left of them."""

    disk: SimulatedDisk = attrs.field(factory=lambda: SimulatedDisk(Random(1)))

    def open_chunks(self) -> ChunkStorage:
        self.disk = self.disk.crash()
        return FileSystemChunkStorage(
            SimulatedFiles(self.disk, interleave=False), "/lts", world_of(-1 - self.owners)
        )


@attrs.define
class Owner:
    """One instance over a ``Tier2``."""

    tier2: Tier2
    chunks: FaultyChunkStorage
    storage: ChunkedSegmentStorage

    async def write(
        self, offset: int, *data: Buffer, sid: int = SID, rolling_size: int | None = None, seal: bool = False
    ) -> None:
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

    async def relocate(self, sid: int = SID) -> bool:
        with self.storage.begin(sid) as txn:
            moved = await self.storage.relocate(txn)
            await txn.commit()
        return moved

    async def delete(self, sid: int = SID) -> None:
        with self.storage.begin(sid) as txn:
            await self.storage.delete(txn)
            await txn.commit()

    async def run_deferred(self) -> int:
        """Run all deferred work, step by step; how many steps it took."""
        steps = 0
        while pending := await self.storage.deferred_work():
            await self.storage.run_deferred(pending[0])
            steps += 1
        return steps

    async def content(self, sid: int = SID) -> bytes:
        """Everything that can be read."""
        info = await self.storage.info(sid)
        return bytes(await self.storage.read(sid, info.start_offset, info.length))

    async def lengths(self, sid: int = SID) -> list[int]:
        """The lengths of the segment's chunks."""
        return [record.length for _, record in await self.storage.chunks(sid)]


def storage_on(
    chunks: ChunkStorage,
    metadata: ChunkMetadataStore,
    sink: RememberingSink | None = None,
    epoch: int = 1,
    options: ChunkedOptions | None = None,
    seed: int = 0,
) -> ChunkedSegmentStorage:
    sink = sink or RememberingSink()
    return ChunkedSegmentStorage(
        chunks, metadata, container=0, epoch=epoch, world=world_of(seed), garbage=sink, options=options
    )
