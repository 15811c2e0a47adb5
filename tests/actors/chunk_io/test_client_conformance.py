"""A client of the storage actor keeps the whole contract of ``ChunkStorage``: behind it nobody can tell the
difference."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random

import anyio
import anyio.abc
import pytest

from tierlog.actors.chunk_io.actor import StorageActor, StorageState
from tierlog.actors.chunk_io.client import StorageClient
from tierlog.actors.chunk_io.options import StorageOptions
from tierlog.storage_backends.base.chunk_storage import ChunkStorage
from tierlog.storage_backends.chunks.memory import MemoryChunkState, MemoryChunkStorage
from tierlog.testing.chunk_conformance import ChunkStorageConformance


class ActorClient(StorageClient):
    """A client that runs its own actor between ``open`` and ``close``."""

    def __init__(self, chunks: ChunkStorage) -> None:
        super().__init__(StorageActor(chunks, StorageOptions(), Random(1)))
        self._chunks = chunks
        self._stack = AsyncExitStack()
        # A client asks an actor that somebody else runs; this one runs its own, so it begins as closed as a
        # storage does.
        self._closed = True

    async def open(self) -> None:
        if self._actor.state is not StorageState.ACTIVE:
            self._actor = StorageActor(self._chunks, StorageOptions(), Random(1))
            tasks: anyio.abc.TaskGroup = await self._stack.enter_async_context(anyio.create_task_group())
            await tasks.start(lambda *, task_status: self._actor.run(task_status=task_status))
        await super().open()

    async def close(self) -> None:
        await super().close()
        self._actor.stop()
        await self._stack.aclose()


@pytest.mark.one_loop
class TestStorageClient(ChunkStorageConformance):
    large = 6 << 20

    @pytest.fixture(autouse=True)
    def state(self) -> Iterator[None]:
        self._state = MemoryChunkState()
        yield
        # pytest keeps the instance to the end of the run.
        del self._state

    def make(self, folder: Path) -> ChunkStorage:
        return ActorClient(MemoryChunkStorage(self._state))
