"""Restore: a store out of a backup, whole or not at all; what it has, what it refuses, what happens to the
old one (rule S17)."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import attrs
import pytest

from support.folders import chunk_files
from support.legacy_layout import write_legacy
from support.old_backups import BackupOptions, back_up_store, encode_manifest, object_name
from support.patience import scaled
from tierlog import (
    AttributeUpdate,
    DataCorruption,
    InvalidArgument,
    SegmentNotFound,
    SegmentStore,
    StoreConfig,
    StoreMismatch,
    Unavailable,
    UnknownWriter,
    open_store,
)
from tierlog.actors.folder.layout_version import is_upgraded
from tierlog.actors.folder.paths import check_path, existing_identity
from tierlog.actors.legacy_rolling.importing import no_progress
from tierlog.actors.maintenance.backup_objects import BackupObject, Manifest, ReleasedFile, decode_manifest
from tierlog.actors.maintenance.report import garbage_of, verify
from tierlog.actors.maintenance.restore import RestoreOptions, RestoreReport, restore
from tierlog.actors.maintenance.tables import list_runs
from tierlog.actors.maintenance.transfer import import_segment
from tierlog.actors.settings.configuration import GcConfig
from tierlog.actors.store.folder_opening import system_world
from tierlog.actors.store.read_only import open_reader
from tierlog.journal.manifest.pin_record import old_manifest_name
from tierlog.storage_backends.base.checksum import crc32c
from tierlog.storage_backends.base.ids import epoch_of
from tierlog.storage_backends.base.names import container_of
from tierlog.storage_backends.chunks.filesystem import FileSystemChunkStorage
from tierlog.storage_backends.files.local import LocalFiles
from tierlog.storage_backends.segments.records import ReleasedRecord, released_names

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]

NAME = "app/events"
DATA = bytes(range(256)) * 1000
EAGER = StoreConfig(gc=GcConfig(delay=0.0))


async def backed_up(
    folder: Path, store: SegmentStore, name: str = "b", *, upgraded: bool = False
) -> Manifest:
    identity = await existing_identity(LocalFiles(), check_path(folder))
    return await back_up_store(
        store, None, BackupOptions(name, identity.store_id, 1_700_000_000_000, upgraded), no_progress
    )


async def make_store(folder: Path) -> None:
    """Two containers, a rolled and truncated segment, a sealed and an empty one; a backup; and something
    newer."""
    async with open_store(folder, containers=2, config=EAGER) as store:
        await store.create_segment(NAME, rolling_size=70_000)
        await store.append(NAME, DATA, writer_id="w", event_number=7)
        await store.update_attributes(NAME, [AttributeUpdate("colour", 3)])
        await store.update_attributes(NAME, [AttributeUpdate(bytes(16), 5), AttributeUpdate(b"6" * 16, 6)])
        await store.truncate_segment(NAME, 100_000)
        for name in ("app/sealed", "app/empty"):
            await store.create_segment(name)
        await store.append("app/sealed", b"done")
        await store.seal_segment("app/sealed")
        await store.flush()
        await backed_up(folder, store)
        await store.append(NAME, b"newer")
        await store.create_segment("app/newer")
        await store.flush()


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of ``make_store``, made once."""
    folder = tmp_path_factory.mktemp("template")
    anyio.run(make_store, folder)
    return folder


