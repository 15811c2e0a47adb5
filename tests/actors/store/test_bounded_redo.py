"""What a crash makes to be done again is bounded by the configuration (docs/operating.md)."""

from __future__ import annotations

from random import Random

import pytest
from simulation.file_layer import SimulatedDisk, SimulatedFiles

import tierlog
from support.stores import CONFIG, KIB, config, make
from tierlog.actors.settings.configuration import CheckpointConfig

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]
WAL_BYTES = 1024 * KIB
SEGMENTS = 4
BOUNDED = config(checkpoint=CheckpointConfig(wal_bytes=WAL_BYTES))


async def after_crash(disk: SimulatedDisk) -> tuple[int, int]:
    """(bytes of log that the next owner reads, bytes that it has to flush)."""
    files = SimulatedFiles(disk)
    async with tierlog.open_store("/data", config=BOUNDED, files=files) as store:
        current = store.statistics().containers[0].current
        assert current is not None
        return current.log.retained_bytes, current.cache.unflushed_bytes


async def test_the_log_that_is_read_again_after_a_crash_is_bounded() -> None:
    """At most what makes two checkpoints due, and what is not flushed, in whole files."""
    disk = SimulatedDisk(Random(1))
    files = SimulatedFiles(disk)
    async with tierlog.open_store("/data", containers=1, config=BOUNDED, files=files) as store:
        for number in range(SEGMENTS):
            await make(store, f"app/{number}")
        for turn in range(120):
            for number in range(SEGMENTS):
                await store.append(f"app/{number}", bytes(16 * KIB))
            if turn % 20 == 19:
                before, copy = unflushed_bytes(store), disk.copy()
                retained, unflushed = await after_crash(copy)
                assert unflushed <= before
                assert retained <= 2 * WAL_BYTES + unflushed + 2 * CONFIG.wal.file_size


def unflushed_bytes(store: tierlog.SegmentStore) -> int:
    current = store.statistics().containers[0].current
    assert current is not None
    return current.cache.unflushed_bytes
