"""What a local log does beyond the contract: fencing at any instant, failures, rolling."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import anyio
import pytest
from simulation.file_layer import Fail, Fault, Pause, SimulatedDisk, SimulatedFiles

from support.log_world import FOLDER, OPTIONS, make_log, open_log, read_all
from tierlog.journal.log.local import LocalLog
from tierlog.journal.log.local_layout import LocalLogOptions
from tierlog.storage_backends.base.errors import DataCorruption, NotOwner, Unavailable
from tierlog.storage_backends.base.files import IoCall, IsNamed, Open, Read, Sync, Unlink, Write
from tierlog.storage_backends.files import local_lock
from tierlog.storage_backends.files.local import LocalFiles
from tierlog.testing.log_conformance import contents

pytestmark = pytest.mark.anyio

REGISTER = f"{FOLDER}/register"


class Freeze:
    """Holds a process before the first call that ``where`` accepts, once armed."""

    def __init__(self, where: Callable[[IoCall], bool]) -> None:
        self._where = where
        self.armed = False
        self.reached = anyio.Event()
        self.resume = anyio.Event()

    def __call__(self, index: int, call: IoCall) -> Fault | None:
        if not self.armed or not self._where(call):
            return None
        self.armed = False
        self.reached.set()
        return Pause(self.resume)


def is_check(call: IoCall) -> bool:
    return isinstance(call, Read) and call.handle.path == REGISTER


def is_wal_write(call: IoCall) -> bool:
    return isinstance(call, Write) and call.handle.path.endswith(".wal")


# --- fencing at any instant ---


async def test_a_zombie_frozen_between_its_sync_and_its_check_does_not_ack() -> None:
    """W1: its group is durable; the next owner may or may not have read it, and the zombie learns that it
    was fenced."""
    disk, freeze = SimulatedDisk(Random(1)), Freeze(is_check)
    zombie = await open_log(disk, freeze)
    await zombie.append([b"acked"])
    freeze.armed = True
    async with anyio.create_task_group() as tasks:

        async def append() -> None:
            with pytest.raises(NotOwner):
                await zombie.append([b"in doubt"])

        tasks.start_soon(append)
        await freeze.reached.wait()
        owner = await open_log(disk)
        found = await contents(owner)
        freeze.resume.set()
    assert found == {1: b"acked", 2: b"in doubt"}
    await owner.append([b"new"])
    await owner.close()
    await zombie.close()
    assert await read_all(disk) == {**found, 3: b"new"}


@pytest.mark.parametrize("keep", ["none", "random"])
async def test_the_next_owner_makes_durable_what_it_read_from_the_page_cache(keep: str) -> None:
    """W4: the zombie wrote and never synced; the opener re-logs the group before it answers."""
    disk, freeze = SimulatedDisk(Random(2)), Freeze(lambda call: isinstance(call, Sync))
    zombie_files = SimulatedFiles(disk, freeze)
    zombie = make_log(zombie_files)
    await zombie.open()
    await zombie.append([b"acked"])
    freeze.armed = True
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(zombie.append, [b"in the page cache only"])
        await freeze.reached.wait()
        owner = await open_log(disk)
        found = await contents(owner)
        assert found == {1: b"acked", 2: b"in the page cache only"}
        zombie_files.kill()
        freeze.resume.set()
        disk = disk.crash(keep)  # type: ignore[arg-type]
        tasks.cancel_scope.cancel()
    assert await read_all(disk) == found


async def test_a_group_whose_sync_failed_is_readable_only_if_it_was_relogged() -> None:
    """W6: the pages were marked clean, so no later sync of the old file would save them."""
    disk = SimulatedDisk(Random(3))

    def fail_sync(index: int, call: IoCall) -> Fault | None:
        armed = len(appended) == 1 and isinstance(call, Sync)
        return Fail(OSError(errno.EIO, "disk says no")) if armed else None

    appended: list[int] = []
    first = await open_log(disk, fail_sync)
    appended.append(await first.append([b"acked"]))
    with pytest.raises(Unavailable, match="disk says no"):
        await first.append([b"x" * 2000])
    with pytest.raises(Unavailable, match="open it again"):
        await first.append([b"later"])
    await first.close()
    found = await read_all(disk)

    assert found == {1: b"acked", 2: b"x" * 2000}
    assert await read_all(disk.crash("none")) == found


async def test_a_zombie_that_rolls_after_the_seal_adds_nothing() -> None:
    """W4: its new file is in no seal, so it has length 0."""
    disk, freeze = SimulatedDisk(Random(4)), Freeze(lambda call: isinstance(call, Open) and call.create)
    zombie = await open_log(disk, freeze)
    await zombie.append([b"a" * 2000])
    freeze.armed = True
    async with anyio.create_task_group() as tasks:

        async def append() -> None:
            with pytest.raises(NotOwner):
                await zombie.append([b"zombie"])

        tasks.start_soon(append)
        await freeze.reached.wait()
        owner = await open_log(disk)
        await owner.append([b"acked"])
        freeze.resume.set()
    assert f"{1:016x}-{2:08x}.wal" in disk.folder(FOLDER).names
    await owner.close()
    await zombie.close()
    assert await read_all(disk) == {1: b"a" * 2000, 2: b"acked"}


async def test_nothing_leaves_an_opener_that_was_overtaken() -> None:
    """W1: it raised the register, froze, and another one opened; its own open fails whatever it had read."""
    disk = SimulatedDisk(Random(5))
    log = await open_log(disk)
    await log.append([b"acked"])
    await log.close()
    for where in (is_wal_write, lambda call: isinstance(call, Sync) and call.handle.path.endswith(".wal")):
        freeze = Freeze(where)
        slow = make_log(SimulatedFiles(disk, freeze))
        freeze.armed = True
        async with anyio.create_task_group() as tasks:

            async def open_slowly(slow: LocalLog = slow) -> None:
                with pytest.raises(NotOwner):
                    await slow.open()

            tasks.start_soon(open_slowly)
            await freeze.reached.wait()
            owner = await open_log(disk)
            number = await owner.append([b"by the owner"])
            freeze.resume.set()
        await owner.close()
        assert (await read_all(disk))[number] == b"by the owner"


async def test_a_truncation_that_froze_after_its_check_takes_nothing_that_is_needed() -> None:
    """W5: what it unlinks lies below an address that is durable in the log, so every later owner starts above
    it."""
    disk, freeze = SimulatedDisk(Random(6)), Freeze(lambda call: isinstance(call, Unlink))
    zombie = await open_log(disk, freeze)
    for index in range(4):
        await zombie.append([b"%d" % index * 1600], truncate_before=3 if index == 3 else 0)
    freeze.armed = True
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(zombie.truncate)
        await freeze.reached.wait()
        owner = await open_log(disk)
        found = await contents(owner)
        await owner.append([b"new"])
        freeze.resume.set()
    assert list(found) == [3, 4]
    await owner.close()
    await zombie.close()
    assert list(await read_all(disk)) == [3, 4, 5]


async def test_a_truncation_goes_on_although_appends_roll_meanwhile() -> None:
    """W5: it asks the register that was the log's when it began, which no append closes until then."""
    disk, freeze = SimulatedDisk(Random(6)), Freeze(lambda call: isinstance(call, IsNamed))
    log = await open_log(disk, freeze)
    await log.append([b"x" * 1600])
    await log.append([b"checkpoint"], truncate_before=2)
    before = log.statistics().files
    freeze.armed = True
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(log.truncate)
        await freeze.reached.wait()
        for _ in range(8):
            await log.append([b"y" * 1600])
        freeze.resume.set()
    assert log.statistics().files < before + 8
    await log.close()
    assert list(await read_all(disk)) == [*range(2, 11)]


