"""Chunks as files: the contract, what is on the disk, and what a crash leaves."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from support.chunked import world_of
from support.folders import make_socket
from support.scripted_files import ScriptedFiles
from tierlog.storage_backends.base.chunk_storage import ChunkRange
from tierlog.storage_backends.base.errors import (
    ChunkExists,
    ChunkNotFound,
    ChunkReadOnly,
    InvalidArgument,
    OutcomeUnknown,
    StorageFull,
    TierlogError,
    Unavailable,
)
from tierlog.storage_backends.base.files import (
    IoCall,
    IsSameFile,
    Link,
    MakeFolder,
    Open,
    Read,
    Rename,
    Size,
    Sync,
    SyncFolder,
    Unlink,
    Write,
)
from tierlog.storage_backends.chunks.filesystem import FileSystemChunkStorage
from tierlog.storage_backends.files.local import LocalFiles
from tierlog.testing.chunk_conformance import ChunkStorageConformance

pytestmark = pytest.mark.anyio
SEEDS = iter(range(1, 1 << 30))


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


@pytest.mark.one_loop
class TestFileSystem(ChunkStorageConformance):
    def make(self, folder: Path) -> FileSystemChunkStorage:
        return FileSystemChunkStorage(LocalFiles(), str(folder / "lts"), world_of(next(SEEDS)))


def failing(kind: type[IoCall], number: int = errno.EIO) -> Callable[[IoCall], OSError | None]:
    return lambda call: OSError(number, os.strerror(number)) if isinstance(call, kind) else None


def everything_below(folder: Path) -> list[str]:
    return sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".tierlog-chunks"
    )


async def test_s1_a_chunk_is_a_plain_file_of_exactly_the_users_bytes(
    storage: FileSystemChunkStorage, tmp_path: Path
) -> None:
    await storage.create_with_content("a/b/c.x", [b"one "])
    await storage.write("a/b/c.x", 4, [b"two"])

    assert (tmp_path / "lts/a/b/c.x").read_bytes() == b"one two"
    assert everything_below(tmp_path / "lts") == ["a/b/c.x"]


async def test_an_object_is_written_and_synced_before_it_gets_its_name(
    storage: FileSystemChunkStorage, files: ScriptedFiles
) -> None:
    await storage.create_with_content("a", [b"x"])

    assert files.calls == ["IsReadOnly", "Open", "Write", "Sync", "Close", "Link", "Unlink", "SyncFolder"]


async def test_new_folders_are_durable_before_anything_is_linked_into_them(
    storage: FileSystemChunkStorage, files: ScriptedFiles
) -> None:
    await storage.create_with_content("a/b/c", [b"x"])
    made = ["IsReadOnly", *["RemoveFolder", "MakeFolder", "SyncFolder"] * 2]
    written = ["IsReadOnly", "Open", "Write", "Sync", "Close", "Link", "Unlink", "SyncFolder"]
    # W11: another process may have made the folders again while they were empty.
    made_again = ["SyncFolder"] * 2
    assert files.calls == made + written + made_again

    files.calls.clear()
    await storage.create_with_content("a/b/d", [b"x"])
    assert files.calls == written


async def test_chunk_bytes_are_bulk_data_from_any_writer(
    storage: FileSystemChunkStorage, files: ScriptedFiles
) -> None:
    bulk: list[bool] = []

    def look(call: IoCall) -> None:
        if isinstance(call, Write):
            bulk.append(call.bulk)

    files.fail = look
    await storage.create_with_content("a", [b"x"])
    await storage.write("a", 1, [b"y"])
    await storage.concat("b", [ChunkRange("a", 0, 2)])

    assert bulk == [True, True, True]


async def test_an_append_is_synced_before_it_is_answered(
    storage: FileSystemChunkStorage, files: ScriptedFiles
) -> None:
    await storage.create_with_content("a", [b"x"])
    files.calls.clear()
    await storage.write("a", 1, [b"y"])

    assert files.calls == ["IsReadOnly", "IsReadOnly", "Open", "Size", "Write", "Sync", "Close"]


@pytest.mark.parametrize(
    ("call", "number", "expected", "there"),
    [
        (Write, errno.EIO, Unavailable, False),
        (Write, errno.ENOSPC, StorageFull, False),
        (Sync, errno.EIO, Unavailable, False),
        (Link, errno.EEXIST, ChunkExists, False),
        (Link, errno.EIO, OutcomeUnknown, False),
        (Link, errno.EOPNOTSUPP, Unavailable, False),
        (SyncFolder, errno.EIO, OutcomeUnknown, True),
        (SyncFolder, errno.EDQUOT, OutcomeUnknown, True),
        (Open, errno.EACCES, Unavailable, False),
    ],
)
async def test_a_failed_creation_reports_whether_the_chunk_can_exist(
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
    [
        (Write, errno.EIO, OutcomeUnknown),
        (Sync, errno.EIO, OutcomeUnknown),
        (Write, errno.ENOSPC, StorageFull),
    ],
)
async def test_a_failed_append_is_never_called_undone(
    storage: FileSystemChunkStorage,
    files: ScriptedFiles,
    call: type[IoCall],
    number: int,
    expected: type[TierlogError],
) -> None:
    await storage.create_with_content("a", [b"x"])
    files.fail = failing(call, number)
    with pytest.raises(expected):
        await storage.write("a", 1, [b"y"])


async def test_a_failed_read_can_be_retried(storage: FileSystemChunkStorage, files: ScriptedFiles) -> None:
    await storage.create_with_content("a", [b"x"])
    files.fail = failing(Read)
    with pytest.raises(Unavailable):
        await storage.read("a", 0, 1)

    files.fail = lambda call: None
    assert await storage.read("a", 0, 1) == b"x"


async def test_a_delete_that_may_have_happened_has_an_unknown_outcome(
    storage: FileSystemChunkStorage, files: ScriptedFiles
) -> None:
    await storage.create_with_content("a", [b"x"])
    files.fail = failing(Unlink)
    with pytest.raises(OutcomeUnknown):
        await storage.delete("a")


async def test_temporary_names_are_swept_at_open_and_never_listed(
    storage: FileSystemChunkStorage, tmp_path: Path
) -> None:
    (tmp_path / "lts/.tmp-left").write_bytes(b"half")
    (tmp_path / "lts/.other").write_bytes(b"not ours")
    assert [info async for info in storage.list("")] == []

    await storage.close()
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


async def test_a_folder_that_vanishes_before_the_link_is_recreated(
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


@pytest.mark.parametrize("kind", [MakeFolder, SyncFolder])
async def test_a_folder_that_vanishes_while_it_is_made_is_recreated(
    kind: type[IoCall], storage: FileSystemChunkStorage, files: ScriptedFiles
) -> None:
    """Another creation, or a delete, found it empty. This one was answered that there is no such chunk."""
    missing = iter([FileNotFoundError(errno.ENOENT, "removed")])
    files.fail = lambda call: next(missing, None) if isinstance(call, kind) else None
    await storage.create_with_content("a/b/c", [b"x"])

    assert next(missing, None) is None
    assert await storage.read("a/b/c", 0, 1) == b"x"


@pytest.mark.parametrize("theirs", [b"same", b"other"])
async def test_a_chunk_that_vanishes_with_its_folder_after_it_was_found_is_created(
    theirs: bytes, storage: FileSystemChunkStorage, files: ScriptedFiles, tmp_path: Path
) -> None:
    await storage.create_with_content("a/b", [theirs])
    last = Rename if theirs == b"same" else SyncFolder

    def remove_once(call: IoCall) -> None:
        if isinstance(call, last) and (tmp_path / "lts/a").exists():
            files.fail = lambda call: None
            shutil.rmtree(tmp_path / "lts/a")

    files.fail = remove_once
    await storage.create_with_content("a/b", [b"same"])

    assert await storage.read("a/b", 0, 9) == b"same"


async def test_deleting_the_last_chunk_removes_its_folders(
    storage: FileSystemChunkStorage, tmp_path: Path
) -> None:
    await storage.create_with_content("a/b/c", [b"x"])
    await storage.create_with_content("a/d", [b"x"])
    await storage.delete("a/b/c")
    assert not (tmp_path / "lts/a/b").exists()

    await storage.delete("a/d")
    assert not (tmp_path / "lts/a").exists()
    assert (tmp_path / "lts").exists()


async def test_an_unmounted_root_is_unavailable_not_empty(
    storage: FileSystemChunkStorage, tmp_path: Path
) -> None:
    """Believing "not found" would let the collector call every chunk gone, and a reader call it
    corruption."""
    await storage.create_with_content("a", [b"x"])
    (tmp_path / "lts").rename(tmp_path / "elsewhere")
    (tmp_path / "lts").mkdir()
    for verb in (storage.exists("a"), storage.read("a", 0, 1), storage.delete("a")):
        with pytest.raises(Unavailable):
            await verb
    with pytest.raises(Unavailable):
        [info async for info in storage.list("")]


async def test_nothing_is_created_or_changed_in_the_folder_of_a_missing_mount(
    storage: FileSystemChunkStorage, tmp_path: Path
) -> None:
    """S20: it would be hidden by the next mount. The folder has an old copy of a chunk."""
    await storage.create_with_content("a/b", [b"x"])
    (tmp_path / "lts").rename(tmp_path / "elsewhere")
    (tmp_path / "lts/a").mkdir(parents=True)
    (tmp_path / "lts/a/b").write_bytes(b"x")
    for verb in (
        storage.create_with_content("a/c", [b"y"]),
        storage.write("a/b", 1, [b"y"]),
        storage.concat("a/d", [ChunkRange("a/b", 0, 1)]),
        storage.set_read_only("a/b", True),
        storage.delete("a/b"),
    ):
        with pytest.raises(Unavailable, match="unmounted"):
            await verb
    assert everything_below(tmp_path / "lts") == ["a/b"]
    assert (tmp_path / "lts/a/b").read_bytes() == b"x"

    shutil.rmtree(tmp_path / "lts")
    (tmp_path / "elsewhere").rename(tmp_path / "lts")
    assert await storage.create_with_content("a/c", [b"y"]) == 1
    assert await storage.write("a/b", 1, [b"y"]) == 2


async def test_a_mount_that_goes_away_during_a_creation_gets_the_whole_object(
    storage: FileSystemChunkStorage, files: ScriptedFiles, tmp_path: Path
) -> None:
    """S20: before any of its calls; nothing is in the folder below the mount."""
    await storage.create_with_content("a/b", [b"x"])
    for number in range(1, 8):

        def unmount(call: IoCall, number: int = number) -> None:
            if len(files.calls) == number + 1:
                (tmp_path / "lts").rename(tmp_path / "elsewhere")
                (tmp_path / "lts/a").mkdir(parents=True)

        files.calls.clear()
        files.fail = unmount
        await storage.create_with_content(f"a/{number}", [b"y"])
        files.fail = lambda call: None
        assert len(files.calls) == 8
        assert not everything_below(tmp_path / "lts")

        shutil.rmtree(tmp_path / "lts")
        (tmp_path / "elsewhere").rename(tmp_path / "lts")
        assert await storage.read(f"a/{number}", 0, 2) == b"y"


async def test_a_mount_that_goes_away_during_a_listing_does_not_shorten_it(
    storage: FileSystemChunkStorage, tmp_path: Path
) -> None:
    """S20: what is missing from a listing counts as deleted."""
    for name in ("a/1", "b/1"):
        await storage.create_with_content(name, [b"x"])
    async with aclosing(storage.list("")) as listed:
        assert (await anext(listed)).name == "a/1"
        (tmp_path / "lts").rename(tmp_path / "elsewhere")
        (tmp_path / "lts").mkdir()
        with pytest.raises(Unavailable, match="unmounted"):
            await anext(listed)


async def test_a_read_only_file_refuses_writes_of_every_instance(
    storage: FileSystemChunkStorage, tmp_path: Path
) -> None:
    """The superuser's processes too, whom the system itself would let write."""
    await storage.create_with_content("a", [b"x"])
    await storage.set_read_only("a", True)
    other = FileSystemChunkStorage(LocalFiles(), str(tmp_path / "lts"), world_of(next(SEEDS)))
    await other.open()

    assert (await other.info("a")).read_only
    with pytest.raises(ChunkReadOnly):
        await other.write("a", 1, [b"y"])
    await other.set_read_only("a", False)
    assert await storage.write("a", 1, [b"y"]) == 2
    await other.close()


