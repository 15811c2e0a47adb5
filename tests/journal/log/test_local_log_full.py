"""A local log on a full disk: users are refused in time, the log itself goes on, and room that is freed is
noticed (rule W6)."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from random import Random

import anyio
import attrs
import pytest
from simulation.disk import BLOCK
from simulation.file_layer import Fail, Fault, Pause, SimulatedDisk, SimulatedFiles

from support.log_world import FOLDER, Ledger, live, make_log, power_loss_at, read_all
from tierlog.journal.log.local_layout import LocalLogOptions
from tierlog.storage_backends.base.errors import NotOwner, StorageFull, Unavailable
from tierlog.storage_backends.base.files import Allocate, IoCall, Open, Trim, Write
from tierlog.testing.log_conformance import contents

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]

FULL = LocalLogOptions(file_size=8192, reserve=8192, allocation_step=4096, length_step=2048, low_water=32768)
ROOMY = attrs.evolve(FULL, reserve=16 * BLOCK)
"""Killed openings have the room of a few files."""


async def test_users_are_refused_below_the_low_water_mark_and_again_accepted_above_twice_that() -> None:
    """W6: before any write; the log itself goes on."""
    disk = SimulatedDisk(Random(17), capacity=50 * 4096)
    log = make_log(SimulatedFiles(disk), FULL)
    await log.open()
    assert log.has_room(1000)
    while log.has_room(1000):
        await log.append([b"x" * 1000])
    assert disk.free() >= FULL.low_water - 2 * FULL.allocation_step
    await log.check_space()
    assert not log.has_room(1000)
    assert str(log.room_error()) == (
        f"{FOLDER}: appends stop below 32768 bytes (wal.low_water) besides the log's reserve, and go on at "
        f"65536; {disk.free()} are free: free space on that disk. Where it has the chunks too, truncate or "
        f"delete segments: their chunks are deleted after gc.delay"
    )

    await log.append([b"checkpoint"], truncate_before=log.next_group)
    await log.truncate()
    assert await log.check_space()
    assert log.has_room(1000)
    await log.close()


async def test_w6_the_refusal_of_an_append_too_large_for_the_room_names_the_low_water_mark_alone() -> None:
    """Nothing was refused before."""
    disk = SimulatedDisk(Random(17), capacity=50 * 4096)
    log = make_log(SimulatedFiles(disk), FULL)
    await log.open()
    assert not log.has_room(disk.free())
    assert "bytes are free, and appends need 32768 bytes (wal.low_water) and" in str(log.room_error())
    await log.close()


async def test_w6_a_log_that_is_made_on_a_full_disk_speaks_of_no_earlier_refusal() -> None:
    disk = SimulatedDisk(Random(17), capacity=10 * 4096)
    log = make_log(SimulatedFiles(disk), FULL)
    await log.open()
    assert not log.has_room(0)
    assert "appends stop below 32768 bytes (wal.low_water)" in str(log.room_error())
    await log.close()


async def test_w6_only_files_that_get_no_more_groups_can_leave_the_log() -> None:
    """A truncation behind a checkpoint frees nothing otherwise."""
    log = make_log(SimulatedFiles(SimulatedDisk(Random(24))), FULL)
    await log.open()
    await log.append([b"x" * 1000])
    assert not log.can_shrink()
    await log.append([b"x" * FULL.file_size])
    assert log.can_shrink(), "the next group begins another file"
    await log.append([b"checkpoint"], truncate_before=log.next_group)
    assert log.can_shrink()
    await log.truncate()
    assert not log.can_shrink()
    await log.close()


async def test_a_full_disk_can_be_opened_checkpointed_truncated_and_used_again() -> None:
    """W6: the seal goes to the reserve file, the checkpoint to its blocks, truncation frees the rest."""
    disk, ledger = SimulatedDisk(Random(18), capacity=50 * 4096), Ledger()
    log = make_log(SimulatedFiles(disk), FULL)
    await log.open()
    while log.has_room(1000):
        await ledger.append(log, b"x" * 1000)
    await log.close()
    disk.make_folder("/other")
    filler = disk.create("/other/filler")
    disk.allocate(filler, disk.free())
    assert disk.free() == 0

    log = make_log(SimulatedFiles(disk), FULL)
    await log.open()
    ledger.check(await contents(log))
    assert not log.has_room(1)
    await ledger.append(log, b"checkpoint", truncate_before=log.next_group)
    await log.truncate()
    assert disk.free() > 0
    assert await log.check_space()
    assert "reserve" in disk.folder(FOLDER).names
    await ledger.append(log, b"user again" * 100)
    await log.close()
    log = make_log(SimulatedFiles(disk.crash("none")), FULL)
    await log.open()
    ledger.check(await contents(log))
    await log.close()


async def test_a_full_disk_without_a_reserve_explains_what_to_do() -> None:
    disk = SimulatedDisk(Random(19), capacity=25 * 4096)
    log = make_log(SimulatedFiles(disk), FULL)
    await log.open()
    await log.append([b"acked"])
    await log.close()
    disk.unlink(f"{FOLDER}/reserve")
    disk.allocate(disk.create("/filler"), disk.free())
    log = make_log(SimulatedFiles(disk), FULL)
    with pytest.raises(StorageFull, match=r"free \d+ bytes"):
        await log.open()
    await log.close()
    reader = make_log(SimulatedFiles(disk), FULL)
    await reader.inspect()
    assert await contents(reader) == {1: b"acked"}
    await reader.close()


async def test_a_roll_without_room_continues_in_the_current_file() -> None:
    """Internal groups live on the blocks ahead; longer than it should be is better than stopped."""
    disk = SimulatedDisk(Random(20))
    full: list[bool] = []

    def no_room(index: int, call: IoCall) -> Fault | None:
        return (
            Fail(OSError(errno.ENOSPC, "full"))
            if full and isinstance(call, Allocate | Open) and _makes_room(call)
            else None
        )

    log = make_log(
        SimulatedFiles(disk, no_room),
        LocalLogOptions(file_size=1, reserve=65536, allocation_step=1, length_step=64, low_water=0),
    )
    await log.open()
    await log.append([b"one"])
    disk.unlink(f"{FOLDER}/reserve")
    full.append(True)
    before = log.statistics().files
    await log.append([b"two"])
    assert log.statistics().files == before
    assert not await log.check_space()
    full.clear()
    assert await log.check_space()
    await log.append([b"three"])
    assert log.statistics().files == before + 1
    await log.close()
    assert await read_all(disk) == {1: b"one", 2: b"two", 3: b"three"}


def _makes_room(call: IoCall) -> bool:
    return isinstance(call, Allocate) or (isinstance(call, Open) and call.create)


async def test_an_append_that_finds_the_disk_full_is_storage_full_and_stops_the_log() -> None:
    disk = SimulatedDisk(Random(21), capacity=60_000)
    log = make_log(
        SimulatedFiles(disk), LocalLogOptions(reserve=0, low_water=0, allocation_step=1, length_step=64)
    )
    await log.open()
    await log.append([b"acked"])
    with pytest.raises(StorageFull, match="free some space"):
        await log.append([b"x" * 100_000])
    with pytest.raises(Unavailable):
        await log.append([b"later"])
    await log.close()
    reader = make_log(SimulatedFiles(disk))
    await reader.inspect()
    assert await contents(reader) == {1: b"acked"}
    await reader.close()


async def full_disk(random: Random, ledger: Ledger, options: LocalLogOptions = FULL) -> SimulatedDisk:
    """A log that was used up to the low-water mark and ended; then others filled the disk."""
    disk = SimulatedDisk(random, capacity=100 * BLOCK)
    log = make_log(SimulatedFiles(disk), options)
    await log.open()
    while log.has_room(1000):
        await ledger.append(log, b"x" * 1000)
    await log.close()
    fill(disk)
    return disk


def fill(disk: SimulatedDisk) -> None:
    """Others take every free block."""
    filler = disk.find("/filler") if disk.exists("/filler") else disk.create("/filler")
    disk.allocate(filler, filler.blocks * BLOCK + disk.free())


async def _brief_life(files: SimulatedFiles, ledger: Ledger, options: LocalLogOptions = FULL) -> None:
    """Open, one group of the store itself, which lets earlier files go, and close."""
    log = make_log(files, options)
    await log.open()
    found = await contents(log)
    ledger.check(found)
    ledger.note_read(found)
    await ledger.append(log, b"the store's own group", truncate_before=log.next_group - 2)
    await log.truncate()
    await log.close()


def wal_files(disk: SimulatedDisk) -> list[str]:
    return [path for path in disk.files_below(FOLDER) if path.endswith(".wal")]


async def test_a_full_disk_can_be_opened_and_closed_again_and_again() -> None:
    """W6: what an opening takes from the reserve is there for the next one, though others take every block
    that is free between two openings."""
    ledger = Ledger()
    disk = await full_disk(Random(22), ledger)
    for _ in range(30):
        await _brief_life(SimulatedFiles(disk), ledger)
        fill(disk)
    assert len(wal_files(disk)) <= 4


@pytest.mark.parametrize("seed", range(4))
async def test_openings_that_are_killed_on_a_full_disk_leave_room_for_the_next(seed: int) -> None:
    """W6: at any call, also between the choice of the new file and its durability. Until one opening is
    complete, each costs the size of its start."""
    random, ledger = Random(seed), Ledger()
    disk = await full_disk(random, ledger, ROOMY)

    async def life(files: SimulatedFiles) -> None:
        await _brief_life(files, ledger, ROOMY)

    for _ in range(25):
        await live(disk, life, power_loss_at(random.randrange(100, 260), random))
        disk = disk.crash("all")
    await life(SimulatedFiles(disk))
    assert len(wal_files(disk)) <= 4


async def test_a_group_larger_than_the_reserve_is_logged_again_on_a_full_disk() -> None:
    """W6: the reserve is extended by what its predecessor had allocated ahead."""
    disk, ledger = SimulatedDisk(Random(23), capacity=60 * 4096), Ledger()
    log = make_log(SimulatedFiles(disk), FULL)
    await log.open()
    await ledger.append(log, b"x" * (FULL.reserve + 4000))
    await log.close(clean=False)
    fill(disk)
    log = make_log(SimulatedFiles(disk), FULL)
    await log.open()
    ledger.check(await contents(log))
    await ledger.append(log, b"the store's own group")
    await log.close()


async def test_w6_an_opening_without_room_for_the_last_group_states_how_much_to_free() -> None:
    """Nothing else may be freed: the group has to be written again, beside the only copy of it."""
    disk, ledger = SimulatedDisk(Random(29), capacity=80 * 4096), Ledger()
    log = make_log(SimulatedFiles(disk), FULL)
    await log.open()
    await ledger.append(log, b"x" * (4 * FULL.reserve))
    await log.close(clean=False)
    missing = 0
    for _ in range(2):
        fill(disk)
        log = make_log(SimulatedFiles(disk), FULL)
        with pytest.raises(StorageFull, match=r"has 8192 and the disk \d+: free \d+ bytes") as refused:
            await log.open()
        await log.close(clean=False)
        missing = int(str(refused.value).partition("free ")[2].split()[0])

    assert missing <= 4 * FULL.reserve
    filler = disk.find("/filler")
    filler.blocks -= missing // BLOCK
    log = make_log(SimulatedFiles(disk), FULL)
    await log.open()
    ledger.check(await contents(log))
    await ledger.append(log, b"the store's own group")
    await log.close()


@attrs.define
class Freeze:
    """Freezes its process once, at the first call that ``where`` accepts, until ``resume`` is set."""

    where: Callable[[int, IoCall], bool]
    reached: anyio.Event = attrs.field(factory=anyio.Event)
    resume: anyio.Event = attrs.field(factory=anyio.Event)

    def __call__(self, index: int, call: IoCall) -> Fault | None:
        if self.reached.is_set() or not self.where(index, call):
            return None
        self.reached.set()
        return Pause(self.resume)


async def test_w1_what_a_frozen_opener_trims_while_its_successor_reads_is_not_corrupt() -> None:
    """W6: an opener on a full disk frees room before its own file is durable. Behind the last group that it
    read, a fenced owner has written one more, which its successor is reading."""
    found = []
    for at in range(1000):
        disk = SimulatedDisk(Random(24), capacity=60 * BLOCK)
        if not await _open_during_a_trim(disk, at):
            break
        found.append(await read_all(disk))
    else:
        pytest.fail("the opening has no end")

    acked, unknown = {1: b"one", 2: b"two"}, {3: b"never acked"}
    assert [item for item in found if item not in (acked, acked | unknown)] == []
    # Before the successor's reading, during it, and after it.
    assert found.count(acked) > 10 < found.count(acked | unknown)


async def _open_during_a_trim(disk: SimulatedDisk, at: int) -> bool:
    """Whether the successor's opening made call ``at``, before which the frozen opener goes on and ends."""
    in_append = Freeze(
        lambda index, call: isinstance(call, Write) and b"never acked" in b"".join(call.buffers)
    )
    in_trim = Freeze(lambda index, call: isinstance(call, Trim))
    in_opening = Freeze(lambda index, call: index == at)

    async def append() -> None:
        with pytest.raises(NotOwner):
            await fenced.append([b"never acked"])

    async def open_on_a_full_disk() -> None:
        log = make_log(SimulatedFiles(disk, in_trim), FULL)
        with suppress(NotOwner):
            await log.open()
        await log.close(clean=False)
        in_opening.resume.set()

    async def go_on() -> None:
        await in_opening.reached.wait()
        in_trim.resume.set()

    fenced = make_log(SimulatedFiles(disk, in_append), FULL)
    await fenced.open()
    await fenced.append([b"one"])
    await fenced.append([b"two"])
    disk.unlink(f"{FOLDER}/reserve")
    fill(disk)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(append)
        await in_append.reached.wait()
        tasks.start_soon(open_on_a_full_disk)
        await in_trim.reached.wait()
        in_append.resume.set()
        disk.unlink("/filler")
        tasks.start_soon(go_on)
        log = make_log(SimulatedFiles(disk, in_opening), FULL)
        await log.open()
        is_reached = in_opening.reached.is_set()
        in_opening.reached.set()
    await log.close()
    return is_reached
