"""Recovery from long-term storage alone: what the store has afterwards, what is refused, and what happens to
owners of the lost logs (rules R1 to R7)."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import attrs
import pytest

from chaos_parts.processes import python_path
from support.container_world import read_all
from support.folders import chunk_files, fingerprint, flip_bit
from support.patience import scaled
from support.stores_of_all_kinds import contents, during_a_flush, fill
from tierlog import (
    ChangesIncomplete,
    DataCorruption,
    InvalidArgument,
    SegmentStore,
    StagedPart,
    StoreConfig,
    StoreMismatch,
    TransactionState,
    Unavailable,
    open_lts,
    open_store,
)
from tierlog.actors.container.container import Container
from tierlog.actors.container.lts_boot import claim_chain, read_boot
from tierlog.actors.flush.writer import WriterOptions
from tierlog.actors.folder.identity import StoreIdentity, read_identity
from tierlog.actors.folder.local_coordination import LocalCoordination
from tierlog.actors.folder.paths import check_path, run_program
from tierlog.actors.maintenance.lts import verify_lts
from tierlog.actors.settings.configuration import GcConfig, WriterConfig
from tierlog.actors.store.folder_opening import system_world
from tierlog.actors.store.recover import RecoveredStore, recover_store
from tierlog.actors.supervisor.term import claim_term
from tierlog.journal.manifest.element import Element
from tierlog.journal.manifest.store_record import ensure_store_record
from tierlog.storage_backends.base.ids import epoch_of
from tierlog.storage_backends.chunks.filesystem import FileSystemChunkStorage
from tierlog.storage_backends.files.local import LocalFiles
from tierlog.storage_backends.segments.records.unconfirmed import Reason, UnconfirmedRecord

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]

QUIET = StoreConfig(writer=WriterConfig(flush_age=3600.0), gc=GcConfig(delay=0.0))
JUMP = 1 << 20


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that stops for a second makes no segment late: what a test flushes is in one cycle."""
    patient = partial(WriterOptions, segment_deadline=1000.0)
    monkeypatch.setattr("tierlog.actors.store.opening.WriterOptions", patient)


@asynccontextmanager
async def opened(folder: Path, **arguments: Any) -> AsyncIterator[SegmentStore]:
    async with open_store(folder, containers=2, config=QUIET, **arguments) as store:
        yield store


async def recovered(folder: Path) -> RecoveredStore:
    return await recover_store(check_path(folder), QUIET, LocalFiles(), system_world())


def lose_logs(folder: Path, kept: str = "") -> None:
    """With ``kept``, somebody has them."""
    if kept:
        (folder.parent / kept).mkdir()
        (folder / "wal").rename(folder.parent / kept / "wal")
    else:
        shutil.rmtree(folder / "wal")


async def make_store(folder: Path) -> None:
    """Everything is published."""
    async with opened(folder) as store:
        await fill(store)
        await store.flush()
        # With all that the first flush left to be done.
        await store.flush()


async def identity_of(folder: Path) -> StoreIdentity:
    wal = check_path(folder).wal
    found = await run_program(LocalFiles(), read_identity(wal), wal)
    assert found is not None
    return found


