"""A name whose folder could not be synced does not count: whoever opens the store next makes it again."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from random import Random

import pytest
from simulation.disk import SimulatedDisk
from simulation.file_layer import Fail, Fault, SimulatedFiles

from support.crash_world import Limits, opened
from support.virtual import virtual_world
from tierlog import open_store
from tierlog.storage_backends.base.errors import TierlogError
from tierlog.storage_backends.base.files import Close, IoCall, SyncFolder, Unlock, make_folder

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]

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
        return Fail(OSError(errno.EIO, "no")) if self.count == self._failing else None


class Ending:
    """The process ends before its call number ``last``: every later one fails, so that the store in memory
    unwinds, but those that release what it holds."""

    def __init__(self, last: int) -> None:
        self._last = last
        self.has_ended = False

    def __call__(self, index: int, call: IoCall) -> Fault | None:
        self.has_ended = self.has_ended or index == self._last
        if self.has_ended and not isinstance(call, Close | Unlock):
            raise OSError(errno.EIO, "ended")
        return None


class FailingSyncAndEnd:
    """The sync number ``failing`` of a folder fails, and the process ends after ``more`` calls."""

    def __init__(self, failing: int, more: int) -> None:
        self._sync = FailingSync(failing)
        self._more = more
        self._ending: Ending | None = None

    def __call__(self, index: int, call: IoCall) -> Fault | None:
        if self._ending is not None:
            return self._ending(index, call)
        fault = self._sync(index, call)
        if fault is not None:
            self._ending = Ending(index + 1 + self._more)
        return fault


class LosesEverything(Random):
    """A failed sync keeps nothing."""

    def random(self) -> float:
        return 0.9


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


class SyncedFolders:
    """The folders that were synced, as often as they were."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    def __call__(self, index: int, call: IoCall) -> None:
        if isinstance(call, SyncFolder):
            self.paths.append(call.path)


async def test_w11_an_opening_syncs_the_folders_above_the_store_once() -> None:
    """Each sync takes a millisecond or more of the way to the first ack."""
    disk = SimulatedDisk(Random(1))
    await SimulatedFiles(disk).run(make_folder("/srv/other"))
    for process in (1, 2):
        synced = SyncedFolders()
        files = SimulatedFiles(disk, synced)
        async with open_store("/srv/new/data", files=files, world=virtual_world(process)):
            pass
        assert synced.paths.count("/") == 1, process


async def check_worlds(worlds: Iterable[tuple[int, int]]) -> None:
    """In each a first opening ends before a call, the sync of a folder fails in the second, the third acks,
    and the power is lost."""
    for end, failing in worlds:
        disk, acked = SimulatedDisk(Random(end)), 0
        ending = Ending(end)
        for process, faults in ((1, ending), (2, FailingSync(failing)), (3, None)):
            try:
                await append(SimulatedFiles(disk, faults), process)
            except (TierlogError, ExceptionGroup, OSError):
                assert faults is not None, "the third opening has no fault"
            else:
                acked += process > 1 or not ending.has_ended
        async with opened(SimulatedFiles(disk.crash("none")), 4, LIMITS) as store:
            length = (await store.segment_info("a/s")).length
        assert length >= 5 * acked, (end, failing)


async def calls_of_a_first_opening() -> int:
    files = SimulatedFiles(SimulatedDisk(Random(0)))
    await append(files, 1)
    return files.calls


async def test_w11_a_name_that_a_killed_opening_left_survives_the_failed_sync_of_the_next_one() -> None:
    ends = range(1, await calls_of_a_first_opening(), 2)
    await check_worlds((end, 1 + end // 2 % 3) for end in ends)


async def check_killed_at_a_failed_sync(failing: int, more: int, ends: Iterable[int]) -> None:
    """In each world an opening ends before a call (none at 0), a sync fails in the next one, which is killed,
    the third acks, and the power is lost."""
    for end in ends:
        disk, acked = SimulatedDisk(LosesEverything(end)), 0
        ending = Ending(end)
        for process, faults in ((1, ending), (2, FailingSyncAndEnd(failing, more)), (3, None)):
            try:
                if process > 1 or end:
                    await append(SimulatedFiles(disk, faults), process)
            except (TierlogError, ExceptionGroup, OSError):
                assert faults is not None, "the third opening has no fault"
            else:
                acked += faults is None
        async with opened(SimulatedFiles(disk.crash("none")), 4, LIMITS) as store:
            length = (await store.segment_info("a/s")).length
        assert length >= 5 * acked, (end, failing, more)


async def test_w11_a_process_that_is_killed_between_a_failed_sync_and_its_end_loses_nothing() -> None:
    """What the failed sync lost is made again by the next opening, which sees the same names."""
    for failing in range(1, await syncs_of_a_first_opening() + 1):
        for more in (0, 1):
            await check_killed_at_a_failed_sync(failing, more, [0])


@pytest.mark.extended
@pytest.mark.parametrize("failing", range(1, 21))
async def test_w11_so_does_one_after_an_opening_that_was_killed_at_any_call(failing: int) -> None:
    for more in (0, 1):
        await check_killed_at_a_failed_sync(failing, more, range(1, await calls_of_a_first_opening(), 8))


@pytest.mark.extended
@pytest.mark.parametrize("failing", range(1, 21))
async def test_w11_a_name_that_an_opening_left_that_was_killed_at_any_call_survives(failing: int) -> None:
    await check_worlds((end, failing) for end in range(1, await calls_of_a_first_opening(), 2))
