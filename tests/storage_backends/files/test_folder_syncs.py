"""Rule W11: a sync of a folder does not report names as durable that another program's failed sync lost."""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from tierlog.storage_backends.base.files import Close, IsNamed, Open, Program, SyncFolder, Unlink
from tierlog.storage_backends.files.folder_syncs import FolderSyncs
from tierlog.storage_backends.files.local import LocalFiles

pytestmark = pytest.mark.anyio


def make_and_sync(path: str) -> Program[None]:
    yield Close((yield Open(path, write=True, create=True)))
    yield SyncFolder(os.path.dirname(path))


def fail() -> None:
    raise OSError(errno.EIO, "the sync failed")


async def test_w11_a_program_whose_name_another_ones_failed_sync_lost_fails_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, folder, is_made, has_failed = LocalFiles(), str(tmp_path), threading.Event(), threading.Event()

    def slow() -> Program[None]:
        yield Close((yield Open(f"{folder}/a", write=True, create=True)))
        is_made.set()
        has_failed.wait()
        yield SyncFolder(folder)

    def failing() -> Program[None]:
        is_made.wait()
        yield SyncFolder(folder)

    fsync = os.fsync

    def fail_once(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode) and not has_failed.is_set():
            fail()
        fsync(fd)

    monkeypatch.setattr(os, "fsync", fail_once)

    async def run_slow() -> None:
        with pytest.raises(OSError, match="another sync of the folder failed"):
            await files.run(slow())

    async with anyio.create_task_group() as group:
        group.start_soon(run_slow)
        with pytest.raises(OSError, match="the sync failed"):
            await files.lane("other").run(failing())
        has_failed.set()
    await files.run(make_and_sync(f"{folder}/b"))


A, B = (1, 1), (1, 2)


def test_w11_a_failed_sync_concerns_its_folder_alone_and_no_later_program() -> None:
    syncs, done = FolderSyncs(), list[str]()
    with pytest.raises(OSError, match="the sync failed"):
        syncs.sync("/a", A, 0, fail)
    syncs.sync("/b", B, 0, lambda: done.append("/b"))
    syncs.sync("/a", A, syncs.failures, lambda: done.append("/a"))
    assert done == ["/b", "/a"]
    with pytest.raises(OSError, match="another sync of the folder failed"):
        syncs.sync("/a", A, 0, lambda: done.append("unreachable"))
    assert done == ["/b", "/a"]


def sync_together(*folders: tuple[int, int], fails: bool = False) -> tuple[list[int], list[int]]:
    """Programs with one path that come while the sync of another one of folder ``A`` is under way. Returns
    whose sync was called, in order, and who got an error. The first sync after that may fail."""
    syncs, called, failed = FolderSyncs(), list[int](), list[int]()

    def sync_one(number: int, folder: tuple[int, int], act: Callable[[], None]) -> None:
        def sync() -> None:
            called.append(number)
            act()

        try:
            syncs.sync("/a", folder, 0, sync)
        except OSError:
            failed.append(number)

    others = [
        threading.Thread(target=sync_one, args=(number, folder, fail if fails else lambda: None))
        for number, folder in enumerate(folders, 1)
    ]

    def waiting(folder: tuple[int, int]) -> int:
        turn = syncs._turns.get(folder)
        return 0 if turn is None else turn.users

    def let_others_come() -> None:
        for thread, folder in zip(others, folders, strict=True):
            before = waiting(folder)
            thread.start()
            while waiting(folder) == before and thread.is_alive():
                thread.join(0.001)

    sync_one(0, A, let_others_come)
    for thread in others:
        thread.join()
    return called, sorted(failed)


def test_w11_one_sync_serves_all_that_came_before_it_began() -> None:
    """Not the one that was under way: it may have begun before their names were made."""
    called, failed = sync_together(A, A, A)
    assert (len(called), called[0], failed) == (2, 0, [])


def test_w11_a_failed_sync_fails_for_all_that_came_before_it_began() -> None:
    called, failed = sync_together(A, A, A, fails=True)
    assert (len(called), failed) == (2, [1, 2, 3])


def test_w11_a_sync_does_not_serve_another_folder_that_has_the_path_by_now() -> None:
    called, failed = sync_together(A, B)
    assert (sorted(called), failed) == ([0, 1, 2], [])


async def test_w1_a_file_knows_whether_its_path_still_leads_to_it(tmp_path: Path) -> None:
    path = f"{tmp_path}/a"

    def look() -> Program[list[bool]]:
        first = yield Open(path, write=True, create=True)
        found = [(yield IsNamed(first))]
        yield Unlink(path)
        found.append((yield IsNamed(first)))
        second = yield Open(path, write=True, create=True)
        found += [(yield IsNamed(first)), (yield IsNamed(second))]
        yield Close(first)
        yield Close(second)
        return found

    expected = [True, False, False, True]
    assert await LocalFiles().run(look()) == expected
    os.unlink(path)
    assert await LocalFiles().lane("chunks", 1, str(tmp_path)).run(look()) == expected
