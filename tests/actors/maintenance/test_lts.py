"""What verifying long-term storage alone finds: damage, and segments that were published as of two
moments."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from support.folders import chunk_files, fingerprint, flip_bit
from support.stores_of_all_kinds import during_a_flush, fill
from tierlog import SegmentStore, StoreConfig, open_lts, open_store
from tierlog.actors.flush.writer import WriterOptions
from tierlog.actors.maintenance.lts import LtsReport, verify_lts
from tierlog.actors.settings.configuration import GcConfig, WriterConfig
from tierlog.storage_backends.base.errors import ChunkNotFound
from tierlog.storage_backends.chunks.filesystem import FileSystemChunkReader, FileSystemChunkStorage

pytestmark = pytest.mark.anyio

QUIET = StoreConfig(writer=WriterConfig(flush_age=3600.0), gc=GcConfig(delay=3600.0))
SYSTEM = "lts/_system/containers/0000"


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that stops for a second makes no segment late: what a test flushes is in one cycle."""
    patient = partial(WriterOptions, segment_deadline=1000.0)
    monkeypatch.setattr("tierlog.actors.store.opening.WriterOptions", patient)


async def verified(folder: Path) -> LtsReport:
    """Of a store that is closed."""
    before = fingerprint(folder)
    report = await verified_beside_its_owner(folder)
    assert fingerprint(folder) == before
    return report


async def verified_beside_its_owner(folder: Path) -> LtsReport:
    async with open_lts(folder) as view:
        return await verify_lts(view)


async def test_an_idle_flushed_store_is_of_one_moment(tmp_path: Path) -> None:
    async with open_store(tmp_path, containers=2, config=QUIET) as store:
        await fill(store)
        await store.flush()
        # With all that the first flush left to be done.
        await store.flush()
    report = await verified(tmp_path)
    assert [each.inconsistencies for each in report.containers] == [(), ()]
    assert report.consistent
    assert report.chunks is not None
    assert report.chunks.bytes > 0


async def test_a_store_that_was_never_flushed_is_sound(tmp_path: Path) -> None:
    async with open_store(tmp_path, containers=1, config=QUIET) as store:
        await fill(store)
    assert (await verified(tmp_path)).consistent


async def append(store: SegmentStore) -> None:
    await store.append("target", b"more")


async def merge(store: SegmentStore) -> None:
    await store.merge_segments("target", ["target#source"])


async def truncate(store: SegmentStore) -> None:
    await store.truncate_segment("target", 3)


async def seal(store: SegmentStore) -> None:
    await store.seal_segment("target")


@pytest.mark.parametrize("change", [append, merge, truncate, seal])
async def test_f1_a_segment_that_changes_during_the_flush_is_published_as_of_the_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[SegmentStore], Awaitable[None]]
) -> None:
    async with open_store(tmp_path, containers=1, config=QUIET) as store:
        for name in ("target", "target#source"):
            await store.create_segment(name)
            await store.append(name, name.encode())
        await store.seal_segment("target#source")
        during_a_flush(monkeypatch, lambda: change(store))
        await store.flush()
        assert (await verified_beside_its_owner(tmp_path)).consistent
        async with open_lts(tmp_path) as view:
            info = await view.segment_info("target")
            assert (info.length, info.start_offset, info.sealed) == (len("target"), 0, False)
            assert await view.list_segments() == ["target", "target#source"]
        await store.flush()
        assert (await verified_beside_its_owner(tmp_path)).consistent


async def test_an_open_transaction_is_sound(tmp_path: Path) -> None:
    async with open_store(tmp_path, containers=1, config=QUIET) as store:
        await store.create_segment("target")
        await store.begin_transaction("target", "t")
        await store.append(await store.stage_segment("target", "t", "0"), b"staged")
        await store.flush()
    assert (await verified(tmp_path)).consistent


def remove(file: Path) -> None:
    file.unlink()


def damage(file: Path) -> None:
    flip_bit(file, file.stat().st_size // 2)


@pytest.mark.parametrize("harm", [remove, damage])
@pytest.mark.parametrize("what", ["journal", "runs"])
async def test_each_damaged_or_missing_object_is_reported(
    tmp_path: Path, what: str, harm: Callable[[Path], Any]
) -> None:
    async with open_store(tmp_path, containers=1, config=QUIET) as store:
        await fill(store)
        await store.flush()
    file = max((tmp_path / SYSTEM / what).iterdir())
    harm(file)
    report = await verified(tmp_path)
    if what == "journal" and harm is remove:
        # The element before is whole. That something newer was there, only a log could know.
        assert report.sound
    else:
        assert [each.name.rsplit("/", 1)[1] for each in report.containers[0].problems] == [file.name]
        assert not report.sound
        assert report.chunks is None


@pytest.mark.parametrize("harm", [remove, damage])
async def test_each_chunk_is_read(tmp_path: Path, harm: Callable[[Path], Any]) -> None:
    async with open_store(tmp_path, containers=1, config=QUIET) as store:
        await fill(store)
        await store.flush()
    harm(chunk_files(tmp_path)[3])
    report = await verified(tmp_path)
    assert report.chunks is not None
    assert len(report.chunks.problems) == 1
    assert not report.sound


@pytest.mark.parametrize("is_replaced", [True, False])
async def test_what_a_living_owner_replaces_meanwhile_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_replaced: bool
) -> None:
    """A run is gone when it is read. If it was merged there is a newer element; else it is lost."""
    read, left = FileSystemChunkStorage._read, [True]
    async with open_store(tmp_path, containers=1, config=QUIET) as store:
        await fill(store)
        await store.flush()

        async def gone(self: FileSystemChunkStorage, name: str, offset: int, size: int) -> bytes:
            if left and isinstance(self, FileSystemChunkReader) and "/runs/" in name:
                if is_replaced:
                    left.clear()
                    await store.create_segment("newer")
                    await store.flush()
                raise ChunkNotFound(name)
            return await read(self, name, offset, size)

        monkeypatch.setattr(FileSystemChunkStorage, "_read", gone)
        async with open_lts(tmp_path) as view:
            report = await verify_lts(view)
        assert report.consistent == is_replaced
        assert len(report.containers[0].problems) == (not is_replaced)


async def test_an_object_of_another_store_is_reported(tmp_path: Path) -> None:
    for name in ("first", "second"):
        async with open_store(tmp_path / name, containers=1, config=QUIET) as store:
            await fill(store)
            await store.flush()
    for element in (tmp_path / "second" / SYSTEM / "journal").iterdir():
        element.write_bytes((tmp_path / "first" / SYSTEM / "journal" / element.name).read_bytes())
    (problem,) = (await verified(tmp_path / "second")).containers[0].problems
    assert "belongs to store" in problem.message