async def test_an_error_of_a_source_names_the_source(storage: FileSystemChunkStorage, tmp_path: Path) -> None:
    await storage.create_with_content("a", [b"x"])
    with pytest.raises(ChunkNotFound) as caught:
        await storage.concat("joined", [ChunkRange("a", 0, 1), ChunkRange("b/gone", 0, 1)])

    assert caught.value.chunk == "b/gone"
    assert everything_below(tmp_path / "lts") == ["a"]


async def test_a_delete_beside_another_that_removes_their_folder_is_durable_and_done(
    storage: FileSystemChunkStorage, files: ScriptedFiles, tmp_path: Path
) -> None:
    for name in ("a/b/1", "a/b/2"):
        await storage.create_with_content(name, [b"x"])

    def other_delete(call: IoCall) -> None:
        if isinstance(call, SyncFolder) and (tmp_path / "lts/a/b/2").exists():
            (tmp_path / "lts/a/b/2").unlink()
            (tmp_path / "lts/a/b").rmdir()

    files.fail = other_delete
    files.calls.clear()
    await storage.delete("a/b/1")

    assert files.calls[1:4] == ["Unlink", "SyncFolder", "SyncFolder"]
    assert [info async for info in storage.list("")] == []


async def test_a_listing_reads_no_folder_above_its_prefix(
    storage: FileSystemChunkStorage, files: ScriptedFiles
) -> None:
    for name in ("a/b/1", "a/b/2", "a/bc/3", "d/4"):
        await storage.create_with_content(name, [b"x"])
    files.calls.clear()

    assert [info.name async for info in storage.list("a/b/")] == ["a/b/1", "a/b/2"]
    assert files.calls == ["IsReadOnly", "ListFolder"]
    assert [info.name async for info in storage.list("a/b/", after="a/b/1")] == ["a/b/2"]
    assert [info.name async for info in storage.list("a/b")] == ["a/b/1", "a/b/2", "a/bc/3"]
    assert [info.name async for info in storage.list("d/4/")] == []
    assert [info.name async for info in storage.list("gone/")] == []


