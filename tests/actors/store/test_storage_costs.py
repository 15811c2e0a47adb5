"""What a store costs long-term storage with the settings that it has by default: bytes of its own under load,
requests while nothing happens, and requests while long-term storage is down. In virtual time."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from random import Random

import anyio
import pytest
from simulation.file_layer import SimulatedDisk, SimulatedFiles

import tierlog
from support.container_world import ContainerWorld, read_all, virtual_time
from tierlog import SegmentStore
from tierlog.actors.settings.configuration import CacheConfig, StoreConfig, WriterConfig
from tierlog.actors.store.opening import container_options
from tierlog.storage_backends.base.checksum import Buffer
from tierlog.storage_backends.base.names import SYSTEM_SCOPE
from tierlog.storage_backends.chunks.memory import MemoryChunk, MemoryChunkStorage
from tierlog.testing.faulty_chunk_storage import Call, Fault, FaultKind, FaultyChunkStorage

pytestmark = [pytest.mark.anyio, virtual_time]

KIB, MIB = 1 << 10, 1 << 20
CONTAINERS = 2
MINUTE, HOUR = 60, 3_600
READS = {"exists", "info", "read", "list", "used_space"}


class Length(MemoryChunk):
    """A user's chunk of which only the length is kept."""

    __slots__ = ("_length",)

    def __init__(self, length: int) -> None:
        super().__init__(bytearray())
        self._length = length

    @property
    def length(self) -> int:
        return self._length

    def add(self, data: Buffer) -> None:
        self._length += len(data)


class Counting(MemoryChunkStorage):
    user_bytes = own_bytes = 0

    async def _create_with_content(self, name: str, data: Sequence[Buffer]) -> int:
        size = sum(map(len, data))
        if name.startswith(SYSTEM_SCOPE):
            self.own_bytes += size
            return await super()._create_with_content(name, data)

        self.user_bytes += size
        return self._add(name, Length(size))

    async def _write(self, name: str, offset: int, data: Sequence[Buffer]) -> int:
        self.user_bytes += sum(map(len, data))
        return await super()._write(name, offset, data)


@pytest.mark.parametrize(
    ("rolling_size", "share"),
    [
        pytest.param(64 * MIB, 0.0001, id="chunks-of-64-mib", marks=pytest.mark.extended),
        pytest.param(MIB, 0.01, id="chunks-of-1-mib"),
    ],
)
async def test_the_metadata_of_50_mb_a_second_is_a_small_share_of_it(rolling_size: int, share: float) -> None:
    config = StoreConfig(writer=WriterConfig(rolling_size=rolling_size))
    world = ContainerWorld(container_options(config, adopt=False))
    world.chunks.inner = counting = Counting()
    names, block = [f"s{number}" for number in range(8)], bytes(MIB)
    async with world.owner() as owner:
        for name in names:
            await owner.store.create_segment(name, rolling_size=rolling_size)
        begin = anyio.current_time()
        while anyio.current_time() < begin + 70:
            for name in names:
                await owner.store.append(name, block)
            await anyio.sleep(len(names) * len(block) / 50e6)
        await owner.store.flush()
        assert owner.container.statistics().writer.cycles > 2

    assert counting.user_bytes > 70 * 49e6
    assert 0 < counting.own_bytes <= share * counting.user_bytes


@asynccontextmanager
async def opened(
    chunks: FaultyChunkStorage, containers: int, config: StoreConfig | None = None
) -> AsyncIterator[SegmentStore]:
    files = SimulatedFiles(SimulatedDisk(Random(1)), interleave=False)
    async with tierlog.open_store(
        "/data", containers=containers, config=config, storage=chunks, files=files
    ) as store:
        yield store


