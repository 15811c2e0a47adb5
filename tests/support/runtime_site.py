"""What the hosts of a service share, in memory: logs, chunks and a world; and runtimes that serve containers
there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

from simulation.disk import SimulatedDisk
from simulation.file_layer import SimulatedFiles

from support.container_world import MIB, OPTIONS, fresh_ids
from support.table_rows import simulated_runs
from tierlog.actors.chunk_io.options import StorageOptions
from tierlog.actors.container.local_disk import LocalDisk
from tierlog.actors.folder.identity import StoreIdentity
from tierlog.actors.kernel.backoff import Backoff
from tierlog.actors.kernel.supervision import RestartPolicy
from tierlog.actors.store.runtime import ContainerRuntime, RuntimeOptions, RuntimeParts
from tierlog.actors.store.store import RollingSizes
from tierlog.journal.log.contract import DurableDataLog
from tierlog.journal.log.memory import MemoryLogService
from tierlog.storage_backends.base.errors import TierlogError
from tierlog.storage_backends.base.world import World
from tierlog.storage_backends.chunks.memory import MemoryChunkState, MemoryChunkStorage

SERVING = RuntimeOptions(
    OPTIONS,
    StorageOptions(),
    RestartPolicy(Backoff(first=0.001, maximum=0.01), 0, 1),
    5,
    MIB,
    RollingSizes(MIB),
)


class Site:
    """Two containers, and what outlives the processes that serve them."""

    def __init__(self) -> None:
        self.logs = MemoryLogService()
        self.files = SimulatedFiles(SimulatedDisk(Random(1)), interleave=False)
        self.chunks = MemoryChunkState()
        self.world = World(lambda: 0.0, Random(1), fresh_ids())
        self.errors: dict[int, TierlogError] = {}
        """What the log of a container raises when it is made, by container."""

    def disk(self, index: int) -> LocalDisk:
        if index in self.errors:
            raise self.errors[index]
        return LocalDisk(self.log(index), simulated_runs(self.files, f"/runs/{index}"))

    def log(self, index: int) -> DurableDataLog:
        return self.logs.log(f"c{index}")

    def parts(self) -> RuntimeParts:
        return RuntimeParts(
            identity=StoreIdentity(bytes(15) + b"s", bytes(15) + b"l", 2, 0),
            owner_id=self.world.new_id(),
            chunks=MemoryChunkStorage(self.chunks),
            make_disk=self.disk,
            options=SERVING,
            world=self.world,
        )

    @asynccontextmanager
    async def runtime(self) -> AsyncIterator[ContainerRuntime]:
        async with ContainerRuntime(self.parts()).running() as runtime:
            yield runtime