# --- links --------------------------------------------------------------------------------------


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder that no chunk belongs to, with one file."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret").write_bytes(b"secret")
    return folder


async def refusals(storage: FileSystemChunkStorage, name: str) -> list[str]:
    """What each verb about an existing chunk says."""
    verbs: list[Any] = [
        storage.info(name),
        storage.read(name, 0, 9),
        storage.write(name, 6, [b"!"]),
        storage.set_read_only(name, True),
        storage.delete(name),
        storage.concat("joined", [ChunkRange(name, 0, 1)]),
    ]
    codes = []
    for verb in verbs:
        with pytest.raises(TierlogError) as caught:
            await verb
        codes.append(caught.value.code)
    return codes


@pytest.mark.parametrize("name", ["link", "folder/secret", "deep/er/link"])
async def test_a_link_out_of_the_root_is_never_followed(
    storage: FileSystemChunkStorage, outside: Path, tmp_path: Path, name: str
) -> None:
    root = tmp_path / "lts"
    (root / "deep/er").mkdir(parents=True)
    (root / "deep/er/link").symlink_to(outside / "secret")
    (root / "link").symlink_to(outside / "secret")
    (root / "folder").symlink_to(outside)
    before = (outside / "secret").stat()

    assert not await storage.exists(name)
    assert await refusals(storage, name) == ["chunk-not-found"] * 6
    with pytest.raises((ChunkExists, InvalidArgument)):
        await storage.create_with_content(name, [b"x"])
    with pytest.raises(InvalidArgument):
        await storage.create_with_content("folder/new", [b"x"])
    assert [info async for info in storage.list("")] == []
    after = (outside / "secret").stat()
    assert (after.st_mode, after.st_mtime_ns, after.st_nlink) == (before.st_mode, before.st_mtime_ns, 1)
    assert [path.name for path in outside.iterdir()] == ["secret"]
    assert (root / "link").is_symlink()


