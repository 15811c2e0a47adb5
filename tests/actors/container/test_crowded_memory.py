"""Many segments in memory that no flush cycle can publish: what brings more of them there is delayed, then
refused, and what relieves memory is not (rules M5, C6)."""

from __future__ import annotations

import gc
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import attrs
import pytest
from msgspec.structs import replace
from simulation.records import broken_records

from support.container_world import OPTIONS, ContainerWorld, Owner, read_all, virtual_time
from support.live_segments import cold_images
from support.patience import scaled
from support.stores import make
from tierlog import AttributeUpdate, AttributeUpdateKind
from tierlog.actors.container.admission import SEGMENTS_MAX
from tierlog.storage_backends.base.checksum import Buffer
from tierlog.storage_backends.base.errors import SegmentExists, Throttled
from tierlog.storage_backends.chunks.memory import MemoryChunkStorage
from tierlog.testing.faulty_chunk_storage import Fault, FaultKind, FaultyChunkStorage, every

pytestmark = pytest.mark.anyio

MOST = 40
CROWDED = replace(
    OPTIONS, active_segments_max=5, admission=attrs.evolve(OPTIONS.admission, segments=MOST, delay_max=0.1)
)
COLD = [f"cold/{number}" for number in range(10)]
CLIENTS = 1000
GROWTH_MAX = 32 << 20
"""Bytes that refused creations may leave in memory, however many there are."""
SEGMENT_MAX = 3 << 10
"""Bytes of memory for a segment that was created and not published."""


@asynccontextmanager
async def crowded(
    world: ContainerWorld, cold: Sequence[str] = COLD
) -> AsyncIterator[tuple[Owner, anyio.Event, list[str]]]:
    """An owner of cold segments whose storage is frozen, after creations by the hundred. Gives the names of
    those that it accepted, and an event: the storage answers again."""
    healed = anyio.Event()
    world.chunks = FaultyChunkStorage(MemoryChunkStorage(world.memory), hang=healed.wait)
    async with world.owner() as owner:
        for name in cold:
            await make(owner.store, name, name.encode())
        await owner.store.flush()
        await anyio.sleep(1)
        await owner.store.append(cold[0], b"")
        await anyio.sleep(1)
        world.chunks.script = every(Fault(FaultKind.HANG))
        yield owner, healed, await create_many(owner, 0, 1000)


async def create_many(owner: Owner, start: int, count: int) -> list[str]:
    """The names of the segments that could be created."""
    created = []
    for number in range(start, start + count):
        try:
            await owner.store.create_segment(f"new/{number}")
        except Throttled:
            continue
        created.append(f"new/{number}")
    return created


@virtual_time
async def test_m5_creations_are_refused_while_storage_is_frozen_and_go_on_once_it_answers() -> None:
    world = ContainerWorld(CROWDED)
    async with crowded(world) as (owner, healed, created):
        segments = owner.container.segments
        assert MOST - 10 <= len(created) < MOST
        assert segments.count == len(segments.by_id) == MOST
        assert owner.container.statistics().admission.refused_segments == 1000 - len(created)

        world.chunks.script = None
        healed.set()
        with anyio.fail_after(600):
            while len(created) < 300:
                await anyio.sleep(1)
                created.extend(await create_many(owner, 1000 + len(created), 10))
        assert segments.count <= MOST
        await owner.store.flush()
        assert await owner.store.list_segments() == sorted([*COLD, *created])
        assert not list(broken_records(owner.container))


@virtual_time
async def test_m5_what_relieves_memory_and_what_needs_none_is_not_refused() -> None:
    world = ContainerWorld(CROWDED)
    async with crowded(world) as (owner, healed, created):
        store = owner.store
        cold = [image.name for image in cold_images(owner.container).values()]
        assert len(cold) >= 3
        assert await store.append(created[0], b"in memory") == 0
        for name in (created[0], cold[0]):
            with pytest.raises(SegmentExists):
                await store.create_segment(name)
        assert (await store.segment_info(cold[0])).length == len(cold[0])
        update = [AttributeUpdate("a", 1, AttributeUpdateKind.REPLACE)]
        for call in (
            store.append(cold[0], b"loads it"),
            store.update_attributes(cold[0], update),
            store.seal_segment(cold[0]),
            store.begin_transaction(cold[0], "t"),
            store.abort_transaction(cold[0], "t"),
            store.create_segment("one/more"),
        ):
            with pytest.raises(Throttled, match="segments in memory"):
                await call
        await store.delete_segment(cold[1])
        await store.delete_segment(created[1])
        await store.begin_transaction(created[0], "t")
        await store.abort_transaction(created[0], "t")
        world.chunks.script = None
        healed.set()
        await store.flush()
        await anyio.sleep(1)
        assert await store.append(cold[0], b"!") == len(cold[0])
        assert await read_all(store, cold[0]) == cold[0].encode() + b"!"


@virtual_time
async def test_m5_deletes_of_cold_segments_are_refused_above_twice_the_limit() -> None:
    """Each is loaded, and stays in memory until long-term storage answers."""
    world = ContainerWorld(CROWDED)
    names = [f"cold/{number}" for number in range(3 * MOST)]
    async with crowded(world, names) as (owner, healed, created):
        segments, refused = owner.container.segments, 0
        cold = {image.name for image in cold_images(owner.container).values()}
        left = set(names)
        for name in sorted(cold):
            try:
                await owner.store.delete_segment(name)
            except Throttled:
                refused += 1
            else:
                left.discard(name)
        assert len(cold) - refused >= MOST
        assert segments.count == len(segments.by_id) == 2 * MOST
        await owner.store.delete_segment(created[0])

        world.chunks.script = None
        healed.set()
        await owner.store.flush()
        for name in sorted(left):
            await owner.store.delete_segment(name)
        assert await owner.store.list_segments() == sorted(created[1:])


