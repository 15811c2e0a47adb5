"""A layout can be relied on for the collector's delay, whatever happens to its segment meanwhile (rule S21);
in virtual time."""

from __future__ import annotations

from random import Random

import anyio
import pytest
from msgspec.structs import replace

from support.container_world import OPTIONS, ContainerWorld, Owner, assert_nothing_leaked, virtual_time
from support.stores import make
from tierlog import SegmentLayout, SegmentNotFound
from tierlog.storage_backends.base.checksum import BLOCK, crc32c

pytestmark = [pytest.mark.anyio, virtual_time]
NAMES = ("a", "b", "c")
DELAY = OPTIONS.collector.delay


class Readers:
    """Readers that hold on to every layout that they got."""

    def __init__(self, world: ContainerWorld) -> None:
        self.world = world
        self.held: list[tuple[float, SegmentLayout]] = []
        self.checked = 0

    async def ask(self, owner: Owner) -> None:
        for name in NAMES:
            asked = anyio.current_time()
            try:
                self.held.append((asked, await owner.store.segment_layout(name, 0, 1 << 40)))
            except SegmentNotFound:
                continue

    def check(self) -> None:
        now = anyio.current_time()
        self.held = [each for each in self.held if now - each[0] < DELAY]
        for _, layout in self.held:
            assert layout.valid_for == DELAY
            for extent in layout.extents:
                data = bytes(self.world.memory.chunks[extent.chunk].data)[: extent.length]
                blocks = [data[at : at + BLOCK] for at in range(extent.block * BLOCK, len(data), BLOCK)]
                assert [crc32c(block) for block in blocks] == list(extent.checksums())
                self.checked += 1


async def change(random: Random, owner: Owner, name: str) -> None:
    store = owner.store
    try:
        info = await store.segment_info(name)
    except SegmentNotFound:
        await store.create_segment(name)
        return
    match random.randrange(7):
        case 0 | 1 | 2:
            await store.append(name, random.randbytes(random.choice((10, 50_000, 200_000))))
        case 3:
            await store.truncate_segment(name, random.randint(info.start_offset, info.length))
        case 4:
            part = f"{name}#part"
            await make(store, part, random.randbytes(100_000), sealed=True)
            await store.seal_segment(part)
            await store.merge_segments(name, [part])
        case 5 if info.flushed_length:
            container = owner.container
            await container.storage.defrag(info.segment_id, container.ownership.keep_proven)
        case _:
            await store.delete_segment(name)


@pytest.mark.parametrize("seed", range(12))
async def test_s21_chunks_of_a_layout_stay_for_the_delay(seed: int) -> None:
    """Also across owners."""
    random, world = Random(seed), ContainerWorld()
    readers = Readers(world)
    for _ in range(3):
        async with world.owner() as owner:
            for _ in range(40):
                await change(random, owner, random.choice(NAMES))
                if random.random() < 0.4:
                    await owner.store.flush()
                if random.random() < 0.5:
                    await readers.ask(owner)
                await anyio.sleep(random.choice((0.0, 1.0, 20.0)))
                readers.check()
    assert readers.checked > 100
    async with world.owner() as owner:
        await assert_nothing_leaked(world, owner)


async def test_s21_after_the_delay_what_a_layout_names_may_be_gone() -> None:
    """So the test above can fail: chunks are deleted as soon as it allows."""
    world = ContainerWorld(replace(OPTIONS, collector=replace(OPTIONS.collector, delay=5.0)))
    async with world.owner() as owner:
        await make(owner.store, "s", bytes(100), flushed=True)
        layout = await owner.store.segment_layout("s", 0, 100)
        assert layout.valid_for == 5.0
        await owner.store.truncate_segment("s", 100)
        await owner.store.flush()
        await anyio.sleep(4.0)
        assert layout.extents[0].chunk in world.chunk_names
        await anyio.sleep(10.0)
        assert layout.extents[0].chunk not in world.chunk_names


async def test_a_segment_that_is_deleted_while_its_layout_is_looked_up_is_not_found() -> None:
    world = ContainerWorld()
    async with world.owner() as owner:
        await make(owner.store, "s", bytes(100_000), flushed=True)
        await owner.container.storage.read((await owner.store.segment_info("s")).segment_id, 0, 1)
        asked = owner.container.metadata.get

        async def late(key: str) -> tuple[int, bytes] | None:
            if "s" in await owner.store.list_segments():
                await owner.store.delete_segment("s")
                await owner.store.flush()
            return await asked(key)

        owner.container.metadata.get = late  # type: ignore[method-assign]
        with pytest.raises(SegmentNotFound, match="'s': it was deleted meanwhile"):
            await owner.store.segment_layout("s", 0, 100_000)