async def test_a_link_inside_the_root_is_no_chunk_either(
    storage: FileSystemChunkStorage, tmp_path: Path
) -> None:
    await storage.create_with_content("a/b", [b"x"])
    (tmp_path / "lts/alias").symlink_to("a")
    (tmp_path / "lts/twin").symlink_to("a/b")

    assert [info.name async for info in storage.list("")] == ["a/b"]
    assert [info async for info in storage.list("alias/")] == []
    assert not await storage.exists("alias/b")
    assert not await storage.exists("twin")


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/")])
async def test_the_stores_own_folder_that_is_none_is_no_mistake_of_a_caller(
    storage: FileSystemChunkStorage, tmp_path: Path, make: Callable[[Path], None]
) -> None:
    make(tmp_path / "lts/_system")
    with pytest.raises(Unavailable, match="_system is a link or no folder"):
        await storage.create_with_content("_system/store", [b"x"])


async def test_a_folder_that_becomes_a_link_during_a_call_is_not_followed(
    storage: FileSystemChunkStorage, files: ScriptedFiles, outside: Path, tmp_path: Path
) -> None:
    """The folders are known already, and the object is written: only its name is missing."""
    await storage.create_with_content("a/b/1", [b"x"])

    def swap(call: IoCall) -> None:
        if isinstance(call, Link):
            (tmp_path / "lts/a").rename(tmp_path / "moved")
            (tmp_path / "lts/a").symlink_to(outside)

    files.fail = swap
    with pytest.raises(TierlogError):
        await storage.create_with_content("a/b/2", [b"x"])

    assert [path.name for path in outside.iterdir()] == ["secret"]