async def test_truncation_asks_the_register_afresh_before_it_unlinks() -> None:
    disk, unlinked = SimulatedDisk(Random(7)), []
    zombie = await open_log(
        disk,
        lambda _, call: (
            unlinked.append(call) if isinstance(call, Unlink) and call.path.endswith(".wal") else None
        ),
    )
    await zombie.append([b"x" * 1600])
    await zombie.append([b"checkpoint"], truncate_before=2)
    owner = await open_log(disk)
    with pytest.raises(NotOwner):
        await zombie.truncate()

    assert unlinked == []
    await owner.close()
    await zombie.close()


async def test_a_checkpoint_that_is_not_durable_truncates_nothing() -> None:
    """W5: the address counts once its append has returned."""
    disk = SimulatedDisk(Random(8))
    log = await open_log(disk)
    await log.append([b"x" * 1600])
    await log.append([b"y" * 1600])
    await log.truncate()
    await log.close()
    assert list(await read_all(disk)) == [1, 2]


async def test_a_register_that_was_replaced_is_noticed_at_the_next_roll() -> None:
    disk = SimulatedDisk(Random(9))
    log = await open_log(disk)
    await log.append([b"x" * 1600])
    copy = disk.content(REGISTER)
    disk.unlink(REGISTER)
    disk.create(REGISTER).write(0, copy)
    owner = await open_log(disk)
    await owner.close()
    with pytest.raises(NotOwner):
        await log.append([b"rolls first"])
    await log.close()


