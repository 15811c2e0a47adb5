"""The simulated disk loses what a real one may lose, and nothing that was synced."""

from __future__ import annotations

import errno
from random import Random

import anyio
import pytest
from simulation.disk import BLOCK, SECTOR
from simulation.file_layer import Fail, Hang, LosePower, SimulatedDisk, SimulatedFiles

from tierlog.storage_backends.base.files import (
    Close,
    FileHandle,
    IoCall,
    Lock,
    MakeFolder,
    Open,
    Program,
    Rename,
    Sync,
    SyncFolder,
    Trim,
    Write,
)

pytestmark = pytest.mark.anyio


def put(path: str, data: bytes, *, sync: bool, name: bool = True) -> Program[FileHandle]:
    handle: FileHandle = yield Open(path, write=True, create=True)
    yield Write(handle, 0, [data])
    if sync:
        yield Sync(handle)
    if name:
        yield SyncFolder(path.rpartition("/")[0] or "/")
    return handle


def add(handle: FileHandle, offset: int, data: bytes, *, sync: bool) -> Program[None]:
    yield Write(handle, offset, [data])
    if sync:
        yield Sync(handle)


async def test_what_was_synced_survives_and_the_rest_vanishes() -> None:
    disk = SimulatedDisk(Random(1))
    files = SimulatedFiles(disk)
    handle = await files.run(put("/a", b"synced", sync=True))
    await files.run(add(handle, 6, b" not", sync=False))
    await files.run(put("/b", b"nameless", sync=True, name=False))

    assert disk.content("/a") == b"synced not"
    after = disk.crash("none")
    assert after.content("/a") == b"synced"
    assert list(after.folder("/").names) == ["a"]


async def test_unsynced_sectors_come_to_rest_in_any_combination() -> None:
    outcomes = set()
    for seed in range(60):
        disk = SimulatedDisk(Random(seed))
        handle = await SimulatedFiles(disk).run(put("/a", b"", sync=True))
        await SimulatedFiles(disk).run(add(handle, 0, b"x" * SECTOR * 2, sync=False))
        outcomes.add(disk.crash().content("/a"))
    whole, hole = b"x" * SECTOR, b"\0" * SECTOR
    assert {b"", whole, whole + whole, hole + whole} <= outcomes


def trim(handle: FileHandle, size: int, *, sync: bool) -> Program[None]:
    yield Trim(handle, size)
    if sync:
        yield Sync(handle)


async def test_a_trim_that_was_not_synced_happened_or_did_not_and_one_that_was_did() -> None:
    outcomes = set()
    for seed in range(30):
        disk = SimulatedDisk(Random(seed), capacity=100 * BLOCK)
        files = SimulatedFiles(disk)
        handle = await files.run(put("/a", b"x" * BLOCK * 3, sync=True))
        await files.run(trim(handle, 100, sync=False))
        assert disk.content("/a") == b"x" * 100
        assert disk.used() == BLOCK
        after = disk.crash()
        outcomes.add(len(after.content("/a")))
        assert after.used() == 3 * BLOCK
    assert outcomes == {100, 3 * BLOCK}

    disk = SimulatedDisk(Random(1))
    handle = await SimulatedFiles(disk).run(put("/a", b"x" * BLOCK * 3, sync=True))
    await SimulatedFiles(disk).run(trim(handle, 100, sync=True))
    await SimulatedFiles(disk).run(trim(handle, 200, sync=True))
    after = disk.crash("none")
    assert (after.content("/a"), after.used()) == (b"x" * 100, BLOCK)


async def test_a_failed_sync_marks_pages_clean_and_a_later_one_does_not_save_them() -> None:
    disk = SimulatedDisk(Random(4))
    failing = True

    def on_call(index: int, call: IoCall) -> Fail | None:
        return Fail(OSError(errno.EIO, "no")) if failing and isinstance(call, Sync) else None

    files = SimulatedFiles(disk, on_call)
    handle = await files.run(put("/a", b"", sync=False))
    with pytest.raises(OSError, match="no"):
        await files.run(add(handle, 0, b"x" * SECTOR * 20, sync=True))
    failing = False
    await files.run(add(handle, SECTOR * 20, b"y", sync=True))

    assert disk.content("/a") == b"x" * SECTOR * 20 + b"y"
    survived = disk.crash("all").content("/a")
    assert survived[-1:] == b"y"
    assert 0 < survived.count(b"x") < SECTOR * 20


async def test_names_that_a_failed_sync_of_their_folder_lost_are_not_saved_by_a_later_one() -> None:
    disk = SimulatedDisk(Random(4))
    failing = True

    def on_call(index: int, call: IoCall) -> Fail | None:
        is_hit = failing and isinstance(call, SyncFolder)
        return Fail(OSError(errno.EIO, "no")) if is_hit else None

    def make(names: list[str]) -> Program[None]:
        for name in names:
            yield Close((yield Open(f"/{name}", write=True, create=True)))
        yield SyncFolder("/")

    files = SimulatedFiles(disk, on_call)
    names = [f"{number:02}" for number in range(20)]
    with pytest.raises(OSError, match="no"):
        await files.run(make(names))
    failing = False
    await files.run(make(["later"]))

    assert len(disk.files_below("/")) == 21
    survived = disk.crash("all").files_below("/")
    assert "/later" in survived
    assert 1 < len(survived) < 21


