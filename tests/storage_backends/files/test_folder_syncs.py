"""Rule W11: a sync of a folder does not report names as durable that another program's failed sync lost."""

from __future__ import annotations

import errno
import os
import stat
import threading
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


def test_w11_a_failed_sync_concerns_its_folder_alone_and_no_later_program() -> None:
    syncs, done = FolderSyncs(), list[str]()
    with pytest.raises(OSError, match="the sync failed"):
        syncs.sync("/a", 0, fail)
    syncs.sync("/b", 0, lambda: done.append("/b"))
    syncs.sync("/a", syncs.failures, lambda: done.append("/a"))
    assert done == ["/b", "/a"]
    with pytest.raises(OSError, match="another sync of the folder failed"):
        syncs.sync("/a", 0, lambda: done.append("unreachable"))
    assert done == ["/b", "/a"]


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
