"""Programs on the operating system: every call, errors at their yield, and threads that are never abandoned
(W7)."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from tierlog.actors.kernel.event_loop import lane_thread
from tierlog.storage_backends.base.files import (
    Allocate,
    Close,
    Extend,
    FileHandle,
    FindData,
    FolderEntry,
    FreeSpace,
    IsReadOnly,
    Link,
    ListFolder,
    Lock,
    MakeFolder,
    Open,
    Program,
    Read,
    RemoveFolder,
    Rename,
    SetReadOnly,
    Size,
    Sync,
    SyncFolder,
    Trim,
    Unlink,
    Unlock,
    Write,
    make_folder,
    with_folder,
)
from tierlog.storage_backends.base.storage_statistics import FilesStatistics
from tierlog.storage_backends.files import local_lock
from tierlog.storage_backends.files.local import LocalFiles, drive

pytestmark = pytest.mark.anyio


@pytest.fixture(params=[(4, lambda: None), (1, lane_thread)], ids=["anyio-threads", "lane-threads"])
def files(request: pytest.FixtureRequest) -> LocalFiles:
    """With both kinds of threads."""
    width, make_thread = request.param
    return LocalFiles(width=width, make_thread=make_thread)


def put(path: str, *buffers: bytes) -> Program[None]:
    handle = yield Open(path, write=True, create=True)
    yield Write(handle, 0, buffers)
    yield Sync(handle)
    yield Close(handle)


def get(path: str) -> Program[bytes]:
    handle = yield Open(path)
    data = yield Read(handle, 0, (yield Size(handle)) + 10)
    yield Close(handle)
    return bytes(data)


async def test_a_program_writes_and_reads_in_one_go(tmp_path: Path, files: LocalFiles) -> None:
    path = str(tmp_path / "a")
    await files.run(put(path, b"one ", b"", b"two"))

    assert await files.run(get(path)) == b"one two"
    assert files.statistics() == attrs_of(programs=2, running=0)


def attrs_of(programs: int, running: int) -> object:
    return FilesStatistics(programs=programs, running=running)


async def test_more_buffers_than_one_system_call_takes(tmp_path: Path) -> None:
    files, path = LocalFiles(), str(tmp_path / "a")
    parts = [b"%d," % index for index in range(3000)]
    await files.run(put(path, *parts))
    assert await files.run(get(path)) == b"".join(parts)


async def test_a_write_that_the_system_cuts_short_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(fd: int, buffers: Any, offset: int) -> int:
        return os.pwrite(fd, b"".join(buffers)[:3], offset)

    monkeypatch.setattr("os.pwritev", short)
    files, path = LocalFiles(), str(tmp_path / "a")
    await files.run(put(path, b"abcdef", b"ghi"))
    assert await files.run(get(path)) == b"abcdefghi"


async def test_names(tmp_path: Path) -> None:
    root = str(tmp_path)

    def program() -> Program[list[FolderEntry]]:
        yield MakeFolder(f"{root}/x/y")
        yield MakeFolder(f"{root}/x/y")
        yield from put(f"{root}/x/b", b"12345")
        yield Link(f"{root}/x/b", f"{root}/x/c")
        yield Rename(f"{root}/x/b", f"{root}/x/a")
        yield SyncFolder(f"{root}/x")
        assert not (yield IsReadOnly(f"{root}/x/c"))
        yield SetReadOnly(f"{root}/x/c", True)
        assert (yield IsReadOnly(f"{root}/x/c"))
        assert (yield FreeSpace(root)) > 0
        found = yield ListFolder(f"{root}/x")
        yield Unlink(f"{root}/x/c")
        yield RemoveFolder(f"{root}/x/y")
        return list(found)

    found = await LocalFiles().run(program())
    assert found == [
        FolderEntry("a", False, 5),
        FolderEntry("c", False, 5),
        FolderEntry("y", True, found[2].size),
    ]
    assert os.listdir(tmp_path / "x") == ["a"]
    assert os.stat(tmp_path / "x" / "a").st_mode & 0o222 == 0


@pytest.mark.parametrize("nofollow", [False, True])
async def test_a_folder_that_is_removed_while_it_is_made_is_reported_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nofollow: bool
) -> None:
    """Another program made the folder before this one, and removed it before this one could examine it."""
    root = str(tmp_path)

    def mkdir(path: str, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)

    def program() -> Program[None]:
        yield MakeFolder(f"{root}/a")

    monkeypatch.setattr("os.mkdir", mkdir)
    with pytest.raises(FileNotFoundError):
        await LocalFiles().lane("other", nofollow_root=root if nofollow else "").run(program())


@pytest.mark.parametrize("nofollow", [False, True])
async def test_new_files_and_folders_are_accessible_to_their_user_only(
    tmp_path: Path, nofollow: bool
) -> None:
    root = str(tmp_path / "root")
    os.mkdir(root)
    os.chmod(root, 0o755)  # whatever the umask is

    def program() -> Program[None]:
        yield MakeFolder(f"{root}/x/y")
        yield from put(f"{root}/x/y/a", b"1")
        yield SetReadOnly(f"{root}/x/y/a", True)
        yield SetReadOnly(f"{root}/x/y/a", False)

    before = os.umask(0)
    try:
        await LocalFiles().lane("other", nofollow_root=root if nofollow else "").run(program())
    finally:
        os.umask(before)
    modes = {path: os.stat(f"{root}/{path}").st_mode & 0o777 for path in ("", "x", "x/y", "x/y/a")}
    assert modes == {"": 0o755, "x": 0o700, "x/y": 0o700, "x/y/a": 0o600}


async def test_w11_an_empty_folder_is_made_again_unless_somebody_prepared_it(tmp_path: Path) -> None:
    """A new folder would not have the mode that they chose, and a shell in the old one would be nowhere."""
    prepared, parent = tmp_path / "prepared" / "chunks", tmp_path / "prepared"
    parent.mkdir(mode=0o700)
    prepared.mkdir()
    prepared.chmod(0o750)  # whatever the umask is
    made = tmp_path / "made" / "chunks"
    made.parent.mkdir(mode=0o700)
    made.mkdir(mode=0o700)
    (made.parent / "other").mkdir()
    before = {folder: os.open(folder, os.O_RDONLY) for folder in (parent, prepared, made)}
    try:
        for folder in (prepared, made):
            await LocalFiles().run(make_folder(str(folder), with_parent=True))
        kept = {folder: os.path.samestat(os.fstat(fd), os.stat(folder)) for folder, fd in before.items()}
    finally:
        for fd in before.values():
            os.close(fd)
    assert kept == {parent: True, prepared: True, made: False}


async def test_below_a_root_that_is_made_by_its_name_files_are_in_the_one_that_has_the_name(
    tmp_path: Path,
) -> None:
    """Another process has removed the empty folder, which this program had open, and made it again."""
    root = tmp_path / "root"
    root.mkdir()

    def begin() -> Program[FileHandle]:
        handle: FileHandle = yield Open(f"{root}/sub/a", create=True)
        return handle

    def program() -> Program[None]:
        assert (yield ListFolder(str(root))) == []
        for again in (False, True):
            shutil.rmtree(root)
            if again:
                root.mkdir(mode=0o700)
            yield Close((yield from with_folder(f"{root}/sub", begin, with_parent=True)))
            assert (root / "sub/a").exists()

    await LocalFiles().lane("other", nofollow_root=str(root)).run(program())


async def test_errors_are_raised_at_their_yield_and_the_program_continues(
    tmp_path: Path, files: LocalFiles
) -> None:
    path = str(tmp_path / "a")

    def program() -> Program[list[type[OSError]]]:
        seen: list[type[OSError]] = []
        for call in (Open(path), ListFolder(path), Unlink(path), Link(path, path + "2")):
            try:
                yield call
            except OSError as error:
                seen.append(type(error))
        yield from put(path, b"")
        try:
            yield Open(path, create=True)
        except OSError as error:
            seen.append(type(error))
        return seen

    assert await files.run(program()) == [FileNotFoundError] * 4 + [FileExistsError]


async def test_a_program_closes_what_it_opened_when_there_is_no_memory_for_an_answer(tmp_path: Path) -> None:
    """It was dropped instead, with its file open."""
    path, opened = str(tmp_path / "a"), list[FileHandle]()

    def program() -> Program[None]:
        yield from put(path, b"")
        opened.append((yield Open(path)))
        try:
            yield Read(opened[0], 0, 1 << 62)
        finally:
            yield Close(opened[0])

    files = LocalFiles()
    with pytest.raises(MemoryError):
        await files.run(program())
    with pytest.raises(OSError, match="Bad file descriptor"):
        files.peek(opened[0], 0, 1)


async def test_a_handle_that_was_closed_can_neither_be_closed_nor_used_again(tmp_path: Path) -> None:
    """W7: a descriptor number is never used after its close."""
    path = str(tmp_path / "a")

    def program() -> Program[FileHandle]:
        handle = yield Open(path, write=True, create=True)
        yield Close(handle)
        for call in (Close(handle), Write(handle, 0, [b"x"]), Sync(handle), Read(handle, 0, 1)):
            with pytest.raises(OSError, match="Bad file descriptor"):
                yield call
        return handle  # type: ignore[no-any-return]

    handle = await LocalFiles().run(program())
    with pytest.raises(OSError, match="Bad file descriptor"):
        LocalFiles().peek(handle, 0, 1)


async def test_allocation_reserves_blocks_and_keeps_the_length(tmp_path: Path) -> None:
    def program() -> Program[tuple[int, int]]:
        handle = yield Open(str(tmp_path / "a"), write=True, create=True)
        yield Allocate(handle, 0, 1 << 20)
        size = yield Size(handle)
        blocks = os.stat(tmp_path / "a").st_blocks * 512
        yield Close(handle)
        return size, blocks

    size, blocks = await LocalFiles().run(program())
    assert size == 0
    assert blocks in (0, *range(1 << 20, 2 << 20))


async def test_data_is_found_behind_holes_and_blocks_that_were_never_written(tmp_path: Path) -> None:
    expected = {
        0: 0,
        1 << 20: 5 << 30,
        1 << 30: 5 << 30,
        5 << 30: 5 << 30,
        5 << 30 | 1 << 20: 6 << 30,
        7 << 30: 7 << 30,
    }

    def program() -> Program[None]:
        handle = yield Open(str(tmp_path / "a"), create=True)
        yield Write(handle, 0, (b"x",))
        yield Write(handle, 5 << 30, (b"y",))
        yield Extend(handle, 6 << 30)
        yield Allocate(handle, 1 << 30, 1 << 20)
        for offset, data in expected.items():
            assert (yield FindData(handle, offset)) == data
        yield Close(handle)

    await LocalFiles().run(program())


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EOPNOTSUPP])
async def test_data_is_everywhere_where_the_file_system_knows_no_holes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def lseek(fd: int, offset: int, how: int) -> int:
        raise OSError(code, os.strerror(code))

    def program() -> Program[int]:
        handle = yield Open(str(tmp_path / "a"), create=True)
        yield Extend(handle, 1 << 20)
        found: int = yield FindData(handle, 4096)
        yield Close(handle)
        return found

    monkeypatch.setattr(os, "lseek", lseek)
    assert await LocalFiles().run(program()) == 4096


async def test_trimming_frees_what_was_allocated_behind_and_never_lengthens(tmp_path: Path) -> None:
    path = tmp_path / "a"

    def program(length: int, end: int) -> Program[None]:
        handle = yield Open(str(path), write=True)
        yield Write(handle, 0, (b"x" * 4096,))
        yield Extend(handle, length)
        yield Allocate(handle, 0, 1 << 20)
        yield Trim(handle, end)
        yield Close(handle)

    path.touch()
    for length in (1 << 19, 4096):  # whether the file itself became longer, or only its blocks
        await LocalFiles().run(program(length, 4096))
        assert path.stat().st_size == 4096
        assert path.stat().st_blocks * 512 < 1 << 16

    await LocalFiles().run(program(4096, 5000))
    assert path.stat().st_size == 4096


async def test_extending_adds_zeros_and_never_cuts(tmp_path: Path) -> None:
    def program() -> Program[tuple[bytes, int, int]]:
        handle = yield Open(str(tmp_path / "a"), write=True, create=True)
        yield Write(handle, 0, (b"abc",))
        yield Extend(handle, 5)
        data = yield Read(handle, 0, 100)
        longer = yield Size(handle)
        yield Extend(handle, 2)
        shorter = yield Size(handle)
        yield Close(handle)
        return data, longer, shorter

    assert await LocalFiles().run(program()) == (b"abc\0\0", 5, 5)


async def test_peek_reads_without_a_thread(tmp_path: Path) -> None:
    files, path = LocalFiles(), str(tmp_path / "a")
    await files.run(put(path, b"abcdef"))

    def opening() -> Program[FileHandle]:
        return (yield Open(path))  # type: ignore[no-any-return]

    def closing(handle: FileHandle) -> Program[None]:
        yield Close(handle)

    handle = await files.run(opening())
    before = files.statistics()
    assert files.peek(handle, 2, 3) == b"cde"
    assert files.statistics() == before
    await files.run(closing(handle))


async def test_a_flock_excludes_another_handle_until_it_is_unlocked(tmp_path: Path) -> None:
    path = str(tmp_path / "a")

    def program() -> Program[list[bool]]:
        yield from put(path, b"")
        one = yield Open(path, write=True)
        two = yield Open(path, write=True)
        answers = [(yield Lock(one)), (yield Lock(two, wait=False))]
        yield Unlock(one)
        answers.append((yield Lock(two, wait=False)))
        yield Close(two)
        answers.append((yield Lock(one, wait=False)))
        yield Close(one)
        return answers

    assert await LocalFiles().run(program()) == [True, False, True, True]


async def test_a_lock_that_is_held_for_long_is_an_error_that_names_its_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W7: nobody could cancel a call that waits for a stopped process."""
    monkeypatch.setattr(local_lock, "WAIT_SECONDS", 0.05)
    path = str(tmp_path / "a")

    def program() -> Program[None]:
        yield from put(path, b"")
        one = yield Open(path, write=True)
        two = yield Open(path, write=True)
        yield Lock(one)
        try:
            yield Lock(two)
        finally:
            yield Close(two)
            yield Close(one)

    with pytest.raises(OSError, match=rf"process {os.getpid()} has held its lock|another process") as caught:
        await LocalFiles().run(program())
    assert (caught.value.errno, caught.value.filename) == (errno.EBUSY, path)