async def test_r1_a_store_is_recovered_as_of_its_last_full_flush(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    await make_store(folder)
    async with opened(folder) as store:
        before = await contents(store)
        await store.append("s#2", b"not flushed")
        await store.delete_segment("s#4")
        await store.create_segment("new")
        await store.table("table").put(b"key", b"other")
        await store.begin_transaction("s#5", "open")
    lose_logs(folder)

    done = await recovered(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["lts", "wal"]
    assert [each.cycle > 0 for each in done.containers] == [True, True]
    assert done.segments == len(before["names"])
    async with opened(folder) as store:
        assert await contents(store) == before
        length = (await store.segment_info("s#2")).length
        await store.append("s#2", bytes(100), writer_id="w", event_number=0)  # a duplicate
        assert await store.append("s#2", b"more", writer_id="w", event_number=1) == length
        await store.create_segment("new")
        await store.flush()
        after = await contents(store)
    async with opened(folder) as store:
        assert await contents(store) == after


async def test_r1_a_container_that_was_flushed_without_segments_is_recovered_so(tmp_path: Path) -> None:
    """Also if the next owner has created one, which its ``Open`` counts and no cycle has published."""
    folder = tmp_path / "data"
    async with opened(folder) as store:
        await store.flush()
    async with opened(folder) as store:
        await store.create_segment("s")
    async with opened(folder):
        pass
    lose_logs(folder)

    done = await recovered(folder)
    assert ([each.cycle for each in done.containers], done.segments) == ([1, 1], 0)
    async with opened(folder) as store:
        assert await store.list_segments() == []


async def test_a_supervisor_of_the_lost_logs_left_its_term(tmp_path: Path) -> None:
    """Rule V1: a register of other logs is refused, so it goes with them."""
    folder = tmp_path / "data"
    coordination = LocalCoordination(LocalFiles(), check_path(folder), system_world().new_id)
    await make_store(folder)
    async with claim_term(coordination, await identity_of(folder), b"a" * 16) as term:
        assert term.number == 1
    lose_logs(folder)
    await recovered(folder)

    async with claim_term(coordination, await identity_of(folder), b"b" * 16) as term:
        assert term.number == 1


_OPENED = """
import sys, anyio, tierlog
async def main():
    async with tierlog.open_store(sys.argv[1]) as store:
        await store.append("s#2", b"acked")
        print("open\\n", end="", flush=True)
        sys.stdin.read()
anyio.run(main)
"""


async def test_r5_a_process_whose_logs_were_moved_away_is_noticed(tmp_path: Path) -> None:
    """It would go on to ack what the recovered store does not have."""
    folder = tmp_path / "data"
    await make_store(folder)
    command = [sys.executable, "-c", _OPENED, str(folder)]
    async with await anyio.open_process(command, env=python_path(), stderr=None) as process:
        assert process.stdout is not None
        assert await process.stdout.receive() == b"open\n"
        (folder / "wal").rename(tmp_path / "moved")
        refusal = f"is open in process {process.pid} .*stop that process first, or put wal/ back"
        with pytest.raises(InvalidArgument, match=refusal):
            await recovered(folder)
        with pytest.raises(InvalidArgument, match=refusal):
            async with opened(folder, recover_from_lts=True):
                pass
        assert sorted(path.name for path in folder.iterdir()) == ["lts", "owners"]
        process.kill()
    await recovered(folder)


async def test_r1_a_store_is_recovered_again_and_again(tmp_path: Path) -> None:
    await make_store(tmp_path)
    async with opened(tmp_path) as store:
        before = await contents(store)
    for _ in range(3):
        lose_logs(tmp_path)
        await recovered(tmp_path)
    async with opened(tmp_path) as store:
        assert await contents(store) == before
        await store.append("s#2", b"more")
        await store.flush()
        before = await contents(store)
    lose_logs(tmp_path)
    await recovered(tmp_path)
    async with opened(tmp_path) as store:
        assert await contents(store) == before


async def test_r1_a_container_may_begin_with_an_earlier_element_whose_runs_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a pin keeps them."""
    keeping = attrs.evolve(QUIET, gc=GcConfig(delay=3600.0))
    async with open_store(tmp_path, containers=1, config=keeping) as store:
        await fill(store)
        await store.flush()
        await store.flush()
        before = await contents(store)
        earlier = newest_element(tmp_path)
        await store.delete_segment("s#4")
        await store.append("s#2", b"later")
        await store.table("table").put(b"key", b"later")
        await store.flush()
        highest = newest_element(tmp_path).progress.highest_cycle
    lose_logs(tmp_path)
    monkeypatch.setattr(
        "tierlog.actors.store.recover.read_boot",
        lambda index, newest, chosen, *others: read_boot(index, newest, earlier, *others),
    )
    done = await recovered(tmp_path)
    assert [each.cycle for each in done.containers] == [earlier.progress.cycle]
    async with open_store(tmp_path, config=keeping) as store:
        assert await contents(store) == before
        await store.append("s#2", b"other")
        await store.flush()
        after = await contents(store)
    assert newest_element(tmp_path).progress.cycle == highest + 1
    monkeypatch.undo()
    lose_logs(tmp_path)
    await recovered(tmp_path)
    async with open_store(tmp_path, config=keeping) as store:
        assert await contents(store) == after


def newest_element(folder: Path) -> Element:
    name = max((folder / "lts/_system/containers/0000/journal").iterdir())
    return Element.decode(name.read_bytes())


async def test_r4_an_owner_of_the_lost_logs_is_refused_where_there_was_no_element(tmp_path: Path) -> None:
    """It may have served while long-term storage was down, so its numbers are not used again."""
    folder, kept, name = tmp_path / "data", tmp_path / "kept", "s#2"
    async with opened(folder) as store:
        await store.create_segment(name)
        old = (await store.segment_info(name)).segment_id
    shutil.rmtree(folder / "lts/_system/containers")
    lose_logs(folder, "kept")
    done = await recovered(folder)
    assert [each.element > 0 for each in done.containers] == [False, False]
    with pytest.raises(StoreMismatch, match="claimed with element 1"):
        async with other_owner(folder, kept) as zombie:
            await zombie.flush()
    async with opened(folder) as store:
        await store.create_segment(name)
        assert epoch_of((await store.segment_info(name)).segment_id) > epoch_of(old) + JUMP


async def test_a_container_that_was_never_flushed_is_recovered_empty(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await store.create_segment("a")
    shutil.rmtree(tmp_path / "lts/_system/containers/0001/journal")
    lose_logs(tmp_path)
    done = await recovered(tmp_path)
    assert [(each.element > 0, each.cycle, each.segments) for each in done.containers] == [
        (True, 0, 0),
        (False, 0, 0),
    ]
    async with opened(tmp_path) as store:
        assert await store.list_segments() == []
        await store.create_segment("a")
        await store.flush()


async def test_r4_epochs_and_versions_are_far_above_all_that_the_lost_logs_used(tmp_path: Path) -> None:
    await make_store(tmp_path)
    async with opened(tmp_path) as store:
        old = (await store.segment_info("s#2")).segment_id
        seen = (await store.table("table").changes()).version
    lose_logs(tmp_path)
    await recovered(tmp_path)
    async with opened(tmp_path) as store:
        await store.create_segment("new#2")
        assert epoch_of((await store.segment_info("new#2")).segment_id) > epoch_of(old) + JUMP
        await store.table("table").put(b"key", b"2")
        assert (await store.table("table").changes()).version > seen + JUMP // 2
        with pytest.raises(ChangesIncomplete):
            await store.table("table").changes(since=seen)


async def test_r6_the_containers_are_unconfirmed_until_an_operator_confirms(tmp_path: Path) -> None:
    await make_store(tmp_path)
    lose_logs(tmp_path)
    await recovered(tmp_path)
    for _ in range(2):
        async with opened(tmp_path) as store:
            for index in range(store.containers):
                record = await store.on_container(index, unconfirmed)
                assert record is not None
                assert record.reason is Reason.RESTORED


async def unconfirmed(container: Container) -> UnconfirmedRecord | None:
    return container.confirmation.unconfirmed


async def test_r6_nothing_is_deleted_that_only_the_lost_logs_knew_until_an_operator_confirms(
    tmp_path: Path,
) -> None:
    await make_store(tmp_path)
    async with opened(tmp_path) as store:
        # A part of a flush: published by no element.
        await store.append("s#2", bytes(300_000))
    config = StoreConfig(writer=WriterConfig(flush_age=3600.0, flush_bytes=65_536), gc=GcConfig(delay=0.0))
    async with open_store(tmp_path, config=config) as store:
        with anyio.fail_after(scaled(30)):
            while (await store.segment_info("s#2")).flushed_length < 300_000:
                await store.append("s#2", bytes(70_000))
                await anyio.sleep(0.01)
    lose_logs(tmp_path)
    before = set(chunk_files(tmp_path))
    await recovered(tmp_path)
    for _ in range(2):
        async with opened(tmp_path) as store:
            await store.append("s#4", b"more")
            await store.flush()
    assert set(chunk_files(tmp_path)) >= before
    async with opened(tmp_path) as store:
        for index in range(2):
            await store.on_container(index, lambda container: container.confirmation.confirm())
        with anyio.fail_after(scaled(30)):
            while set(chunk_files(tmp_path)) >= before:
                await store.append("s#4", b".")
                await store.flush()


@asynccontextmanager
async def other_owner(folder: Path, kept: Path, **arguments: Any) -> AsyncIterator[SegmentStore]:
    """Somebody who has the lost logs opens them beside the same long-term storage."""
    chunks = FileSystemChunkStorage(LocalFiles(), f"{folder}/lts", system_world())
    async with open_store(kept, config=QUIET, storage=chunks, **arguments) as store:
        yield store


async def test_r5_an_owner_of_the_lost_logs_is_refused_afterwards(tmp_path: Path) -> None:
    folder, kept = tmp_path / "data", tmp_path / "kept"
    await make_store(folder)
    lose_logs(folder, "kept")
    async with other_owner(folder, kept) as zombie:
        await recovered(folder)
        await zombie.append("s#2", b"lost")
        with pytest.raises((StoreMismatch, Unavailable)):
            await zombie.flush()
    with pytest.raises(StoreMismatch):
        async with other_owner(folder, kept):
            pass
    async with opened(folder) as store:
        await store.append("s#2", b"kept")
        await store.flush()


async def test_r5_a_recovery_ends_if_an_owner_of_the_lost_logs_goes_on_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, kept = tmp_path / "data", tmp_path / "kept"
    await make_store(folder)
    lose_logs(folder, "kept")

    async def after_the_owner(*arguments: Any) -> bool:
        async with other_owner(folder, kept) as zombie:
            await zombie.append("s#2", b"newer")
            await zombie.flush()
        return await ensure_store_record(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr("tierlog.actors.store.recover.ensure_store_record", after_the_owner)
        with pytest.raises(StoreMismatch, match="an owner of the store is alive"):
            await recovered(folder)
    assert [path.name for path in folder.iterdir()] == ["lts"]
    await recovered(folder)
    async with opened(folder) as store:
        assert (await store.read("s#2", 0, 1000)).endswith(b"newer")


async def test_r5_an_owner_that_ended_a_recovery_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is shut out of the containers that were claimed before: its folder can be adopted."""
    folder, kept = tmp_path / "data", tmp_path / "kept"
    await make_store(folder)
    lose_logs(folder, "kept")
    async with other_owner(folder, kept) as owner:

        async def after_the_owner(chunks: Any, index: int, claim: Any) -> None:
            if index == 1:
                await owner.on_container(1, prove)
            await claim_chain(chunks, index, claim)

        monkeypatch.setattr("tierlog.actors.store.recover.claim_chain", after_the_owner)
        with pytest.raises(StoreMismatch, match="an owner of the store is alive"):
            await recovered(folder)
        before = await contents(owner)
        with pytest.raises((StoreMismatch, Unavailable)):
            await owner.on_container(0, prove)
    with pytest.raises(StoreMismatch):
        async with other_owner(folder, kept):
            pass
    async with other_owner(folder, kept, adopt=True) as owner:
        assert await contents(owner) == before
        await owner.flush()


async def prove(container: Container) -> None:
    await container.ownership.prove_anew()


async def test_r7_a_recovery_that_fails_at_its_end_leaves_no_store_and_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_store(tmp_path)
    async with opened(tmp_path) as store:
        before = await contents(store)
    lose_logs(tmp_path)
    fsync = os.fsync

    def fail(fd: int) -> None:
        if (tmp_path / "wal").exists() and os.path.samestat(os.fstat(fd), os.stat(tmp_path)):
            raise OSError(errno.EIO, "the sync failed")
        fsync(fd)

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", fail)
        with pytest.raises(Unavailable, match="the sync failed"):
            await recovered(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["lts"]
    await recovered(tmp_path)
    async with opened(tmp_path) as store:
        assert await contents(store) == before


async def refused(folder: Path, message: str) -> None:
    """Nothing is changed."""
    before = fingerprint(folder)
    with pytest.raises(DataCorruption, match=message):
        await recovered(folder)
    assert fingerprint(folder) == before


async def test_r3_a_segment_that_changed_during_the_flush_is_recovered_as_of_its_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "data"
    async with opened(folder) as store:
        await store.create_segment("target")
        await store.append("target", b"before")
        during_a_flush(monkeypatch, lambda: store.append("target", b"after"))
        await store.flush()
        shutil.copytree(folder / "lts", tmp_path / "early" / "lts")
        await store.flush()
    lose_logs(folder)
    for recovered_folder, content in ((tmp_path / "early", b"before"), (folder, b"beforeafter")):
        await recovered(recovered_folder)
        async with opened(recovered_folder) as store:
            assert await store.read("target", 0, 100) == content


async def test_r3_an_open_transaction_is_recovered_and_can_be_committed(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        for name in ("s", "other"):
            await store.create_segment(name)
        await store.append("s", b"first ")
        await store.begin_transaction("s", "t", lease=60)
        staged = await store.stage_segment("s", "t", "0")
        await store.append(staged, b"staged")
        await store.begin_transaction("other", "aborted")
        await store.abort_transaction("other", "aborted")
        await store.flush()
        await store.append(staged, b" and lost")
    lose_logs(tmp_path)
    await recovered(tmp_path)
    for _ in range(2):
        async with opened(tmp_path) as store:
            info = await store.transaction_info("s", "t")
            assert (info.state, info.staged) == (TransactionState.OPEN, (StagedPart(staged, 6),))
            assert 0 < info.expires_in < 60.001
            assert (await store.transaction_info("other", "aborted")).state is TransactionState.ABORTED
    async with opened(tmp_path) as store:
        await store.commit_transaction("s", "t", [StagedPart(staged, 6)])
        await store.flush()
        assert await read_all(store, "s") == b"first staged"
        assert await store.list_segments() == ["other", "s"]


async def test_r2_a_damaged_newest_element_is_refused(tmp_path: Path) -> None:
    await make_store(tmp_path)
    lose_logs(tmp_path)
    newest = max((tmp_path / "lts/_system/containers/0001/journal").iterdir())
    flip_bit(newest, 50)
    await refused(tmp_path, f"{newest.name}")


async def test_r2_a_chain_of_two_histories_is_refused(tmp_path: Path) -> None:
    await make_store(tmp_path)
    lose_logs(tmp_path)
    *_, older, newest = sorted((tmp_path / "lts/_system/containers/0001/journal").iterdir())
    content = older.read_bytes()
    # An element of the same number that another owner made.
    older.write_bytes(attrs.evolve(Element.decode(content), time_ms=1).encode())
    await refused(tmp_path, "another history went on")
    # One that is damaged may as well have been deleted.
    older.write_bytes(content)
    flip_bit(older, 50)
    await recovered(tmp_path)
    assert newest.exists()


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
async def test_r2_a_newest_element_that_is_no_file_is_refused(tmp_path: Path, kind: str) -> None:
    await make_store(tmp_path)
    lose_logs(tmp_path)
    *_, newest = sorted((tmp_path / "lts/_system/containers/0001/journal").iterdir())
    moved = newest.rename(tmp_path / "moved")
    if kind == "link":
        newest.symlink_to(moved)
    elif kind == "pipe":
        os.mkfifo(newest)
    else:
        newest.mkdir()
    name = str(newest.relative_to(tmp_path / "lts"))
    with pytest.raises(DataCorruption) as refusal:
        await recovered(tmp_path)
    assert refusal.value.file == name
    async with open_lts(tmp_path) as view:
        [damaged] = [each for each in (await verify_lts(view)).containers if each.problems]
    assert [each.name for each in damaged.problems] == [name]
    newest.unlink() if kind != "folder" else newest.rmdir()
    moved.rename(newest)
    await recovered(tmp_path)


async def test_r2_the_journal_of_another_container_is_refused(tmp_path: Path) -> None:
    """Its numbers and CRCs go on from one another, so the container would become a copy of the other one."""
    await make_store(tmp_path)
    lose_logs(tmp_path)
    journals = [tmp_path / f"lts/_system/containers/{index:04d}/journal" for index in range(2)]
    shutil.rmtree(journals[0])
    shutil.copytree(journals[1], journals[0])
    await refused(tmp_path, "no run of this container")
    async with open_lts(tmp_path) as view:
        assert {each.container for each in (await verify_lts(view)).containers if each.problems} == {0}


async def test_a_damaged_run_is_refused(tmp_path: Path) -> None:
    await make_store(tmp_path)
    lose_logs(tmp_path)
    for run in (tmp_path / "lts/_system/containers").glob("*/runs/*"):
        flip_bit(run, 20)
    await refused(tmp_path, "block")


async def test_a_folder_with_logs_or_without_long_term_storage_is_left_alone(tmp_path: Path) -> None:
    await make_store(tmp_path / "data")
    (tmp_path / "empty").mkdir()
    for folder, message in (
        ("data", "already has the logs"),
        ("empty", "has no lts/"),
        ("none", "has no lts/"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            await recovered(tmp_path / folder)
    assert not list((tmp_path / "empty").iterdir())