async def test_a_folder_that_is_another_logs_now_keeps_its_files(tmp_path: Path) -> None:
    """W1, W5: somebody moved the folder of an open log and made a new log under its path. Its names are those
    of files that the first log does not need."""
    first, other = (LocalLog(LocalFiles(), str(tmp_path / "log"), bytes([n]) * 16, OPTIONS) for n in (1, 2))
    await first.open()
    for _ in range(4):
        await first.append([b"x" * 1600])  # each in a file of its own
    await first.append([b"checkpoint"], truncate_before=5)
    (tmp_path / "log").rename(tmp_path / "moved")
    await other.open()
    await other.append([b"acked"])
    names = {path.name for path in (tmp_path / "log").iterdir()}

    with pytest.raises(NotOwner, match="moved or replaced"):
        await first.truncate()
    await first.append([b"x" * 1600])
    with pytest.raises(NotOwner, match="moved or replaced"):
        await first.append([b"rolls first"])

    assert {path.name for path in (tmp_path / "log").iterdir()} == names
    await first.close()
    await other.close()
    again = LocalLog(LocalFiles(), str(tmp_path / "log"), bytes([2]) * 16, OPTIONS)
    await again.open()
    assert await contents(again) == {1: b"acked"}
    await again.close()


async def test_an_opening_that_finds_the_register_locked_for_long_names_the_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W1: it may be a process that was stopped there."""
    monkeypatch.setattr(local_lock, "WAIT_SECONDS", 0.05)
    first, second, third = (LocalLog(LocalFiles(), str(tmp_path / "log"), bytes(16), OPTIONS) for _ in "123")
    await first.open()
    await first.close()
    with open(tmp_path / "log" / "register") as register:
        fcntl.flock(register, fcntl.LOCK_EX)
        with pytest.raises(Unavailable, match="register: .* has held its lock"):
            await second.open()
    await third.open()
    await third.close()


async def test_nothing_is_made_in_a_folder_that_has_the_path_of_a_log_that_was_moved(tmp_path: Path) -> None:
    """W1: not even the reserve."""
    log = LocalLog(LocalFiles(), str(tmp_path / "log"), bytes(16), LocalLogOptions())
    await log.open()
    log.check_folder()
    (tmp_path / "log").rename(tmp_path / "moved")
    (tmp_path / "log").mkdir()

    with pytest.raises(NotOwner, match="moved or replaced"):
        log.check_folder()
    with pytest.raises(NotOwner, match="moved or replaced"):
        await log.check_space()
    await log.close()
    assert list((tmp_path / "log").iterdir()) == []


async def test_a_folder_that_is_replaced_during_a_truncation_keeps_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W5: the check of the register and the removal are in the same folder, whatever its path leads to."""
    folder, unlink = tmp_path / "log", os.unlink
    log = LocalLog(LocalFiles(), str(folder), bytes(16), OPTIONS)
    await log.open()
    for _ in range(4):
        await log.append([b"x" * 1600])
    await log.append([b"checkpoint"], truncate_before=5)

    def replace(name: str, *, dir_fd: int | None = None) -> None:
        monkeypatch.undo()
        folder.rename(tmp_path / "moved")
        shutil.copytree(tmp_path / "moved", folder)
        unlink(name, dir_fd=dir_fd)

    monkeypatch.setattr("os.unlink", replace)
    with pytest.raises(NotOwner, match="moved or replaced"):
        await log.truncate()

    removed = {path.name for path in folder.iterdir()} - {
        path.name for path in (tmp_path / "moved").iterdir()
    }
    assert len(removed) == 3, "one became the spare"
    await log.close()


async def test_two_owners_at_once_never_get_the_same_epoch() -> None:
    disk = SimulatedDisk(Random(10))
    epochs: list[int] = []

    async def open_one() -> None:
        log = make_log(SimulatedFiles(disk))
        try:
            epochs.append((await log.open()).epoch)
        except NotOwner:
            epochs.append(0)
        await log.close()

    for _ in range(5):
        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(open_one)
    effective = [epoch for epoch in epochs if epoch]
    assert len(set(effective)) == len(effective) >= 5


async def test_the_epoch_goes_above_every_file_name_when_the_register_fell_back() -> None:
    disk = SimulatedDisk(Random(11))
    log = await open_log(disk)
    old = disk.content(REGISTER)
    await log.close()
    log = await open_log(disk)
    await log.append([b"acked"])
    await log.close(clean=False)
    disk.replace(REGISTER, old)

    log = make_log(SimulatedFiles(disk))
    assert (await log.open()).epoch == 3
    assert await contents(log) == {1: b"acked"}
    await log.close()


# --- failures ---


