"""Chunks as files: the contract, what is on the disk, and what a crash leaves."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Self

import pytest

from support.chunked import world_of
from tierlog.storage_backends.base.chunk_storage import ChunkInfo
from tierlog.storage_backends.base.errors import (
    ChunkExists,
    ChunkNotFound,
    InvalidArgument,
    OutcomeUnknown,
    StorageFull,
    TierlogError,
    Unavailable,
)
from tierlog.storage_backends.base.files import IoCall, Link, Program, Read, Sync, SyncFolder, T, Unlink, Write
from tierlog.storage_backends.chunks.filesystem import FileSystemChunkStorage
from tierlog.storage_backends.files.local import LocalFiles
from tierlog.testing.chunk_conformance import ChunkStorageConformance

pytestmark = pytest.mark.anyio
SEEDS = iter(range(1, 1 << 30))


class ScriptedFiles(LocalFiles):
    """Local files whose calls can be seen, and made to fail: ``fail`` gives the error of a call, or None."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.fail: Callable[[IoCall], OSError | None] = lambda call: None

    def lane(self, name: str, width: int = 1) -> Self:
        return self

    async def run(self, program: Program[T]) -> T:
        return await super().run(self._watched(program))

    def _watched(self, program: Program[T]) -> Program[T]:
        answer: Any = None
        error: OSError | None = None
        while True:
            try:
                call = program.throw(error) if error else program.send(answer)
            except StopIteration as end:
                result: T = end.value
                return result
            self.calls.append(type(call).__name__)
            answer, error = None, self.fail(call)
            if error is None:
                try:
                    answer = yield call
                except OSError as raised:
                    error = raised


@pytest.fixture
def files() -> ScriptedFiles:
    return ScriptedFiles()


@pytest.fixture
async def storage(files: ScriptedFiles, tmp_path: Path) -> AsyncIterator[FileSystemChunkStorage]:
    storage = FileSystemChunkStorage(files, str(tmp_path / "lts"), world_of(next(SEEDS)))
    await storage.open()
    files.calls.clear()
    yield storage
    await storage.close()


class TestFileSystem(ChunkStorageConformance):
    def make(self, folder: Path) -> FileSystemChunkStorage:
        return FileSystemChunkStorage(LocalFiles(), str(folder / "lts"), world_of(next(SEEDS)))


def failing(kind: type[IoCall], number: int = errno.EIO) -> Callable[[IoCall], OSError | None]:
    return lambda call: OSError(number, os.strerror(number)) if isinstance(call, kind) else None


def everything_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path.name != ".tierlog-chunks")


async def test_s1_a_chunk_is_a_plain_file_of_exactly_the_users_bytes(storage: FileSystemChunkStorage, tmp_path: Path) -> None:
    await storage.create_with_content("a/b/c.x", [b"one "])
    await storage.write("a/b/c.x", 4, [b"two"])

    assert (tmp_path / "lts/a/b/c.x").read_bytes() == b"one two"
    assert everything_below(tmp_path / "lts") == ["a/b/c.x"]


async def test_hole_31_an_object_is_written_and_synced_before_it_gets_its_name(
    storage: FileSystemChunkStorage, files: ScriptedFiles
) -> None:
    await storage.create_with_content("a", [b"x"])

    assert files.calls == ["Open", "Write", "Sync", "Close", "Link", "Unlink", "SyncFolder"]


async def test_new_folders_are_durable_before_anything_is_linked_into_them(storage: FileSystemChunkStorage, files: ScriptedFiles) -> None:
    await storage.create_with_content("a/b/c", [b"x"])
    assert files.calls == ["Open", "Write", "Sync", "Close", *["MakeFolder", "SyncFolder"] * 2, "Link", "Unlink", "SyncFolder"]

    files.calls.clear()
    await storage.create_with_content("a/b/d", [b"x"])
    assert "MakeFolder" not in files.calls


async def test_an_append_is_synced_before_it_is_answered(storage: FileSystemChunkStorage, files: ScriptedFiles) -> None:
    await storage.create_with_content("a", [b"x"])
    files.calls.clear()
    await storage.write("a", 1, [b"y"])

    assert files.calls == ["Open", "Size", "Write", "Sync", "Close"]


@pytest.mark.parametrize(
    ("call", "number", "expected", "there"),
    [
        (Write, errno.EIO, Unavailable, False),
        (Write, errno.ENOSPC, StorageFull, False),
        (Sync, errno.EIO, Unavailable, False),
        (Link, errno.EEXIST, ChunkExists, False),
        (Link, errno.EIO, OutcomeUnknown, False),
        (SyncFolder, errno.EIO, OutcomeUnknown, True),
    ],
)
async def test_a_failed_creation_says_whether_the_chunk_can_exist(
    storage: FileSystemChunkStorage,
    files: ScriptedFiles,
    tmp_path: Path,
    call: type[IoCall],
    number: int,
    expected: type[TierlogError],
    there: bool,
) -> None:
    files.fail = failing(call, number)
    with pytest.raises(expected) as caught:
        await storage.create_with_content("a", [b"x"])

    assert isinstance(caught.value.__cause__, OSError)
    assert everything_below(tmp_path / "lts") == (["a"] if there else [])


