"""Long-term storage for plain threads: it proves that it is the store's before anything is read, and nothing
outside of it can be read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import anyio
import attrs
import pytest
from msgspec.structs import replace

from support.folders import flip_bit
from support.s3 import s3_server
from support.s3_server import BUCKET, S3Server
from support.stores import CONFIG, make
from tierlog import SegmentLayout, StoreConfig, open_store
from tierlog.actors.direct_read.storage import DirectStorage, open_storage
from tierlog.actors.direct_read.windows import windows
from tierlog.actors.settings.configuration import S3Config
from tierlog.storage_backends.base.errors import (
    ChunkNotFound,
    ConfigError,
    DataCorruption,
    InvalidArgument,
    StoreMismatch,
    Unavailable,
)
from tierlog.storage_backends.base.segment_layout import StoragePlace

pytestmark = pytest.mark.anyio
DATA = os.urandom(1000)


def read(storage: DirectStorage, chunk: str, offset: int = 0, size: int = 2000) -> bytes:
    target = bytearray(size)
    return bytes(target[: storage.read_into(chunk, offset, memoryview(target))])


async def layout_of(folder: Path, config: StoreConfig = CONFIG) -> SegmentLayout:
    """Of a new store with one segment."""
    async with open_store(folder, containers=1, config=config) as store:
        await make(store, "s", DATA, flushed=True)
        return await store.segment_layout("s", 0, len(DATA))


# --- a folder -----------------------------------------------------------------------------------


@pytest.fixture
async def layout(tmp_path: Path) -> SegmentLayout:
    return await layout_of(tmp_path / "data")


async def test_chunks_of_a_folder_are_read_in_ranges(layout: SegmentLayout) -> None:
    storage, [extent] = open_storage(layout.place), layout.extents

    assert read(storage, extent.chunk) == DATA
    assert read(storage, extent.chunk, 10, 5) == DATA[10:15]
    assert read(storage, extent.chunk, 1000, 5) == b""
    with pytest.raises(ChunkNotFound):
        read(storage, extent.chunk + "0")
    storage.close()


async def test_s21_a_folder_without_the_stores_record_is_not_its_storage(
    layout: SegmentLayout, tmp_path: Path
) -> None:
    """It exists, as the folder of a missing mount does, and may even have a chunk."""
    [extent] = layout.extents
    (tmp_path / "elsewhere" / extent.chunk).parent.mkdir(parents=True)
    (tmp_path / "elsewhere" / extent.chunk).write_bytes(DATA)
    for name in ("elsewhere", "nowhere"):
        with pytest.raises(Unavailable, match=f"{name} is not there, or not mounted, or no long-term"):
            open_storage(replace(layout.place, location=str(tmp_path / name)))


async def test_s21_the_storage_of_another_store_is_refused(layout: SegmentLayout, tmp_path: Path) -> None:
    other = await layout_of(tmp_path / "other")

    with pytest.raises(StoreMismatch, match=f"is the long-term storage of store {other.place.store} here"):
        open_storage(replace(layout.place, location=other.place.location))


async def test_a_damaged_record_is_reported(layout: SegmentLayout) -> None:
    flip_bit(Path(layout.place.location) / "_system" / "store", 9)

    with pytest.raises(DataCorruption, match="damaged"):
        open_storage(layout.place)


@pytest.mark.parametrize("location", ["data/lts", "s3://x", "s3://bucket/a b", "/a\0b", "file:///data"])
def test_what_is_no_location_is_refused(location: str) -> None:
    with pytest.raises(InvalidArgument):
        open_storage(StoragePlace("ab", location))


def test_a_store_that_does_not_say_where_its_storage_is() -> None:
    with pytest.raises(Unavailable, match="does not say where"):
        open_storage(StoragePlace("ab"))


async def test_s21_no_link_leads_out_of_the_folder(layout: SegmentLayout, tmp_path: Path) -> None:
    root = Path(layout.place.location)
    (tmp_path / "secret").write_bytes(b"secret")
    (root / "link").symlink_to(tmp_path / "secret")
    (root / "folder").symlink_to(tmp_path)
    os.mkfifo(root / "pipe")
    storage = open_storage(layout.place)

    for name in ("link", "folder/secret", "pipe", "containers", "_system/store/x"):
        with pytest.raises(ChunkNotFound):
            read(storage, name)
    storage.close()


async def test_an_unreadable_file_is_no_missing_one(
    layout: SegmentLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, [extent] = open_storage(layout.place), layout.extents

    def refuse(*arguments: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "preadv", refuse)
    with pytest.raises(Unavailable, match="Permission denied"):
        read(storage, extent.chunk)
    storage.close()


# --- a bucket -----------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


async def bucket_layout(folder: Path, server: S3Server, prefix: str = "store") -> SegmentLayout:
    config = attrs.evolve(CONFIG, chunks=f"s3://{BUCKET}/{prefix}", s3=S3Config(endpoint=server.url))
    return await layout_of(folder, config)


@pytest.mark.one_loop
async def test_chunks_of_a_bucket_are_read_with_the_credentials_of_the_environment(
    tmp_path: Path, server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = await bucket_layout(tmp_path, server)
    [extent] = layout.extents
    assert layout.place.location == f"s3://{BUCKET}/store"
    assert layout.place.endpoint == server.url
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server.url)

    def check() -> None:
        # Where the owner's own endpoint is not given, the environment's counts.
        for place in (layout.place, replace(layout.place, endpoint="")):
            storage = open_storage(place)
            assert read(storage, extent.chunk) == DATA
            assert read(storage, extent.chunk, 10, 5) == DATA[10:15]
            [window] = windows(storage, layout.extents, 3, 999)
            assert window.buffer[window.begin : window.end] == DATA[3:999]
            with pytest.raises(ChunkNotFound):
                read(storage, extent.chunk + "0")
            storage.close()

    await anyio.to_thread.run_sync(check)  # as in an executor, which has no event loop


@pytest.mark.one_loop
async def test_a_bucket_that_cannot_be_read_says_why(
    tmp_path: Path, server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = await bucket_layout(tmp_path / "data", server)
    other = await bucket_layout(tmp_path / "other", server, "other")

    def check() -> None:
        with pytest.raises(Unavailable, match=r"store2 is not there.* it has no _system/store"):
            open_storage(replace(layout.place, location=f"s3://{BUCKET}/store2"))
        with pytest.raises(StoreMismatch, match=f"storage of store {other.place.store} here"):
            open_storage(replace(layout.place, location=other.place.location))

        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        with pytest.raises(ConfigError, match="credentials"):
            open_storage(layout.place)

    await anyio.to_thread.run_sync(check)


def test_a_bucket_needs_what_the_extra_installs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tierlog.actors.direct_read.storage.find_spec", lambda name: None)

    with pytest.raises(ConfigError, match=r"needs aiobotocore here: pip install 'tierlog\[s3\]'"):
        open_storage(StoragePlace("ab", "s3://bucket/prefix"))
