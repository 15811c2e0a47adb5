"""Restoring a store from a backup, and copying one elsewhere (rules P5 to P8)."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from support.folders import chunk_files, fingerprint, flip_bit
from support.patience import scaled
from support.stores_of_all_kinds import contents, during_a_flush, fill
from tierlog import (
    BackupIncomplete,
    DataCorruption,
    InvalidArgument,
    SegmentStore,
    StoreConfig,
    StoreMismatch,
    Unavailable,
    open_lts,
    open_store,
)
from tierlog.actors.container.container import Container
from tierlog.actors.container.lost_histories import EndedLog
from tierlog.actors.flush.writer import WriterOptions
from tierlog.actors.folder.paths import check_path
from tierlog.actors.maintenance.backup_copy import CopiedBackup, copy_backup, copy_for_restore
from tierlog.actors.maintenance.backups import list_backups
from tierlog.actors.maintenance.lts import verify_lts
from tierlog.actors.settings.configuration import GcConfig, WriterConfig
from tierlog.actors.store.folder_opening import system_world
from tierlog.actors.store.recover import RecoveredStore, recover_store
from tierlog.actors.store.recover_container import recover_container
from tierlog.journal.manifest.chain import ChainReport, read_chain, read_owners
from tierlog.journal.manifest.store_record import StoreRecord
from tierlog.storage_backends.base.backups import make_backup, take_steps
from tierlog.storage_backends.base.names import container_of
from tierlog.storage_backends.chunks.filesystem import FileSystemChunkReader, FileSystemChunkStorage
from tierlog.storage_backends.files.local import LocalFiles
from tierlog.storage_backends.segments.context import StorageContext

from .test_recover import lose_logs, other_owner

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]

QUIET = StoreConfig(writer=WriterConfig(flush_age=3600.0), gc=GcConfig(delay=0.0))


def extended(*values: object) -> list[Any]:
    return [pytest.param(value, marks=pytest.mark.extended) for value in values]


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    patient = partial(WriterOptions, segment_deadline=1000.0)
    monkeypatch.setattr("tierlog.actors.store.opening.WriterOptions", patient)


@asynccontextmanager
async def opened(folder: Path, **arguments: Any) -> AsyncIterator[SegmentStore]:
    async with open_store(folder, containers=2, config=QUIET, **arguments) as store:
        yield store


async def restored(folder: Path, name: str, place: Path | None = None) -> RecoveredStore:
    shutil.rmtree(folder / "wal", ignore_errors=True)
    if place is None:
        return await recover_store(check_path(folder), QUIET, LocalFiles(), system_world(), name)

    async with reader(place) as source:
        prepare = partial(copy_for_restore, source, name)
        return await recover_store(check_path(folder), QUIET, LocalFiles(), system_world(), name, prepare)


@asynccontextmanager
async def reader(place: Path) -> AsyncIterator[FileSystemChunkReader]:
    source = FileSystemChunkReader(LocalFiles(), str(place), system_world())
    await source.open()
    try:
        yield source
    finally:
        await source.close()


async def copied(folder: Path, name: str, place: Path, *, verify: bool = False) -> CopiedBackup:
    target = FileSystemChunkStorage(LocalFiles(), str(place), system_world())
    async with reader(folder / "lts") as source:
        await target.open()
        try:
            return await copy_backup(source, name, target, verify=verify)
        finally:
            await target.close()


async def change(store: SegmentStore, part: str) -> None:
    """Delete, truncate and change what there was."""
    await store.create_segment(f"new/{part}")
    await store.append(f"new/{part}", part.encode() * 50)
    await store.append("s#2", part.encode())
    await store.truncate_segment("s#4", 90)
    await store.table("table").put(b"key", part.encode())
    await store.flush()
    await store.flush()


async def two_backups(folder: Path) -> list[dict[str, Any]]:
    """With all that was garbage between them deleted."""
    async with opened(folder) as store:
        await fill(store)
        await store.backup("one")
        one = await contents(store)
        await store.delete_segment("s#5")
        await change(store, "a")
        await store.backup("two")
        two = await contents(store)
        await store.delete_segment("s#8")
        await change(store, "b")
        three = await contents(store)
    return [one, two, three]


async def confirm(store: SegmentStore) -> None:
    for index in range(store.containers):
        await store.on_container(index, Container.confirm)


async def test_p6_a_store_is_restored_as_of_its_backups_again_and_again(tmp_path: Path) -> None:
    """Each time what is newer is garbage, once the store is confirmed, but for what backups need."""
    one, two, _ = await two_backups(tmp_path)
    for number, (name, expected) in enumerate([("one", one), ("two", two), ("one", one), ("one", one)]):
        done = await restored(tmp_path, name)
        assert done.backup == name
        assert done.segments == len(expected["names"])
        async with opened(tmp_path) as store:
            assert await contents(store) == expected
            assert [each.name for each in await store.backups()] == ["one", "two"]
            await confirm(store)
            await change(store, f"r{number}")
            await store.delete_segment("s#2")
            await store.flush()
            after = await contents(store)
        async with opened(tmp_path) as store:
            assert await contents(store) == after
            await store.flush()
    async with opened(tmp_path) as store:
        await store.remove_backup("one")
    assert (await restored(tmp_path, "two")).backup == "two"
    async with opened(tmp_path) as store:
        assert await contents(store) == two
        assert [each.name for each in await store.backups()] == ["two"]


async def test_p5_a_recovery_keeps_the_backups(tmp_path: Path) -> None:
    one, _, three = await two_backups(tmp_path)
    shutil.rmtree(tmp_path / "wal")
    await recover_store(check_path(tmp_path), QUIET, LocalFiles(), system_world())
    async with opened(tmp_path) as store:
        assert await contents(store) == three
        await confirm(store)
        await change(store, "c")
        await store.flush()
    await restored(tmp_path, "one")
    async with opened(tmp_path) as store:
        assert await contents(store) == one


async def test_p5_an_adopted_copy_keeps_the_backups_of_the_other_history(tmp_path: Path) -> None:
    folder, copy = tmp_path / "data", tmp_path / "copy"
    async with opened(folder) as store:
        await fill(store)
        await store.flush()
    shutil.copytree(folder / "wal", copy / "wal")
    async with opened(folder) as store:
        await change(store, "a")
        await store.backup("one")
        one = await contents(store)
    shutil.rmtree(folder / "wal")
    (copy / "wal").rename(folder / "wal")
    with pytest.raises(StoreMismatch):
        async with opened(folder):
            pass
    async with opened(folder, adopt=True) as store:
        await confirm(store)
        await change(store, "b")
        await store.flush()
        assert [each.problem for each in await store.backups()] == [""]
    await restored(folder, "one")
    async with opened(folder) as store:
        assert await contents(store) == one


async def test_p6_what_cannot_be_restored_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await two_backups(tmp_path)
    with pytest.raises(InvalidArgument, match="already has the logs"):
        await recover_store(check_path(tmp_path), QUIET, LocalFiles(), system_world(), "one")
    with pytest.raises(InvalidArgument, match=r"no backup 'three'.*one, two"):
        await restored(tmp_path, "three")
    record = tmp_path / "lts/_system/pins/one"
    flip_bit(record, 3)
    with pytest.raises(DataCorruption, match="_system/pins/one") as raised:
        await restored(tmp_path, "one")
    assert raised.value.offset == 0
    flip_bit(record, 3)
    flip_bit(record, record.stat().st_size - 20)
    with pytest.raises(DataCorruption, match="container 1 in backup 'one'") as raised:
        await restored(tmp_path, "one")
    assert raised.value.offset > 100
    assert not (tmp_path / "wal").exists()


async def test_p6_a_list_says_of_what_a_restore_refuses_what_is_missing(tmp_path: Path) -> None:
    await two_backups(tmp_path)
    lose_logs(tmp_path)
    store_record = tmp_path / "lts/_system/store"
    content = store_record.read_bytes()
    other = StoreRecord(b"o" * 16, 2).encode()
    for replaced, message in ((None, "_system/store"), (b"damaged", "_system/store"), (other, "belongs to")):
        store_record.unlink(missing_ok=True)
        if replaced is not None:
            store_record.write_bytes(replaced)
        with pytest.raises((DataCorruption, StoreMismatch)) as refusal:
            await restored(tmp_path, "one")
        assert message in str(refusal.value)
        async with reader(tmp_path / "lts") as chunks:
            for is_copy in (False, True):
                found = await list_backups(chunks, is_copy=is_copy)
                assert [each.problem for each in found] == [str(refusal.value)] * 2
    store_record.write_bytes(content)
    await restored(tmp_path, "one")


async def test_r2_a_backup_shows_that_the_newest_elements_are_lost(tmp_path: Path) -> None:
    """A recovery would be as of a cycle before that backup, though everything of the backup is there."""
    folder = tmp_path / "data"
    async with opened(folder) as store:
        await fill(store)
        await store.flush()
        await store.backup("one")
        one = await contents(store)
    lose_logs(folder)
    *_, newest = sorted((folder / "lts/_system/containers/0000/journal").iterdir())
    newest.unlink()
    with pytest.raises(DataCorruption, match="backup 'one' has element") as refusal:
        await recover_store(check_path(folder), QUIET, LocalFiles(), system_world())
    assert refusal.value.file == "_system/pins/one"
    async with open_lts(folder) as view:
        [damaged] = [each for each in (await verify_lts(view)).containers if each.problems]
    assert [each.name for each in damaged.problems] == ["_system/pins/one"]
    await restored(tmp_path / "elsewhere", "one", folder / "lts")
    async with opened(tmp_path / "elsewhere") as store:
        assert await contents(store) == one


async def test_f10_a_backup_of_a_store_that_changes_meanwhile_is_of_one_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "data"
    async with open_store(folder, containers=1, config=QUIET) as store:
        await store.create_segment("s")
        await store.append("s", b"before")
        during_a_flush(monkeypatch, lambda: store.append("s", b"later"))
        await take_steps(make_backup("one", "token", 1), store.take_backup_step)
        monkeypatch.undo()
    await copied(folder, "one", tmp_path / "place")
    shutil.rmtree(folder / "wal")
    await restored(folder, "one")
    async with open_store(folder, containers=1, config=QUIET) as store:
        assert await store.read("s", 0, 100) == b"before"


async def test_p7_a_copy_opens_and_is_restored_elsewhere(tmp_path: Path) -> None:
    folder, place, other = tmp_path / "data", tmp_path / "place", tmp_path / "other"
    one, two, _ = await two_backups(folder)
    first = await copied(folder, "one", place)
    assert first.copied_objects == first.objects > 0
    again = await copied(folder, "one", place)
    assert (again.objects, again.copied_objects) == (first.objects, 0)
    second = await copied(folder, "two", place)
    assert 0 < second.copied_objects < second.objects
    shutil.rmtree(folder)
    async with open_lts(place) as view:
        assert sorted(await view.list_segments()) == sorted(two["names"])
    done = await restored(other, "one", place)
    assert done.backup == "one"
    async with opened(other) as store:
        assert await contents(store) == one
        await confirm(store)
        await change(store, "c")
        assert [each.name for each in await store.backups()] == ["one"]
    later = tmp_path / "later"
    await restored(later, "two", place)
    async with opened(later) as store:
        assert await contents(store) == two


async def test_p6_a_copy_repairs_the_long_term_storage_that_keeps_its_backup(tmp_path: Path) -> None:
    folder, place = tmp_path / "data", tmp_path / "place"
    one, _, _ = await two_backups(folder)
    await copied(folder, "one", place)
    lost = next(path for path in chunk_files(folder) if (place / path.relative_to(folder / "lts")).exists())
    lost.unlink()
    await restored(folder, "one", place)
    async with opened(folder) as store:
        assert await contents(store) == one


async def test_p6_a_copy_is_not_restored_where_its_backup_was_removed(tmp_path: Path) -> None:
    """What it needs is garbage there, which may be deleted at any time."""
    folder, place = tmp_path / "data", tmp_path / "place"
    one, _, _ = await two_backups(folder)
    await copied(folder, "one", place)
    async with opened(folder) as store:
        await store.remove_backup("one")
    before = fingerprint(folder / "lts")
    with pytest.raises(BackupIncomplete, match="restore it into another folder"):
        await restored(folder, "one", place)
    assert fingerprint(folder / "lts") == before
    await restored(tmp_path / "other", "one", place)
    async with opened(tmp_path / "other") as store:
        assert await contents(store) == one


async def test_p6_a_copy_is_restored_after_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, place, other = tmp_path / "data", tmp_path / "place", tmp_path / "other"
    one, _, _ = await two_backups(folder)
    await copied(folder, "one", place)
    for failing in ("read_boot", "ensure_store_record", "claim_chain"):
        with monkeypatch.context() as broken:
            broken.setattr(f"tierlog.actors.store.recover.{failing}", refuse)
            with pytest.raises(Unavailable):
                await restored(other, "one", place)
        assert not (other / "wal").exists()
    await restored(other, "one", place)
    async with opened(other) as store:
        assert await contents(store) == one


@pytest.mark.parametrize("is_late", [False, True], ids=["", "whose record a dead call creates late"])
async def test_p6_a_backup_that_is_removed_during_its_restore_is_not_restored(
    tmp_path: Path, is_late: bool
) -> None:
    """The chain is claimed above an element that keeps it, or not at all."""
    folder, kept = tmp_path / "data", tmp_path / "kept"
    await two_backups(folder)
    record = folder / "lts/_system/pins/one"
    content = record.read_bytes()
    kept.mkdir()
    (folder / "wal").rename(kept / "wal")

    async def after_the_removal(*arguments: Any) -> ChainReport:
        patched.undo()
        async with other_owner(folder, kept) as owner:
            await owner.remove_backup("one")
        if is_late:
            record.write_bytes(content)
        return await read_owners(*arguments)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("tierlog.actors.store.recover.read_owners", after_the_removal)
        with pytest.raises(BackupIncomplete, match="container 0 does not keep it"):
            await restored(folder, "one")
    assert not (folder / "wal").exists()


async def refuse(*arguments: Any) -> None:
    raise Unavailable("killed")


async def test_p7_a_copy_is_verified_and_goes_on_where_it_ended(tmp_path: Path) -> None:
    folder, place = tmp_path / "data", tmp_path / "place"
    await two_backups(folder)
    damaged = chunk_files(folder)[0]
    flip_bit(damaged, 1)
    with pytest.raises(DataCorruption, match="checksum"):
        await copied(folder, "two", place)
    assert not (place / "_system/store").exists()
    flip_bit(damaged, 1)
    await copied(folder, "two", place)
    there = max((place / "containers").rglob("*-*"))
    there.write_bytes(there.read_bytes()[:-1])
    done = await copied(folder, "two", place)
    assert (done.copied_objects, done.copied_bytes) == (1, 1)


async def test_p8_a_place_of_another_store_is_refused(tmp_path: Path) -> None:
    await two_backups(tmp_path / "data")
    async with opened(tmp_path / "other") as store:
        await store.flush()
    with pytest.raises(StoreMismatch):
        await copied(tmp_path / "data", "one", tmp_path / "other/lts")


@pytest.mark.parametrize("life", ["recovered", *extended("flushed", "backed up")])
async def test_p8_a_place_that_was_brought_to_life_is_refused(tmp_path: Path, life: str) -> None:
    """A copied element would break the chain of the store that lives there."""
    folder, other = tmp_path / "data", tmp_path / "other"
    await two_backups(folder)
    await copied(folder, "one", other / "lts")
    await recover_store(check_path(other), QUIET, LocalFiles(), system_world())
    if life != "recovered":
        async with opened(other) as store:
            await confirm(store)
            await change(store, "c")
    if life == "backed up":
        journals = [other / f"lts/_system/containers/000{index}/journal" for index in range(2)]
        async with opened(other) as store:
            # Then all elements are those of backups there.
            with anyio.fail_after(scaled(60)):
                number = 0
                while any(len(list(journal.iterdir())) > 2 for journal in journals) or number < 3:
                    number += 1
                    await store.backup(f"its-own-{number}")
    before = fingerprint(other)
    with pytest.raises(StoreMismatch, match="Copy to another place"):
        await copied(folder, "two", other / "lts")
    assert fingerprint(other) == before


@pytest.mark.parametrize("flushes", [0, *extended(1, 2), 9])
async def test_p8_a_place_with_a_later_backup_of_another_history_is_refused(
    tmp_path: Path, flushes: int
) -> None:
    """Whether its newest element has a higher number, the same, or a lower one."""
    folder, place, other = tmp_path / "data", tmp_path / "place", tmp_path / "other"
    await two_backups(folder)
    await copied(folder, "one", place)
    await copied(folder, "two", place)
    await restored(other, "one", place)
    async with opened(other) as store:
        for number in range(flushes):
            await store.append("s#2", b"%d" % number)
            await store.flush()
        await store.backup("three")
    before = fingerprint(place)
    with pytest.raises(StoreMismatch, match="not of the history that this store has"):
        await copied(other, "three", place)
    assert fingerprint(place) == before


@pytest.mark.parametrize("is_removed", [*extended(False), True])
async def test_p8_copies_go_on_from_the_newest_backup_there(tmp_path: Path, is_removed: bool) -> None:
    """After it was restored, or if it was removed meanwhile from the store that it is of."""
    folder, place, other = tmp_path / "data", tmp_path / "place", tmp_path / "other"
    await two_backups(folder)
    await copied(folder, "one", place)
    await copied(folder, "two", place)
    if not is_removed:
        await restored(other, "two", place)
    source = folder if is_removed else other
    async with opened(source) as store:
        if is_removed:
            await store.remove_backup("two")
        await store.append("s#2", b"later")
        await store.backup("three")
        three = await contents(store)
    await copied(source, "three", place)
    await restored(tmp_path / "third", "three", place)
    async with opened(tmp_path / "third") as store:
        assert await contents(store) == three


@pytest.mark.parametrize(
    "way", ["recovered", "restored", *extended("recovered twice", "restored, then recovered")]
)
@pytest.mark.parametrize("is_flushed", [True, *extended(False)], ids=["flushed since", "not flushed since"])
async def test_p8_copies_go_on_after_a_recovery_of_the_same_store(
    tmp_path: Path, way: str, is_flushed: bool
) -> None:
    """Also if the newest backup in the place was removed from the store: it is of its history."""
    folder, place = tmp_path / "data", tmp_path / "place"
    await two_backups(folder)
    await copied(folder, "two", place)
    async with opened(folder) as store:
        await store.remove_backup("two")
    for step in way.split(", then "):
        for _ in range(2 if step.endswith("twice") else 1):
            await restored(folder, "one" if step == "restored" else "")
        if is_flushed:
            async with opened(folder) as store:
                await store.append("s#2", step.encode())
                await store.flush()
    await copied(folder, "one", place)
    async with opened(folder) as store:
        await store.append("s#2", b"later")
        await store.backup("three")
        three = await contents(store)
    await copied(folder, "three", place)
    await restored(tmp_path / "other", "three", place)
    async with opened(tmp_path / "other") as store:
        assert await contents(store) == three


async def test_r8_a_recovery_knows_the_logs_before_also_of_stores_that_were_never_opened(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as store:
        await fill(store)
        await store.flush()
    for _ in range(3):
        await restored(tmp_path, "")
    async with opened(tmp_path) as store:
        for index in range(store.containers):
            ended = await store.on_container(index, _ended_logs)
            assert len({each.log for each in ended}) == 3
            assert [each.n for each in ended] == sorted({each.n for each in ended})


async def test_r8_a_recovery_needs_no_run_of_the_logs_before(tmp_path: Path) -> None:
    """A confirmed store may have deleted it. It only knows less of the logs before."""
    await two_backups(tmp_path)
    await restored(tmp_path, "one")
    async with reader(tmp_path / "lts") as chunks:
        for index in range(2):
            newest, *older = (await read_chain(chunks, index)).elements
            kept = {run.name for run in newest.element.runs}
            for name in {run.name for each in older for run in each.element.runs} - kept:
                (tmp_path / "lts" / name).unlink()
    await restored(tmp_path, "")
    async with opened(tmp_path) as store:
        for index in range(store.containers):
            assert len(await store.on_container(index, _ended_logs)) == 2


async def _ended_logs(container: Container) -> tuple[EndedLog, ...]:
    return container.state.ended_logs


@pytest.mark.parametrize("flushes", [0, *extended(5)])
async def test_p8_two_stores_that_were_restored_from_one_backup_are_two_histories(
    tmp_path: Path, flushes: int
) -> None:
    """Both give the same epochs and the same names."""
    folder, first, second = tmp_path / "data", tmp_path / "first", tmp_path / "second"
    place, common = tmp_path / "place", tmp_path / "common"
    await two_backups(folder)
    await copied(folder, "one", place)
    for other, count in ((first, 1), (second, 1 + flushes)):
        await restored(other, "one", place)
        async with opened(other) as store:
            for number in range(count):
                await store.append("s#2", b"%d of %b" % (number, other.name.encode()))
                await store.flush()
            await store.backup(f"of-{other.name}")
    await copied(first, "of-first", common)
    before = fingerprint(common)
    with pytest.raises(StoreMismatch, match="not of the history that this store has"):
        await copied(second, "of-second", common)
    assert fingerprint(common) == before
    await copied(second, "of-second", place)


async def test_p8_a_clone_that_went_on_by_itself_is_another_history(tmp_path: Path) -> None:
    """It has the same log, and an element of the same number."""
    folder, clone, place = tmp_path / "data", tmp_path / "clone", tmp_path / "place"
    async with opened(folder) as store:
        await fill(store)
    shutil.copytree(folder, clone)
    for other in (folder, clone):
        async with opened(other) as store:
            await store.append("s#2", other.name.encode() * 10)
            await store.backup(other.name)
    await copied(folder, "data", place)
    before = fingerprint(place)
    for verify in (False, True):
        with pytest.raises(StoreMismatch, match="not of the history that this store has"):
            await copied(clone, "clone", place, verify=verify)
    assert fingerprint(place) == before


async def test_p8_a_clone_that_was_opened_less_often_is_another_history(tmp_path: Path) -> None:
    """It has the same log and higher numbers, and no element of the number in the place any more. Only the
    epoch there, above its own, shows that the element is not of its chain."""
    folder, clone, place = tmp_path / "data", tmp_path / "clone", tmp_path / "place"
    names = [next(f"s{n}" for n in range(99) if container_of(f"s{n}", 2) == index) for index in range(2)]
    async with opened(folder) as store:
        for name in names:
            await store.create_segment(name)
    shutil.copytree(folder, clone)
    for _ in range(3):
        async with opened(folder) as store:
            await store.append(names[0], b"data")
    async with opened(folder) as store:
        await store.backup("data")
    async with opened(clone) as store:
        for _ in range(12):
            for name in names:
                await store.append(name, b"clone")
            await store.flush()
        await store.backup("clone")
    await copied(folder, "data", place)
    before = fingerprint(place)
    with pytest.raises(StoreMismatch, match="Copy to another place"):
        await copied(clone, "clone", place)
    assert fingerprint(place) == before


@pytest.mark.parametrize(("recoveries", "flushes"), [(1, 0), (1, 9), (2, 9)])
async def test_p8_containers_that_go_on_from_storage_that_was_put_back_are_another_history(
    tmp_path: Path, recoveries: int, flushes: int
) -> None:
    """Each is recovered alone, so its log has the id of the one before (R11)."""
    folder, earlier, place = tmp_path / "data", tmp_path / "earlier", tmp_path / "place"
    names = [next(f"s{n}" for n in range(99) if container_of(f"s{n}", 2) == index) for index in range(2)]
    async with opened(folder) as store:
        for name in names:
            await store.create_segment(name)
        await store.flush()
    shutil.copytree(folder / "lts", earlier)
    async with opened(folder) as store:
        for name in names:
            await store.append(name, b"of the first history")
        await store.backup("first")
    await copied(folder, "first", place)
    shutil.rmtree(folder / "lts")
    earlier.rename(folder / "lts")
    for _ in range(recoveries):
        for index in range(2):
            await recover_container(check_path(folder), QUIET, LocalFiles(), system_world(), index)
        async with opened(folder) as store:
            for number in range(flushes):
                for name in names:
                    await store.append(name, b"%d" % number)
                await store.flush()
    async with opened(folder) as store:
        await store.backup("second")
    before = fingerprint(place)
    with pytest.raises(StoreMismatch, match="not of the history that this store has"):
        await copied(folder, "second", place)
    assert fingerprint(place) == before


@pytest.mark.parametrize("is_flushed", [True, *extended(False)], ids=["flushed since", "not flushed since"])
async def test_p8_copies_go_on_after_a_recovery_of_one_container(tmp_path: Path, is_flushed: bool) -> None:
    folder, place = tmp_path / "data", tmp_path / "place"
    await two_backups(folder)
    await copied(folder, "two", place)
    async with opened(folder) as store:
        await store.remove_backup("two")
    for _ in range(2):
        await recover_container(check_path(folder), QUIET, LocalFiles(), system_world(), 1)
        if is_flushed:
            async with opened(folder) as store:
                for number in range(5):
                    await store.append("s#2", b"%d" % number)
                    await store.flush()
    await copied(folder, "one", place)
    async with opened(folder) as store:
        await store.backup("three")
    await copied(folder, "three", place)


@pytest.mark.parametrize("prefix", ["_system/", "containers/0007/"])
async def test_p7_a_forged_backup_that_names_other_objects_as_chunks_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    def forged(self: StorageContext, *arguments: Any) -> None:
        make(self, *arguments)
        self.prefix = prefix

    make = StorageContext.__init__
    monkeypatch.setattr(StorageContext, "__init__", forged)
    await two_backups(tmp_path / "data")
    with pytest.raises(DataCorruption, match=f"it names {prefix}.* no chunk of container"):
        await copied(tmp_path / "data", "one", tmp_path / "place")
    assert not [name for name in fingerprint(tmp_path / "place") if f"/{prefix}0" in f"/{name}"]


async def test_p7_a_copy_that_was_cut_short_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of another backup; so whatever was written last is known to be copied."""
    folder, place = tmp_path / "data", tmp_path / "place"
    await two_backups(folder)
    put = FileSystemChunkStorage.create_with_content
    for name in ("_system/store", "_system/pins/one", "_system/containers/0000", "_system/containers/0001"):

        async def fail(self: FileSystemChunkStorage, chunk: str, data: Any, name: str = name) -> int:
            if chunk.startswith(f"{name}/journal") or chunk == name:
                raise Unavailable("killed")
            return await put(self, chunk, data)

        with monkeypatch.context() as broken:
            broken.setattr(FileSystemChunkStorage, "create_with_content", fail)
            with pytest.raises(Unavailable):
                await copied(folder, "one", place)
        shutil.copytree(place, tmp_path / "cut")
        await copied(folder, "two", tmp_path / "cut")
        shutil.rmtree(tmp_path / "cut")
    await copied(folder, "one", place)
    await copied(folder, "two", place)
