"""The root of a file system's chunks: which it may be, and what others put below it, which is no chunk and
which no call meets."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from simulation.mutants.programs import rerouted

from support.chunked import world_of
from tierlog.storage_backends.base.errors import InvalidArgument, Unavailable
from tierlog.storage_backends.base.files import IoCall, ListFolder, Program, T
from tierlog.storage_backends.chunks.filesystem import FileSystemChunkStorage
from tierlog.storage_backends.files.local import LocalFiles

pytestmark = pytest.mark.anyio


class WatchedFiles(LocalFiles):
    """Local files that remember which folders were listed."""

    def __init__(self) -> None:
        super().__init__()
        self.listed: list[str] = []

    def lane(self, name: str, width: int = 1, nofollow_root: str = "") -> WatchedFiles:
        self._drive = super().lane(name, width, nofollow_root)._drive
        return self

    async def run(self, program: Program[T]) -> T:
        return await super().run(rerouted(program, self._perform))

    def _perform(self, call: IoCall) -> Program[Any]:
        if isinstance(call, ListFolder):
            self.listed.append(call.path)
        return (yield call)


def test_the_root_must_be_absolute() -> None:
    with pytest.raises(InvalidArgument):
        FileSystemChunkStorage(LocalFiles(), "relative", world_of(1))


async def test_invalid_chunk_names_are_neither_listed_nor_opened(tmp_path: Path) -> None:
    """Each name that is listed can be asked for; and ``lost+found`` of a mount point is closed to all but the
    superuser."""
    files = WatchedFiles()
    storage = FileSystemChunkStorage(files, str(tmp_path), world_of(1))
    await storage.open()
    await storage.create_with_content("a/b", [b"x"])
    for name in (b"we ird", b"a/bad\xff$header", b"lost+found/c"):
        path = os.path.join(os.fsencode(tmp_path), name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(b"foreign")
    files.listed.clear()

    assert [info.name async for info in storage.list("")] == ["a/b"]
    assert files.listed == [f"{tmp_path}/".rstrip("/"), f"{tmp_path}/a"]
    assert await storage.used_space() == 1
    await storage.close()


async def test_s20_a_root_that_is_missing_at_the_opening_is_not_made_where_it_must_exist(
    tmp_path: Path,
) -> None:
    """It is not mounted. Once it is, the same storage works."""
    made = FileSystemChunkStorage(LocalFiles(), str(tmp_path / "mounted"), world_of(1))
    await made.open()
    await made.close()
    storage = FileSystemChunkStorage(LocalFiles(), str(tmp_path / "lts"), world_of(2), create=False)
    await storage.open()
    for has_mount_point in (False, True):
        if has_mount_point:
            (tmp_path / "lts").mkdir()
        with pytest.raises(Unavailable, match="unmounted"):
            await storage.create_with_content("a", [b"x"])
        with pytest.raises(Unavailable, match="unmounted"):
            [info async for info in storage.list("")]
    assert not list((tmp_path / "lts").iterdir())

    (tmp_path / "lts").rmdir()
    (tmp_path / "mounted").rename(tmp_path / "lts")
    assert await storage.create_with_content("a", [b"x"]) == 1
    await storage.close()
