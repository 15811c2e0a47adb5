"""What the settings of ``[read_ahead]`` do to a store that reads from long-term storage."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.stores import config
from tierlog import StoreConfig, open_store
from tierlog.actors.read.statistics import ReadAheadStatistics
from tierlog.actors.settings.configuration import CacheConfig, ReadAheadConfig, StorageConfig
from tierlog.actors.settings.units import MiB
from tierlog.actors.store.opening import container_options

NAME = "app/events"
PIECE = MiB // 4
DATA = bytes(range(256)) * (4 * MiB // 256)


async def read_through(folder: Path, settings: ReadAheadConfig) -> ReadAheadStatistics:
    """Write a segment that is larger than the cache, and read it from its beginning to its end."""
    small = config(read_ahead=settings, cache=CacheConfig(bytes=MiB), append_bytes_max=PIECE)
    async with open_store(folder, containers=1, config=small) as store:
        await store.create_segment(NAME)
        for start in range(0, len(DATA), PIECE):
            await store.append(NAME, DATA[start : start + PIECE])
            await store.flush()
        found = bytearray()
        while block := await store.read(NAME, len(found), PIECE):
            found += block
        assert found == DATA
        current = store.statistics().containers[0].current
        assert current is not None
        return current.read_ahead


@pytest.mark.anyio
async def test_sequential_reads_are_read_ahead_unless_it_is_turned_off(tmp_path: Path) -> None:
    usual = await read_through(tmp_path / "usual", ReadAheadConfig())
    off = await read_through(tmp_path / "off", ReadAheadConfig(bytes=0))

    assert min(usual.windows, usual.hits) > 0
    assert (off.windows, off.hits, off.misses) == (0, 0, usual.hits + usual.misses)


@pytest.mark.parametrize(("ahead", "window"), [(0, 1), (1, 1), (3, 3), (4, 4), (64, 4)])
def test_no_window_exceeds_the_read_ahead_limit(ahead: int, window: int) -> None:
    made = container_options(
        config(read_ahead=ReadAheadConfig(bytes=ahead * MiB, total_bytes=5 * MiB)), adopt=False
    )

    assert (made.read_ahead.ahead_bytes, made.read_ahead.window_bytes) == (ahead * MiB, window * MiB)
    assert made.read_ahead_budget.limit_bytes == 5 * MiB


@pytest.mark.parametrize(("calls", "fetches"), [(1, 1), (2, 1), (16, 8), (1024, 512)])
def test_read_ahead_uses_at_most_half_of_the_calls(calls: int, fetches: int) -> None:
    made = container_options(StoreConfig(storage=StorageConfig(concurrent_calls=calls)), adopt=False)

    assert made.read_ahead_budget.fetches_max == fetches
