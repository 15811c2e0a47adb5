"""What is not a regular file where one of the store's files should be is never waited for, read or
followed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from simulation.mutants.programs import rerouted

from support.folders import make_socket, newest_log_file
from support.patience import scaled
from tierlog import DataCorruption, InvalidArgument, NotOwner, StoreConfig, Unavailable, open_store
from tierlog.actors.folder.paths import check_path
from tierlog.actors.folder.restore_folder import finish_restore
from tierlog.actors.maintenance.doctor import examine
from tierlog.actors.maintenance.restore import RestoreOptions, restore
from tierlog.actors.store.folder_opening import system_world
from tierlog.actors.store.read_only import open_reader
from tierlog.storage_backends.base.files import IoCall, ListFolder, Program, T
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
    "reserve": lambda folder: folder / "wal/0000/reserve",
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
    with anyio.fail_after(scaled(30)), pytest.raises(DataCorruption, match="not a regular file") as refused:
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


@pytest.mark.parametrize("kind", ["pipe", "socket", "device", "link"])
async def test_in_place_of_the_folder_of_local_runs_it_is_reported_and_refused(
    tmp_path: Path, kind: str
) -> None:
    await make_store(tmp_path)
    path = tmp_path / "wal/0000/runs"
    shutil.rmtree(path, ignore_errors=True)
    others = make_others_folder(path.with_name("runs.moved"))
    KINDS[kind](path)
    with pytest.raises(DataCorruption, match="not a folder") as reported:
        await open_view(tmp_path)
    assert reported.value.file == str(path)
    with pytest.raises(Unavailable, match=str(path)):
        await open_owner(tmp_path)
    assert all_below(path.with_name("runs.moved")) == others

    path.unlink()
    await open_owner(tmp_path)
    await open_view(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
async def test_among_the_lock_files_it_is_nobodys(tmp_path: Path, kind: str) -> None:
    await make_store(tmp_path)
    (tmp_path / "owners").mkdir()
    KINDS[kind](tmp_path / "owners" / "strange")
    with anyio.fail_after(scaled(30)):
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
    owners = tmp_path / "data/owners"
    owners.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InvalidArgument, match=f"{owners}: .* a link"):
        await use(tmp_path / "data")
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == ["kept"]

    owners.unlink()
    await open_owner(tmp_path / "data")


async def test_the_logs_may_be_a_link_to_another_disk(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "data/wal").symlink_to(tmp_path / "disk")
    await make_store(tmp_path / "data")
    async with open_store(tmp_path / "data"):
        with pytest.raises(NotOwner, match="this process has .* open already"):
            await open_owner(tmp_path / "data")
    assert (tmp_path / "disk/store").is_file()


# --- what a restore left, which is removed with all that is in it (rule S17) ----------------------------


async def settle(folder: Path) -> None:
    """As a service does first."""
    await finish_restore(LocalFiles(), check_path(folder))


async def restore_there(folder: Path, files: LocalFiles | None = None) -> None:
    config = StoreConfig()
    await restore(
        check_path(folder), None, RestoreOptions("b"), config, files or LocalFiles(), system_world()
    )


OPENINGS: dict[str, Callable[[Path], Awaitable[None]]] = {
    "owner": open_owner,
    "service": settle,
    "restore": restore_there,
}


def make_others_folder(path: Path) -> list[str]:
    """With names of files and folders that a store makes too. Returns all paths."""
    for name in ("lock", "thesis", "setup.run", "wal/store", "wal/0000/register", "old/deep/file"):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(b"of others")
    return all_below(path)


def all_below(path: Path) -> list[str]:
    return sorted(f"{each} {each.stat().st_size}" for each in path.rglob("*"))


@pytest.mark.parametrize("use", OPENINGS)
@pytest.mark.parametrize(
    "link", [".restoring", ".restoring/lock", ".restoring/wal", ".restoring/wal/0000", ".restoring/a/b/c"]
)
async def test_s17_a_link_in_place_of_what_a_restore_left_is_never_followed(
    tmp_path: Path, link: str, use: str
) -> None:
    others, data = tmp_path / "others", tmp_path / "data"
    before = make_others_folder(others)
    await make_store(data)
    path = data / link
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(others / "thesis" if link.endswith("lock") else others)
    with pytest.raises(InvalidArgument, match=f"^{path} is a link.*: remove it[^\n]*$"):
        await OPENINGS[use](data)
    assert all_below(others) == before
    await open_view(data)  # which needs nothing of it

    path.unlink()
    await open_owner(data)
    assert all_below(others) == before
    assert sorted(each.name for each in data.iterdir()) == ["lts", "wal"]


async def test_s17_nor_is_one_in_what_a_restore_of_an_earlier_version_left(tmp_path: Path) -> None:
    others, data = tmp_path / "others", tmp_path / "data"
    before = make_others_folder(others)
    await make_store(data)
    shutil.rmtree(data / "wal")
    (data / ".restoring-1").symlink_to(others)
    (data / ".restoring-2/wal").mkdir(parents=True)
    (data / ".restoring-2/wal/0000").symlink_to(others)
    with pytest.raises(InvalidArgument, match=f"^{data}/.restoring-2/wal/0000 is a link"):
        await restore_there(data)
    assert all_below(others) == before


class SwappingFiles(LocalFiles):
    """Another process puts a link to ``others`` in place of ``path`` right before the call number ``number``,
    from 0, that lists it."""

    def __init__(self, path: Path, others: Path, number: int) -> None:
        super().__init__()
        self._path = path
        self._others = others
        self._turns = iter([False] * number + [True])

    def lane(self, name: str, width: int = 1, nofollow_root: str = "") -> SwappingFiles:
        lane = SwappingFiles(self._path, self._others, 0)
        lane._turns = self._turns
        lane._drive = super().lane(name, width, nofollow_root)._drive
        return lane

    async def run(self, program: Program[T]) -> T:
        return await super().run(rerouted(program, self._perform))

    def _perform(self, call: IoCall) -> Program[Any]:
        if isinstance(call, ListFolder) and call.path == str(self._path) and next(self._turns, False):
            self._path.rename(f"{self._path}.moved")
            self._path.symlink_to(self._others)
        return (yield call)


@pytest.mark.parametrize("name", [".restoring", ".restoring/old", ".restoring/old/deep", ".restoring-1/old"])
async def test_s17_nor_is_one_that_is_put_there_while_it_is_removed(tmp_path: Path, name: str) -> None:
    for number in range(3):
        others, data = tmp_path / f"others{number}", tmp_path / f"data{number}"
        before = make_others_folder(others)
        (data / "lts").mkdir(parents=True)
        make_others_folder(data / name.partition("/")[0])
        files = SwappingFiles(data / name, others, number)
        with pytest.raises((InvalidArgument, Unavailable)):  # at the latest, because there is no backup
            await restore_there(data, files)
        if number == 0:
            assert (data / name).is_symlink()
        assert all_below(others) == before, number


@pytest.mark.parametrize("path", ["a\0b", "\ud800"])
async def test_a_path_that_no_file_can_have_is_an_invalid_argument(path: str) -> None:
    with pytest.raises(InvalidArgument, match="no file can have the name"):
        async with open_store(path):
            pass