def waiting(entered: Callable[[], None], go: threading.Event, path: str) -> Program[str]:
    """Blocks its thread between two calls, as a slow disk would inside one."""
    yield from put(path, b"x")
    entered()
    go.wait()
    yield Unlink(path)
    return "done"


async def test_a_cancelled_program_is_waited_for(tmp_path: Path, files: LocalFiles) -> None:
    """W7: its thread may still use its descriptor, so nothing goes on before it has returned."""
    go, order = threading.Event(), []
    token = anyio.lowlevel.current_token()
    entered = anyio.Event()

    async def run() -> None:
        try:
            await files.run(
                waiting(lambda: anyio.from_thread.run_sync(entered.set, token=token), go, str(tmp_path / "a"))
            )
        finally:
            order.append("returned")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await entered.wait()
        tasks.cancel_scope.cancel()
        assert files.statistics().running == 1
        order.append("cancelled")
        go.set()
    assert order == ["cancelled", "returned"]
    assert os.listdir(tmp_path) == []
    assert files.statistics().running == 0


async def test_what_a_program_returns_reaches_a_caller_whose_scope_was_cancelled_meanwhile(
    tmp_path: Path, files: LocalFiles
) -> None:
    """W7: the cancellation comes at the next checkpoint, so the caller can note what was done."""
    go, token = threading.Event(), anyio.lowlevel.current_token()
    entered = anyio.Event()

    def tell() -> None:
        anyio.from_thread.run_sync(entered.set, token=token)

    async def cancel() -> None:
        await entered.wait()
        scope.cancel()
        await anyio.lowlevel.checkpoint()
        go.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cancel)
        with anyio.CancelScope() as scope:
            assert await files.run(waiting(tell, go, str(tmp_path / "a"))) == "done"
            await anyio.lowlevel.checkpoint()
            raise AssertionError("the cancellation was lost")
    assert scope.cancelled_caught


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("is_first", [False, True])
async def test_a_cancellation_by_asyncio_is_not_lost_beside_one_of_a_scope(
    tmp_path: Path, files: LocalFiles, is_first: bool
) -> None:
    """``asyncio.timeout`` and Ctrl-C cancel once, while the disk works for a scope that is cancelled."""
    go, token = threading.Event(), anyio.lowlevel.current_token()
    entered, scope = anyio.Event(), anyio.CancelScope()

    def tell() -> None:
        anyio.from_thread.run_sync(entered.set, token=token)

    async def run() -> None:
        with scope:
            await files.run(waiting(tell, go, str(tmp_path / "a")))
        raise AssertionError("the cancellation was lost")

    task = asyncio.ensure_future(run())
    await entered.wait()
    for cancel in (task.cancel, scope.cancel) if is_first else (scope.cancel, task.cancel):
        cancel()
        await anyio.wait_all_tasks_blocked()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_asyncio_cannot_abandon_a_program_either(tmp_path: Path, files: LocalFiles) -> None:
    """``Task.cancel`` passes anyio's shields."""
    go = threading.Event()
    loop, entered = asyncio.get_running_loop(), asyncio.Event()

    def tell() -> None:
        loop.call_soon_threadsafe(entered.set)

    task = asyncio.create_task(files.run(waiting(tell, go, str(tmp_path / "a"))))
    await entered.wait()
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    assert not task.done()
    assert files.statistics().running == 1
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert os.listdir(tmp_path) == []
    assert files.statistics().running == 0


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_w7_a_lock_whose_taker_asyncio_cancels_is_free(tmp_path: Path, files: LocalFiles) -> None:
    """The program has ended, and its handle reaches nobody who could close it."""
    go = threading.Event()
    loop, entered = asyncio.get_running_loop(), asyncio.Event()

    def held() -> Program[FileHandle]:
        handle: FileHandle = yield Open(str(tmp_path / "lock"), write=True, create=True)
        assert (yield Lock(handle, wait=False))
        loop.call_soon_threadsafe(entered.set)
        go.wait()
        return handle

    def is_free() -> Program[bool]:
        handle = yield Open(str(tmp_path / "lock"))
        free: bool = yield Lock(handle, wait=False)
        yield Close(handle)
        return free

    task = asyncio.create_task(files.run(held()))
    await entered.wait()
    task.cancel()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await files.run(is_free())


