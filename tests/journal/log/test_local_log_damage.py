"""Every truncation and every bit flip is recovered in full or refused with file and offset; never silently
less (W2, W3)."""

from __future__ import annotations

from copy import deepcopy
from random import Random

import pytest
from simulation.file_layer import SimulatedDisk, SimulatedFiles

from support.log_world import FOLDER, LOG_ID, Ledger, make_log
from tierlog.journal.log.frames import FRAME_HEADER_BYTES, FileId, encode_frame, file_salt
from tierlog.journal.log.local import LocalLog
from tierlog.journal.log.local_layout import LocalLogOptions
from tierlog.journal.registers.local import EPOCH_RECORD_BYTES, SLOT_BYTES
from tierlog.storage_backends.base.errors import DataCorruption, StoreMismatch
from tierlog.testing.log_conformance import contents

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]
every_seventh = pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.extended)])

REGISTER = f"{FOLDER}/register"
TINY = LocalLogOptions(file_size=150, reserve=0, allocation_step=1, length_step=40, low_water=0)


async def small_image(*, clean: bool = True) -> tuple[SimulatedDisk, Ledger]:
    """Two owners, sealed files, a re-logged group, a roll: everything a header or frame can say, in a few
    hundred bytes."""
    disk, ledger = SimulatedDisk(Random(0)), Ledger()
    for owner in range(2):
        log = make_log(SimulatedFiles(disk), TINY)
        await log.open()
        for index in range(3):
            await ledger.append(
                log,
                b"group %d of owner %d" % (index, owner),
                truncate_before=2 if (owner, index) == (1, 1) else 0,
            )
        await log.close(clean=clean)
    return disk, ledger


def wal_paths(disk: SimulatedDisk) -> list[str]:
    return sorted(f"{FOLDER}/{name}" for name in disk.folder(FOLDER).names if name.endswith(".wal"))


def written(disk: SimulatedDisk, path: str) -> bytes:
    """A WAL file without the zeros behind its last group."""
    return disk.content(path).rstrip(b"\0")


async def check_damaged(disk: SimulatedDisk, ledger: Ledger, *, fencing: bool) -> bool:
    """Whether the log opens (or fails without saying where); asserts that it then holds everything."""
    log = make_log(SimulatedFiles(disk), TINY)
    try:
        await (log.open() if fencing else log.inspect())
        found = await contents(log)
    except DataCorruption as error:
        return not (error.file.startswith(FOLDER) and error.offset >= 0)
    finally:
        await log.close()
    ledger.check(found)
    assert max(found) == 6
    return True


