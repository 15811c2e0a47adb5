"""A store whose long-term storage is a bucket: its whole life, through failures, and the errors when the
bucket is not right."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import anyio
import attrs
import pytest

from support.patience import scaled
from support.s3_server import BUCKET, Fault, S3Server
from support.stores import config
from tierlog import (
    ConfigError,
    DataCorruption,
    SegmentStore,
    StoreConfig,
    StoreMismatch,
    Unavailable,
    open_lts,
    open_store,
)
from tierlog.actors.folder.paths import check_path
from tierlog.actors.maintenance.doctor import StoreReport, examine
from tierlog.actors.settings.configuration import CacheConfig, ChunkCacheConfig, S3Config, StorageConfig
from tierlog.actors.store.folder_opening import system_world
from tierlog.actors.store.read_only import open_reader
from tierlog.actors.store.recover import recover_store
from tierlog.storage_backends.files.local import LocalFiles

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]

NAME = "app/events"
LOCATION = f"s3://{BUCKET}/stores/first"
PIECES = [bytes([number]) * 10_000 for number in range(40)]
"""Several chunks: they roll at 64 KiB."""


def settings(server: S3Server, *, append: bool = False, **more: Any) -> StoreConfig:
    return config(chunks=LOCATION, s3=S3Config(endpoint=server.url, append=append), **more)


def user_objects(server: S3Server) -> list[str]:
    """The chunks of segments, without the store's own claims."""
    return [key for key in server.objects() if "/_system/" not in key]


async def fill(store: SegmentStore, name: str = NAME) -> None:
    await store.create_segment(name)
    for piece in PIECES:
        await store.append(name, piece)
    await store.flush()


async def read_all(store: Any, name: str = NAME) -> bytes:
    data = bytearray()
    while block := await store.read(name, len(data), 1 << 20):
        data += block
    return bytes(data)


async def until_no_user_objects(server: S3Server) -> None:
    with anyio.fail_after(scaled(30)):
        while user_objects(server):  # the server is in another thread
            await anyio.sleep(0.01)


async def report_on(folder: Path) -> StoreReport:
    async with open_reader(folder) as view:
        return await examine(view, LocalFiles(), deep=True)


@pytest.mark.parametrize("append", [False, True])
async def test_a_store_keeps_its_chunks_in_a_bucket(server: S3Server, tmp_path: Path, append: bool) -> None:
    async with open_store(tmp_path, containers=1, config=settings(server, append=append)) as store:
        await fill(store)
    assert all(key.startswith("stores/first/") for key in server.objects())
    assert b"".join(server.objects()[key] for key in user_objects(server)) == b"".join(PIECES)
    assert not (tmp_path / "lts").exists()

    async with open_lts(LOCATION, config=settings(server)) as view:
        assert await view.list_segments() == [NAME]
        assert await read_all(view) == b"".join(PIECES)

    # The folder knows where its chunks are: nobody has to say it again.
    without_a_word = attrs.evolve(settings(server, append=append), chunks="", s3=S3Config())
    async with open_store(tmp_path, config=without_a_word) as store:
        assert await read_all(store) == b"".join(PIECES)
        await store.append(NAME, b"and more")
        await store.flush()
        await store.delete_segment(NAME)
        await store.flush()
        await until_no_user_objects(server)


async def test_r1_a_store_in_a_bucket_is_recovered_without_its_logs(server: S3Server, tmp_path: Path) -> None:
    lost, found = tmp_path / "lost", tmp_path / "found"
    async with open_store(lost, config=settings(server)) as store:
        await store.create_segment(NAME)
        for piece in PIECES:
            await store.append(NAME, piece)
        await store.flush()
        await store.append(NAME, b"not flushed")
    await recover_store(check_path(found), settings(server), LocalFiles(), system_world())
    async with open_store(found) as store:
        assert await read_all(store) == b"".join(PIECES)
        await store.append(NAME, b"more")
        await store.flush()
    with pytest.raises(StoreMismatch):
        async with open_store(lost, config=settings(server)):
            pass


@pytest.mark.parametrize("append", [False, True])
async def test_a_store_lives_on_through_failing_requests(
    server: S3Server, tmp_path: Path, append: bool
) -> None:
    """Every kind of request fails twice, with its effect or without; three tries are enough, and no byte is
    lost or doubled."""
    tries = StorageConfig(attempts=3, backoff=0.001, backoff_max=0.002, probe_interval=0.01)
    opened = settings(server, append=append, storage=tries)
    server.fail(
        Fault("ListMultipartUploads", refuse=(503, "SlowDown")),
        Fault("ListObjectsV2", refuse=(503, "SlowDown")),
    )
    async with open_store(tmp_path, containers=1, config=opened) as store:
        server.fail(
            Fault("PutObject", key="/first/containers/", refuse=(503, "SlowDown")),
            Fault("PutObject", applied=True, drop=True),
        )
        await fill(store)
    server.fail(Fault("GetObject", drop=True), Fault("GetObject", body_bytes=5))
    async with open_store(tmp_path, config=opened) as store:
        assert await read_all(store) == b"".join(PIECES)
        server.fail(
            Fault("DeleteObject", applied=True, drop=True), Fault("HeadObject", refuse=(500, "InternalError"))
        )
        await store.delete_segment(NAME)
        await store.flush()
        await until_no_user_objects(server)