@pytest.mark.parametrize("failing", [Write, Sync, Read])
async def test_a_failed_append_stops_the_log_for_good(failing: type[IoCall]) -> None:
    """W6: no second path to keep right."""
    disk = SimulatedDisk(Random(12))
    armed: list[bool] = []

    def on_call(index: int, call: IoCall) -> Fault | None:
        if armed and isinstance(call, failing):
            return Fail(OSError(errno.EIO, "broken", call.handle.path))  # type: ignore[attr-defined]

        return None

    log = await open_log(disk, on_call)
    await log.append([b"acked"])
    armed.append(True)
    with pytest.raises(Unavailable):
        await log.append([b"in doubt"])
    armed.clear()
    for verb in (log.append([b"x"]), log.truncate(), log.check_space()):
        with pytest.raises(Unavailable, match="open it again"):
            await verb
    await log.close()
    assert (await read_all(disk))[1] == b"acked"


async def test_a_cancelled_append_breaks_the_log_or_has_happened() -> None:
    """W6, W7: a program that runs is never abandoned; the cancellation is delivered when it has returned."""
    disk, freeze = SimulatedDisk(Random(13)), Freeze(lambda call: isinstance(call, Sync))
    log = await open_log(disk, freeze)
    freeze.armed = True
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(log.append, [b"one"])
        await freeze.reached.wait()
        tasks.cancel_scope.cancel()
        freeze.resume.set()
    await log.close()
    assert await read_all(disk) == {1: b"one"}


async def test_a_failed_open_leaves_no_handle_open_and_the_log_as_it_was() -> None:
    disk = SimulatedDisk(Random(14))
    log = await open_log(disk)
    await log.append([b"acked"])
    await log.close()
    files = SimulatedFiles(
        disk, lambda _, call: Fail(OSError(errno.EIO, "no")) if is_wal_write(call) else None
    )
    with pytest.raises(Unavailable):
        await make_log(files).open()
    assert files.open_handles == 0
    assert await read_all(disk) == {1: b"acked"}


async def test_rolling_and_closing_leaves_no_handle_open() -> None:
    disk = SimulatedDisk(Random(15))
    files = SimulatedFiles(disk)
    log = make_log(files)
    await log.open()
    for _ in range(6):
        await log.append([b"x" * 1600])
        assert files.open_handles <= 4
    assert log.statistics().files == 6
    await log.close()
    assert files.open_handles == 0


async def test_inspect_tolerates_a_writer_that_rolls_and_truncates() -> None:
    disk, freeze = (
        SimulatedDisk(Random(16)),
        Freeze(lambda call: isinstance(call, Open) and call.path.endswith(".wal")),
    )
    log = await open_log(disk)
    await log.append([b"a" * 1600])
    await log.append([b"b" * 1600])
    reader = make_log(SimulatedFiles(disk, freeze))
    freeze.armed = True
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reader.inspect)
        await freeze.reached.wait()
        await log.append([b"c"], truncate_before=3)
        await log.append([b"d" * 1600])
        await log.truncate()
        freeze.resume.set()
    assert set(await contents(reader)) >= {3}
    await reader.close()
    await log.close()


async def test_a_group_within_the_files_length_is_written_and_synced_and_makes_nothing_longer() -> None:
    """W2: a length that changes with each group costs each sync about half as much again."""
    disk = SimulatedDisk(Random(3))
    files = SimulatedFiles(disk)
    log = make_log(files, LocalLogOptions(reserve=0, low_water=0, length_step=1000))
    await log.open()
    [path] = [path for path in disk.files_below(FOLDER) if path.endswith(".wal")]
    lengths = []
    for _ in range(30):
        await log.append([b"x" * 100])
        lengths.append(len(disk.content(path)))
    await log.close(clean=False)
    assert 3 <= len(set(lengths)) <= 6
    assert len(disk.content(path).rstrip(b"\0")) >= 30 * 100

    again = make_log(SimulatedFiles(disk.crash("none")))
    await again.open()
    assert len(await contents(again)) == 30
    await again.close()


# --- rolling ---


async def test_options_of_the_other_tests_do_roll() -> None:
    assert OPTIONS.file_size < 1600


async def test_a_foreign_file_under_a_wal_name_is_corruption() -> None:
    disk = SimulatedDisk(Random(22))
    log = await open_log(disk)
    await log.append([b"a" * 1600])
    await log.append([b"b"])
    await log.close()
    name = next(name for name in sorted(disk.folder(FOLDER).names) if name.endswith(".wal"))
    disk.link(f"{FOLDER}/{name}", f"{FOLDER}/{1:016x}-{9:08x}.wal")
    with pytest.raises(DataCorruption, match="renamed"):
        await open_log(disk)
