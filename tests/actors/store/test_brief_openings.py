"""A store that is opened often and briefly, as by a command: its log does not grow with each (C7, W9)."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from simulation.disk import SimulatedDisk
from simulation.file_layer import SimulatedFiles

from support.crash_world import FOLDER, Limits, opened
from tierlog import open_store
from tierlog.actors.settings.configuration import StoreConfig

pytestmark = pytest.mark.anyio

PATIENT = Limits(wal_file=1 << 20, flush=1 << 20, checkpoint=1 << 20)
"""Neither size nor age makes a checkpoint or a flush due."""


def wal_files(disk: SimulatedDisk) -> int:
    return sum(path.endswith(".wal") for path in disk.files_below(f"{FOLDER}/wal"))


async def test_log_files_do_not_add_up() -> None:
    """Their bytes are nowhere else, and yet old files need not be kept for them (F4)."""
    disk, most = SimulatedDisk(Random(1)), 0
    for number in range(30):
        async with opened(SimulatedFiles(disk), number, PATIENT) as store:
            if number == 0:
                await store.create_segment("a/s")
            assert await store.append("a/s", b"%c" % number) == number
        assert store.local_containers[0].statistics().restarts == 0
        most = max(most, wal_files(disk))
    assert most <= 10
    async with opened(SimulatedFiles(disk), 99, PATIENT) as store:
        assert await store.read("a/s", 0, 100) == bytes(range(30))


async def test_what_is_left_on_the_disk_is_what_the_reserves_need(tmp_path: Path) -> None:
    """A hundred openings left 1.2 GiB of allocated blocks once."""
    config = StoreConfig(containers=1)
    for number in range(30):
        async with open_store(tmp_path / "data", containers=1, config=config) as store:
            if number == 0:
                await store.create_segment("s")
            await store.append("s", b"x")

    def allocated() -> int:
        files = [path for path in (tmp_path / "data" / "wal").rglob("*") if path.is_file()]
        return sum(path.stat().st_blocks * 512 for path in files)

    assert allocated() < config.wal.reserve + (1 << 20)
