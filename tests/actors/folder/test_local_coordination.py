"""Records as files (rule D6): through a crash at any call, and beside another process."""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random
from typing import Literal

import anyio
import anyio.lowlevel
import pytest
from simulation.file_layer import LosePower, SimulatedDisk, SimulatedFiles

from support.log_world import live
from support.patience import scaled
from support.s3 import numbered_world
from tierlog.actors.folder.local_coordination import LocalCoordination
from tierlog.actors.folder.paths import StoreFolder
from tierlog.journal.coordination.contract import SUPERVISOR, TERM, LeaseHeld
from tierlog.storage_backends.base.files import IoCall, Lock
from tierlog.storage_backends.files.local import LocalFiles

pytestmark = pytest.mark.anyio
FOLDER = StoreFolder("/data")
WORLD = numbered_world()


def on(disk: SimulatedDisk, script: object = None) -> LocalCoordination:
    return LocalCoordination(SimulatedFiles(disk, script), FOLDER, WORLD.new_id)  # type: ignore[arg-type]


@pytest.mark.parametrize("kept", ["none", "all"])
async def test_d6_a_record_is_as_before_or_as_after_a_power_loss(kept: Literal["none", "all"]) -> None:
    """At each call of a creation and of a replacement. What was answered is there."""
    for at in range(200):
        disk = SimulatedDisk(Random(1))
        disk.make_folder("/data")
        disk.folder("/").sync()
        answered = [b""]

        def die(index: int, call: IoCall, at: int = at) -> LosePower | None:
            return LosePower(0) if index == at else None

        async def set_twice(files: SimulatedFiles, answered: list[bytes] = answered) -> None:
            coordination = LocalCoordination(files, FOLDER, WORLD.new_id)
            version = await coordination.compare_and_set(TERM, b"one")
            assert version
            answered.append(b"one")
            assert await coordination.compare_and_set(TERM, b"two", version)
            answered.append(b"two")

        await live(disk, set_twice, die)
        after = on(disk.crash(kept))
        found = await after.load(TERM)
        data = found.data if found else b""
        order = [b"", b"one", b"two"]
        assert order.index(answered[-1]) <= order.index(data) <= order.index(answered[-1]) + 1
        assert await after.compare_and_set(TERM, b"three", found.version if found else "")
        if answered[-1] == b"two":
            assert at > 15
            return
    raise AssertionError("no end was reached")


async def test_d6_who_waited_for_a_replaced_file_reads_the_new_one() -> None:
    disk = SimulatedDisk(Random(1))
    version = await on(disk).compare_and_set(TERM, b"one")
    assert version
    old, waiters = disk.find("/data/supervisor/term"), 0

    def note(index: int, call: IoCall) -> None:
        nonlocal waiters
        waiters += isinstance(call, Lock)

    old.holder = "another process"
    results: list[str | None] = []

    async def replace(data: bytes) -> None:
        results.append(await on(disk, note).compare_and_set(TERM, data, version))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(replace, b"two")
        tasks.start_soon(replace, b"three")
        while waiters < 2:
            await anyio.lowlevel.checkpoint()
        disk.unlock(old, "another process")
    assert sorted(map(bool, results)) == [False, True]


async def test_d6_a_temporary_file_that_a_crash_left_is_replaced(tmp_path: Path) -> None:
    coordination = LocalCoordination(LocalFiles(), StoreFolder(str(tmp_path)), WORLD.new_id)
    version = await coordination.compare_and_set(TERM, b"one")
    assert version
    (tmp_path / "supervisor" / "term.new").write_bytes(b"half")
    assert await coordination.compare_and_set(TERM, b"two", version)
    assert [path.name for path in (tmp_path / "supervisor").iterdir()] == ["term"]


HOLDER = """
import sys, anyio
from tierlog.actors.folder.local_coordination import LocalCoordination
from tierlog.actors.folder.paths import StoreFolder
from tierlog.journal.coordination.contract import SUPERVISOR
from tierlog.storage_backends.files.local import LocalFiles

async def hold():
    coordination = LocalCoordination(LocalFiles(), StoreFolder(sys.argv[1]), lambda: "id")
    lease = await coordination.take_lease(SUPERVISOR, "first", 3600.0)
    print("held", flush=True)
    await anyio.sleep_forever()

anyio.run(hold)
"""


async def test_d6_a_lease_ends_with_its_process(tmp_path: Path) -> None:
    coordination = LocalCoordination(LocalFiles(), StoreFolder(str(tmp_path)), WORLD.new_id)
    with anyio.fail_after(scaled(60)):
        async with await anyio.open_process([sys.executable, "-c", HOLDER, str(tmp_path)]) as holder:
            assert holder.stdout is not None
            assert (await holder.stdout.receive()).strip() == b"held"
            with pytest.raises(LeaseHeld, match=f"process {holder.pid}"):
                await coordination.take_lease(SUPERVISOR, "second", 3600.0)
            holder.kill()
            await holder.wait()
            lease = await coordination.take_lease(SUPERVISOR, "second", 3600.0)
    await lease.release()


async def test_a_file_that_is_too_large_is_a_damaged_record_and_can_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "supervisor").mkdir()
    (tmp_path / "supervisor" / "term").write_bytes(bytes(1 << 20))
    coordination = LocalCoordination(LocalFiles(), StoreFolder(str(tmp_path)), WORLD.new_id)
    found = await coordination.load(TERM)
    assert found is not None
    assert found.data == b""

    assert await coordination.compare_and_set(TERM, b"one", "another version") is None
    version = await coordination.compare_and_set(TERM, b"one", found.version)
    assert await coordination.load(TERM) == (b"one", version)
