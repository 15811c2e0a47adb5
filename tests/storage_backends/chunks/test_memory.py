"""Memory chunks keep the contract, with all capabilities and with none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

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
