"""A log file ends behind its last group once it gets no more: what was allocated ahead is free again (W9)."""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random

import anyio
import attrs
import pytest
from simulation.disk import BLOCK, Keep, SimulatedDisk
from simulation.file_layer import Fail, Fault, Pause, SimulatedFiles

from support.log_world import FOLDER, OPTIONS, make_log, open_log, read_all
from tierlog.journal.log.local_layout import LocalLogOptions
from tierlog.storage_backends.base.errors import NotOwner, Unavailable
from tierlog.storage_backends.base.files import IoCall, Sync, Trim, Write
from tierlog.testing.log_conformance import contents

pytestmark = pytest.mark.anyio


def wal_files(disk: SimulatedDisk) -> list[str]:
    return [path for path in disk.files_below(FOLDER) if path.endswith(".wal")]


def is_trimmed(disk: SimulatedDisk, path: str) -> bool:
    """Whether the last byte belongs to a group, all of whose payloads end in ``.`` here, and no block is
    allocated behind it."""
    inode = disk.find(path)
    return inode.cache.endswith(b".") and inode.blocks == -(-len(inode.cache) // BLOCK)


class Watch:
    """Does ``fault`` to every call that ``where`` accepts while it is armed, and counts those calls."""

    def __init__(self, where: Callable[[IoCall], bool], fault: Fault | None = None) -> None:
        self._where = where
        self._fault = fault
        self.armed = True
        self.count = 0

    def __call__(self, index: int, call: IoCall) -> Fault | None:
        if not self.armed or not self._where(call):
            return None
        self.count += 1
        return self._fault


def is_trim(call: IoCall) -> bool:
    return isinstance(call, Trim)


async def test_a_clean_close_trims_the_file() -> None:
    disk = SimulatedDisk(Random(1))
    log = await open_log(disk)
    await log.append([b"one."])
    [path] = wal_files(disk)
    assert not is_trimmed(disk, path)
    await log.close()
    assert is_trimmed(disk, path)
    assert await read_all(disk.crash("none")) == {1: b"one."}


async def test_a_file_is_trimmed_when_the_log_rolls() -> None:
    disk = SimulatedDisk(Random(2))
    log = await open_log(disk)
    await log.append([b"a" * 1600 + b"."])
    await log.append([b"b."])
    old, new = wal_files(disk)
    assert is_trimmed(disk, old)
    assert not is_trimmed(disk, new)
    await log.append([b"c."])
    await log.close(clean=False)
    assert await read_all(disk) == {1: b"a" * 1600 + b".", 2: b"b.", 3: b"c."}


async def test_an_opener_trims_the_file_of_a_killed_owner_where_it_sealed_it() -> None:
    """The last group is in the opener's own file, so the old one ends before it (W4)."""
    disk = SimulatedDisk(Random(3))
    log = await open_log(disk)
    for payload in (b"one.", b"two.", b"three."):
        await log.append([payload])
    await log.close(clean=False)
    [old] = wal_files(disk)

    successor = await open_log(disk)
    assert is_trimmed(disk, old)
    assert b"two." in disk.content(old)
    assert b"three." not in disk.content(old)
    found = {1: b"one.", 2: b"two.", 3: b"three."}
    assert await contents(successor) == found
    await successor.close(clean=False)
    assert await read_all(disk.crash("none")) == found


async def test_an_opener_that_dies_before_its_file_is_durable_has_trimmed_nothing() -> None:
    disk = SimulatedDisk(Random(4))
    log = await open_log(disk)
    await log.append([b"one."])
    await log.append([b"two."])
    await log.close(clean=False)
    before = {path: disk.content(path) for path in wal_files(disk)}

    fail_sync = Watch(lambda call: isinstance(call, Sync) and call.handle.path.endswith(".wal"))
    fail_sync._fault = Fail(OSError(errno.EIO, "no"))
    log = make_log(SimulatedFiles(disk, fail_sync))
    with pytest.raises(Exception, match="no"):
        await log.open()
    assert fail_sync.count == 1
    assert {path: disk.content(path) for path in before} == before


@pytest.mark.parametrize("keep", ["none", "all", "random"])
async def test_a_power_loss_may_forget_a_trim(keep: Keep) -> None:
    disk = SimulatedDisk(Random(5))
    log = await open_log(disk)
    await log.append([b"one."])
    await log.append([b"two."])
    await log.close()
    assert await read_all(disk.crash(keep)) == {1: b"one.", 2: b"two."}


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EPERM])
async def test_a_trim_that_fails_costs_space_only(error: int) -> None:
    """At a roll, at a clean close and at a takeover."""
    disk, watch = SimulatedDisk(Random(6)), Watch(is_trim, Fail(OSError(error, "no trim")))
    log = await open_log(disk, watch)
    await log.append([b"a" * 1600])
    await log.append([b"b"])
    await log.append([b"c"])
    await log.close()
    assert watch.count == 2
    log = await open_log(disk, watch)
    assert watch.count == 4
    assert await contents(log) == {1: b"a" * 1600, 2: b"b", 3: b"c"}
    await log.append([b"d"])
    await log.close(clean=False)
    watch.armed = False
    assert await read_all(disk) == {1: b"a" * 1600, 2: b"b", 3: b"c", 4: b"d"}


