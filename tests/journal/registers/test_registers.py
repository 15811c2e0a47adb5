"""Registers: how they are raised, the file's golden bytes, damage, and torn reads (W1, W3)."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import anyio
import anyio.lowlevel
import pytest
from simulation.file_layer import Fail, LosePower, SimulatedDisk, SimulatedFiles

from support.log_world import live
from tierlog.journal.registers.local import (
    EPOCH_RECORD_BYTES,
    REGISTER_BYTES,
    SLOTS,
    RegisterImage,
    Watermark,
    decode_epoch,
    decode_image,
    decode_taken,
    encode_epoch,
    encode_watermark,
    raise_locked,
    raise_new,
    read_register,
    slot_offset,
)
from tierlog.storage_backends.base.checksum import crc32c
from tierlog.storage_backends.base.errors import DataCorruption, NotOwner, StoreMismatch
from tierlog.storage_backends.base.files import Close, Files, IoCall, Lock, Open, Program, Read, Write
from tierlog.storage_backends.base.ids import EPOCH_MAX
from tierlog.storage_backends.files.local import LocalFiles

LOG_ID = bytes(range(16))
GOLDEN = Path(__file__).parents[2] / "golden" / "register_v1.hex"
MARK = Watermark(epoch=19, sequence=3, end=70_000, last_group=1234, clean=True)


async def raise_register(files: Files, folder: str = "/r", floor: int = 0) -> int:
    """Raise the register in ``folder``, as the opening of a log without files does."""

    def program() -> Program[int]:
        handle, _, epoch = yield from raise_new(
            folder, f"{folder}/register", LOG_ID, lambda handle: raise_locked(handle, LOG_ID, floor)
        )
        yield Close(handle)
        return epoch

    return await files.run(program())


@pytest.mark.anyio
async def test_w1_raising_goes_above_the_epoch_and_above_the_floor(tmp_path: Path) -> None:
    files = LocalFiles()
    floors = (0, 0, 9, 3)
    assert [await raise_register(files, str(tmp_path), floor) for floor in floors] == [1, 2, 10, 11]


@pytest.mark.anyio
async def test_w1_no_two_raises_get_the_same_epoch(tmp_path: Path) -> None:
    """Read, add and write are one atomic step."""
    epochs: list[int] = []

    async def raise_often() -> None:
        files = LocalFiles()
        epochs.extend([await raise_register(files, str(tmp_path)) for _ in range(10)])

    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(raise_often)
    assert sorted(epochs) == list(range(1, 41))


def image(epoch: int = 19, *marks: Watermark) -> bytearray:
    data = bytearray(REGISTER_BYTES)
    data[:EPOCH_RECORD_BYTES] = encode_epoch(LOG_ID, epoch)
    for mark in marks:
        slot = encode_watermark(LOG_ID, mark)
        data[slot_offset(mark.epoch) : slot_offset(mark.epoch) + len(slot)] = slot
    return data


def test_the_register_has_its_golden_bytes() -> None:
    golden = GOLDEN.read_text().split()

    assert encode_epoch(LOG_ID, 19).hex() == golden[0]
    assert encode_watermark(LOG_ID, MARK).hex() == golden[1]
    assert encode_epoch(LOG_ID, 19, b"whoever raised it"[:16]).hex() == golden[2]
    assert decode_image(bytes(image(19, MARK)), LOG_ID, "r") == RegisterImage(19, {19: MARK})


def test_watermarks_of_sixteen_epochs_stand_side_by_side() -> None:
    marks = [Watermark(epoch, 1, epoch * 10, epoch, False) for epoch in range(40, 40 + SLOTS)]
    assert decode_image(bytes(image(55, *marks)), LOG_ID, "r").watermarks == {
        mark.epoch: mark for mark in marks
    }


def test_a_register_of_a_newer_format_or_another_log_is_refused_untouched() -> None:
    record = bytearray(encode_epoch(LOG_ID, 1)[:-4])
    record[5] += 1
    with pytest.raises(StoreMismatch, match="newer tierlog"):
        decode_epoch(bytes(record) + crc32c(record).to_bytes(4, "big"), LOG_ID, "r")
    with pytest.raises(StoreMismatch, match="mixed up"):
        decode_epoch(encode_epoch(LOG_ID, 1), bytes(16), "r")


@pytest.mark.parametrize("offset", [0, 5, 30, 511, 512 + 3 * 64, 512 + 3 * 64 + 63])
def test_a_damaged_record_is_refused_with_its_offset(offset: int) -> None:
    data = image(19, MARK)
    data[offset] ^= 1
    with pytest.raises(DataCorruption) as caught:
        decode_image(bytes(data), LOG_ID, "r")
    assert caught.value.offset <= offset < caught.value.offset + 512


@pytest.mark.anyio
async def test_a_slot_that_was_half_written_when_it_was_read_is_read_again() -> None:
    """Another process writes its watermark while we read; that is no damage."""
    disk = SimulatedDisk(Random(1))
    whole, torn = image(19, MARK), image(19, MARK)
    torn[slot_offset(19) + 20] ^= 1
    disk.create("/register").write(0, bytes(torn))
    reads = 0

    def finish_the_write(index: int, call: IoCall) -> None:
        nonlocal reads
        reads += isinstance(call, Read)
        if reads == 2:
            disk.replace("/register", bytes(whole))

    def look() -> Program[RegisterImage]:
        handle = yield Open("/register")
        found = yield from read_register(handle, LOG_ID)
        yield Close(handle)
        return found

    assert (await SimulatedFiles(disk, finish_the_write).run(look())).watermarks == {19: MARK}


@pytest.mark.anyio
async def test_a_raise_that_returned_survives_a_power_loss() -> None:
    disk = SimulatedDisk(Random(2))
    disk.make_folder("/r")
    disk.folder("/").sync()
    values = []
    for _ in range(5):
        values.append(await raise_register(SimulatedFiles(disk)))
        disk = disk.crash("none")
    assert values == [1, 2, 3, 4, 5]


@pytest.mark.anyio
async def test_the_next_opening_completes_an_interrupted_creation() -> None:
    """The register has its name only once it is whole."""
    for written in (0, 512, 4096):
        disk = SimulatedDisk(Random(3))
        disk.make_folder("/r")
        disk.folder("/").sync()

        def die(index: int, call: IoCall, written: int = written) -> LosePower | None:
            return LosePower(written) if isinstance(call, Write) else None

        async def create(files: SimulatedFiles) -> None:
            await raise_register(files)

        await live(disk, create, die)
        disk = disk.crash("all")
        assert await raise_register(SimulatedFiles(disk)) == 1


@pytest.mark.anyio
async def test_w1_a_register_that_nobody_raised_is_made_again() -> None:
    """A sync of its folder failed, so a later one need not write its name. Its creator was killed then, and
    another opener waits for the lock of the file that is removed."""
    disk = SimulatedDisk(Random(5))
    disk.put("/r/register", bytes(image(0)))
    old, waiters = disk.find("/r/register"), 0

    def wait_for_the_lock(index: int, call: IoCall) -> None:
        nonlocal waiters
        waiters += isinstance(call, Lock)

    old.holder = "an opener"
    raised: list[int] = []

    async def raise_it(files: SimulatedFiles) -> None:
        raised.append(await raise_register(files))

    async with anyio.create_task_group() as group:
        for _ in range(2):
            group.start_soon(raise_it, SimulatedFiles(disk, wait_for_the_lock))
        while waiters < 2:
            await anyio.lowlevel.checkpoint()
        disk.unlock(old, "an opener")
    assert sorted(raised) == [1, 2]
    assert disk.find("/r/register") is not old


@pytest.mark.anyio
async def test_a_failed_epoch_claim_does_not_own_an_epoch_that_another_took() -> None:
    """The write of a raise fails: the number may be ours, until somebody else takes it."""
    disk = SimulatedDisk(Random(4))
    disk.create("/register").write(0, encode_epoch(LOG_ID, 18, b"A" * 16))

    def fail(index: int, call: IoCall) -> Fail | None:
        return Fail(OSError(errno.EIO, "broken")) if isinstance(call, Write) else None

    def raised(owner: bytes, expected: list[int] | None, tried: list[int]) -> Program[int]:
        handle = yield Open("/register", write=True)
        try:
            _, epoch = yield from raise_locked(handle, LOG_ID, 0, owner=owner, expected=expected, tried=tried)
        finally:
            yield Close(handle)
        return epoch

    tried = [18]
    with pytest.raises(OSError, match="broken"):
        await SimulatedFiles(disk, fail).run(raised(b"A" * 16, [18], tried))
    assert tried == [18, 19]

    assert await SimulatedFiles(disk).run(raised(b"B" * 16, None, [])) == 19
    with pytest.raises(NotOwner):
        await SimulatedFiles(disk).run(raised(b"A" * 16, tried, tried))
    assert decode_taken(disk.content("/register"), LOG_ID, "r") == (19, b"B" * 16)


@pytest.mark.anyio
async def test_the_last_epoch_has_no_successor_and_is_refused_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "register"
    with pytest.raises(DataCorruption, match="has no successor") as caught:
        await raise_register(LocalFiles(), str(tmp_path), EPOCH_MAX)

    assert caught.value.file == str(path)


def test_a_register_with_an_epoch_that_no_log_has_is_corrupt() -> None:
    with pytest.raises(DataCorruption, match="no log has the epoch"):
        decode_taken(encode_epoch(LOG_ID, EPOCH_MAX + 1), LOG_ID, "r")
