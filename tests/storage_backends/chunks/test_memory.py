"""Memory chunks keep the contract, with all capabilities and with none."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import pytest

from tierlog.storage_backends.chunks.memory import MemoryChunkState, MemoryChunkStorage
from tierlog.testing.chunk_conformance import ChunkStorageConformance


@lru_cache(maxsize=4)
def state_in(folder: Path) -> MemoryChunkState:
    """What stands for the content of ``folder``: a second instance sees what the first one wrote."""
    return MemoryChunkState()


class TestMemory(ChunkStorageConformance):
    def make(self, folder: Path) -> MemoryChunkStorage:
        return MemoryChunkStorage(state_in(folder))


@pytest.mark.one_loop
class TestMemoryLikeAnObjectStore(ChunkStorageConformance):
    def make(self, folder: Path) -> MemoryChunkStorage:
        return MemoryChunkStorage(state_in(folder), append=False, concat=False)