async def test_a_rename_inside_a_folder_is_never_half_there() -> None:
    for seed in range(20):
        disk = SimulatedDisk(Random(seed))
        files = SimulatedFiles(disk)

        def program() -> Program[None]:
            yield MakeFolder("/f")
            yield SyncFolder("/")
            yield from put("/f/old", b"x", sync=True)
            yield Rename("/f/old", "/f/new")

        await files.run(program())
        assert list(disk.crash().folder("/f").names) in (["old"], ["new"])


async def test_a_power_loss_keeps_or_loses_the_rename_of_a_folder_with_its_content() -> None:
    found = set()
    for seed in range(20):
        disk = SimulatedDisk(Random(seed))
        files = SimulatedFiles(disk)

        def program() -> Program[None]:
            yield MakeFolder("/f/old/deep")
            for folder in ("/f/old", "/f", "/"):
                yield SyncFolder(folder)
            yield from put("/f/old/deep/x", b"x", sync=True)
            yield SyncFolder("/f/old/deep")
            yield Rename("/f/old", "/f/new")

        await files.run(program())
        assert disk.content("/f/new/deep/x") == b"x"
        found.add(tuple(disk.crash().files_below("/")))
    assert found == {("/f/old/deep/x",), ("/f/new/deep/x",)}


async def test_a_full_disk_takes_what_fits_and_frees_an_unlinked_file_once_it_is_closed() -> None:
    disk = SimulatedDisk(Random(1), capacity=3 * 4096)
    files = SimulatedFiles(disk)
    handle = await files.run(put("/a", b"x" * 4096, sync=True))
    with pytest.raises(OSError, match="no space"):
        await files.run(add(handle, 4096, b"y" * 9000, sync=False))
    assert len(disk.content("/a")) == 3 * 4096

    disk.unlink("/a")
    assert disk.free() == 0

    def close() -> Program[None]:
        yield Close(handle)

    await files.run(close())
    assert disk.free() == 3 * 4096


async def test_after_a_power_loss_everything_hangs_until_the_test_cancels() -> None:
    """No ``finally`` of the dead world does any more I/O."""
    disk = SimulatedDisk(Random(1))
    files = SimulatedFiles(
        disk, lambda index, call: LosePower(written=600) if isinstance(call, Write) else None
    )
    cleaned: list[str] = []

    def program() -> Program[None]:
        handle = yield Open("/a", write=True, create=True)
        try:
            yield Write(handle, 0, [b"x" * 1000])
        finally:
            cleaned.append("began")
            yield Close(handle)
            cleaned.append("went on")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(files.run, program())
        while not disk.dead:
            await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    assert cleaned == ["began"]
    assert len(disk.content("/a")) == SECTOR
    with pytest.raises(OSError, match="stopped"):
        files.peek(await _opened(disk), 0, 1)


async def _opened(disk: SimulatedDisk) -> FileHandle:
    def program() -> Program[FileHandle]:
        return (yield Open("/a"))  # type: ignore[no-any-return]

    disk.dead = False
    handle = await SimulatedFiles(disk).run(program())
    disk.dead = True
    return handle


async def test_a_killed_process_frees_its_locks_and_its_writes_stay_in_the_page_cache() -> None:
    disk = SimulatedDisk(Random(1))
    victim = SimulatedFiles(disk)
    handle = await victim.run(put("/a", b"cached", sync=False))

    def lock(handle: FileHandle) -> Program[bool]:
        return bool((yield Lock(handle, wait=False)))

    def open_and_lock() -> Program[bool]:
        return bool((yield Lock((yield Open("/a")), wait=False)))

    assert await victim.run(lock(handle))
    assert not await SimulatedFiles(disk).run(open_and_lock())
    victim.kill()
    assert await SimulatedFiles(disk).run(open_and_lock())
    assert disk.content("/a") == b"cached"


async def test_a_program_is_shielded_unless_it_hangs() -> None:
    disk = SimulatedDisk(Random(1))
    with anyio.CancelScope() as scope:

        def cancel(index: int, call: IoCall) -> None:
            scope.cancel()

        await SimulatedFiles(disk, cancel).run(put("/a", b"whole", sync=True))
    assert disk.content("/a") == b"whole"

    hung = SimulatedFiles(disk, lambda index, call: Hang() if isinstance(call, Sync) else None)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hung.run, put("/b", b"x", sync=True))
        while hung.calls < 3:
            await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    assert hung.statistics().running == 0
