"""Long-term storage in which chunks cannot grow: a segment waits for a whole chunk, as far as memory and age
allow (rule F5)."""

from __future__ import annotations

import anyio
import attrs
import pytest
from msgspec.structs import replace

from support.container_world import MIB, OPTIONS, ContainerWorld, read_all, virtual_time
from support.scripted_chunks import ScriptedChunks
from tierlog.actors.container.admission import AdmissionOptions
from tierlog.storage_backends.chunks.memory import MemoryChunkStorage

pytestmark = [pytest.mark.anyio, virtual_time]

NAME = "app/events"
ROOMY = replace(
    OPTIONS,
    cache_bytes=512 * MIB,
    flush_bytes=4 * MIB,
    admission=AdmissionOptions(soft_bytes=256 * MIB, hard_bytes=400 * MIB, segment_bytes=128 * MIB),
)


@pytest.fixture
def chunks() -> ScriptedChunks:
    return ScriptedChunks(MemoryChunkStorage(append=False))


@pytest.fixture
def world(chunks: ScriptedChunks) -> ContainerWorld:
    world = ContainerWorld(ROOMY)
    world.chunks = chunks
    return world


def lengths(chunks: ScriptedChunks) -> list[int]:
    names = sorted(name for name in chunks.memory.state.chunks if name.startswith("containers/"))
    return [len(chunks.memory.state.chunks[name].data) for name in names]


async def test_64_mib_at_a_rolling_size_of_16_mib_are_four_puts_and_nothing_is_read_back(
    world: ContainerWorld, chunks: ScriptedChunks
) -> None:
    """They were 16 puts of 4 MiB once, which were read again and joined."""
    async with world.owner() as owner:
        await owner.store.create_segment(NAME, rolling_size=16 * MIB)
        for number in range(16):
            await owner.store.append(NAME, bytes([number]) * (4 * MIB))
            await anyio.sleep(0.01)
        await anyio.sleep(300)

        assert (await owner.store.segment_info(NAME)).flushed_length == 64 * MIB
        assert lengths(chunks) == [16 * MIB] * 4
        users = [
            call.verb for call in chunks.calls if call.name.startswith("containers/") and call.verb != "list"
        ]
        assert users == ["create_with_content"] * 4


async def test_memory_bounds_what_waits_for_a_whole_chunk(
    world: ContainerWorld, chunks: ScriptedChunks
) -> None:
    """Above half of what makes a cycle due, segments with ``flush_bytes`` are flushed; appends are not
    delayed."""
    admission = attrs.evolve(ROOMY.admission, cycle_bytes=16 * MIB)
    async with world.owner(replace(ROOMY, admission=admission)) as owner:
        for name in ("a", "b"):
            await owner.store.create_segment(name, rolling_size=64 * MIB)
        for _ in range(40):
            for name in ("a", "b"):
                await owner.store.append(name, bytes(MIB))
            await anyio.sleep(0.1)

        assert owner.container.statistics().admission.delayed == 0
        assert owner.container.cache.pinned_bytes <= 10 * MIB
        assert min(lengths(chunks)) >= 4 * MIB


async def test_age_bounds_how_long_bytes_wait_for_a_whole_chunk(
    world: ContainerWorld, chunks: ScriptedChunks
) -> None:
    async with world.owner() as owner:
        await owner.store.create_segment(NAME, rolling_size=64 * MIB)
        await owner.store.append(NAME, bytes(5 * MIB))
        await anyio.sleep(29)
        assert lengths(chunks) == []
        await anyio.sleep(2)
        assert (await owner.store.segment_info(NAME)).flushed_length == 5 * MIB
        assert len(await read_all(owner.store, NAME)) == 5 * MIB