@pytest.mark.parametrize(
    ("call", "number", "expected"),
    [(Write, errno.EIO, OutcomeUnknown), (Sync, errno.EIO, OutcomeUnknown), (Write, errno.ENOSPC, StorageFull)],
)
async def test_a_failed_append_is_never_called_undone(
    storage: FileSystemChunkStorage, files: ScriptedFiles, call: type[IoCall], number: int, expected: type[TierlogError]
) -> None:
    await storage.create_with_content("a", [b"x"])
    files.fail = failing(call, number)
    with pytest.raises(expected):
        await storage.write("a", 1, [b"y"])


async def test_a_failed_read_can_be_tried_again(storage: FileSystemChunkStorage, files: ScriptedFiles) -> None:
    await storage.create_with_content("a", [b"x"])
    files.fail = failing(Read)
    with pytest.raises(Unavailable):
        await storage.read("a", 0, 1)

    files.fail = lambda call: None
    assert await storage.read("a", 0, 1) == b"x"


async def test_a_delete_that_may_have_happened_says_so(storage: FileSystemChunkStorage, files: ScriptedFiles) -> None:
    await storage.create_with_content("a", [b"x"])
    files.fail = failing(Unlink)
    with pytest.raises(OutcomeUnknown):
        await storage.delete("a")


async def test_hole_31_temporary_names_are_swept_at_open_and_never_listed(storage: FileSystemChunkStorage, tmp_path: Path) -> None:
    (tmp_path / "lts/.tmp-left").write_bytes(b"half")
    (tmp_path / "lts/.other").write_bytes(b"not ours")
    assert [info async for info in storage.list("")] == []

    await storage.open()
    assert everything_below(tmp_path / "lts") == [".other"]


async def test_an_object_whose_temporary_name_was_swept_is_not_there(
    storage: FileSystemChunkStorage, files: ScriptedFiles, tmp_path: Path
) -> None:
    """Another process opened the same root while this one was writing."""

    def sweep(call: IoCall) -> None:
        for path in (tmp_path / "lts").glob(".tmp-*") if isinstance(call, Link) else ():
            path.unlink()

    files.fail = sweep
    with pytest.raises(Unavailable):
        await storage.create_with_content("a/b", [b"x"])
    files.fail = lambda call: None

    assert not await storage.exists("a/b")
    assert await storage.create_with_content("a/b", [b"x"]) == 1


async def test_a_folder_that_vanishes_before_the_link_is_made_again(
    storage: FileSystemChunkStorage, files: ScriptedFiles, tmp_path: Path
) -> None:
    """A delete by another process removes folders that it leaves empty."""
    removed: list[IoCall] = []

    def remove_once(call: IoCall) -> None:
        if isinstance(call, Link) and not removed:
            (tmp_path / "lts/a").rmdir()
            removed.append(call)

    files.fail = remove_once
    await storage.create_with_content("a/b", [b"x"])

    assert removed
    assert await storage.read("a/b", 0, 1) == b"x"


async def test_deleting_the_last_chunk_removes_its_folders(storage: FileSystemChunkStorage, tmp_path: Path) -> None:
    await storage.create_with_content("a/b/c", [b"x"])
    await storage.create_with_content("a/d", [b"x"])
    await storage.delete("a/b/c")
    assert not (tmp_path / "lts/a/b").exists()

    await storage.delete("a/d")
    assert not (tmp_path / "lts/a").exists()
    assert (tmp_path / "lts").exists()


async def test_a_folder_is_not_a_chunk(storage: FileSystemChunkStorage) -> None:
    await storage.create_with_content("a/b", [b"x"])

    assert not await storage.exists("a")
    with pytest.raises(ChunkNotFound):
        await storage.read("a", 0, 1)
    with pytest.raises(ChunkExists):
        await storage.create_with_content("a", [b"x"])
    with pytest.raises(InvalidArgument):
        await storage.create_with_content("a/b/c", [b"x"])
    assert [info async for info in storage.list("")] == [ChunkInfo("a/b", 1)]


async def test_an_unmounted_root_is_unavailable_not_empty(storage: FileSystemChunkStorage, tmp_path: Path) -> None:
    """Believing "not found" would let the collector call every chunk gone, and a reader call it corruption."""
    await storage.create_with_content("a", [b"x"])
    (tmp_path / "lts").rename(tmp_path / "elsewhere")
    (tmp_path / "lts").mkdir()
    for verb in (storage.exists("a"), storage.read("a", 0, 1), storage.delete("a")):
        with pytest.raises(Unavailable):
            await verb


def test_the_root_must_be_absolute() -> None:
    with pytest.raises(InvalidArgument):
        FileSystemChunkStorage(LocalFiles(), "relative", world_of(1))
