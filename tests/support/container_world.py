"""One container on memory backends, without threads: what outlives its owners, and a store's verbs on one
owner.

Virtual time works here (``virtual_time``). A crash is a cancellation: nothing of a container writes on its
way out unless it was stopped.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any, TypeVar

import anyio
import anyio.lowlevel
import attrs
import pytest
from simulation.disk import SimulatedDisk
from simulation.file_layer import SimulatedFiles
from trio.testing import MockClock

from support.table_rows import records_of, simulated_runs
from tierlog.actors.container.admission import AdmissionOptions
from tierlog.actors.container.checkpoint import CheckpointOptions
from tierlog.actors.container.container import Container
from tierlog.actors.container.local_disk import LocalDisk, RunFolder
from tierlog.actors.container.options import ContainerOptions
from tierlog.actors.container.owner import Identity
from tierlog.actors.flush.writer import WriterOptions
from tierlog.actors.folder.fingerprint import Fingerprint
from tierlog.actors.gc.collector import CollectorOptions
from tierlog.actors.kernel.exits import first_leaf
from tierlog.actors.settings.layout_mode import LayoutMode
from tierlog.actors.store.runtime import make_hook
from tierlog.actors.store.statistics import StoreStatistics
from tierlog.actors.store.store import RollingSizes, SegmentStore
from tierlog.journal.log.contract import DurableDataLog
from tierlog.journal.log.memory import MemoryLogService
from tierlog.journal.manifest.chain import element_name
from tierlog.journal.manifest.element import Element, Kind, Position, Progress
from tierlog.storage_backends.base.world import World
from tierlog.storage_backends.chunks.memory import MemoryChunkState, MemoryChunkStorage
from tierlog.storage_backends.segments.records.segment import SEGMENT_PREFIX
from tierlog.storage_backends.segments.records.unconfirmed import Reason
from tierlog.testing.faulty_chunk_storage import FaultyChunkStorage

T = TypeVar("T")

virtual_time = pytest.mark.parametrize(
    "anyio_backend", [("trio", {"clock": MockClock(autojump_threshold=0)})], ids=["trio-virtual"]
)

MIB = 1 << 20
OPTIONS = ContainerOptions(
    cache_bytes=64 * MIB,
    flush_bytes=MIB,
    admission=AdmissionOptions(soft_bytes=32 * MIB, hard_bytes=48 * MIB, segment_bytes=16 * MIB),
    writer=WriterOptions(flush_age=30, error_pause=1),
    collector=CollectorOptions(delay=60),
    checkpoint=CheckpointOptions(wal_bytes=64 * MIB),
)
ROLLING = 64 << 10
ELSEWHERE = Fingerprint(b"g" * 16, "there:/copy/wal")


def fresh_ids() -> Callable[[], str]:
    numbers: Iterator[int] = iter(range(1, 1 << 30))
    return lambda: f"{next(numbers):032x}"


@attrs.define(eq=False)
class Owner:
    """One ownership: its container, and the public verbs on it."""

    container: Container
    store: SegmentStore
    scope: anyio.CancelScope = attrs.field(factory=anyio.CancelScope)
    started: anyio.Event = attrs.field(factory=anyio.Event)
    ended: anyio.Event = attrs.field(factory=anyio.Event)
    error: BaseException | None = None

    async def run(self) -> None:
        try:
            with self.scope:
                await self.container.run(self.started.set, lambda: None)
        except Exception as error:  # noqa: BLE001 - the test asks for it
            self.error = first_leaf(error)
        finally:
            self.ended.set()
            self.started.set()

    async def stop(self) -> None:
        """The clean end."""
        self.container.stop()
        await self.ended.wait()

    async def crash(self) -> None:
        self.scope.cancel()
        await self.ended.wait()

    async def checkpoint(self) -> None:
        await self.container._components.checkpointer.checkpoint()

    def begin_cycle(self) -> None:
        """A full flush cycle for which nobody waits."""
        self.container._components.writer.request_cycle()

    @property
    def log_bytes(self) -> int:
        return self.container.log.statistics().appended_bytes


class _Host:
    """Leads every call to one ownership, restarting nothing."""

    index = 0

    def __init__(self, container: Container) -> None:
        self.active = container

    async def call(self, verb: Callable[[Container], Awaitable[T]]) -> T:
        return await verb(self.active)


class ContainerWorld:
    """What outlives the owners: log and chunks. ``chunks.script`` breaks long-term storage."""

    def __init__(
        self, options: ContainerOptions = OPTIONS, layout: LayoutMode = LayoutMode.INSTALL_NEW
    ) -> None:
        self.options = options
        self.layout = layout
        self.logs = MemoryLogService()
        self.files = SimulatedFiles(SimulatedDisk(Random(1)), interleave=False)
        self.runs: RunFolder | None = None
        """Replaces the folder of runs on the simulated disk."""
        self.memory = MemoryChunkState()
        self.chunks = FaultyChunkStorage(MemoryChunkStorage(self.memory))
        self.world = World(lambda: 0.0, Random(7), fresh_ids())
        self.store_id = bytes(15) + b"s"
        self.folder = Fingerprint(b"f" * 16, "here:/data/wal")

    def make(
        self,
        options: ContainerOptions | None = None,
        log: DurableDataLog | None = None,
        log_id: bytes = b"l" * 16,
        layout: LayoutMode | None = None,
    ) -> Owner:
        identity = Identity(self.store_id, log_id, self.world.id_bytes(), self.folder)
        container = Container(
            0,
            LocalDisk(
                log or self.logs.log("c0"), self.runs or simulated_runs(self.files, f"/runs-{log_id.hex()}")
            ),
            self.chunks,
            identity,
            self.world,
            options or self.options,
            make_hook(layout or self.layout),
        )
        host: Any = _Host(container)
        return Owner(
            container,
            SegmentStore(
                [host],
                append_bytes_max=8 * MIB,
                rolling_sizes=RollingSizes(ROLLING, smallest=1),
                statistics=StoreStatistics,
            ),
        )

    @asynccontextmanager
    async def owner(self, options: ContainerOptions | None = None, **made: Any) -> AsyncIterator[Owner]:
        """An owner for the body; stopped cleanly at its end unless it has ended by then."""
        async with anyio.create_task_group() as tasks:
            owner = await self.start(tasks, options, **made)
            try:
                yield owner
            finally:
                owner.container.stop()
                with anyio.CancelScope(shield=True):
                    await owner.ended.wait()

    async def start(
        self, tasks: anyio.abc.TaskGroup, options: ContainerOptions | None = None, **made: Any
    ) -> Owner:
        """An owner that lives until it is stopped, crashed or fails. Raises why it did not start."""
        await self.chunks.open()
        owner = self.make(options, **made)
        tasks.start_soon(owner.run)
        await owner.started.wait()
        if owner.error is not None:
            raise owner.error

        return owner

    @property
    def chunk_names(self) -> set[str]:
        """Users' chunks in long-term storage."""
        return {name for name in self.memory.chunks if name.startswith("containers/")}