@pytest.mark.parametrize("make", [os.mkfifo, make_socket])
async def test_a_pipe_or_a_socket_below_the_root_is_no_chunk_and_nobody_waits_for_it(
    storage: FileSystemChunkStorage, tmp_path: Path, make: Callable[[Path], None]
) -> None:
    make(tmp_path / "lts/other")

    assert not await storage.exists("other")
    assert await refusals(storage, "other") == ["chunk-not-found"] * 6
    assert [info async for info in storage.list("")] == []


async def test_the_root_itself_may_be_reached_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "lts").symlink_to(tmp_path / "disk")
    storage = FileSystemChunkStorage(LocalFiles(), str(tmp_path / "lts"), world_of(next(SEEDS)))
    await storage.open()
    await storage.create_with_content("a/b", [b"x"])

    assert (tmp_path / "disk/a/b").read_bytes() == b"x"
    await storage.close()


# --- a network file system ----------------------------------------------------------------------


async def test_a_link_that_was_sent_twice_is_known_as_its_own(
    storage: FileSystemChunkStorage, files: ScriptedFiles, tmp_path: Path
) -> None:
    """NFS sends a request again that was not answered; the server has done the first one and refuses the
    second."""

    def answer_lost(call: IoCall) -> OSError | None:
        if not isinstance(call, Link):
            return None
        os.link(call.source, call.target)
        return FileExistsError(errno.EEXIST, "exists", call.target)

    files.fail = answer_lost
    assert await storage.create_with_content("a", [b"mine"]) == 4

    files.fail = lambda call: None
    assert await storage.read("a", 0, 9) == b"mine"
    assert everything_below(tmp_path / "lts") == ["a"]


async def test_an_existing_name_is_not_taken_for_its_own(
    storage: FileSystemChunkStorage, files: ScriptedFiles
) -> None:
    """Even with the same content."""
    await storage.create_with_content("a", [b"same"])
    with pytest.raises(ChunkExists):
        await storage.create_with_content("a", [b"same"])

    assert "IsSameFile" in files.calls


async def test_a_name_that_cannot_be_compared_has_an_unknown_outcome(
    storage: FileSystemChunkStorage, files: ScriptedFiles
) -> None:
    await storage.create_with_content("a", [b"theirs"])
    files.fail = failing(IsSameFile)
    with pytest.raises(OutcomeUnknown):
        await storage.create_with_content("a", [b"mine"])


async def test_a_temporary_name_that_is_taken_is_no_answer_about_the_chunk(
    storage: FileSystemChunkStorage, files: ScriptedFiles
) -> None:
    """An exclusive creation may be sent twice too."""

    def taken(call: IoCall) -> OSError | None:
        return (
            FileExistsError(errno.EEXIST, "exists", call.path)
            if isinstance(call, Open) and call.create
            else None
        )

    files.fail = taken
    with pytest.raises(Unavailable):
        await storage.create_with_content("a", [b"x"])


@pytest.mark.parametrize(
    ("call", "verb", "expected"),
    [
        (Read, "read", Unavailable),
        (Open, "read", Unavailable),
        (Size, "write", Unavailable),
        (Write, "write", OutcomeUnknown),
    ],
)
async def test_a_stale_handle_is_a_temporary_failure(
    storage: FileSystemChunkStorage,
    files: ScriptedFiles,
    call: type[IoCall],
    verb: str,
    expected: type[TierlogError],
) -> None:
    """The file was replaced or removed on the server while it was open here. Asked again, the server tells
    what there is now."""
    await storage.create_with_content("a", [b"x"])
    files.fail = failing(call, errno.ESTALE)
    with pytest.raises(expected):
        await (storage.read("a", 0, 1) if verb == "read" else storage.write("a", 1, [b"y"]))

    files.fail = lambda call: None
    assert (await storage.read("a", 0, 1)) == b"x"


async def test_a_folder_with_files_that_are_still_open_elsewhere_stays(
    storage: FileSystemChunkStorage, tmp_path: Path
) -> None:
    """NFS keeps a removed file that is being read under a name of its own, which begins with a dot."""
    await storage.create_with_content("a/b", [b"x"])
    (tmp_path / "lts/a/.nfs0001").write_bytes(b"x")
    await storage.delete("a/b")

    assert (tmp_path / "lts/a/.nfs0001").exists()
    assert [info async for info in storage.list("")] == []
