"""Memory chunks keep the contract, with all capabilities and with none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tierlog.storage_backends.base.chunk_storage import ChunkRange
from tierlog.storage_backends.chunks.memory import MemoryChunkState, MemoryChunkStorage
from tierlog.testing.chunk_conformance import ChunkStorageConformance


class InMemory(ChunkStorageConformance):
    @pytest.fixture(autouse=True)
    def state(self) -> Iterator[None]:
        self._state = MemoryChunkState()
        yield
        # pytest keeps the instance to the end of the run.
        del self._state


@pytest.mark.one_loop
class TestMemory(InMemory):
    def make(self, folder: Path) -> MemoryChunkStorage:
        return MemoryChunkStorage(self._state)


@pytest.mark.one_loop
class TestMemoryLikeAnObjectStore(InMemory):
    def make(self, folder: Path) -> MemoryChunkStorage:
        return MemoryChunkStorage(self._state, append=False, concat=False)


@pytest.mark.anyio
async def test_the_parts_of_a_large_chunk_are_one_to_readers() -> None:
    """Pieces of an odd size, so that parts end inside ranges that are read and joined."""
    storage = MemoryChunkStorage()
    await storage.open()
    pieces = [bytes([number]) * 70_001 for number in range(50)]
    whole = b"".join(pieces)
    assert await storage.create_with_content("large", pieces) == len(whole)
    assert await storage.write("large", len(whole), [b"end"]) == len(whole) + 3
    whole += b"end"

    for start in range(0, len(whole), 300_007):
        for size in (0, 1, 200_000, 2_500_000, len(whole)):
            assert await storage.read("large", start, size) == whole[start : start + size]
    assert await storage.concat("joined", [ChunkRange("large", 1_000_000, 2_000_000)]) == 2_000_000
    assert await storage.read("joined", 0, 2_000_000) == whole[1_000_000:3_000_000]
    assert (await storage.info("large")).length == len(whole)
    assert storage.state.chunks["large"].data == whole
