"""Moving a store: what it has afterwards, which of the two places can be opened, and what is refused (rules
E1 to E7)."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

from support.folders import chunk_files, flip_bit
from support.moved_stores import Site, check_moved, end_in_old_place, filled, list_unconfirmed, seen
from tierlog import (
    DataCorruption,
    InvalidArgument,
    StoreMismatch,
    Unavailable,
)
from tierlog.actors.container import ownership
from tierlog.actors.container.container import Container
from tierlog.actors.container.lts_boot import claim_chain
from tierlog.actors.folder.paths import check_path
from tierlog.actors.maintenance import migration
from tierlog.actors.maintenance.backup_copy import CopiedBackup, copy_backup
from tierlog.actors.store.folder_opening import system_world
from tierlog.actors.store.read_only import open_reader
from tierlog.actors.store.recover import recover_store
from tierlog.journal.manifest.chain import StoredElement, list_elements, read_chain
from tierlog.journal.operations.log_element import LogElement
from tierlog.storage_backends.base.chunk_storage import ChunkStorage
from tierlog.storage_backends.chunks.filesystem import FileSystemChunkReader
from tierlog.storage_backends.files.local import LocalFiles

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


async def test_e5_a_moved_store_is_the_same_store(site: Site) -> None:
    async with site.opened("old") as store:
        before = await filled(store)
        await store.backup("monday")
    done = await site.move("old", "new")
    assert (done.is_complete, done.keeps_chunks) == (True, False)
    assert done.copied_bytes == done.bytes > 0
    await site.is_refused("old")
    shutil.rmtree(site.path / "old")
    async with site.opened("new") as store:
        await check_moved(store, before)
        assert not any(each.problem for each in await store.backups())
        assert [each.name for each in await store.backups()] == ["monday"]
        after = await seen(store)
    async with site.opened("new") as store:
        assert await seen(store) == after
        assert await list_unconfirmed(store) == [None, None]
    assert sorted(path.name for path in (site.path / "new").iterdir()) == ["lts", "wal"]


@pytest.mark.extended
async def test_e5_a_backup_can_be_restored_after_the_move(site: Site) -> None:
    async with site.opened("old") as store:
        before = await filled(store)
        await store.backup("monday")
        await store.truncate_segment("s#0", 100)
    await site.move("old", "new")
    shutil.rmtree(site.path / "old")
    shutil.rmtree(site.path / "new" / "wal")
    await recover_store(check_path(site.path / "new"), site.settings, LocalFiles(), system_world(), "monday")
    async with site.opened("new") as store:
        assert await seen(store) == before


@pytest.mark.extended
async def test_e5_a_store_that_nobody_has_flushed_is_moved(site: Site) -> None:
    async with site.opened("old") as store:
        await store.create_segment("s")
    await site.move("old", "new")
    await site.move("new", "newer")
    await site.is_refused("new")
    async with site.opened("newer") as store:
        assert await store.list_segments() == ["s"]


async def test_e1_a_container_ends_with_all_of_it_flushed_and_creates_nothing_more(site: Site) -> None:
    async def end(container: Container) -> StoredElement:
        return await container.migrate("elsewhere")

    async def prove(container: Container) -> None:
        await container.ownership.prove_anew()

    async with site.opened("old") as store:
        await filled(store)
        index = store.container_of("s#0")
        ended = await store.on_container(index, end)
        assert (await store.segment_info("s#0")).flushed_length == 256 + 6 + 11
        assert ended.element.progress.cut > 0
        with pytest.raises(Unavailable, match="goes on at elsewhere"):
            await store.on_container(index, prove)
    chunks = FileSystemChunkReader(LocalFiles(), str(site.path / "old" / "lts"), system_world())
    await chunks.open()
    assert (await read_chain(chunks, index)).newest == ended.element
    await chunks.close()


async def test_e2_until_it_is_confirmed_the_old_place_goes_on(site: Site) -> None:
    """And what it does meanwhile is there after the move."""
    async with site.opened("old") as store:
        await filled(store)
    first = await site.move("old", "new", confirms=False)
    assert not first.is_complete
    with pytest.raises(StoreMismatch, match="is being moved to"):
        async with site.opened("new"):
            pass
    async with site.opened("old") as store:
        await store.append("s#0", bytes(1000))
        await store.delete_segment("a#1")
        await store.flush()
        before = await seen(store)
    done = await site.move("old", "new")
    # What was there is not copied again.
    assert 0 < done.copied_bytes < first.copied_bytes
    async with site.opened("new") as store:
        await check_moved(store, before)


@pytest.mark.extended
async def test_e6_the_old_store_may_go_on_while_it_is_copied(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backup keeps what is being copied."""
    async with site.opened("old") as store:
        await filled(store)

    async def copy_later(*arguments: Any, **more: Any) -> CopiedBackup:
        monkeypatch.undo()
        async with site.opened("old") as store:
            await store.append("s#0", bytes(100_000))
            await store.flush()
            await store.truncate_segment("s#0", 100_200)
            await store.delete_segment("a#1")
            await store.flush()
        return await copy_backup(*arguments, **more)

    monkeypatch.setattr(migration, "copy_backup", copy_later)
    assert not (await site.move("old", "new", confirms=False)).is_complete
    async with site.opened("old") as store:
        before = await seen(store)
    await site.move("old", "new")
    async with site.opened("new") as store:
        assert await seen(store) == before