async def test_views_and_the_doctor_find_the_bucket_by_themselves(server: S3Server, tmp_path: Path) -> None:
    async with open_store(tmp_path, containers=1, config=settings(server)) as store:
        await fill(store)
    async with open_reader(tmp_path) as view:
        assert await read_all(view) == b"".join(PIECES)
    assert (await report_on(tmp_path)).sound

    lost = user_objects(server)[1]
    server.remove(lost)
    report = await report_on(tmp_path)

    assert [problem.file for problem in report.problems] == [f"s3://{BUCKET}/{lost}"]


async def test_a_reader_changes_nothing_in_the_bucket(server: S3Server, tmp_path: Path) -> None:
    async with open_store(tmp_path, containers=1, config=settings(server)) as store:
        await fill(store)
    server.begin_upload("stores/first/living", age=1e9)
    server.seen.clear()
    await report_on(tmp_path)

    assert {seen.operation for seen in server.seen} <= {"ListObjectsV2", "GetObject", "HeadObject"}
    assert len(server.uploads()) == 1


async def test_w8_a_copied_folder_is_refused_by_its_claim_in_the_bucket(
    server: S3Server, tmp_path: Path
) -> None:
    original, copy = tmp_path / "original", tmp_path / "copy"
    async with open_store(original, containers=1, config=settings(server)) as store:
        await fill(store)
    shutil.copytree(original, copy)
    async with open_store(copy, config=settings(server)) as store:
        assert await read_all(store) == b"".join(PIECES)

    with pytest.raises(StoreMismatch, match="the folder is a copy"):
        async with open_store(original, config=settings(server)) as store:
            await store.segment_info(NAME)


async def test_w8_two_stores_cannot_share_a_prefix(server: S3Server, tmp_path: Path) -> None:
    async with open_store(tmp_path / "first", containers=1, config=settings(server)) as store:
        await fill(store)
    with pytest.raises(StoreMismatch, match="Another store needs its own folder or S3 prefix"):
        async with open_store(tmp_path / "second", containers=1, config=settings(server)) as store:
            await store.create_segment(NAME)


# --- the place ----------------------------------------------------------------------------------


async def test_the_chunk_location_is_fixed_when_a_folder_is_created(server: S3Server, tmp_path: Path) -> None:
    async with open_store(tmp_path / "bucket", containers=1, config=settings(server)):
        pass
    async with open_store(tmp_path / "folder", containers=1, config=config()):
        pass

    elsewhere = attrs.evolve(settings(server), chunks=f"s3://{BUCKET}/elsewhere")
    for folder, asked in (("bucket", elsewhere), ("folder", settings(server))):
        with pytest.raises(StoreMismatch, match="the location is fixed when a folder is made"):
            async with open_store(tmp_path / folder, config=asked):
                pass


async def test_a_wrong_chunk_location_at_the_first_opening_can_be_corrected(
    server: S3Server, tmp_path: Path
) -> None:
    wrong = attrs.evolve(settings(server), chunks="s3://no-such-bucket/stores")
    with pytest.raises(ConfigError, match="there is no bucket no-such-bucket"):
        async with open_store(tmp_path, containers=1, config=wrong):
            pass

    async with open_store(tmp_path, containers=1, config=settings(server)) as store:
        await fill(store)
        assert await read_all(store) == b"".join(PIECES)


async def test_a_service_that_moved_is_found_under_its_new_address(server: S3Server, tmp_path: Path) -> None:
    gone = attrs.evolve(settings(server), s3=S3Config(endpoint="http://127.0.0.1:9"))
    async with open_store(tmp_path, containers=1, config=settings(server)) as store:
        await fill(store)
    with pytest.raises(Unavailable, match="cannot be reached"):
        async with open_store(tmp_path, config=gone):
            pass

    async with open_store(tmp_path, config=settings(server)) as store:
        assert await read_all(store) == b"".join(PIECES)
    async with open_reader(tmp_path) as view:
        assert await read_all(view) == b"".join(PIECES)


async def test_the_recorded_chunk_location_holds_no_secret_and_damage_is_reported(
    server: S3Server, tmp_path: Path
) -> None:
    async with open_store(tmp_path, containers=1, config=settings(server)):
        pass
    record = tmp_path / "wal" / "chunks"
    assert "secret" not in record.read_text()

    record.write_text(record.read_text().replace("s3://", "s3:/"))
    with pytest.raises(DataCorruption, match="record of the chunk location"):
        async with open_store(tmp_path, config=config()):
            pass


