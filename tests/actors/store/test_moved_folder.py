"""A data folder that is moved away while its store is open, and replaced by another one (rules W1 and J7)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import anyio
import pytest

import tierlog
from tierlog import NotOwner, SegmentStore, StoreMismatch
from tierlog.actors.store.folder_opening import system_world
from tierlog.actors.store.opening import open_host
from tierlog.storage_backends.chunks.filesystem import FileSystemChunkStorage
from tierlog.storage_backends.files.local import LocalFiles
from tierlog.testing.faulty_chunk_storage import Call, FaultyChunkStorage

pytestmark = pytest.mark.anyio


def opened(folder: Path, script: Callable[[Call], None]) -> AbstractAsyncContextManager[SegmentStore]:
    """``script`` is called before each call of long-term storage."""
    chunks = FileSystemChunkStorage(LocalFiles(), str(folder / "lts"), system_world())
    return tierlog.open_store(folder, containers=1, storage=FaultyChunkStorage(chunks, script))


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


async def test_an_owner_writes_nothing_into_the_long_term_storage_of_a_store_that_has_its_path_now(
    tmp_path: Path,
) -> None:
    """J7: both journals have one element, so a listing of the other one shows nothing new."""
    folder, other = tmp_path / "data", tmp_path / "other"
    async with tierlog.open_store(other, containers=1) as store:
        await store.create_segment("other")
        await store.append("other", b"acked")

    idle = anyio.Event()
    async with opened(folder, lambda call: idle.set() if call.name == "containers/0000/" else None) as store:
        await store.create_segment("own")
        await store.append("own", b"acked")
        # The search for garbage is the last thing that an opening begins.
        await idle.wait()
        folder.rename(tmp_path / "moved")
        other.rename(folder)
        files = files_in(folder)
        with pytest.raises(NotOwner, match="moved or replaced"):
            await store.flush()
        with pytest.raises(NotOwner, match="moved or replaced"):
            await store.append("own", b"refused")
    assert files_in(folder) == files

    for path, name in ((folder, "other"), (tmp_path / "moved", "own")):
        async with tierlog.open_store(path) as store:
            await store.flush()
            assert await store.read(name, 0, 100) == b"acked"


async def test_bytes_that_were_flushed_into_another_folder_stay_in_the_log(tmp_path: Path) -> None:
    """J7: the folder is replaced between the check before a flush and its commit."""
    folder, other = tmp_path / "data", tmp_path / "other"
    async with tierlog.open_store(other, containers=1):
        pass

    idle = anyio.Event()

    def replace(call: Call) -> None:
        if call.name == "containers/0000/":
            idle.set()
        if call.verb == "create_with_content" and call.name.startswith("containers/"):
            folder.rename(tmp_path / "moved")
            other.rename(folder)

    async with opened(folder, replace) as store:
        await store.create_segment("own")
        await store.append("own", b"acked")
        # As above: what an opening still does might meet the other store first, and refuse it.
        await idle.wait()
        with pytest.raises(NotOwner, match="moved or replaced"):
            await store.flush()
    assert (tmp_path / "moved").exists()

    async with tierlog.open_store(tmp_path / "moved") as store:
        assert (await store.segment_info("own")).flushed_length == 0
        await store.flush()
        assert await store.read("own", 0, 100) == b"acked"


async def test_a_host_of_a_service_opens_no_other_store_that_has_the_folders_path_now(tmp_path: Path) -> None:
    """W1: the clients of one service would read and write the segments of another."""
    async with tierlog.open_store(tmp_path, containers=1):
        pass
    own, other = (tmp_path / "wal" / "store").read_bytes()[6:22].hex(), bytes(16).hex()
    async with open_host(tmp_path, "host-0", config=tierlog.StoreConfig(), store_id=own):
        pass
    with pytest.raises(StoreMismatch, match=f"is store {own} now, and the service serves {other}"):
        async with open_host(tmp_path, "host-0", config=tierlog.StoreConfig(), store_id=other):
            pass
