"""The reserve of a file system for the store's own objects: rule S22."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import pytest
from simulation.disk import SimulatedDisk
from simulation.file_layer import SimulatedFiles

from support.chunked import world_of
from support.container_world import virtual_time
from tierlog import StorageFull
from tierlog.storage_backends.base.files import Allocate, IoCall
from tierlog.storage_backends.chunks.filesystem import FileSystemChunkStorage
from tierlog.storage_backends.files.local import LocalFiles

pytestmark = pytest.mark.anyio

KIB = 1024
RESERVE = 64 * KIB
ROOM = 256 * KIB
ELEMENT = "_system/containers/0000/journal/1"


async def opened(disk: SimulatedDisk, seed: int = 1, reserve: int = RESERVE) -> FileSystemChunkStorage:
    storage = FileSystemChunkStorage(
        SimulatedFiles(disk, interleave=False), "/lts", world_of(seed), reserve_bytes=reserve
    )
    await storage.open()
    return storage


async def fill(storage: FileSystemChunkStorage) -> list[str]:
    """Chunks of a user until there is no room for another one."""
    names: list[str] = []
    while True:
        name = f"containers/0000/{len(names):02}"
        try:
            await storage.create_with_content(name, [bytes(16 * KIB)])
        except StorageFull:
            return names
        names.append(name)


@virtual_time
async def test_s22_the_stores_own_objects_find_room_on_a_full_disk() -> None:
    storage = await opened(SimulatedDisk(Random(1), ROOM))
    await fill(storage)
    await storage.create_with_content(ELEMENT, [bytes(40 * KIB)])
    assert await storage.read(ELEMENT, 0, KIB) == bytes(KIB)


@virtual_time
async def test_s22_without_a_reserve_they_do_not() -> None:
    storage = await opened(SimulatedDisk(Random(1), ROOM), reserve=0)
    await fill(storage)
    with pytest.raises(StorageFull):
        await storage.create_with_content(ELEMENT, [bytes(40 * KIB)])


@virtual_time
async def test_s22_users_chunks_wait_until_the_reserve_is_back() -> None:
    """Else they would take its room, in this process or another one, and nothing could be deleted."""
    disk = SimulatedDisk(Random(1), ROOM)
    storage, other = await opened(disk), await opened(disk, 2)
    names = await fill(storage)
    await storage.create_with_content(ELEMENT, [bytes(8 * KIB)])
    for each in (storage, other):
        with pytest.raises(StorageFull, match="need the"):
            await each.create_with_content("containers/0000/new", [b"x"])
        with pytest.raises(StorageFull, match="need the"):
            await each.write(names[0], 16 * KIB, [b"x"])
    await storage.delete(names[0])
    await storage.delete(names[1])
    await other.create_with_content("containers/0000/new", [b"x"])
    await other.write(names[2], 16 * KIB, [b"x"])

    await fill(storage)
    await storage.create_with_content(f"{ELEMENT}2", [bytes(40 * KIB)])


@virtual_time
async def test_s22_an_opening_brings_the_reserve_back() -> None:
    disk = SimulatedDisk(Random(1), ROOM)
    storage = await opened(disk)
    names = await fill(storage)
    await storage.create_with_content(ELEMENT, [bytes(40 * KIB)])
    again = await opened(disk, 2)  # without room for it
    for name in names[:6]:
        await again.delete(name)
    before = disk.free()
    await opened(disk, 3)
    assert before - disk.free() >= RESERVE


async def test_s22_the_reserve_takes_blocks_and_is_no_chunk(tmp_path: Path) -> None:
    storage = FileSystemChunkStorage(LocalFiles(), str(tmp_path / "lts"), world_of(1), reserve_bytes=1 << 20)
    await storage.open()
    reserve = tmp_path / "lts" / ".tierlog-reserve"
    assert reserve.stat().st_size == 0
    assert reserve.stat().st_blocks * 512 >= 1 << 20
    assert [info.name async for info in storage.list("")] == []
    assert await storage.used_space() == 0
    await storage.close()


@virtual_time
async def test_s22_what_fails_for_another_reason_holds_up_no_chunk() -> None:
    """Where blocks cannot be allocated, there is no reserve, and nothing else is different."""

    def unsupported(number: int, call: IoCall) -> None:
        if isinstance(call, Allocate):
            raise OSError(errno.EIO, "scripted")

    files = SimulatedFiles(SimulatedDisk(Random(1), ROOM), unsupported)
    storage = FileSystemChunkStorage(files, "/lts", world_of(1), reserve_bytes=RESERVE)
    await storage.open()
    await storage.create_with_content("containers/0000/a", [b"x"])
