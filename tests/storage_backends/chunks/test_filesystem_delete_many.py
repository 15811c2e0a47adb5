"""Chunks of a file system that are deleted together."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.chunked import world_of
from support.scripted_files import ScriptedFiles
from tierlog.storage_backends.base.errors import ChunkReadOnly, OutcomeUnknown
from tierlog.storage_backends.base.files import Unlink
from tierlog.storage_backends.chunks.filesystem import FileSystemChunkStorage

pytestmark = pytest.mark.anyio


@pytest.fixture
def files() -> ScriptedFiles:
    return ScriptedFiles()


@pytest.fixture
async def storage(files: ScriptedFiles, tmp_path: Path) -> AsyncIterator[FileSystemChunkStorage]:
    storage = FileSystemChunkStorage(files, str(tmp_path / "lts"), world_of(1))
    await storage.open()
    yield storage
    await storage.close()


async def test_chunks_deleted_together_cost_one_sync_for_each_folder(
    storage: FileSystemChunkStorage, files: ScriptedFiles
) -> None:
    names = [f"{folder}/{number}" for number in range(10) for folder in ("a", "b/c")]
    for name in names:
        await storage.create_with_content(name, [b"x"])
    files.calls.clear()

    assert await storage.delete_many(names) == []
    assert [files.calls.count(kind) for kind in ("Unlink", "SyncFolder")] == [20, 2]


async def test_a_deletion_of_many_of_which_one_fails_has_an_unknown_outcome_once_one_is_gone(
    storage: FileSystemChunkStorage, files: ScriptedFiles
) -> None:
    for name in ("a/1", "a/2", "a/3"):
        await storage.create_with_content(name, [b"x"])
    refused = PermissionError(errno.EPERM, os.strerror(errno.EPERM))
    files.fail = lambda call: refused if isinstance(call, Unlink) and call.path.endswith("a/2") else None

    with pytest.raises(OutcomeUnknown):
        await storage.delete_many(["a/1", "a/2", "a/3"])
    with pytest.raises(ChunkReadOnly):
        await storage.delete_many(["a/2", "a/3"])
    assert [info.name async for info in storage.list("")] == ["a/2", "a/3"]
