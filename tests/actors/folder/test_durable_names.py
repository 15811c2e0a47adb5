"""A name whose folder could not be synced does not count: whoever opens the store next makes it again."""

from __future__ import annotations

import errno
from random import Random

import pytest
from simulation.disk import SimulatedDisk
from simulation.file_layer import Fail, Fault, SimulatedFiles

from support.crash_world import Limits, opened
from tierlog.storage_backends.base.errors import TierlogError
from tierlog.storage_backends.base.files import IoCall, SyncFolder

pytestmark = pytest.mark.anyio

LIMITS = Limits(wal_file=1 << 20, flush=1 << 20, checkpoint=1 << 20)


class FailingSync:
    """The sync number ``failing`` of a folder fails, and later ones do not write its names."""

    def __init__(self, failing: int) -> None:
        self._failing = failing
        self.count = 0

    def __call__(self, index: int, call: IoCall) -> Fault | None:
        if not isinstance(call, SyncFolder):
            return None
        self.count += 1
        return Fail(OSError(errno.EIO, "no"), loses_names=True) if self.count == self._failing else None


async def append(files: SimulatedFiles, process: int) -> None:
    async with opened(files, process, LIMITS) as store:
        await store.create_segment("a/s", exist_ok=True)
        await store.append("a/s", b"acked")


async def syncs_of_a_first_opening() -> int:
    counting = FailingSync(0)
    await append(SimulatedFiles(SimulatedDisk(Random(0)), counting), 1)
    return counting.count


async def test_what_is_acked_after_a_failed_sync_of_any_folder_survives_a_power_loss() -> None:
    for failing in range(1, await syncs_of_a_first_opening() + 1):
        disk, acked = SimulatedDisk(Random(failing)), 0
        for process, faults in ((1, FailingSync(failing)), (2, None)):
            try:
                await append(SimulatedFiles(disk, faults), process)
            except (TierlogError, ExceptionGroup):
                assert faults is not None, "only the first opening has a fault"
            else:
                acked += 1
        async with opened(SimulatedFiles(disk.crash("none")), 3, LIMITS) as store:
            assert (await store.segment_info("a/s")).length == 5 * acked, failing
