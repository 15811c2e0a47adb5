"""Rule F8: after an outage of long-term storage, spilled bytes are flushed in rounds that read each window
of the log about once and hold a bounded number of bytes. In virtual time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import anyio
import pytest
from msgspec.structs import replace

from support.container_world import MIB, OPTIONS, ContainerWorld, Owner, read_all, virtual_time
from support.stores import make
from tierlog.actors.container.admission import AdmissionOptions
from tierlog.storage_backends.base.checksum import Buffer
from tierlog.storage_backends.base.chunk_storage import Capabilities
from tierlog.testing.faulty_chunk_storage import Call, Fault, FaultKind, FaultyChunkStorage

pytestmark = [pytest.mark.anyio, virtual_time]

CACHE = 2 * MIB
SMALL = replace(
    OPTIONS,
    cache_bytes=CACHE,
    admission=AdmissionOptions(soft_bytes=64 * MIB, hard_bytes=96 * MIB, segment_bytes=32 * MIB),
)
DOWN = Fault(FaultKind.BEFORE)


async def fill(owner: Owner, names: list[str], appends: int, size: int) -> None:
    """Append to all segments in turn; they may exist."""
    for name in names:
        await owner.store.create_segment(name, exist_ok=True)
    for number in range(appends):
        async with anyio.create_task_group() as tasks:
            for name in names:
                tasks.start_soon(owner.store.append, name, content(name, number, size))


def content(name: str, number: int, size: int) -> bytes:
    return f"{name}:{number};".encode().ljust(size, b".")


@pytest.mark.parametrize("count", [64, 512])
async def test_the_log_is_read_about_once_however_many_segments_share_its_windows(count: int) -> None:
    world = ContainerWorld(SMALL)
    names, total, size = [f"s{number}" for number in range(count)], 8 * MIB, 4 << 10
    async with world.owner() as owner:
        world.chunks.script = lambda call: DOWN
        await fill(owner, names, total // size // count, size)
        read_before = owner.container.statistics().unflushed.window_bytes
        assert owner.container.cache.unflushed_bytes == total

        world.chunks.script = None
        await anyio.sleep(100)
        await owner.store.flush()
        statistics = owner.container.statistics()
        assert statistics.cache.unflushed_bytes == 0
        assert CACHE < statistics.unflushed.window_bytes - read_before <= 2 * total
        for name in names[:: count // 8]:
            expected = b"".join(content(name, number, size) for number in range(total // size // count))
            assert await read_all(owner.store, name) == expected


class WithoutAppend(FaultyChunkStorage):
    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, append=False)


@pytest.mark.parametrize("seconds", [0.0, 1.5], ids=["prompt", "late"])
@pytest.mark.parametrize("can_append", [True, False], ids=["append", "whole chunks"])
async def test_flushes_load_no_more_than_half_of_the_limit_of_the_cache(
    can_append: bool, seconds: float
) -> None:
    """Late flushes count too."""
    world = ContainerWorld(SMALL)
    if not can_append:
        world.chunks = WithoutAppend(world.chunks.inner)
    names, size = [f"s{number}" for number in range(8)], 64 << 10
    async with world.owner() as owner:
        world.chunks.script = lambda call: DOWN
        await fill(owner, names, 32, size)
        loaded: list[int] = []

        def slow(call: Call) -> Fault | None:
            loaded.append(owner.container.statistics().unflushed.loaded_bytes)
            return Fault(FaultKind.DELAY, seconds=seconds) if seconds else None

        world.chunks.script = slow
        await anyio.sleep(400)
        await owner.store.flush()
        assert 0 < max(loaded) <= CACHE // 2
        assert owner.container.statistics().unflushed.loaded_bytes == 0
        assert owner.container.cache.unflushed_bytes == 0
        for name in names:
            expected = b"".join(content(name, number, size) for number in range(32))
            assert await read_all(owner.store, name) == expected


class Measured(FaultyChunkStorage):
    """Knows how many bytes its puts and writes hold."""

    held = most = 0
    append = True

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, append=self.append)

    async def create_with_content(self, name: str, data: Sequence[Buffer]) -> int:
        with self._holding(data):
            return await super().create_with_content(name, data)

    async def write(self, name: str, offset: int, data: Sequence[Buffer]) -> int:
        with self._holding(data):
            return await super().write(name, offset, data)

    @contextmanager
    def _holding(self, data: Sequence[Buffer]) -> Iterator[None]:
        size = sum(map(len, data))
        self.held += size
        self.most = max(self.most, self.held)
        try:
            yield
        finally:
            self.held -= size


@pytest.mark.parametrize("seconds", [0.5, 1.5], ids=["prompt", "late"])
@pytest.mark.parametrize("can_append", [True, False], ids=["append", "whole chunks"])
async def test_what_left_memory_behind_a_merge_shares_the_limit(can_append: bool, seconds: float) -> None:
    """Behind the splice a flush takes pieces as long as it has room for."""
    world = ContainerWorld(SMALL)
    world.chunks = chunks = Measured(world.chunks.inner)
    chunks.append = can_append
    names, size = [f"s{number}" for number in range(8)], 64 << 10
    async with world.owner() as owner:
        store = owner.store
        chunks.script = lambda call: DOWN
        for name in names:
            await store.create_segment(name, rolling_size=4 * MIB)
            await make(store, f"{name}-source", b"source", sealed=True)
            await store.merge_segments(name, [f"{name}-source"])
        await fill(owner, names, 32, size)
        assert owner.container.cache.unflushed_bytes > 8 * CACHE
        loaded: list[int] = []

        def slow(call: Call) -> Fault:
            loaded.append(owner.container.statistics().unflushed.loaded_bytes)
            return Fault(FaultKind.DELAY, seconds=seconds)

        chunks.script = slow
        await anyio.sleep(400)
        await store.flush()
        assert CACHE // 2 < chunks.most <= CACHE // 2 + CACHE, "spilled bytes and cached ones"
        assert CACHE // 4 < max(loaded) <= CACHE // 2
        assert owner.container.statistics().unflushed.loaded_bytes == 0
        assert owner.container.cache.unflushed_bytes == 0
        for name in names:
            expected = b"source" + b"".join(content(name, number, size) for number in range(32))
            assert await read_all(store, name) == expected
        assert len(world.chunk_names) <= 7 * len(names), "pieces of up to half of the room, and the source"


@pytest.mark.parametrize("can_append", [True, False], ids=["append", "whole chunks"])
async def test_f7_a_flush_that_hangs_leaves_room_for_what_others_spilled(can_append: bool) -> None:
    world, back = ContainerWorld(SMALL), anyio.Event()
    storage = FaultyChunkStorage if can_append else WithoutAppend
    world.chunks = storage(world.chunks.inner, hang=back.wait)
    async with world.owner() as owner:
        world.chunks.script = lambda call: DOWN
        await fill(owner, ["hangs"], 4, MIB)
        await fill(owner, ["s0", "s1"], 2, 64 << 10)
        for number in range(4, 8):
            await owner.store.append("hangs", content("hangs", number, MIB))
        sid = (await owner.store.segment_info("hangs")).segment_id

        def hang(call: Call) -> Fault | None:
            return Fault(FaultKind.HANG) if f"/{sid:016x}/" in call.name else None

        world.chunks.script = hang
        await anyio.sleep(20)
        assert owner.container.statistics().unflushed.loaded_bytes > 0
        for name in ("s0", "s1"):
            assert (await owner.store.segment_info(name)).flushed_length == 2 * (64 << 10)

        world.chunks.script = None
        back.set()
        await owner.store.flush()
        for name, count, size in (("hangs", 8, MIB), ("s0", 2, 64 << 10), ("s1", 2, 64 << 10)):
            expected = b"".join(content(name, number, size) for number in range(count))
            assert await read_all(owner.store, name) == expected