async def test_a_program_that_was_cancelled_before_it_began_never_runs(
    tmp_path: Path, files: LocalFiles
) -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        await files.run(put(str(tmp_path / "a"), b"x"))
    assert os.listdir(tmp_path) == []
    assert files.statistics().running == 0


async def test_lanes_do_not_delay_each_other_and_a_lane_runs_one_program_at_a_time(
    tmp_path: Path, files: LocalFiles
) -> None:
    """W7: and the host app may hold all of anyio's own threads."""
    go = threading.Event()
    token, entered = anyio.lowlevel.current_token(), anyio.Event()
    slow, quick = files.lane("slow"), files.lane("quick")
    shared = anyio.to_thread.current_default_thread_limiter()
    held = [object() for _ in range(int(shared.available_tokens))]
    for token_holder in held:
        shared.acquire_on_behalf_of_nowait(token_holder)
    finished = []

    async def second() -> None:
        await slow.run(put(str(tmp_path / "second"), b""))
        finished.append("second")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(
            slow.run,
            waiting(
                lambda: anyio.from_thread.run_sync(entered.set, token=token), go, str(tmp_path / "first")
            ),
        )
        await entered.wait()
        tasks.start_soon(second)
        await quick.run(put(str(tmp_path / "quick"), b""))
        assert finished == []
        go.set()
    assert finished == ["second"]
    for token_holder in held:
        shared.release_on_behalf_of(token_holder)


def test_drive_runs_a_program_in_the_calling_thread(tmp_path: Path) -> None:
    drive(put(str(tmp_path / "a"), b"abc"))
    assert drive(get(str(tmp_path / "a"))) == b"abc"
