"""A process that serves some of a store's containers, on order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest

from support.container_world import MIB, OPTIONS, fresh_ids
from tierlog.actors.chunk_io.options import StorageOptions
from tierlog.actors.folder.identity import StoreIdentity
from tierlog.actors.kernel.backoff import Backoff
from tierlog.actors.kernel.supervision import RestartPolicy
from tierlog.actors.store.runtime import ContainerRuntime, RuntimeOptions, RuntimeParts, serve
from tierlog.actors.store.store import RollingSizes
from tierlog.journal.log.memory import MemoryLog, MemoryLogService
from tierlog.storage_backends.base.errors import (
    ClosedError,
    NotOwner,
    Unavailable,
)
from tierlog.storage_backends.base.names import container_of
from tierlog.storage_backends.base.world import World
from tierlog.storage_backends.chunks.memory import MemoryChunkState, MemoryChunkStorage

pytestmark = pytest.mark.anyio

SERVING = RuntimeOptions(
    OPTIONS,
    StorageOptions(),
    RestartPolicy(Backoff(first=0.001, maximum=0.01), 0, 1),
    5,
    MIB,
    RollingSizes(MIB),
)
FIRST = next(name for name in ("s0", "s1", "s2", "s3", "s4") if container_of(name, 2) == 0)
SECOND = next(name for name in ("s0", "s1", "s2", "s3", "s4") if container_of(name, 2) == 1)


class Site:
    """What outlives the processes."""

    def __init__(self) -> None:
        self.logs = MemoryLogService()
        self.chunks = MemoryChunkState()
        self.world = World(lambda: 0.0, Random(1), fresh_ids())
        self.broken: set[int] = set()

    def log(self, index: int) -> MemoryLog:
        if index in self.broken:
            raise Unavailable(f"the log of container {index} cannot be reached")

        return self.logs.log(f"c{index}")

    def parts(self) -> RuntimeParts:
        return RuntimeParts(
            identity=StoreIdentity(bytes(15) + b"s", bytes(15) + b"l", 2, 0),
            owner_id=self.world.new_id(),
            chunks=MemoryChunkStorage(self.chunks),
            make_log=self.log,
            options=SERVING,
            world=self.world,
        )

    @asynccontextmanager
    async def runtime(self) -> AsyncIterator[ContainerRuntime]:
        async with ContainerRuntime(self.parts()).running() as runtime:
            yield runtime


async def test_a_container_that_is_not_served_here_has_another_owner() -> None:
    async with Site().runtime() as runtime:
        await runtime.open(0)
        await runtime.store.create_segment(FIRST)
        with pytest.raises(NotOwner, match="container 1 is not served here"):
            await runtime.store.create_segment(SECOND)
        assert await runtime.store.list_segments() == [FIRST]
        assert [host.container for host in runtime.store.statistics().containers] == [0]


async def test_a_closed_container_is_opened_elsewhere_with_all_that_was_acked() -> None:
    site = Site()
    async with site.runtime() as here, site.runtime() as there:
        await here.open(0)
        await here.store.create_segment(FIRST)
        assert await here.store.append(FIRST, b"moved") == 0
        await here.close(0)
        assert not here.serves(0)
        with pytest.raises(NotOwner):
            await here.store.read(FIRST, 0, 10)
        await there.open(0)
        assert await there.store.read(FIRST, 0, 10) == b"moved"


async def test_a_container_is_served_once() -> None:
    async with Site().runtime() as runtime:
        await runtime.open(0)
        with pytest.raises(RuntimeError, match="served here already"):
            runtime.begin(0)
        await runtime.close(1)
        await runtime.close(0)
        await runtime.close(0)


async def test_the_end_closes_what_is_open() -> None:
    site = Site()
    async with site.runtime() as runtime:
        await runtime.open(0)
        await runtime.open(1)
    with pytest.raises(ClosedError):
        await runtime.store.create_segment(FIRST)
    async with serve(site.parts()) as store:
        await store.create_segment(FIRST)
        await store.create_segment(SECOND)
