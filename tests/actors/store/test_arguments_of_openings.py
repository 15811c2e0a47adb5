"""What ``open_store`` refuses at once, with what to do; the folder stays as it is."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from random import Random
from typing import Any

import pytest
from simulation.file_layer import Fail, SimulatedDisk, SimulatedFiles

import tierlog
from tierlog import InvalidArgument, StoreConfig
from tierlog.actors.settings.configuration import ChunkCacheConfig
from tierlog.storage_backends.base.files import IoCall, MakeFolder

pytestmark = pytest.mark.anyio


async def refusal(path: Path | str, **options: Any) -> str:
    with pytest.raises(InvalidArgument) as caught:
        async with tierlog.open_store(path, **options):
            pass
    assert not caught.value.retryable
    return str(caught.value)


async def test_no_store_is_made_among_other_files(tmp_path: Path) -> None:
    (tmp_path / "tierlog.toml").touch()
    async with tierlog.open_store(tmp_path, containers=1):
        pass  # its configuration may be there before it

    other = tmp_path.with_name(tmp_path.name + "-other")
    other.mkdir()
    (other / "photo.jpg").touch()
    assert "name a new or empty folder" in await refusal(other)
    assert os.listdir(other) == ["photo.jpg"]


@pytest.mark.parametrize("inner", ["wal", "lts", "wal/0000", "new/folder"])
async def test_no_store_is_made_inside_another_one(tmp_path: Path, inner: str) -> None:
    async with tierlog.open_store(tmp_path, containers=1):
        pass
    assert f"is inside the store {tmp_path}" in await refusal(tmp_path / inner)
    assert not (tmp_path / inner / "wal").exists()

    async with tierlog.open_store(tmp_path, containers=1):
        pass  # an existing store may have more files


@pytest.mark.parametrize("link", ["data", "data/lts"])
async def test_no_store_is_made_inside_another_one_through_a_link(tmp_path: Path, link: str) -> None:
    async with tierlog.open_store(tmp_path / "other", containers=1):
        pass
    inner = tmp_path / "other" / "lts" / "containers" / "inner"
    inner.mkdir(parents=True)
    (tmp_path / link).parent.mkdir(exist_ok=True)
    (tmp_path / link).symlink_to(inner)
    assert f"{inner} is inside the long-term storage" in await refusal(tmp_path / "data")
    assert list(inner.iterdir()) == []


@pytest.mark.parametrize("inner", ["wal/inner", "lts/inner"])
async def test_no_store_is_made_around_another_one(tmp_path: Path, inner: str) -> None:
    async with tierlog.open_store(tmp_path / inner, containers=1):
        pass
    assert f"is around another store, {tmp_path / inner}" in await refusal(tmp_path)
    assert not (tmp_path / "wal" / "store").exists()


@pytest.mark.parametrize("path", ["wal", "lts", "lts/cache", ".", "..", "x/../wal", "/", "DATA"])
async def test_the_chunk_cache_has_a_folder_of_its_own(tmp_path: Path, path: str) -> None:
    """Its files would lie among those of the store, or beside it."""
    data = tmp_path / "data"
    config = StoreConfig(chunk_cache=ChunkCacheConfig(path=path.replace("DATA", str(data))))
    assert "chunk_cache.path: " in await refusal(data, config=config)
    assert not data.exists()


@pytest.mark.parametrize("path", ["", "cache", "walcache", "../elsewhere"])
async def test_the_chunk_cache_may_be_anywhere_else(tmp_path: Path, path: str) -> None:
    config = StoreConfig(chunk_cache=ChunkCacheConfig(path=path))
    async with tierlog.open_store(tmp_path / "data", containers=1, config=config) as store:
        await store.create_segment("s")


async def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "name the data folder" in await refusal(tmp_path / "file")
    assert "name the data folder" in await refusal(tmp_path / "file/data")


async def test_where_no_folder_can_be_made_another_one_is_asked_for() -> None:
    assert "name another one" in await refusal("/proc/tierlog")


async def test_a_read_only_folder_is_refused() -> None:
    def refuse(_index: int, call: IoCall) -> Fail | None:
        return Fail(PermissionError(errno.EACCES, "Permission denied")) if type(call) is MakeFolder else None

    files = SimulatedFiles(SimulatedDisk(Random(1)), refuse)
    assert "give this user access to it" in await refusal("/data", files=files)


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({"config": "tierlog.toml"}, "tierlog.load_config"),
        ({"config": {}}, "tierlog.load_config"),
        ({"span": 3}, "tierlog.SpanHook"),
        ({"take_over": "yes"}, "True or False"),
        ({"adopt": 1}, "True or False"),
        ({"storage": "s3://bucket/prefix"}, "StoreConfig(chunks=...)"),
    ],
)
async def test_an_argument_of_another_type_is_refused(
    tmp_path: Path, options: dict[str, object], remedy: str
) -> None:
    assert remedy in await refusal(tmp_path, **options)
    assert not list(tmp_path.iterdir())