@every_seventh
async def test_every_flipped_bit_of_a_wal_file_is_recovered_or_refused(step: int) -> None:
    disk, ledger = await small_image()
    refused = 0
    for path in wal_paths(disk):
        whole = disk.content(path)
        for bit in range(0, len(whole) * 8, step):
            damaged = bytearray(whole)
            damaged[bit // 8] ^= 1 << bit % 8
            disk.replace(path, bytes(damaged))
            refused += not await check_damaged(disk, ledger, fencing=False)
        disk.replace(path, whole)
    assert refused > 1000 / step
    assert await check_damaged(disk, ledger, fencing=True)


@every_seventh
async def test_every_truncation_of_a_wal_file_is_recovered_or_refused(step: int) -> None:
    disk, ledger = await small_image()
    refused = 0
    for path in wal_paths(disk):
        whole = disk.content(path)
        for size in range(0, len(whole), step):
            disk.replace(path, whole[:size])
            refused += not await check_damaged(deepcopy(disk), ledger, fencing=True)
        disk.replace(path, whole)
    assert refused > 300 / step


async def test_every_flipped_bit_and_truncation_of_the_register_is_recovered_or_refused() -> None:
    disk, ledger = await small_image()
    whole = disk.content(REGISTER)
    for bit in [
        *range((EPOCH_RECORD_BYTES + 4 * SLOT_BYTES) * 8),
        *range(len(whole) * 4, len(whole) * 8, 999),
    ]:
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        disk.replace(REGISTER, bytes(damaged))
        opened = await check_damaged(disk, ledger, fencing=False)
        assert not opened or bit >= 1536 * 8
    for size in range(0, len(whole), 37):
        disk.replace(REGISTER, whole[:size])
        assert not await check_damaged(disk, ledger, fencing=False)


async def test_a_missing_wal_file_above_the_truncation_address_is_refused() -> None:
    """W5: below it, files may be missing."""
    disk, ledger = await small_image()
    for path in wal_paths(disk):
        broken = deepcopy(disk)
        broken.unlink(path)
        assert not await check_damaged(broken, ledger, fencing=True)


async def test_a_log_that_ends_below_its_watermark_is_refused_with_file_and_offset() -> None:
    """W3: cutting off exactly the last acked group looks like a torn tail."""
    disk, _ = await small_image(clean=False)
    last = wal_paths(disk)[-1]
    whole = written(disk, last)
    cut = len(whole) - FRAME_HEADER_BYTES - len(b"group 2 of owner 1")
    disk.replace(last, whole[:cut])
    with pytest.raises(DataCorruption) as caught:
        await make_log(SimulatedFiles(disk), TINY).open()
    assert (caught.value.file, caught.value.offset) == (last, cut)


async def test_a_broken_group_before_a_later_one_is_corruption_even_without_a_watermark() -> None:
    """W2: the later group was begun after the broken one was durable."""
    disk = SimulatedDisk(Random(0))
    log = make_log(SimulatedFiles(disk))
    await log.open()
    for _ in range(3):
        await log.append([b"x" * 100])
    await log.close(clean=False)
    path = wal_paths(disk)[-1]
    whole = bytearray(written(disk, path))
    broken_at = len(whole) - 2 * (FRAME_HEADER_BYTES + 100)
    whole[broken_at + FRAME_HEADER_BYTES] ^= 1
    disk.replace(path, bytes(whole))
    disk.replace(REGISTER, disk.content(REGISTER)[:EPOCH_RECORD_BYTES].ljust(4096, b"\0"))

    with pytest.raises(DataCorruption) as caught:
        await make_log(SimulatedFiles(disk)).open()
    assert (caught.value.file, caught.value.offset) == (path, broken_at)


async def killed_after_an_append() -> tuple[SimulatedDisk, str]:
    """A log with one group, and its file."""
    disk = SimulatedDisk(Random(0))
    log = make_log(SimulatedFiles(disk))
    await log.open()
    await log.append([b"acked"])
    await log.close(clean=False)
    return disk, wal_paths(disk)[-1]


async def assert_torn_tail(disk: SimulatedDisk, path: str, torn: bytes) -> None:
    """Behind the group, ``torn`` is ignored."""
    disk.replace(path, disk.content(path) + torn)
    log = make_log(SimulatedFiles(disk))
    await log.open()
    assert await contents(log) == {1: b"acked"}
    await log.close()


async def test_a_torn_last_group_without_a_watermark_is_the_torn_tail() -> None:
    """An append that was never acked must not make a healthy log unreadable."""
    disk, path = await killed_after_an_append()
    _, torn = encode_frame(
        file_salt(LOG_ID, FileId(1, 1)), len(disk.content(path)), 1, 2, 0, 0, [b"y" * 3000]
    )
    await assert_torn_tail(disk, path, b"".join(torn)[:-1000])


async def test_user_bytes_that_look_like_frames_do_not_count() -> None:
    """The torn group holds a copy of a real later frame: salted with its position, it is not one."""
    disk, path = await killed_after_an_append()
    end, salt = len(disk.content(path)), file_salt(LOG_ID, FileId(1, 1))
    _, copied = encode_frame(salt, end, 1, 3, 0, 0, [b"as if it were group 3"])
    _, torn = encode_frame(salt, end, 1, 2, 0, 0, [b"".join(copied) * 4, b"z" * 600])
    await assert_torn_tail(disk, path, b"".join(torn)[:-600])


async def two_owners(disk: SimulatedDisk, appended: int) -> str:
    """Groups 1 and 2 by a first owner, ``appended`` more by a second; returns the second one's file."""
    for count in (2, appended):
        log = make_log(SimulatedFiles(disk))
        await log.open()
        for _ in range(count):
            await log.append([b"acked" * 20])
        await log.close(clean=False)
    return wal_paths(disk)[-1]


def forget_watermarks(disk: SimulatedDisk) -> None:
    """They are not synced: a power loss may take them."""
    disk.replace(REGISTER, disk.content(REGISTER)[:EPOCH_RECORD_BYTES].ljust(4096, b"\0"))


async def test_a_whole_epoch_that_is_missing_is_refused() -> None:
    """W3: its watermark proves that it took effect, though the older files look like a log that is whole."""
    disk = SimulatedDisk(Random(0))
    path = await two_owners(disk, 1)
    disk.unlink(path)
    with pytest.raises(DataCorruption) as caught:
        await make_log(SimulatedFiles(disk)).open()
    assert (caught.value.file, caught.value.offset) == (path, 0)


async def test_a_broken_header_with_a_group_behind_it_is_corruption_even_without_a_watermark() -> None:
    """W2: the group was begun after the header was durable."""
    disk = SimulatedDisk(Random(0))
    path = await two_owners(disk, 1)
    forget_watermarks(disk)
    whole = bytearray(disk.content(path))
    whole[20] ^= 1
    disk.replace(path, bytes(whole))
    with pytest.raises(DataCorruption, match="group 3 follows") as caught:
        await make_log(SimulatedFiles(disk)).open()
    assert caught.value.file == path


async def test_damage_to_the_only_copy_of_a_relogged_group_is_refused() -> None:
    """W3: the opener syncs its watermark, so not even a power loss and rot together lose the group
    silently."""
    disk = SimulatedDisk(Random(0))
    log = make_log(SimulatedFiles(disk))
    await log.open()
    await log.append([b"acked" * 20])
    await log.close(clean=False)
    log = make_log(SimulatedFiles(disk))
    await log.open()
    disk = disk.crash("none")
    path = wal_paths(disk)[-1]
    disk.replace(path, written(disk, path)[:-1])
    with pytest.raises(DataCorruption) as caught:
        await make_log(SimulatedFiles(disk)).open()
    assert caught.value.file == path


async def test_a_register_missing_beside_wal_files_is_refused() -> None:
    """W1: nobody knows any more who was fenced."""
    disk, _ = await small_image()
    disk.unlink(REGISTER)
    with pytest.raises(DataCorruption, match="register is missing"):
        await make_log(SimulatedFiles(disk)).open()
    with pytest.raises(DataCorruption, match="register is missing"):
        await make_log(SimulatedFiles(disk)).inspect()


async def test_the_log_of_another_id_is_refused_and_left_untouched() -> None:
    disk, ledger = await small_image()
    before = {path: disk.content(path) for path in [REGISTER, *wal_paths(disk)]}
    with pytest.raises(StoreMismatch):
        await LocalLog(SimulatedFiles(disk), FOLDER, b"f" * 16, TINY).open()
    assert {path: disk.content(path) for path in [REGISTER, *wal_paths(disk)]} == before
    assert await check_damaged(disk, ledger, fencing=True)


async def test_inspect_writes_nothing() -> None:
    disk, _ = await small_image(clean=False)
    before = {path: disk.content(path) for path in [REGISTER, *wal_paths(disk)]}
    calls: list[str] = []
    files = SimulatedFiles(disk, lambda _, call: calls.append(type(call).__name__))
    log = make_log(files)
    await log.inspect()
    await log.close()

    assert set(calls) <= {"Open", "Read", "Size", "FindData", "ListFolder", "Close"}
    assert {path: disk.content(path) for path in [REGISTER, *wal_paths(disk)]} == before


async def test_every_flipped_bit_of_a_window_is_reported_with_file_and_offset() -> None:
    """W10: the file is damaged under a running owner, which goes on."""
    disk = SimulatedDisk(Random(0))
    log = make_log(SimulatedFiles(disk), TINY)
    await log.open()
    for index in range(3):
        await log.append([b"group %d" % index])
    [path, *_] = wal_paths(disk)
    window = await log.read_window(1)
    whole = disk.content(path)
    end = whole.index(bytes(window[-1][1])) + len(window[-1][1])
    for bit in range(end * 8):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        disk.replace(path, bytes(damaged))
        with pytest.raises(DataCorruption) as refused:
            await log.read_window(1)
        assert refused.value.file == path
        assert 0 <= refused.value.offset < end
    disk.replace(path, whole)

    assert bytes(dict(await log.read_window(1))[1]) == b"group 0"
    assert await log.append([b"group 3"]) == 4
    await log.close()