async def test_a_backup_that_prepares_a_move_is_replaced_by_the_next_one(site: Site) -> None:
    async with site.opened("old") as store:
        await filled(store)
    for _ in range(3):
        await site.move("old", "new", confirms=False)
    async with site.opened("old") as store:
        assert len(await store.backups()) == 1
    await site.undo("old")
    async with site.opened("old") as store:
        assert await store.backups() == []


async def test_e3_a_move_that_is_not_complete_is_given_up(site: Site) -> None:
    async with site.opened("old") as store:
        before = await filled(store)
    await end_in_old_place(site)
    old, new = site.path / "old", site.path / "new"
    goes_on = (
        f"not complete: `tierlog migrate {old} --to {new} --confirm`.*`tierlog migrate {old} --undo` gives"
    )
    await site.is_refused("old", goes_on)
    await site.is_refused("old", goes_on, adopt=True)
    await site.undo("old")
    async with site.opened("old") as store:
        await check_moved(store, before)
        after = await seen(store)
    await site.move("old", "new")
    async with site.opened("new") as store:
        assert await seen(store) == after


async def test_e3_one_that_is_complete_is_not(site: Site) -> None:
    async with site.opened("old") as store:
        before = await filled(store)
    await site.move("old", "new")
    back = (
        f"was moved to .* cannot be undone: .*Then `tierlog migrate {site.path}/new --to PLACE` moves the st"
    )
    with pytest.raises(StoreMismatch, match=back):
        await site.undo("old")
    await site.is_refused("old", back)
    moved_away = r"has a store already: it is the one that was moved to \S*/new. Once .*, delete \S*/old/, or"
    with pytest.raises(InvalidArgument, match=moved_away):
        await site.move("new", "old")
    shutil.rmtree(site.path / "old")
    assert (await site.move("new", "old")).is_complete
    shutil.rmtree(site.path / "new")
    assert (await site.move("old", "new")).is_complete
    async with site.opened("new") as store:
        await check_moved(store, before)