@asynccontextmanager
async def as_copy(world: ContainerWorld, logs: MemoryLogService | None = None) -> AsyncIterator[Owner]:
    """An owner of a copy of the folder, taken now unless ``logs`` are given, on another machine."""
    own, folder = world.logs, world.folder
    world.logs, world.folder = logs or cloned(own), ELSEWHERE
    async with world.owner() as copy:
        world.logs, world.folder = own, folder
        yield copy


def referenced_chunks(container: Container) -> set[str]:
    return {key[2:] for key in records_of(container) if key.startswith("c:")}


def recorded_segments(container: Container) -> set[int]:
    """The ids of segments that long-term storage has a record of."""
    return {
        int(key[len(SEGMENT_PREFIX) :], 16) for key in records_of(container) if key.startswith(SEGMENT_PREFIX)
    }


async def read_all(store: SegmentStore, name: str, start: int = 0) -> bytes:
    """Everything from ``start`` to the tail."""
    parts = []
    while block := await store.read(name, start, 1 << 20):
        parts.append(block)
        start += len(block)

    return b"".join(parts)


def deletes(world: ContainerWorld) -> list[str]:
    """The deletions of users' chunks and files."""
    calls = (call for call in world.chunks.calls if call.verb == "delete")
    return [call.name for call in calls if not call.name.startswith("_system/")]


async def assert_nothing_leaked(world: ContainerWorld, owner: Owner) -> None:
    """On virtual time: once everything is flushed and collected, long-term storage has what is referenced."""
    await owner.store.flush()
    await anyio.sleep(500)
    assert world.chunk_names == referenced_chunks(owner.container)
    assert owner.container.statistics().collector.queued == 0


async def until(holds: Callable[[], bool]) -> None:
    """Let the other tasks run until ``holds()``; fails after 10,000 turns."""
    for _ in range(10_000):
        if holds():
            return
        await anyio.lowlevel.checkpoint()

    raise AssertionError("it did not come true")


def cloned(service: MemoryLogService) -> MemoryLogService:
    """A copy of the logs as they are now: what ``cp -r`` of a folder makes."""
    copy = MemoryLogService()
    copy._states.update(
        {
            name: attrs.evolve(journal, groups=list(journal.groups))
            for name, journal in service._states.items()
        }
    )
    return copy


async def refusal_of(world: ContainerWorld, options: ContainerOptions = OPTIONS) -> BaseException | None:
    """Why an owner does not start."""
    try:
        async with world.owner(options):
            return None
    except Exception as error:  # noqa: BLE001 - the answer is what the tests are about
        return first_leaf(error)


async def flush_more(owner: Owner, times: int = 1) -> None:
    """Append to the segment ``s`` and flush, each time."""
    for _ in range(times):
        await owner.store.append("s", b"x")
        await owner.store.flush()


def reason_of(owner: Owner) -> Reason | None:
    record = owner.container.confirmation.unconfirmed
    return None if record is None else record.reason


async def create_element(world: ContainerWorld, n: int, epoch: int, identity: Identity) -> None:
    """As another history of the store does."""
    await world.chunks.inner.create_with_content(element_name(0, n), [element_bytes(n, epoch, identity)])


def element_bytes(n: int, epoch: int, identity: Identity) -> bytes:
    """An element of another history."""
    element = Element(
        n=n,
        kind=Kind.OPEN,
        epoch=epoch,
        owner=identity.signature,
        predecessor=Position(n - 1, 7),
        time_ms=0,
        progress=Progress(),
    )
    return element.encode()