@pytest.fixture
def made(template: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    return tmp_path


async def restored(folder: Path, **options: bool) -> RestoreReport:
    return await restore(
        check_path(folder), None, RestoreOptions("b", **options), EAGER, LocalFiles(), system_world()
    )


def lose_logs(folder: Path) -> None:
    shutil.rmtree(folder / "wal")


async def test_a_store_is_restored_as_it_was_at_its_backup(made: Path) -> None:
    lose_logs(made)
    report = await restored(made, deep=True)

    assert (report.segments, report.lost, report.unflushed, report.created_ms) == (
        3,
        (),
        0,
        1_700_000_000_000,
    )
    assert sorted(path.name for path in made.iterdir()) == ["lts", "wal"]
    async with open_store(made, containers=2, config=EAGER) as store:
        assert await store.list_segments() == ["app/empty", NAME, "app/sealed"]
        info = await store.segment_info(NAME)
        assert (info.length, info.start_offset, info.flushed_length, info.attributes) == (
            len(DATA),
            100_000,
            len(DATA),
            {"colour": 3},
        )
        assert (await store.list_attributes(NAME, b"")).attributes == {bytes(16): 5, b"6" * 16: 6}
        assert await store.read(NAME, 100_000, len(DATA)) == DATA[100_000:]
        assert (await store.segment_info("app/sealed")).sealed

        assert await store.append(NAME, DATA, writer_id="w", event_number=7) == 0
        assert await store.append(NAME, b"more", writer_id="w", event_number=8) == len(DATA)
        await store.flush()
        assert await store.read(NAME, len(DATA), 10) == b"more"

    async with open_reader(made) as view:
        assert (await verify(view)).sound


async def test_ids_and_epochs_are_above_all_that_were(made: Path) -> None:
    shutil.rmtree(made / "lts" / "_system" / "containers")  # no claim shows which epochs there were
    lose_logs(made)
    await change_manifest(made, epochs=(70, 70))
    await restored(made)

    async with open_store(made, config=EAGER) as store:
        assert {
            epoch_of((await store.segment_info(name)).segment_id) for name in await store.list_segments()
        } == {72}


async def test_a_restore_deletes_no_chunk(made: Path) -> None:
    files = sorted(path for path in (made / "lts" / "containers").rglob("*") if path.is_file())
    lose_logs(made)
    await restored(made)

    assert sorted(path for path in (made / "lts" / "containers").rglob("*") if path.is_file()) == files


async def test_the_old_logs_are_refused_afterwards(made: Path) -> None:
    (made / "wal").rename(made / "old-wal")
    await restored(made)
    async with open_store(made, config=EAGER):
        pass
    (made / "wal").rename(made / "new-wal")
    (made / "old-wal").rename(made / "wal")

    with pytest.raises(StoreMismatch):
        async with open_store(made, config=EAGER):
            pass


async def test_g4_chunks_that_are_newer_than_the_backup_stay_until_an_operator_confirms(made: Path) -> None:
    async with open_store(made, config=EAGER) as store:
        await store.append("app/newer", b"newer")
        await store.flush()
    before = set(chunk_files(made))
    lose_logs(made)
    await restored(made)
    for _ in range(2):
        async with open_store(made, config=EAGER) as store:
            await store.append(NAME, b"more")
            await store.flush()
    assert set(chunk_files(made)) > before

    async with open_reader(made) as view:
        found = [await garbage_of(view, each, {}) for each in view.containers]
        named = {listed.run.name for listed in await list_runs(view)}
    assert [each.reason for each in found] == [
        "the store was restored from a backup or recovered from long-term storage, or its log was"
    ] * 2
    runs = made.glob("lts/_system/containers/*/runs/*")
    unnamed = [path for path in runs if str(path.relative_to(made / "lts")) not in named]
    size = sum(path.stat().st_size for path in unnamed)
    assert (size > 0, sum(each.bytes for each in found)) == (True, len(b"newer") + size)
    async with open_store(made, config=EAGER) as store:
        for each in found:
            await store.on_container(each.container, lambda container: container.confirmation.confirm())
        await store.flush()
        with anyio.fail_after(scaled(30)):
            while set(chunk_files(made)) >= before:
                await store.append(NAME, b".")
                await store.flush()
    async with open_reader(made) as view:
        assert (await verify(view)).sound
        assert not any([(await garbage_of(view, each, {})).reason for each in view.containers])


async def test_g4_a_lost_wal_folder_is_never_adopted_onto_the_chunks_of_the_lost_store(made: Path) -> None:
    before = chunk_files(made)
    lose_logs(made)
    for adopt in (False, True, True):
        with pytest.raises(StoreMismatch, match="has a store already.*restore a backup"):
            async with open_store(made, containers=2, config=EAGER, adopt=adopt):
                pass
        assert not (made / "wal").exists(), "there is nothing to remove before the restore"
    assert chunk_files(made) == before

    await restored(made)
    async with open_store(made, config=EAGER) as store:
        assert await store.read(NAME, 100_000, len(DATA)) == DATA[100_000:]


async def test_leftovers_of_an_interrupted_restore_are_removed(made: Path) -> None:
    lose_logs(made)
    (made / ".restoring-dead" / "wal" / "0000").mkdir(parents=True)
    (made / ".restoring-dead" / "wal" / "store").write_bytes(b"half")
    await restored(made)

    assert sorted(path.name for path in made.iterdir()) == ["lts", "wal"]


@pytest.mark.parametrize("left", ["", "/lock", "/wal/store"])
async def test_the_next_opening_removes_the_folder_of_a_restore_that_was_killed(
    made: Path, left: str
) -> None:
    if left:
        (made / f".restoring{left}").parent.mkdir(parents=True)
        (made / f".restoring{left}").touch()
    else:
        (made / ".restoring").mkdir()
    async with open_store(made, config=EAGER) as store:
        assert sorted(path.name for path in made.iterdir()) == ["lts", "owners", "wal"]
        assert (await store.segment_info(NAME)).length == len(DATA) + 5


async def test_w11_a_restore_whose_last_sync_fails_leaves_no_store_and_can_be_repeated(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_logs(made)
    fsync = os.fsync

    def fail(fd: int) -> None:
        if (made / "wal").exists() and os.path.samestat(os.fstat(fd), os.stat(made)):
            raise OSError(errno.EIO, "the sync failed")
        fsync(fd)

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", fail)
        with pytest.raises(Unavailable, match="the sync failed"):
            await restored(made)
    assert [path.name for path in made.iterdir()] == ["lts"]
    assert (await restored(made)).segments == 3


async def test_a_folder_with_logs_is_left_alone_but_for_leftovers_of_other_restores(made: Path) -> None:
    (made / ".restoring-full" / "wal").mkdir(parents=True)
    with pytest.raises(InvalidArgument, match="already has the logs"):
        await restored(made)

    assert sorted(path.name for path in made.iterdir()) == ["lts", "wal"]
    async with open_store(made, config=EAGER) as store:
        assert (await store.segment_info(NAME)).length == len(DATA) + 5


def chunks_of_events(folder: Path) -> list[Path]:
    return sorted(
        path
        for path in (folder / "lts" / "containers").rglob("*")
        if path.is_file() and path.stat().st_size > 10_000
    )


@pytest.mark.parametrize("harm", ["missing", "short", "damaged"])
async def test_segments_whose_chunks_are_not_whole_are_refused_or_left_out(made: Path, harm: str) -> None:
    lose_logs(made)
    chunk = chunks_of_events(made)[1]
    content = chunk.read_bytes()
    chunk.unlink()
    if harm != "missing":
        chunk.write_bytes(content[:-1] if harm == "short" else bytes([content[0] ^ 1]) + content[1:])

    with pytest.raises(DataCorruption, match="1 of 3 segments"):
        await restored(made, deep=True)
    assert [path.name for path in made.iterdir()] == ["lts"]

    report = await restored(made, deep=True, partial=True)
    assert [lost.segment for lost in report.lost] == [NAME]
    async with open_store(made, config=EAGER) as store:
        assert await store.list_segments() == ["app/empty", "app/sealed"]


async def change_manifest(folder: Path, **changes: Any) -> None:
    path = folder / "lts" / old_manifest_name("b")
    manifest = attrs.evolve(decode_manifest(path.read_bytes(), "m"), **changes)
    path.write_bytes(encode_manifest(manifest))


async def test_an_object_that_is_not_the_manifests_is_refused(made: Path) -> None:
    lose_logs(made)
    first, second = (made / "lts" / object_name("b", number) for number in (0, 1))
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    with pytest.raises(DataCorruption, match="differs from its manifest"):
        await restored(made)

    first.write_bytes(content)
    objects: Sequence[BackupObject] = decode_manifest(
        (made / "lts" / old_manifest_name("b")).read_bytes(), "m"
    ).objects
    assert objects[0].crc == crc32c(content)
    await change_manifest(made, epochs=(1, 1, 1))
    with pytest.raises(DataCorruption, match="cannot be in container"):
        await restored(made)


@pytest.mark.parametrize("name", [object_name("b", 0), old_manifest_name("b")])
async def test_an_object_that_is_larger_than_any_of_a_backup_is_not_read(made: Path, name: str) -> None:
    lose_logs(made)
    os.truncate(made / "lts" / name, 1 << 40)
    with pytest.raises(DataCorruption, match="too many"):
        await restored(made)


async def test_the_chunks_of_another_store_are_refused(made: Path) -> None:
    lose_logs(made)
    await change_manifest(made, store_id=b"x" * 16)

    with pytest.raises(StoreMismatch, match="the chunks belong to store"):
        await restored(made)


async def test_writers_that_may_have_lost_events_are_reported(tmp_path: Path) -> None:
    async with open_store(tmp_path, containers=1, config=EAGER) as store:
        await store.create_segment(NAME)
        await store.append(NAME, b"flushed", writer_id="w", event_number=1)
        await store.flush()
        await store.append(NAME, b"not flushed", writer_id="w", event_number=2)
        await backed_up(tmp_path, store)
    lose_logs(tmp_path)
    report = await restored(tmp_path)

    assert report.unflushed == 11
    async with open_store(tmp_path, config=EAGER) as store:
        with pytest.raises(UnknownWriter):
            await store.append(NAME, b"not flushed", writer_id="w", event_number=2)


RELEASED = "app/gone$offset.0"


@pytest.fixture
async def with_released(tmp_path: Path) -> Path:
    """A lost store whose backup has a released file that was not deleted yet, and another imported
    segment."""
    chunks = FileSystemChunkStorage(LocalFiles(), str(tmp_path / "lts"), system_world())
    await chunks.open()
    await write_legacy(chunks, "app/old", b"0123", b"45")
    await write_legacy(chunks, "app/gone", b"xyz")
    async with open_store(tmp_path, containers=2) as store:
        for name in ("app/old", "app/gone"):
            await import_segment(store, name, no_progress)
        await store.delete_segment("app/gone")
        await store.flush()
        manifest = await backed_up(tmp_path, store)
    assert [each.record.name for each in manifest.released] == [RELEASED]
    lose_logs(tmp_path)
    return tmp_path


async def released_in(folder: Path) -> dict[int, list[str]]:
    async with open_reader(folder) as view:
        snapshots = [await container.snapshot() for container in view.containers]
        return {
            index: names
            for index, snapshot in enumerate(snapshots)
            if (names := released_names(await snapshot.metadata.scan("x:")))
        }


async def test_s19_a_released_file_is_still_released_in_its_container(with_released: Path) -> None:
    await restored(with_released)
    assert (with_released / "lts" / RELEASED).exists()
    assert await released_in(with_released) == {container_of("app/gone", 2): [RELEASED]}


@pytest.mark.parametrize("content", [None, b"written anew"])
async def test_s19_a_restore_records_no_missing_or_replaced_released_file(
    with_released: Path, content: bytes | None
) -> None:
    (with_released / "lts" / RELEASED).unlink()
    if content is not None:
        (with_released / "lts" / RELEASED).write_bytes(content)
    await restored(with_released)
    assert await released_in(with_released) == {}


@pytest.mark.parametrize("partial", [False, True])
async def test_s19_a_file_of_a_segment_of_the_backup_is_never_released(
    with_released: Path, partial: bool
) -> None:
    """Its segment was deleted while the backup was taken. A segment that is left out keeps what is left of
    it."""
    await change_manifest(with_released, released=(ReleasedFile(1, ReleasedRecord("app/old$offset.0", 4)),))
    if partial:
        (with_released / "lts" / "app/old$offset.4").unlink()
    report = await restored(with_released, partial=partial)
    assert (report.segments, len(report.lost)) == ((0, 1) if partial else (1, 0))
    assert await released_in(with_released) == {}


async def test_a_restore_keeps_the_layout_version_and_imported_names(tmp_path: Path) -> None:
    chunks = FileSystemChunkStorage(LocalFiles(), str(tmp_path / "lts"), system_world())
    await chunks.open()
    await write_legacy(chunks, "app/old", b"0123", b"45", sealed=True)
    await write_legacy(chunks, "app/gone", b"x")
    upgrade = attrs.evolve(EAGER, layout="layout-upgrade")
    async with open_store(tmp_path, containers=1, config=upgrade) as store:
        assert (await import_segment(store, "app/old", no_progress)).length == 6
        assert (await store.segment_info("app/old")).sealed
        await store.delete_segment("app/gone")
        await store.flush()
        await backed_up(tmp_path, store, upgraded=True)
    lose_logs(tmp_path)
    await restored(tmp_path)

    assert await is_upgraded(LocalFiles(), check_path(tmp_path))
    async with open_store(tmp_path, config=upgrade) as store:
        assert await store.read("app/old", 0, 10) == b"012345"
        with pytest.raises(SegmentNotFound):
            await store.read("app/gone", 0, 1)
    with pytest.raises(StoreMismatch, match="was upgraded"):
        async with open_store(tmp_path, config=attrs.evolve(EAGER, layout="code-only-upgrade")):
            pass
