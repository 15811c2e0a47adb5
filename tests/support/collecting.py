"""A collector beside chunks in memory, and a container that says what is referenced."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anyio
import attrs

from tierlog.actors.gc.collector import Collector, CollectorOptions
from tierlog.storage_backends.base.chunk_storage import ChunkInfo
from tierlog.storage_backends.base.errors import TierlogError
from tierlog.storage_backends.chunks.memory import MemoryChunkStorage
from tierlog.testing.faulty_chunk_storage import FaultyChunkStorage

OPTIONS = CollectorOptions(delay=60.0, attempts=3, concurrent_deletes=2, batch=4)
EPOCH = 5


def chunk(number: int, epoch: int = EPOCH) -> str:
    return f"containers/0003/{1:016x}/{epoch:016x}-{number:016x}-id"


@attrs.define
class Released:
    """The records of released files."""

    recorded: dict[str, None] = attrs.field(factory=dict)
    forgotten: list[tuple[str, ...]] = attrs.field(factory=list)
    """What each commit took out."""

    async def among(self, names: Sequence[str]) -> list[str]:
        await anyio.lowlevel.checkpoint()
        return [name for name in names if name in self.recorded]

    async def names(self) -> Sequence[str]:
        return list(self.recorded)

    async def forget(self, names: Sequence[str]) -> None:
        await anyio.lowlevel.checkpoint()
        for name in names:
            del self.recorded[name]
        self.forgotten.append(tuple(sorted(names)))


def _set_event() -> anyio.Event:
    event = anyio.Event()
    event.set()
    return event


class Referenced(set[str]):
    error: TierlogError | None = None

    async def among(self, names: Sequence[str]) -> set[str]:
        await anyio.lowlevel.checkpoint()
        if self.error is not None:
            raise self.error
        return self.intersection(names)


@attrs.define
class CollectorWorld:
    options: CollectorOptions = OPTIONS
    epoch: int = EPOCH
    prefixes: Sequence[str] = ("containers/0003/", "_system/containers/0003/runs/")
    chunks: FaultyChunkStorage = attrs.field(factory=lambda: FaultyChunkStorage(MemoryChunkStorage()))
    referenced: Referenced = attrs.field(factory=Referenced, converter=Referenced)
    released: Released = attrs.field(factory=Released)
    barriers: list[float] = attrs.field(factory=list)
    barrier_error: BaseException | None = None
    check_error: BaseException | None = None
    proof_error: BaseException | None = None
    proofs: int = 0
    checks: int = 0
    confirmed: anyio.Event = attrs.field(factory=_set_event)
    pinned: Referenced = attrs.field(factory=Referenced, converter=Referenced)
    unpublished: Referenced = attrs.field(factory=Referenced, converter=Referenced)
    requested: int = 0
    """How often an element was asked for."""
    compared: list[str] = attrs.field(factory=list)
    """Chunks that were compared with the log, and an empty name at the end of each listing."""
    collector: Collector = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.collector = Collector(self.chunks, self, self.options)

    @property
    def is_confirmed(self) -> bool:
        return self.confirmed.is_set()

    async def wait_confirmed(self) -> None:
        await self.confirmed.wait()

    async def check_history(self, chunks: Sequence[ChunkInfo]) -> None:
        await anyio.lowlevel.checkpoint()
        self.compared += [each.name for each in chunks]

    def history_checked(self) -> None:
        self.compared.append("")

    async def check_chain(self) -> None:
        await anyio.lowlevel.checkpoint()
        if self.check_error is not None:
            raise self.check_error
        self.checks += 1

    async def prove_anew(self) -> None:
        await anyio.lowlevel.checkpoint()
        if self.proof_error is not None:
            raise self.proof_error
        self.proofs += 1

    async def barrier(self) -> None:
        await anyio.lowlevel.checkpoint()
        if self.barrier_error is not None:
            raise self.barrier_error
        self.barriers.append(anyio.current_time())

    def request_element(self) -> None:
        self.requested += 1

    async def make(self, *names: str) -> None:
        for name in names:
            await self.chunks.create_with_content(name, [b"x"])

    async def left(self) -> list[str]:
        return [info.name async for info in self.chunks.inner.list("")]

    def publish(self) -> None:
        self.unpublished.clear()
        self.collector.published()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Collector]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.collector.run, self.request_element)
            await anyio.wait_all_tasks_blocked()
            yield self.collector
            tasks.cancel_scope.cancel()


@asynccontextmanager
async def collecting(*names: str, **fields: object) -> AsyncIterator[tuple[CollectorWorld, Collector]]:
    """A running collector beside chunks of these names."""
    world = CollectorWorld(**fields)  # type: ignore[arg-type]
    await world.chunks.open()
    await world.make(*names)
    async with world.running() as collector:
        yield world, collector


def deletes(world: CollectorWorld) -> int:
    return [call.verb for call in world.chunks.calls].count("delete")
