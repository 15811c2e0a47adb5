"""What is not a regular file where one of the store's files should be is never waited for, read or
followed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest

from support.folders import make_socket, newest_log_file
from support.patience import scaled
from tierlog import DataCorruption, InvalidArgument, open_store
from tierlog.actors.maintenance.doctor import examine
from tierlog.actors.store.read_only import open_reader
from tierlog.storage_backends.files.local import LocalFiles

pytestmark = pytest.mark.anyio


KINDS: dict[str, Callable[[Path], None]] = {
    "pipe": os.mkfifo,
    "socket": make_socket,
    "folder": Path.mkdir,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "link": lambda path: path.symlink_to(path.with_name(f"{path.name}.moved")),
}
FILES: dict[str, Callable[[Path], Path]] = {
    "log file": newest_log_file,
    "register": lambda folder: folder / "wal/0000/register",
    "identity": lambda folder: folder / "wal/store",
}


async def make_store(folder: Path) -> None:
    async with open_store(folder, containers=1) as store:
        await store.create_segment("s")
        await store.append("s", b"acked")


async def open_owner(folder: Path) -> None:
    async with open_store(folder) as store:
        await store.append("s", b"more")


async def open_view(folder: Path) -> None:
    async with open_reader(folder) as view:
        found = await examine(view, LocalFiles())
        if found.problems:
            raise DataCorruption(found.problems[0].message, file=found.problems[0].file)


@pytest.mark.parametrize("use", [open_owner, open_view], ids=["owner", "doctor"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.one_loop
@pytest.mark.parametrize("file", FILES)
async def test_it_is_refused_with_its_name(
    tmp_path: Path, file: str, kind: str, use: Callable[[Path], object]
) -> None:
    await make_store(tmp_path)
    path = FILES[file](tmp_path)
    path.rename(path.with_name(f"{path.name}.moved"))
    KINDS[kind](path)
    with anyio.fail_after(scaled(20)), pytest.raises(DataCorruption, match="not a regular file") as refused:
        await use(tmp_path)  # type: ignore[misc]
    assert refused.value.file == str(path)
    assert "\n" not in str(refused.value)

    if kind == "folder":
        path.rmdir()
    else:
        path.unlink()
    path.with_name(f"{path.name}.moved").rename(path)
    async with open_store(tmp_path) as store:
        assert await store.read("s", 0, 5) == b"acked"


@pytest.mark.parametrize("kind", KINDS)
async def test_among_the_lock_files_it_is_nobodys(tmp_path: Path, kind: str) -> None:
    await make_store(tmp_path)
    KINDS[kind](tmp_path / "wal/owners" / "strange")
    with anyio.fail_after(scaled(20)):
        await open_owner(tmp_path)
        await open_view(tmp_path)


@pytest.mark.parametrize("use", [open_owner, open_view], ids=["owner", "doctor"])
async def test_a_link_in_place_of_their_folder_is_refused(
    tmp_path: Path, use: Callable[[Path], Awaitable[None]]
) -> None:
    """What it names may be anybody's, and the files of dead processes are removed there."""
    await make_store(tmp_path / "data")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/kept").write_bytes(b"of others")
    owners = tmp_path / "data/wal/owners"
    shutil.rmtree(owners)
    owners.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InvalidArgument, match=f"{owners}: .* a link"):
        await use(tmp_path / "data")
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == ["kept"]

    owners.unlink()
    await open_owner(tmp_path / "data")


@pytest.mark.parametrize("path", ["a\0b", "\ud800"])
async def test_a_path_that_no_file_can_have_is_an_invalid_argument(path: str) -> None:
    with pytest.raises(InvalidArgument, match="no file can have the name"):
        async with open_store(path):
            pass
