"""Cold files: what is written and synced leaves the page cache, in steps, and nothing depends on that."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from mmap import MAP_SHARED, PAGESIZE, PROT_READ
from pathlib import Path
from random import Random
from typing import NoReturn

import attrs
import pytest
from simulation.file_layer import Fail, Fault, SimulatedDisk, SimulatedFiles

from support.chunked import world_of
from support.log_world import make_log, read_all
from tierlog.journal.log.local_layout import LocalLogOptions
from tierlog.storage_backends.base.chunk_storage import ChunkRange
from tierlog.storage_backends.base.files import (
    Allocate,
    Close,
    Extend,
    IoCall,
    Open,
    Program,
    Read,
    Size,
    Sync,
    Write,
)
from tierlog.storage_backends.chunks.filesystem import FileSystemChunkStorage
from tierlog.storage_backends.files import local
from tierlog.storage_backends.files.cold_pages import STEP_BYTES
from tierlog.storage_backends.files.local import drive

HAS_HINTS = hasattr(os, "posix_fadvise")
SMALL = 10_001
"""Bytes of a small write; no step ends where a page does."""


@attrs.define
class Hints:
    """Records the advice given to the system, without giving it."""

    ranges: list[tuple[int, int]] = attrs.field(factory=list)
    """Where each begins and ends."""
    error: OSError | None = None

    def __call__(self, fd: int, offset: int, size: int, advice: int) -> None:
        assert os.fstat(fd)
        assert advice == os.POSIX_FADV_DONTNEED
        self.ranges.append((offset, offset + size))
        if self.error is not None:
            raise self.error

    def whole_pages(self) -> list[int]:
        """The pages that a system gives up: a page of which only a part is named stays."""
        return [page for start, end in self.ranges for page in range(-(-start // PAGESIZE), end // PAGESIZE)]


@pytest.fixture
def hints(monkeypatch: pytest.MonkeyPatch) -> Hints:
    if not HAS_HINTS:
        pytest.skip("this system has no posix_fadvise")
    made = Hints()
    monkeypatch.setattr(os, "posix_fadvise", made)
    return made


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "file")


def written(path: str, *steps: int | tuple[int, int], cold: bool = True) -> Program[None]:
    """Writes of so many bytes, each ``(offset, size)`` or at the end of the one before; 0 is a sync."""
    handle = yield Open(path, write=True, create=True, cold=cold)
    position = 0
    for step in steps:
        offset, size = (position, step) if isinstance(step, int) else step
        yield Write(handle, offset, [bytes(size)]) if size else Sync(handle)
        position = offset + size if size else position
    yield Close(handle)


# --- advice to the system -----------------------------------------------------------------------


def test_nothing_is_given_up_before_it_is_synced(hints: Hints, path: str) -> None:
    drive(written(path, STEP_BYTES, STEP_BYTES))
    assert hints.ranges == []

    drive(written(f"{path}2", STEP_BYTES, STEP_BYTES, 0))
    assert hints.ranges == [(0, 2 * STEP_BYTES)]


def test_nothing_is_given_up_that_a_sync_has_failed_for(
    hints: Hints, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is asked of memory before the sync has ended well."""

    def fails(fd: int) -> None:
        raise OSError(errno.EIO, "scripted")

    monkeypatch.setattr(local, "_fdatasync", fails)
    with pytest.raises(OSError, match="scripted"):
        drive(written(path, STEP_BYTES, 0))

    assert hints.ranges == []


def test_less_than_a_step_waits_for_the_rest_of_it(hints: Hints, path: str) -> None:
    drive(written(path, STEP_BYTES - 1, 0, 0))
    assert hints.ranges == []

    drive(written(f"{path}2", STEP_BYTES - 1, 0, 1, 0))
    assert hints.ranges == [(0, STEP_BYTES)]