async def test_an_opening_without_the_bucket_is_refused_and_a_later_one_works(
    server: S3Server, tmp_path: Path
) -> None:
    server.remove_bucket()
    with pytest.raises(ConfigError, match="there is no bucket chunks at .*; make it"):
        async with open_store(tmp_path, containers=1, config=settings(server)):
            pass
    server.add_bucket()
    async with open_store(tmp_path, containers=1, config=settings(server)) as store:
        await fill(store)


async def test_without_the_extra_the_error_names_it(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "aiobotocore", None)
    monkeypatch.setattr("tierlog.actors.folder.chunk_location.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'tierlog\[s3\]'"):
        async with open_store(tmp_path, containers=1, config=settings(server)):
            pass


@pytest.mark.parametrize(
    "place",
    [
        "s3:/chunks",
        "s3://",
        "s3://ab",
        "s3://Bucket",
        "s3://bucket/a//b",
        "s3://bucket/é",
        "http://bucket",
        "lts",
    ],
)
def test_a_malformed_chunk_location_is_refused_with_the_expected_form(place: str) -> None:
    with pytest.raises(ConfigError, match="write s3://BUCKET or s3://BUCKET/PREFIX"):
        StoreConfig(chunks=place)


def cached_blocks(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "cache").rglob("*") if path.is_file())


def chunk_reads(server: S3Server) -> int:
    """Requests for the bytes of segments' chunks."""
    return sum(seen.operation == "GetObject" and "/_system/" not in seen.key for seen in server.seen)


LARGE = [bytes([number]) * 60_000 for number in range(60)]
SMALL_TAIL_CACHE: dict[str, Any] = {"append_bytes_max": 1 << 19, "cache": CacheConfig(bytes=1 << 20)}


async def test_k1_flushed_data_in_a_bucket_is_read_from_the_local_disk(
    server: S3Server, tmp_path: Path
) -> None:
    """Also by the next owner; from the bucket what is damaged here, and all of it once the folder is gone."""
    own = settings(server, **SMALL_TAIL_CACHE)
    async with open_store(tmp_path, containers=1, config=own) as store:
        await store.create_segment(NAME)
        for piece in LARGE:
            await store.append(NAME, piece)
        await store.flush()

    async def requests_of_a_read() -> int:
        server.seen.clear()
        async with open_store(tmp_path, config=own) as store:
            assert await read_all(store) == b"".join(LARGE)
            storage = store.statistics().storage
            assert storage is not None
            assert storage.backend.cache is not None
            assert storage.backend.cache.bypassed == 0
        return chunk_reads(server)

    assert await requests_of_a_read() == 0
    report = await report_on(tmp_path)
    assert report.cached_chunks == len(cached_blocks(tmp_path))
    assert report.cached_bytes > sum(map(len, LARGE))
    damaged = cached_blocks(tmp_path)[0]
    damaged.write_bytes(damaged.read_bytes()[:-7] + b"damaged")
    assert await requests_of_a_read() == 1
    assert await requests_of_a_read() == 0
    shutil.rmtree(tmp_path / "cache")
    assert await requests_of_a_read() > 1
    assert await requests_of_a_read() == 0


async def test_k5_an_opening_removes_what_no_record_names_and_reuses_the_rest(
    server: S3Server, tmp_path: Path
) -> None:
    async with open_store(tmp_path, containers=1, config=settings(server)) as store:
        await fill(store, "app/stays")
        before = cached_blocks(tmp_path)
        await fill(store, "app/goes")
        kept = {path: path.read_bytes() for path in cached_blocks(tmp_path) if path not in before}
        await store.delete_segment("app/goes")
        await store.flush()
        with anyio.fail_after(scaled(30)):
            while cached_blocks(tmp_path) != before:  # the collector deletes
                await anyio.sleep(0.01)
    # Another machine deleted the chunks, so that this one's cache has them still.
    for path, content in kept.items():
        path.write_bytes(content)

    async with open_store(tmp_path, config=settings(server)) as store:
        with anyio.fail_after(scaled(30)):
            while cached_blocks(tmp_path) != before:
                await anyio.sleep(0.01)
        assert await read_all(store, "app/stays") == b"".join(PIECES)


async def test_k6_a_store_works_without_the_folder_of_its_cache(server: S3Server, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("in the way")
    async with open_store(tmp_path, containers=1, config=settings(server)) as store:
        await fill(store)
        assert await read_all(store) == b"".join(PIECES)
        await store.delete_segment(NAME)
        await store.flush()


async def test_k1_the_cache_can_be_turned_off_and_put_elsewhere(server: S3Server, tmp_path: Path) -> None:
    off = settings(server, chunk_cache=ChunkCacheConfig(bytes=0))
    async with open_store(tmp_path / "data", containers=1, config=off) as store:
        await fill(store)
    assert not (tmp_path / "data" / "cache").exists()

    elsewhere = settings(server, chunk_cache=ChunkCacheConfig(path=str(tmp_path / "elsewhere")))
    async with open_store(tmp_path / "data", config=elsewhere) as store:
        await fill(store, "app/more")
    (own,) = (tmp_path / "elsewhere").iterdir()
    assert len(own.name) == 32
    assert not (tmp_path / "data" / "cache").exists()
