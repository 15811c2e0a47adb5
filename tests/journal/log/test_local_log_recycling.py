"""A log file that is not needed any more is written over (W13)."""

from __future__ import annotations

import errno
from contextlib import suppress
from itertools import count
from random import Random

import anyio
import attrs
import pytest
from simulation.disk import Keep, SimulatedDisk
from simulation.file_layer import Fail, FailAfter, Fault, Pause, SimulatedFiles

from support.log_world import FOLDER, LONG_FILES, Ledger, make_log, read_all
from tierlog.journal.log.local import LocalLog
from tierlog.storage_backends.base.errors import NotOwner, StorageFull, Unavailable
from tierlog.storage_backends.base.files import IoCall, Open, SyncFolder, Write
from tierlog.testing.log_conformance import contents

pytestmark = pytest.mark.anyio

PAYLOAD = b"x" * 1500


def names(disk: SimulatedDisk, ending: str) -> list[str]:
    return [path for path in disk.files_below(FOLDER) if path.endswith(ending)]


async def fill_file(log: LocalLog) -> None:
    """Up to a size at which the next group begins another file."""
    for _ in range(LONG_FILES.file_size // len(PAYLOAD)):
        await log.append([PAYLOAD])


async def open_log(disk: SimulatedDisk) -> LocalLog:
    log = make_log(SimulatedFiles(disk), LONG_FILES)
    await log.open()
    return log


async def keep_spare(log: LocalLog) -> None:
    """Fill a file, and truncate it once it is not needed."""
    await fill_file(log)
    await log.append([b"checkpoint"], truncate_before=log.next_group)
    await log.truncate()


async def test_the_next_file_is_the_one_that_a_truncation_would_have_removed() -> None:
    disk = SimulatedDisk(Random(1))
    log = await open_log(disk)
    await keep_spare(log)
    [spare] = names(disk, ".spare")
    inode = disk.find(spare)
    await fill_file(log)
    await log.append([PAYLOAD])
    assert not names(disk, ".spare")

    assert disk.find(names(disk, ".wal")[-1]) is inode
    await log.close()
    found = await read_all(disk)
    assert [payload for payload in found.values() if payload != PAYLOAD] == [b"checkpoint"]
    assert list(found) == list(range(log.next_group - len(found), log.next_group))


async def test_what_is_left_of_its_earlier_life_is_no_group() -> None:
    """The same frames at the same positions, of other groups: they end where the new ones do."""
    disk = SimulatedDisk(Random(2))
    log = await open_log(disk)
    await keep_spare(log)
    await fill_file(log)
    await log.append([PAYLOAD])
    assert not names(disk, ".spare")
    expected = log.next_group
    path = names(disk, ".wal")[-1]
    assert disk.content(path).count(PAYLOAD) > 2, "there is nothing left of its earlier life"

    again = await open_log(disk.crash("all"))
    assert list(await contents(again))[-1] == expected - 1
    await again.close()


async def test_no_owner_writes_over_a_file_of_another_one() -> None:
    """The other one may be fenced and still in a write."""
    disk = SimulatedDisk(Random(3))
    first = await open_log(disk)
    await fill_file(first)
    await first.close(clean=False)
    second = await open_log(disk)
    await second.append([b"checkpoint"], truncate_before=second.next_group)
    await second.truncate()
    assert not names(disk, ".spare")

    await keep_spare(second)
    assert len(names(disk, ".spare")) == 1
    await second.close(clean=False)
    third = await open_log(disk)
    assert not names(disk, ".spare")
    await third.close()


@pytest.mark.parametrize("kind", [Open, Write])
async def test_an_owner_that_is_fenced_while_it_begins_its_spare_damages_nothing(kind: type[IoCall]) -> None:
    """It is frozen before a call on its spare; the next owner opens, appends and truncates meanwhile."""
    disk, armed, reached = SimulatedDisk(Random(4)), False, anyio.Event()
    pause = Pause(anyio.Event())

    def on_call(index: int, call: IoCall) -> Fault | None:
        path = call.path if isinstance(call, Open) else call.handle.path if isinstance(call, Write) else ""
        if not armed or type(call) is not kind or not path.endswith(".spare"):
            return None
        reached.set()
        return pause

    first = make_log(SimulatedFiles(disk, on_call), LONG_FILES)
    await first.open()
    await keep_spare(first)

    async def roll() -> None:
        with pytest.raises(NotOwner):
            while True:
                await first.append([PAYLOAD])

    armed = True
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(roll)
        await reached.wait()
        second = await open_log(disk)
        await keep_spare(second)
        await fill_file(second)
        found = second.next_group
        pause.until.set()

    await first.close()
    await second.append([b"goes on"])
    await second.close(clean=False)
    groups = await read_all(disk)
    assert groups[found] == b"goes on"
    assert list(groups) == list(range(min(groups), found + 1))


async def test_a_clean_close_removes_the_spare() -> None:
    disk = SimulatedDisk(Random(5))
    log = await open_log(disk)
    await keep_spare(log)
    await log.close()
    assert not names(disk, ".spare")


async def test_w6_a_full_disk_has_no_spare() -> None:
    """Neither one from before, nor one that a truncation leaves."""
    disk = SimulatedDisk(Random(6), capacity=80 * 4096)
    log = make_log(SimulatedFiles(disk), attrs.evolve(LONG_FILES, low_water=8 * 4096))
    await log.open()
    await keep_spare(log)
    assert names(disk, ".spare")
    disk.capacity = 80 * 4096 - disk.free()
    await log.check_space()
    assert not log.has_room(0)
    assert not names(disk, ".spare")

    await keep_spare(log)
    assert not names(disk, ".spare")
    await log.close()


async def test_a_group_goes_on_with_zeros_up_to_the_end_of_its_page() -> None:
    """Otherwise the system reads the rest of that page from the disk before it writes."""
    disk, fillers = SimulatedDisk(Random(7)), []

    def on_call(index: int, call: IoCall) -> None:
        if isinstance(call, Write) and call.handle.path.startswith(FOLDER) and call.filler:
            fillers.append((call.offset + sum(map(len, call.buffers))) % 4096)

    log = make_log(SimulatedFiles(disk, on_call), attrs.evolve(LONG_FILES, file_size=20_000))
    await log.open()
    for _ in range(2):
        await log.append([bytes(21_000)])
    await log.append([b"checkpoint"], truncate_before=log.next_group)
    await log.truncate()
    await log.append([bytes(21_000)])
    for _ in range(4):
        await log.append([PAYLOAD])
    await log.close()

    assert fillers.count(0) >= 4


@pytest.mark.one_loop
@pytest.mark.parametrize("kind", [Fail, FailAfter])
@pytest.mark.parametrize("is_spare", [False, True])
@pytest.mark.parametrize("keep", ["none", "all"])
async def test_w6_a_roll_that_a_full_disk_refuses_at_any_call_loses_no_acked_group(
    kind: type[Fail | FailAfter], is_spare: bool, keep: Keep
) -> None:
    """A file whose header ends the current one, which then goes on, must not be there after a power loss."""
    for seed in range(2):
        for at in range(100):
            if not await roll_without_room(SimulatedDisk(Random(100 * seed + at)), kind, at, is_spare, keep):
                break
        else:
            pytest.fail("the appends have no end")


async def roll_without_room(
    disk: SimulatedDisk, kind: type[Fail | FailAfter], at: int, is_spare: bool, keep: Keep
) -> bool:
    """The disk is full at call ``at`` of some appends. Whether they made that call."""
    ledger, calls, armed = Ledger(), count(), False

    def on_call(index: int, call: IoCall) -> Fault | None:
        is_hit = armed and next(calls) == at
        return kind(OSError(errno.ENOSPC, "full")) if is_hit else None

    log = make_log(SimulatedFiles(disk, on_call), LONG_FILES)
    await log.open()
    if is_spare:
        await keep_spare(log)
    await fill_file(log)
    armed = True
    with suppress(StorageFull, Unavailable):
        for payload in (b"one", b"two", b"three"):
            await ledger.append(log, payload)
    armed = False
    await log.close(clean=False)
    found = await read_all(disk.crash(keep))
    assert ledger.acked.items() <= found.items(), at
    return next(calls) > at


async def test_a_spare_is_used_also_if_its_truncation_failed() -> None:
    """Otherwise each such truncation would leave one behind."""
    disk, armed = SimulatedDisk(Random(8)), False

    def on_call(index: int, call: IoCall) -> Fault | None:
        is_hit = armed and isinstance(call, SyncFolder)
        return Fail(OSError(errno.EIO, "planted")) if is_hit else None

    log = make_log(SimulatedFiles(disk, on_call), LONG_FILES)
    await log.open()
    await fill_file(log)
    await log.append([b"checkpoint"], truncate_before=log.next_group)
    armed = True
    with pytest.raises(Unavailable):
        await log.truncate()
    armed = False
    [spare] = names(disk, ".spare")
    inode = disk.find(spare)
    await fill_file(log)
    await log.append([PAYLOAD])
    assert disk.find(names(disk, ".wal")[-1]) is inode
    await log.close()
    assert not names(disk, ".spare")