async def test_an_idle_store_writes_nothing_and_asks_long_term_storage_less_than_once_a_minute() -> None:
    """Also the later listings for garbage (rule G5) and the sweeps are below that."""
    asked: Counter[int] = Counter()
    written: list[Call] = []

    def script(call: Call) -> None:
        asked[int(anyio.current_time() - begin) // HOUR] += 1
        if call.verb not in READS | {"sweep"}:
            written.append(call)

    chunks = FaultyChunkStorage(MemoryChunkStorage())
    async with opened(chunks, CONTAINERS) as store:
        for number in range(100):
            await store.create_segment(f"s{number}")
            await store.append(f"s{number}", bytes(KIB))
        await store.delete_segment("s0")
        await store.flush()
        # The chunks of the deleted segment are collected after their delay.
        await anyio.sleep(5 * MINUTE)
        begin = anyio.current_time()
        chunks.script = script
        await anyio.sleep(HOUR)

    assert written == []
    assert max(asked.values()) <= 60 * CONTAINERS, asked


class Slow(MemoryChunkStorage):
    """20 ms a request, and 250 KB/s for each."""

    latency, rate = 0.02, 250e3
    began: float | None = None
    """When the first user's chunk was written."""
    answered: float | None = None
    """When the first such write succeeded."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = anyio.Event()

    async def _create_with_content(self, name: str, data: Sequence[Buffer]) -> int:
        await self._transfer(name, data)
        return await super()._create_with_content(name, data)

    async def _write(self, name: str, offset: int, data: Sequence[Buffer]) -> int:
        await self._transfer(name, data)
        return await super()._write(name, offset, data)

    async def _transfer(self, name: str, data: Sequence[Buffer]) -> None:
        if self.began is None and not name.startswith(SYSTEM_SCOPE):
            self.began = anyio.current_time()
            self.begun.set()
        await anyio.sleep(self.latency + sum(map(len, data)) / self.rate)
        if self.answered is None and self.began is not None:
            self.answered = anyio.current_time()


SMALL_CACHE = StoreConfig(cache=CacheConfig(bytes=8 * MIB))
NAMES = [f"s{number}" for number in range(8)]
EVENT = 4 * KIB
ROUNDS = HOUR // 4
"""Four times what the cache holds."""


def event(name: str, number: int) -> bytes:
    return f"{name}:{number};".encode().ljust(EVENT, b".")


async def append_all(store: SegmentStore, pause: float) -> None:
    for number in range(ROUNDS):
        for name in NAMES:
            await store.append(name, event(name, number))
        await anyio.sleep(pause)


async def flush_rate(store: SegmentStore, slow: Slow) -> float:
    """Bytes per second, from the first write to the moment at which all is flushed, which nobody asks for."""
    for name in NAMES:
        while (await store.segment_info(name)).flushed_length < ROUNDS * EVENT:
            await anyio.sleep(0.05)
    assert slow.began is not None
    return len(NAMES) * ROUNDS * EVENT / (anyio.current_time() - slow.began)


@pytest.mark.extended
async def test_s7_an_hour_without_long_term_storage_costs_few_requests_and_is_caught_up_at_full_speed() -> (
    None
):
    """S7, F8: the load goes on, the rate of requests does not grow, and nothing is lost."""
    slow = Slow()
    async with opened(FaultyChunkStorage(slow), 1, SMALL_CACHE) as store:
        for name in NAMES:
            await store.create_segment(name)
        await append_all(store, 0)
        plain = await flush_rate(store, slow)

    asked: Counter[int] = Counter()

    def down(call: Call) -> Fault:
        asked[int(anyio.current_time() - begin) // (10 * MINUTE)] += 1
        return Fault(FaultKind.BEFORE)

    slow = Slow()
    chunks = FaultyChunkStorage(slow)
    async with opened(chunks, 1, SMALL_CACHE) as store:
        for name in NAMES:
            await store.create_segment(name)
        await store.flush()
        begin = anyio.current_time()
        chunks.script = down
        await append_all(store, HOUR / ROUNDS)
        chunks.script = None
        assert slow.began is None

        assert await flush_rate(store, slow) >= 0.8 * plain
        assert max(asked.values()) <= 1.1 * asked[0]
        assert asked[0] <= 10 * MINUTE
        for name in NAMES:
            assert await read_all(store, name) == b"".join(event(name, number) for number in range(ROUNDS))


class Fast(Slow):
    latency, rate = 0.001, 100e6


async def flushed(store: SegmentStore, slow: Slow, names: list[str], length: int) -> float:
    """The moment at which that much of each is flushed, which nobody asks for."""
    await slow.begun.wait()
    for name in names:
        while (await store.segment_info(name)).flushed_length < length:
            await anyio.sleep(slow.latency / 2)
    return anyio.current_time()


@pytest.mark.parametrize(
    "events", [25, *(pytest.param(count, marks=pytest.mark.extended) for count in (2, 100))]
)
@pytest.mark.parametrize("kind", [Slow, Fast])
async def test_s7_a_backlog_of_any_size_is_caught_up_at_full_speed_once_a_probe_has_succeeded(
    kind: type[Slow], events: int
) -> None:
    """A small one took seconds on fast storage: what was not the probe waited for another pause. The probe
    itself takes as long as one write does."""
    names, data = [f"s{number}" for number in range(16)], b"".join(event("s", n) for n in range(events))
    slow = kind()
    async with opened(FaultyChunkStorage(slow), CONTAINERS) as store:
        for name in names:
            await store.create_segment(name)
            await store.append(name, data)
        end = await flushed(store, slow, names, len(data))
        assert slow.began is not None
        plain = end - slow.began

    slow = kind()
    chunks = FaultyChunkStorage(slow)
    async with opened(chunks, CONTAINERS) as store:
        for name in names:
            await store.create_segment(name)
        await store.flush()
        chunks.script = lambda call: Fault(FaultKind.BEFORE)
        for name in names:
            await store.append(name, data)
        await anyio.sleep(5 * MINUTE)
        chunks.script = None
        end = await flushed(store, slow, names, len(data))
        assert slow.answered is not None
        assert end - slow.answered <= plain / 0.8
