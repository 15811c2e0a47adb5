"""A store that is opened often and briefly, as by a command: its log does not grow with each (C7, W9)."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import anyio
import attrs
import pytest
from simulation.disk import SimulatedDisk
from simulation.file_layer import SimulatedFiles
from simulation.mutants.programs import rerouted

from support.command_line import in_this_process
from support.crash_world import FOLDER, Ending, Limits, live_and_end, opened
from support.patience import scaled
from support.stores import KIB, config
from tierlog import open_store
from tierlog.actors.kernel import event_loop
from tierlog.actors.settings.configuration import StorageConfig, StoreConfig, WalConfig, WriterConfig
from tierlog.actors.store.store import SegmentStore
from tierlog.storage_backends.base.files import IoCall, Program, Read, Sync
from tierlog.storage_backends.files.local import LocalFiles

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]

T = TypeVar("T")

MIB = 1 << 20

PATIENT = Limits(wal_file=1 << 20, flush=1 << 20, checkpoint=1 << 20)
"""Neither size nor age makes a checkpoint or a flush due."""


def wal_files(disk: SimulatedDisk) -> int:
    return sum(path.endswith(".wal") for path in disk.files_below(f"{FOLDER}/wal"))


async def test_neither_log_files_nor_elements_add_up() -> None:
    """Their bytes are nowhere else, and yet old files need not be kept for them (F4). So an opening never
    needs more calls."""
    disk, most, calls = SimulatedDisk(Random(1)), 0, []
    for number in range(60):
        files = SimulatedFiles(disk)
        async with opened(files, number, PATIENT) as store:
            if number == 0:
                await store.create_segment("a/s")
            assert await store.append("a/s", b"%c" % number) == number
        assert store.local_containers[0].statistics().restarts == 0
        most = max(most, wal_files(disk), len(disk.files_below(f"{FOLDER}/lts/_system")))
        calls.append(files.calls)
    assert most <= 10
    # The owner ends while its collector lists, which may have made a few calls more or less.
    assert max(calls[30:]) <= max(calls[:30]) + 8
    async with opened(SimulatedFiles(disk), 99, PATIENT) as store:
        assert await store.read("a/s", 0, 100) == bytes(range(60))


async def test_the_lane_threads_of_a_store_end_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, anyio_backend_name: str
) -> None:
    """And not after a pause, in which those of many openings would add up."""

    def lanes() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name == "tierlog lane"}

    monkeypatch.setattr(event_loop, "_IDLE", 3600)
    before = lanes()
    async with open_store(tmp_path / "data", containers=1, config=config()) as store:
        await store.create_segment("a/s")
        await store.append("a/s", b"x")
        while_open = lanes() - before
        assert (while_open == set()) == (anyio_backend_name == "trio")
    with anyio.fail_after(scaled(10)):
        for thread in while_open:
            await anyio.to_thread.run_sync(thread.join, abandon_on_cancel=True)
    assert lanes() <= before


async def live_until(disk: SimulatedDisk, process: int, syncs: int) -> bool:
    """Open the store in a process that is killed after so many syncs of log files, or once it has appended a
    byte. Returns whether that was acked."""
    left, acked = syncs, False

    def watch(index: int, call: IoCall) -> None:
        nonlocal left
        if not left:
            ending.end()
        elif isinstance(call, Sync) and call.handle.path.endswith(".wal"):
            left -= 1

    ending = Ending(watch)

    async def append(store: SegmentStore) -> None:
        nonlocal acked
        await store.append("a/s", b"x")
        acked = True

    await live_and_end(SimulatedFiles(disk, ending), process, ending, append, PATIENT)
    return acked


@pytest.mark.parametrize(
    "syncs", [3, 6, *(pytest.param(syncs, marks=pytest.mark.extended) for syncs in (2, 4, 9))]
)
async def test_w9_log_files_of_killed_owners_do_not_add_up(syncs: int) -> None:
    """Killed at the same moment many times in a row: before, during or after the checkpoint."""
    disk, acked = SimulatedDisk(Random(1)), 0
    async with opened(SimulatedFiles(disk), 0, PATIENT) as store:
        await store.create_segment("a/s")
    for process in range(1, 41):
        acked += await live_until(disk, process, syncs)
        assert wal_files(disk) <= 12
    async with opened(SimulatedFiles(disk), 99, PATIENT) as store:
        found = await store.read("a/s", 0, 100)
        assert found == b"x" * len(found)
        assert acked <= len(found) <= 40


async def test_w9_an_opening_after_many_that_were_killed_leaves_few_files() -> None:
    """Each leaves one, which nobody needs or a checkpoint replaces."""
    random, disk, acked = Random(2), SimulatedDisk(Random(1)), 0
    async with opened(SimulatedFiles(disk), 0, PATIENT) as store:
        await store.create_segment("a/s")
    for process in range(1, 61):
        acked += await live_until(disk, process, random.randrange(1, 10))
    async with opened(SimulatedFiles(disk), 99, PATIENT) as store:
        assert acked <= len(await store.read("a/s", 0, 100)) <= 60
    assert wal_files(disk) <= 10


async def test_w6_files_of_brief_owners_stay_if_the_disk_is_full() -> None:
    """To log their bytes again needs more than the reserve; the container opens without that."""
    disk, data = SimulatedDisk(Random(1), capacity=8 << 20), bytes(20_000)

    async def append(store: SegmentStore) -> None:
        await store.append("a/s", data)

    async with opened(SimulatedFiles(disk), 0, PATIENT) as store:
        await store.create_segment("a/s")
    for process in range(1, 9):
        await live_and_end(SimulatedFiles(disk), process, Ending(), append, PATIENT)
    files = wal_files(disk)
    disk.allocate(disk.create("/filler"), disk.free() - (32 << 10))
    for process in range(9, 12):
        async with opened(SimulatedFiles(disk), process, PATIENT) as store:
            assert await store.read("a/s", 0, len(data)) == data
            await anyio.wait_all_tasks_blocked()
            assert store.local_containers[0].statistics().restarts == 0
    assert wal_files(disk) >= files > 7

    disk.unlink("/filler")
    async with opened(SimulatedFiles(disk), 12, PATIENT) as store:
        assert await store.append("a/s", b"x") == 8 * len(data)
        assert wal_files(disk) < 3


async def test_w6_a_checkpoint_above_the_reserve_is_not_begun() -> None:
    """It ended each owner on a full disk, until the reserve was used up."""
    disk = SimulatedDisk(Random(1), capacity=(8 << 20) + StoreConfig().storage.reserve)
    names = [f"a/{number:0100}" for number in range(300)]

    # All of them stay in memory: a checkpoint has no others.
    limits = attrs.evolve(PATIENT, active_segments=len(names))

    async def fill(store: SegmentStore) -> None:
        for name in names:
            await store.create_segment(name)
        await store.append(names[0], b"abc")
        await store.flush()

    await live_and_end(SimulatedFiles(disk), 0, Ending(), fill, limits)
    disk.allocate(disk.create("/filler"), disk.free() - (8 << 10))
    async with opened(SimulatedFiles(disk), 1, limits) as store:
        await anyio.wait_all_tasks_blocked()
        assert await store.read(names[0], 0, 3) == b"abc"
        statistics = store.local_containers[0].statistics()
        assert statistics.restarts == 0
        assert statistics.current is not None
        assert statistics.current.checkpoints.checkpoints == 0


async def test_f4_an_owner_that_fills_small_log_files_logs_nothing_again(tmp_path: Path) -> None:
    """Files that rolled are not those of brief owners: to log their bytes again would free nothing."""
    writer = WriterConfig(flush_bytes=4 * MIB, flush_age=3600.0)
    options = config(wal=WalConfig(file_size=64 * KIB, reserve=64 * KIB, low_water=0), writer=writer)
    async with open_store(tmp_path / "data", containers=1, config=options) as store:
        await store.create_segment("s")
        for _ in range(40):
            await store.append("s", bytes(32 * KIB))
        await anyio.wait_all_tasks_blocked()
        current = store.statistics().containers[0].current
        assert current is not None
        assert current.checkpoints.relogged_bytes == 0
        assert current.log.files > 18


async def open_briefly(folder: Path, **options: Any) -> None:
    """Append one byte."""
    async with open_store(folder, **options) as store:
        await store.create_segment("s", exist_ok=True)
        await store.append("s", b"x")


def allocated(folder: Path) -> int:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return sum(path.stat().st_blocks * 512 for path in files)


async def test_what_is_left_on_the_disk_is_what_the_reserves_need(tmp_path: Path) -> None:
    """A hundred openings left 1.2 GiB of allocated blocks once."""
    usual = StoreConfig(containers=1)
    for _ in range(30):
        await open_briefly(tmp_path / "data", containers=1, config=usual)
    assert allocated(tmp_path) < usual.wal.reserve + usual.storage.reserve + (1 << 20)


async def test_s22_an_opening_keeps_the_configured_reserve_in_long_term_storage(tmp_path: Path) -> None:
    options = config(storage=StorageConfig(reserve=2 * MIB))
    async with open_store(tmp_path / "data", containers=1, config=options) as store:
        await store.create_segment("s")
    reserve = tmp_path / "data" / "lts" / ".tierlog-reserve"
    assert reserve.stat().st_blocks * 512 >= 2 * MIB


class CountingFiles(LocalFiles):
    """What the I/O programs of all lanes do: calls, and bytes read."""

    def __init__(self, counts: Counter[str] | None = None) -> None:
        super().__init__()
        self.counts = Counter[str]() if counts is None else counts

    def lane(self, name: str, width: int = 1, nofollow_root: str = "") -> CountingFiles:
        lane = CountingFiles(self.counts)
        lane._drive = super().lane(name, width, nofollow_root)._drive
        return lane

    async def run(self, program: Program[T]) -> T:
        return await super().run(rerouted(program, self._perform))

    def _perform(self, call: IoCall) -> Program[Any]:
        answer = yield call
        self.counts["calls"] += 1
        self.counts["read"] += len(answer) if isinstance(call, Read) else 0
        return answer


PERIOD = 8
"""Openings from one checkpoint of many small files to the next (W9). Each costs more than the one before: the
last one a third more than the average."""


async def cost_of_openings(folder: Path) -> Counter[str]:
    """The cost of the openings of some periods."""
    files = CountingFiles()
    for _ in range(3 * PERIOD):
        await open_briefly(folder, files=files)
    return files.counts


@pytest.mark.extended
@pytest.mark.timeout(1200)
async def test_a_thousand_openings_stay_under_64_mib_and_the_last_cost_no_more(tmp_path: Path) -> None:
    """What grew with each opening once, such as files to list and to read, would be a thousand times more."""
    for _ in range(PERIOD):
        await open_briefly(tmp_path)
    first = await cost_of_openings(tmp_path)
    for _ in range(1000 - 7 * PERIOD):
        await open_briefly(tmp_path)
    last = await cost_of_openings(tmp_path)

    assert allocated(tmp_path) < 64 << 20
    # How far the collector of an owner comes, and so a few of its calls, is chance.
    assert last["calls"] < 1.1 * first["calls"]
    assert last["read"] < 1.1 * first["read"]


def test_w9_fifteen_appends_of_the_command_line_leave_no_more_than_the_reserves(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """They left 197 MB once."""
    data = ("--data", str(tmp_path / "data"))
    with in_this_process(capfdbinary) as run:
        assert run("segment", "create", "s", *data).code == 0
        ends = [run("segment", "append", "s", "--data-text", "x", *data).out for _ in range(15)]
    assert ends == [f"{number}\n" for number in range(15)]
    usual = StoreConfig()
    reserves = usual.containers * usual.wal.reserve + usual.storage.reserve
    assert allocated(tmp_path) < reserves + (1 << 20)