async def test_an_owner_frozen_before_its_trims_takes_nothing_from_its_successors() -> None:
    """Whoever opens later reads at least the file whose header made the trim safe."""
    disk = SimulatedDisk(Random(7))
    log = await open_log(disk)
    for payload in (b"one", b"two"):
        await log.append([payload])
    await log.close(clean=False)

    reached, resume = anyio.Event(), anyio.Event()

    def freeze(index: int, call: IoCall) -> Fault | None:
        if not is_trim(call):
            return None
        reached.set()
        return Pause(resume)

    async with anyio.create_task_group() as tasks:

        async def open_slowly() -> None:
            zombie = make_log(SimulatedFiles(disk, freeze))
            await zombie.open()
            with pytest.raises(NotOwner):
                await zombie.append([b"never acked"])

        tasks.start_soon(open_slowly)
        await reached.wait()
        owner = await open_log(disk)
        found = await contents(owner)
        await owner.append([b"three"])
        await owner.append([b"four"])
        resume.set()
    await owner.close()
    assert found == {1: b"one", 2: b"two"}
    assert await read_all(disk.crash("none")) == {**found, 3: b"three", 4: b"four"}


async def test_w10_a_window_that_an_unfinished_opener_trims_later_is_not_corrupt() -> None:
    """A view that began behind the raise of the register and before the seal."""
    disk = SimulatedDisk(Random(8))
    log = await open_log(disk)
    for payload in (b"one", b"two"):
        await log.append([payload])
    await log.close(clean=False)

    view = make_log(SimulatedFiles(disk))
    reached, resume = anyio.Event(), anyio.Event()

    def freeze(index: int, call: IoCall) -> Fault | None:
        if not (isinstance(call, Write) and call.handle.path.endswith(".wal")):
            return None
        reached.set()
        return Pause(resume)

    async with anyio.create_task_group() as tasks:
        owner = make_log(SimulatedFiles(disk, freeze))
        tasks.start_soon(owner.open)
        await reached.wait()
        await view.inspect()
        resume.set()
    with pytest.raises(Unavailable, match="open the log again"):
        await view.read_window(2)

    await owner.close()
    await view.close()


async def test_a_closed_log_leaves_its_room_to_others_on_a_small_disk() -> None:
    disk = SimulatedDisk(Random(8), capacity=12 * BLOCK)
    options = attrs.evolve(OPTIONS, file_size=1 << 20, allocation_step=4 * BLOCK)
    for _ in range(3):
        log = make_log(SimulatedFiles(disk), options)
        await log.open()
        await log.append([b"x" * 100], truncate_before=log.next_group)
        await log.truncate()
        await log.close()
    assert disk.used() == 3 * BLOCK  # the register, the reserve and one file


async def test_statistics_tell_what_is_allocated_from_what_is_used() -> None:
    disk = SimulatedDisk(Random(9))
    log = await open_log(disk)
    await log.append([b"x"])
    await log.check_space()
    statistics = log.statistics()
    held = sum(disk.find(path).blocks * BLOCK for path in disk.files_below(FOLDER))
    assert statistics.allocated_bytes == held > statistics.retained_bytes + OPTIONS.reserve
    await log.close()


def test_the_options_of_these_tests_allocate_and_extend_ahead() -> None:
    assert isinstance(OPTIONS, LocalLogOptions)
    assert min(OPTIONS.reserve, OPTIONS.allocation_step, OPTIONS.length_step) > 0
