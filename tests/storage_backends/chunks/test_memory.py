"""Memory chunks keep the contract, with all capabilities and with none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tierlog.storage_backends.chunks.memory import MemoryChunkState, MemoryChunkStorage
from tierlog.testing.chunk_conformance import ChunkStorageConformance


class MemoryPlaces:
    """One state per folder, so that a second instance sees what the first one made."""

    def __init__(self) -> None:
        self._states: dict[Path, MemoryChunkState] = {}

    def state(self, folder: Path) -> MemoryChunkState:
        return self._states.setdefault(folder, MemoryChunkState())


PLACES = MemoryPlaces()


class TestMemory(ChunkStorageConformance):
    def make(self, folder: Path) -> MemoryChunkStorage:
        return MemoryChunkStorage(PLACES.state(folder))


@pytest.mark.one_loop
class TestMemoryLikeAnObjectStore(ChunkStorageConformance):
    def make(self, folder: Path) -> MemoryChunkStorage:
        return MemoryChunkStorage(PLACES.state(folder), append=False, concat=False)


@pytest.mark.one_loop
class TestMemoryWithEveryCapability(ChunkStorageConformance):
    def make(self, folder: Path) -> MemoryChunkStorage:
        return MemoryChunkStorage(PLACES.state(folder))