@pytest.mark.extended
async def test_e3_who_cannot_claim_the_first_container_opens_no_other(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with site.opened("old") as store:
        before = await filled(store)
    await end_in_old_place(site)

    async def list_others(chunks: ChunkStorage, container: int, after: int = 0) -> list[int]:
        if container == 0:
            raise Unavailable("no answer")
        return await list_elements(chunks, container, after)

    journal = site.path / "old" / "lts" / "_system" / "containers" / "0001" / "journal"
    listed = sorted(journal.iterdir())
    monkeypatch.setattr(ownership, "list_elements", list_others)
    with pytest.raises(Unavailable):
        await site.undo("old")
    assert sorted(journal.iterdir()) == listed
    monkeypatch.undo()
    await site.is_refused("old")
    await site.undo("old")
    async with site.opened("old") as store:
        await check_moved(store, before)


@pytest.mark.extended
async def test_e3_without_the_new_place_an_operator_can_open_the_old_one(site: Site) -> None:
    """By what the documentation says: the decision is removed by hand."""
    async with site.opened("old") as store:
        before = await filled(store)
    await site.move("old", "new")
    shutil.rmtree(site.path / "new")
    for journal in (site.path / "old" / "lts" / "_system" / "containers").glob("*/journal"):
        max(journal.iterdir()).unlink()
    await site.undo("old")
    async with site.opened("old") as store:
        await check_moved(store, before)


async def test_e3_of_a_move_and_who_gives_it_up_one_wins(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The chain of the first container decides, also if both are at it."""
    async with site.opened("old") as store:
        before = await filled(store)

    async def undo_first(chunks: ChunkStorage, container: int, op: LogElement) -> None:
        monkeypatch.undo()
        await site.undo("old")
        await claim_chain(chunks, container, op)

    monkeypatch.setattr(migration, "claim_chain", undo_first)
    with pytest.raises(StoreMismatch, match="somebody created"):
        await site.move("old", "new")
    async with site.opened("old") as store:
        await check_moved(store, before)
    await site.move("old", "new")
    await site.is_refused("old")


async def test_e2_neither_an_older_log_nor_a_recovery_brings_it_back(site: Site) -> None:
    old = site.path / "old"
    async with site.opened("old") as store:
        await filled(store)
    shutil.copytree(old / "wal", site.path / "kept")
    await site.move("old", "new")
    shutil.rmtree(old / "wal")
    with pytest.raises(StoreMismatch, match="was moved to"):
        await recover_store(check_path(old), site.settings, LocalFiles(), system_world())
    shutil.copytree(site.path / "kept", old / "wal")
    await site.is_refused("old", adopt=True)


@pytest.mark.parametrize("is_older", [False, True])
async def test_e2_a_view_of_the_old_place_is_refused_too(site: Site, is_older: bool) -> None:
    """It would show what is old, without a word; also of logs from before the move."""
    wal, kept = site.path / "old" / "wal", site.path / "kept"
    async with site.opened("old") as store:
        await filled(store)
    shutil.copytree(wal, kept)
    await site.move("old", "new")
    if is_older:
        shutil.rmtree(wal)
        shutil.move(kept, wal)
    async with open_reader(site.path / "old") as view:
        with pytest.raises(StoreMismatch, match="was moved to"):
            await view.read("s#0", 0, 10)


async def test_e4_a_move_that_was_cut_off_when_it_was_decided_goes_on(site: Site) -> None:
    async with site.opened("old") as store:
        before = await filled(store)
    await end_in_old_place(site, after=1)
    old, new = site.path / "old", site.path / "new"
    await site.is_refused("old", f"interrupted, `tierlog migrate {old} --to {new}`, with.* completes it")
    with pytest.raises(StoreMismatch, match="was moved to"):
        await site.undo("old")
    with pytest.raises(StoreMismatch, match="was moved to"):
        await site.move("old", "other")
    await site.move("old", "new")
    async with site.opened("new") as store:
        await check_moved(store, before)


async def test_e7_a_decided_move_goes_on_though_the_machine_has_another_name(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the container of a job has that was started again. Before it is decided, the move begins anew."""
    async with site.opened("old") as store:
        before = await filled(store)
    await end_in_old_place(site)
    with monkeypatch.context() as patch:
        patch.setattr(socket, "gethostname", lambda: "other")
        with pytest.raises(StoreMismatch, match="--undo` gives it up"):
            await site.move("old", "new")
    await end_in_old_place(site, after=1)
    monkeypatch.setattr(socket, "gethostname", lambda: "renamed")
    assert (await site.move("old", "new")).is_complete
    await site.is_refused("old")
    async with site.opened("new") as store:
        await check_moved(store, before)
        assert await store.backups() == []
    shutil.rmtree(site.path / "old")
    assert (await site.move("new", "old")).is_complete


@pytest.mark.extended
async def test_e7_a_complete_move_may_be_repeated(site: Site) -> None:
    async with site.opened("old") as store:
        before = await filled(store)
    await site.move("old", "new")
    async with site.opened("new") as store:
        await store.append("s#0", b"later")
        assert (await site.move("old", "new")).is_complete
        await store.append("s#0", b"and later")
    async with site.opened("new") as store:
        assert (await store.segment_info("s#0")).length == before["s#0"].length + 14


async def test_e2_a_move_of_a_store_that_was_moved_away_names_its_place_whatever_is_at_the_other(
    site: Site,
) -> None:
    async with site.opened("old") as store:
        await filled(store)
    async with site.opened("other"):
        pass
    await site.move("old", "new")
    await site.move("new", "newer")
    for target in ("empty", "other", "newer"):
        with pytest.raises(StoreMismatch, match=r"container 0 was moved to \S*/new: open the store there"):
            await site.move("old", target)


# --- refusals ---------------------------------------------------------------------------------------


async def test_e6_a_place_with_anything_else_is_refused(site: Site) -> None:
    async with site.opened("old") as store:
        before = await filled(store)
    async with site.opened("other"):
        pass
    (site.path / "files").mkdir()
    (site.path / "files" / "letter.txt").write_text("x")
    (site.path / "chunks" / "lts").mkdir(parents=True)
    (site.path / "chunks" / "lts" / "file").write_text("x")
    for name, message in {
        "other": "has a store already",
        "files": "holds other files",
        "chunks": "has other objects|holds other files",
        "old": "the same place",
        "old/within": "the same place",
        ".": "the same place",
    }.items():
        with pytest.raises(InvalidArgument, match=message):
            await site.move("old", name)
    with pytest.raises(InvalidArgument, match="there is no store"):
        await site.move("missing", "new")
    with pytest.raises(InvalidArgument, match="is a part of"):
        await site.move("old", "new", chunks="keep")
    assert not (site.path / "new").exists()
    async with site.opened("old") as store:
        await check_moved(store, before)


@pytest.mark.extended
async def test_e6_the_target_of_another_move_is_refused(site: Site) -> None:
    for name in ("old", "other"):
        async with site.opened(name) as store:
            await filled(store)
    await site.move("old", "new", confirms=False)
    with pytest.raises(StoreMismatch, match="is being moved to .* delete .*new"):
        await site.move("other", "new")
    await site.move("old", "new")


async def test_e6_a_place_with_a_damaged_mark_is_named(site: Site) -> None:
    async with site.opened("old") as store:
        before = await filled(store)
    await site.move("old", "new", confirms=False)
    mark = site.path / "new" / "lts" / "_system" / "migration"
    flip_bit(mark, 10)
    undo = f"name another place, after `tierlog migrate {site.path}/old --undo`"
    for confirms in (False, True):
        with pytest.raises(InvalidArgument, match=f"{mark}, the mark of a move, is damaged .*{undo}"):
            await site.move("old", "new", confirms=confirms)
    assert await site.undo("old")
    await site.move("old", "other")
    async with site.opened("other") as store:
        await check_moved(store, before)


@pytest.mark.parametrize("inner", ["x", "lts/x"])
async def test_e6_inside_the_target_of_a_move_no_store_is_made(site: Site, inner: str) -> None:
    """It would keep the move from being completed, and be deleted with the target if that is given up."""
    async with site.opened("old") as store:
        await filled(store)
    await site.move("old", "new", confirms=False)
    with pytest.raises(InvalidArgument, match="is inside the (target of a move|long-term storage) .*new"):
        async with site.opened(f"new/{inner}"):
            pass
    assert (await site.move("old", "new")).is_complete


async def test_a_store_that_is_open_is_not_moved(site: Site) -> None:
    async with site.opened("old") as store:
        before = await filled(store)
        with pytest.raises(InvalidArgument, match="has .* open|is open"):
            await site.move("old", "new")
        await check_moved(store, before)


@pytest.mark.extended
async def test_a_damaged_store_is_not_moved(site: Site) -> None:
    async with site.opened("old") as store:
        await filled(store)
        await store.flush()
    chunk = max(chunk_files(site.path / "old"), key=lambda path: path.stat().st_size)
    flip_bit(chunk, 10)
    with pytest.raises(DataCorruption, match="checksum"):
        await site.move("old", "new")
    flip_bit(chunk, 10)
    await site.move("old", "new")
    await site.is_refused("old")


async def test_e6_a_move_of_a_store_that_is_open_leaves_nothing_in_the_new_place(site: Site) -> None:
    async with site.opened("old"):
        for confirms in (False, True):
            with pytest.raises(InvalidArgument, match="is open"):
                await site.move("old", "new", confirms=confirms)
        assert not (site.path / "new").exists()
    async with site.opened("new"):
        pass


async def test_e7_while_a_move_is_prepared_no_other_place_is_taken(site: Site) -> None:
    async with site.opened("old") as store:
        await filled(store)
    await site.move("old", "new", confirms=False)
    with pytest.raises(InvalidArgument, match=r"to another place than \S*/other .*the same --to.*--undo"):
        await site.move("old", "other", confirms=False)
    assert not (site.path / "other").exists()
    assert await site.undo("old")
    await site.move("old", "other")
    async with site.opened("other"):
        pass


async def test_without_a_move_there_is_none_to_undo(site: Site) -> None:
    async with site.opened("old") as store:
        before = await filled(store)
    assert not await site.undo("old")
    await end_in_old_place(site)
    assert await site.undo("old")
    assert not await site.undo("old")
    async with site.opened("old") as store:
        await check_moved(store, before)
