"""Runs in every kind of chunk storage."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from support.chunked import world_of
from support.s3 import s3_server, s3_storage
from support.s3_server import S3Server
from support.sorted_runs import TableWorld
from tierlog.storage_backends.base.chunk_storage import ChunkStorage
from tierlog.storage_backends.chunks.filesystem import FileSystemChunkStorage
from tierlog.storage_backends.chunks.memory import MemoryChunkStorage
from tierlog.storage_backends.files.local import LocalFiles


@pytest.fixture(scope="session")
def _server() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture(params=["memory", "filesystem", pytest.param("s3", marks=pytest.mark.one_loop)])
async def chunks(
    request: pytest.FixtureRequest, anyio_backend: str, tmp_path: Path
) -> AsyncIterator[ChunkStorage]:
    """A chunk storage of each kind, open."""
    made: ChunkStorage
    if request.param == "memory":
        made = MemoryChunkStorage()
    elif request.param == "filesystem":
        made = FileSystemChunkStorage(LocalFiles(), str(tmp_path / "lts"), world_of(1))
    else:
        server: S3Server = request.getfixturevalue("_server")
        server.reset()
        made = s3_storage(server.url)
    await made.open()
    yield made
    await made.close()


@pytest.fixture
def world(chunks: ChunkStorage) -> TableWorld:
    return TableWorld(chunks)