@virtual_time
async def test_m5_from_half_of_the_limit_on_creations_wait_for_flush_cycles() -> None:
    """So that a healthy container hardly ever refuses one, however fast they come."""
    world = ContainerWorld(CROWDED)
    async with world.owner() as owner:
        created = await create_many(owner, 0, 500)
        statistics = owner.container.statistics()
        assert len(created) == 500
        assert statistics.admission.delayed > 0
        assert statistics.admission.refused_segments == 0
        assert owner.container.segments.count < MOST


@virtual_time
async def test_m5_a_slow_log_lets_segments_leave_as_fast_as_clients_create_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each group of the log takes as long as a disk that others use, and has the creations of 500 clients."""

    admission = attrs.evolve(OPTIONS.admission, segments=4000, delay_max=2.0)
    options = replace(OPTIONS, active_segments_max=1000, admission=admission)
    world, created = ContainerWorld(options), list[str]()
    log = world.logs.log("c0")
    append = log.append

    async def slow_append(buffers: Sequence[Buffer], *, tag: int = 0, truncate_before: int = 0) -> int:
        await anyio.sleep(0.1)
        return await append(buffers, tag=tag, truncate_before=truncate_before)

    monkeypatch.setattr(log, "append", slow_append)

    async def create(owner: Owner, client: int) -> None:
        created.extend(await create_many(owner, 30 * client, 30))

    async with world.owner(log=log) as owner:
        async with anyio.create_task_group() as clients:
            for client in range(500):
                clients.start_soon(create, owner, client)
        assert owner.container.statistics().admission.refused_segments == 0
        assert len(created) == len(set(created)) == 15_000
        assert owner.container.segments.count < 4000


@virtual_time
async def test_m5_an_outage_that_ends_leaves_a_container_that_opens_and_recovers_by_itself() -> None:
    """Replay passes no gate: what was accepted is there again, however much that is."""
    world = ContainerWorld(CROWDED)
    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks)
        world.chunks.script = every(Fault(FaultKind.BEFORE))
        created = await create_many(owner, 0, 200)
        await owner.crash()
    async with world.owner(replace(CROWDED, admission=OPTIONS.admission)) as owner:
        created += await create_many(owner, 200, 100)
        await owner.crash()
    async with world.owner() as owner:
        assert owner.container.segments.count == len(created) > MOST
        assert await create_many(owner, 300, 10) == []
        world.chunks.script = None
        await anyio.sleep(60)
        assert owner.container.segments.count <= MOST
        created += await create_many(owner, 400, 10)
        assert await owner.store.list_segments() == sorted(created)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096


@pytest.fixture
def _frozen_heap() -> None:
    """What earlier tests left is frozen: the more objects there are, the longer garbage waits for its
    collection."""
    gc.collect()
    gc.freeze()
    gc.collect()


async def offer(owner: Owner, start: int, count: int) -> int:
    """How many of ``count`` creations by a thousand clients are accepted."""
    accepted, each = list[str](), count // CLIENTS

    async def create(client: int) -> None:
        accepted.extend(await create_many(owner, start + client * each, each))

    async with anyio.create_task_group() as clients:
        for client in range(CLIENTS):
            clients.start_soon(create, client)
    return len(accepted)


@pytest.mark.usefixtures("_frozen_heap")
@pytest.mark.parametrize(
    ("offered", "most"),
    [
        (20_000, 2_000),
        pytest.param(1_000_000, SEGMENTS_MAX, marks=[pytest.mark.extended, pytest.mark.timeout(600)]),
    ],
    ids=["twenty-thousand", "a-million"],
)
async def test_m5_creations_without_end_fill_no_memory_and_the_container_comes_back_by_itself(
    offered: int, most: int
) -> None:
    """A million is with the limit of a store by default."""
    admission = attrs.evolve(OPTIONS.admission, segments=most, delay_max=0.05, publish_interval=0.1)
    world = ContainerWorld(replace(OPTIONS, active_segments_max=most // 4, admission=admission))
    healed = anyio.Event()
    world.chunks = FaultyChunkStorage(MemoryChunkStorage(world.memory), hang=healed.wait)
    async with world.owner() as owner:
        segments, store = owner.container.segments, owner.store
        await make(store, "tick", flushed=True)
        empty = resident_bytes()
        world.chunks.script = every(Fault(FaultKind.HANG))
        created = await offer(owner, 0, 2 * most)
        full, rows = resident_bytes(), owner.container.state.table.memory
        assert await offer(owner, 2 * most, offered - 2 * most) == 0
        assert segments.count - created in (0, 1), "the first segment may be cold"
        assert most <= segments.count < most + CLIENTS, "some passed the gate together"
        assert owner.container.statistics().admission.refused_segments == offered - created
        assert owner.container.state.table.memory == rows
        assert full - empty < GROWTH_MAX + SEGMENT_MAX * most
        assert resident_bytes() - full < GROWTH_MAX

        world.chunks.script = None
        healed.set()
        later, numbers = list[str](), itertools.count(offered, 10)
        with anyio.fail_after(scaled(60)):
            while len(later) < CLIENTS:
                # New names each time: of ten, some may be refused before others are accepted.
                later.extend(await create_many(owner, next(numbers), 10))
                await anyio.sleep(0.01)
            while owner.container.state.table.memory or segments.count > most // 2:
                await store.append("tick", b".")
                await store.flush()
                await anyio.sleep(0.01)
        names = await store.list_segments("new/")
        assert len(names) == created + len(later)
        assert set(later) <= set(names)
    async with world.owner() as owner:
        assert await owner.store.list_segments("new/") == names
        assert len(owner.container.segments.by_id) <= most // 2