def test_many_small_writes_give_up_each_page_once_and_leave_none(hints: Hints, path: str) -> None:
    """The page in which a step ends is not whole yet: it goes with the next step."""
    step = -(-STEP_BYTES // SMALL) * SMALL  # the first whole write that makes it a step
    drive(written(path, *[SMALL, 0] * (4 * step // SMALL - 1)))

    assert [end for _, end in hints.ranges] == [step, 2 * step, 3 * step]
    assert hints.whole_pages() == list(range(hints.ranges[-1][1] // PAGESIZE))


def test_nothing_is_given_up_twice(hints: Hints, path: str) -> None:
    drive(written(path, STEP_BYTES, 0, 0, STEP_BYTES, 0, 0))

    assert hints.ranges == [(0, STEP_BYTES), (STEP_BYTES, 2 * STEP_BYTES)]


def test_what_is_written_elsewhere_is_given_up_there(hints: Hints, path: str) -> None:
    far = 64 * STEP_BYTES
    drive(written(path, STEP_BYTES, 0, (far, STEP_BYTES), 0, (far // 2, STEP_BYTES), 0))

    assert hints.ranges == [(start, start + STEP_BYTES) for start in (0, far, far // 2)]


def test_what_was_written_backwards_is_given_up_as_a_whole(hints: Hints, path: str) -> None:
    half = STEP_BYTES // 2
    drive(written(path, (half, half), (0, half), 0))

    assert hints.ranges == [(0, STEP_BYTES)]


def test_bulk_data_is_given_up_to_its_end(hints: Hints, path: str) -> None:
    def program() -> Program[None]:
        handle = yield Open(path, write=True, create=True, cold=True)
        yield Write(handle, 0, [bytes(3 * STEP_BYTES), b"rest"], bulk=True)
        yield Sync(handle)
        yield Close(handle)

    drive(program())

    assert hints.ranges == [(0, 3 * STEP_BYTES + 4)]


def test_other_files_stay_in_memory(hints: Hints, path: str) -> None:
    drive(written(path, 4 * STEP_BYTES, 0, cold=False))

    assert hints.ranges == []


def test_what_a_write_that_failed_may_have_left_is_not_given_up(
    hints: Hints, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*given: object) -> NoReturn:
        raise OSError(errno.EIO, "scripted")

    def program() -> Program[None]:
        handle = yield Open(path, write=True, create=True, cold=True)
        with monkeypatch.context() as broken:
            broken.setattr(os, "pwritev", fails)
            with pytest.raises(OSError, match="scripted"):
                yield Write(handle, 0, [bytes(STEP_BYTES)])
        yield Sync(handle)
        yield Close(handle)

    drive(program())

    assert hints.ranges == []


def test_a_file_system_that_refuses_hints_is_still_written(hints: Hints, path: str) -> None:
    hints.error = OSError(errno.EINVAL, "no hints here")
    drive(written(path, STEP_BYTES, 0, 1, 0))

    assert os.stat(path).st_size == STEP_BYTES + 1
    assert hints.ranges == [(0, STEP_BYTES), (0, STEP_BYTES + 1)]  # what it did not take is named again


def test_a_system_without_hints_still_writes(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "posix_fadvise", raising=False)
    monkeypatch.delattr(os, "POSIX_FADV_DONTNEED", raising=False)
    drive(written(path, STEP_BYTES, 0))

    assert os.stat(path).st_size == STEP_BYTES


# --- what is in memory --------------------------------------------------------------------------


def _in_memory() -> Callable[[str], list[int]]:
    """Reports which pages of a file are in memory."""
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = (
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,
    )
    library.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    library.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)

    def pages(path: str) -> list[int]:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            address = library.mmap(None, size, PROT_READ, MAP_SHARED, file.fileno(), 0)
        assert address != ctypes.c_void_p(-1).value, os.strerror(ctypes.get_errno())
        found = (ctypes.c_ubyte * -(-size // PAGESIZE))()
        try:
            assert not library.mincore(address, size, found), os.strerror(ctypes.get_errno())
        finally:
            library.munmap(address, size)
        return [number for number, state in enumerate(found) if state & 1]

    return pages


@pytest.fixture
def in_memory(tmp_path: Path) -> Callable[[str], list[int]]:
    """The same; skipped where the file system keeps pages regardless of advice."""
    if os.uname().sysname != "Linux" or not HAS_HINTS:
        pytest.skip("needs Linux' mincore and posix_fadvise")

    pages = _in_memory()
    probe = tmp_path / "probe"
    with probe.open("wb") as file:
        file.write(bytes(16 * PAGESIZE))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if pages(str(probe)):
        pytest.skip(f"the file system of {tmp_path} keeps pages in memory")
    return pages


@pytest.mark.parametrize("size", [SMALL, STEP_BYTES // 3, 4 * STEP_BYTES])
def test_a_cold_file_leaves_memory_and_reads_back(
    size: int, path: str, in_memory: Callable[[str], list[int]]
) -> None:
    """But for what is not a step yet."""
    data = Random(1).randbytes(4 * STEP_BYTES)

    def program() -> Program[list[int]]:
        handle = yield Open(path, write=True, create=True, cold=True)
        for offset in range(0, len(data), size):
            yield Write(handle, offset, [data[offset : offset + size]], bulk=True)
            yield Sync(handle)
        found = in_memory(path)
        assert (yield Read(handle, 0, (yield Size(handle)))) == data
        yield Close(handle)
        return found

    step = -(-STEP_BYTES // size) * size
    rest = len(data) // step * step  # where the step begins that was not full
    assert [page for page in drive(program()) if page < rest // PAGESIZE] == []


def test_a_file_with_room_ahead_keeps_its_last_page_at_most(
    path: str, in_memory: Callable[[str], list[int]]
) -> None:
    """With blocks and a length ahead of what is written, as a log's files have."""

    def program() -> Program[list[int]]:
        handle = yield Open(path, write=True, create=True, cold=True)
        yield Allocate(handle, 0, 8 * STEP_BYTES)
        yield Extend(handle, 8 * STEP_BYTES)
        for offset in range(0, 4 * STEP_BYTES, STEP_BYTES + 1):
            yield Write(handle, offset, [bytes(STEP_BYTES + 1)])
            yield Sync(handle)
        found = in_memory(path)
        yield Close(handle)
        return found

    assert len(drive(program())) <= 1


def test_another_file_stays_in_memory(path: str, in_memory: Callable[[str], list[int]]) -> None:
    drive(written(path, 4 * STEP_BYTES, 0, cold=False))

    assert in_memory(path) == list(range(4 * STEP_BYTES // PAGESIZE))


# --- who is cold --------------------------------------------------------------------------------


@attrs.define
class Opened:
    """Which files were opened to be written, and whether they were cold."""

    calls: list[Open] = attrs.field(factory=list)
    is_full: bool = False

    def __call__(self, index: int, call: IoCall) -> Fault | None:
        if isinstance(call, Open) and call.write:
            self.calls.append(call)
        return (
            Fail(OSError(errno.ENOSPC, "full"))
            if self.is_full and isinstance(call, Open) and call.create
            else None
        )

    def of(self, suffix: str) -> list[bool]:
        return [call.cold for call in self.calls if call.path.endswith(suffix)]


@pytest.mark.anyio
async def test_a_logs_files_are_cold_and_its_register_is_not() -> None:
    opened = Opened()
    options = LocalLogOptions(file_size=1, reserve=4096, allocation_step=4096, length_step=64, low_water=0)
    log = make_log(SimulatedFiles(SimulatedDisk(Random(1)), opened), options)
    await log.open()
    for number in range(3):
        await log.append([b"%d" % number])
    assert len(opened.of(".wal")) > 1
    assert all(opened.of(".wal"))
    assert opened.of("register")
    assert not any(opened.of("register"))
    await log.close()


@pytest.mark.anyio
async def test_the_reserve_that_becomes_a_logs_file_is_cold() -> None:
    disk, opened = SimulatedDisk(Random(2)), Opened()
    options = LocalLogOptions(file_size=1, reserve=65536, allocation_step=1, length_step=64, low_water=0)
    log = make_log(SimulatedFiles(disk, opened), options)
    await log.open()
    await log.append([b"one"])
    assert await log.check_space()
    opened.calls.clear()
    opened.is_full = True
    await log.append([b"two"])

    taken = [call for call in opened.calls if call.path.endswith(".wal") and not call.create]
    assert [call.cold for call in taken] == [True]
    opened.is_full = False
    await log.close()
    assert await read_all(disk) == {1: b"one", 2: b"two"}


@pytest.mark.anyio
async def test_chunks_that_are_written_are_cold() -> None:
    opened = Opened()
    storage = FileSystemChunkStorage(SimulatedFiles(SimulatedDisk(Random(3)), opened), "/lts", world_of(3))
    await storage.open()
    opened.calls.clear()
    await storage.create_with_content("a", [b"x"])
    await storage.write("a", 1, [b"y"])
    await storage.concat("b", [ChunkRange("a", 0, 2)])
    await storage.close()

    assert [call.cold for call in opened.calls] == [True] * 3
    assert [call.path for call in opened.calls if not call.create] == ["/lts/a"]
