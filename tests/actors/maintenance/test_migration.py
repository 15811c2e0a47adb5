"""Moving a store: what it has afterwards, which of the two places can be opened, and what is refused (rules
E1 to E7)."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest

from support.folders import chunk_files, flip_bit
from support.ledger_stores import in_memory
from support.s3_server import BUCKET, S3Server
from support.stores import config
from support.stores_of_all_kinds import contents
from tierlog import (
    AttributeUpdate,
    ConfigError,
    DataCorruption,
    InvalidArgument,
    NotOwner,
    OutcomeUnknown,
    SegmentStore,
    StoreConfig,
    StoreMismatch,
    TransactionState,
    Unavailable,
    open_store,
)
from tierlog.actors.container import ownership
from tierlog.actors.container.container import Container
from tierlog.actors.container.lts_boot import LtsBoot, claim_chain, read_boot
from tierlog.actors.folder.identity import StoreIdentity
from tierlog.actors.folder.paths import check_path
from tierlog.actors.maintenance import migration
from tierlog.actors.maintenance.backup_copy import CopiedBackup, copy_backup
from tierlog.actors.maintenance.migration import Migration, migrate, undo
from tierlog.actors.maintenance.migration_places import MigrationPlace, make_place
from tierlog.actors.settings.configuration import ChunkCacheConfig, S3Config, S3LogConfig
from tierlog.actors.store.opening import system_world
from tierlog.actors.store.read_only import open_reader
from tierlog.actors.store.recover import recover_store
from tierlog.journal.coordination.contract import Coordination
from tierlog.journal.manifest.chain import StoredElement, list_elements, read_chain
from tierlog.journal.operations.log_element import LogElement
from tierlog.storage_backends.base.chunk_storage import ChunkStorage
from tierlog.storage_backends.chunks.filesystem import FileSystemChunkReader
from tierlog.storage_backends.files.local import LocalFiles

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]


@asynccontextmanager
async def nobody_serves(coordination: Coordination, identity: StoreIdentity) -> AsyncIterator[None]:
    yield


@attrs.frozen
class Site:
    """Folders, and the bucket that they share, if there is one."""

    path: Path
    server: S3Server | None = None

    @property
    def settings(self) -> StoreConfig:
        if self.server is None:
            return config(chunk_cache=ChunkCacheConfig(path=str(self.path / "cache")))
        return config(
            s3=S3Config(endpoint=self.server.url),
            chunk_cache=ChunkCacheConfig(path=str(self.path / "cache")),
            s3_log=S3LogConfig(pace=0.0),
        )

    def where(self, name: str) -> str:
        """A place: in the bucket or on BookKeeper if the name says so."""
        if name.startswith("ledgers"):
            return f"bookkeeper://zk1:2181/stores/{name}"
        return f"s3://{BUCKET}/{name}" if name.startswith("bucket") else str(self.path / name)

    def with_chunks(self, name: str) -> StoreConfig:
        return attrs.evolve(self.settings, chunks=self.where(name))

    def remove(self, prefix: str) -> None:
        assert self.server is not None
        for key in [key for key in self.server.objects() if key.startswith(prefix)]:
            self.server.remove(key)

    def copy(self, source: str, target: str) -> None:
        assert self.server is not None
        for key, data in self.server.objects().items():
            if key.startswith(source):
                self.server.put(target + key.removeprefix(source), data)

    def put(self, key: str) -> None:
        assert self.server is not None
        self.server.put(key, b"x")

    def place(self, name: str) -> MigrationPlace:
        return make_place(self.where(name), self.settings, LocalFiles(), system_world(), nobody_serves)

    @asynccontextmanager
    async def opened(self, name: str, **arguments: Any) -> AsyncIterator[SegmentStore]:
        arguments = {"config": self.settings, "containers": 2, **arguments}
        async with open_store(self.where(name), **arguments) as store:
            yield store

    async def move(self, source: str, target: str, *, confirms: bool = True, **more: Any) -> Migration:
        world = system_world()
        return await migrate(self.place(source), self.place(target), world, confirms=confirms, **more)

    async def undo(self, source: str) -> None:
        await undo(self.place(source))

    async def is_refused(self, name: str, message: str = "was moved to", **arguments: Any) -> None:
        with pytest.raises(StoreMismatch, match=message):
            async with self.opened(name, **arguments):
                pass


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


async def filled(store: SegmentStore) -> dict[str, Any]:
    """A small store with something of everything; part of it is not flushed."""
    await store.create_segment("s#0")
    await store.append("s#0", bytes(range(256)), writer_id="w", event_number=0)
    await store.create_segment("a#1")
    await store.create_segment("s#1")
    await store.append("s#1", b"merged")
    await store.seal_segment("s#1")
    await store.merge_segments("s#0", ["s#1"])
    await store.create_table("table")
    await store.table("table").put(b"key", b"value")
    await store.begin_transaction("s#0", "open")
    await store.append(await store.stage_segment("s#0", "open", "0"), b"staged")
    await store.flush()
    await store.append("s#0", b"not flushed")
    await store.update_attributes("a#1", [AttributeUpdate("app/x", 7)])
    await store.table("table").put(b"key", b"other")
    return await seen(store)


async def seen(store: SegmentStore) -> dict[str, Any]:
    """But for what is flushed, because a move flushes everything."""
    found = await contents(store)
    for name in found["names"]:
        found[name] = attrs.evolve(found[name], flushed_length=0)
    return found


async def list_unconfirmed(store: SegmentStore) -> list[object]:
    async def find(container: Container) -> object:
        return container.confirmation.unconfirmed

    return [await store.on_container(index, find) for index in range(store.containers)]


async def end_in_old_place(
    site: Site, target: str = "new", after: int = 0, source: str = "old", **more: Any
) -> None:
    """A move that is cut off before it is decided, or ``after`` so many containers."""

    async def cut_off(chunks: ChunkStorage, container: int, op: LogElement) -> None:
        if container == after:
            raise Unavailable("the network is gone")
        await claim_chain(chunks, container, op)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(migration, "claim_chain", cut_off)
        with pytest.raises(Unavailable, match="the network is gone"):
            await site.move(source, target, **more)


async def check_moved(store: SegmentStore, before: dict[str, Any]) -> None:
    """All is there, and who goes on does not notice the move."""
    assert await seen(store) == before
    assert (await store.segment_info("s#0")).history == 0
    length = (await store.segment_info("s#0")).length
    await store.append("s#0", bytes(range(256)), writer_id="w", event_number=0)  # a duplicate
    assert await store.append("s#0", b"more", writer_id="w", event_number=1) == length
    info = await store.transaction_info("s#0", "open")
    assert info.state is TransactionState.OPEN
    row = await store.table("table").get(b"key")
    assert row is not None
    await store.table("table").put(b"key", b"newer", expected_version=row.version)
    await store.flush()


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
    await site.is_refused("old")
    await site.is_refused("old", adopt=True)
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
    with pytest.raises(StoreMismatch, match="was moved to"):
        await site.undo("old")
    with pytest.raises(InvalidArgument, match="has a store already"):
        await site.move("new", "old")
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


async def test_e2_a_view_of_the_old_place_is_refused_too(site: Site) -> None:
    """It would show what is old, without a word."""
    async with site.opened("old") as store:
        await filled(store)
    await site.move("old", "new")
    async with open_reader(site.path / "old") as view:
        with pytest.raises(StoreMismatch, match="was moved to"):
            await view.read("s#0", 0, 10)


async def test_e4_a_move_that_was_cut_off_when_it_was_decided_goes_on(site: Site) -> None:
    async with site.opened("old") as store:
        before = await filled(store)
    await end_in_old_place(site, after=1)
    await site.is_refused("old")
    with pytest.raises(StoreMismatch, match="was moved to"):
        await site.undo("old")
    with pytest.raises(StoreMismatch, match="was moved to"):
        await site.move("old", "other")
    await site.move("old", "new")
    async with site.opened("new") as store:
        await check_moved(store, before)


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
    with pytest.raises(StoreMismatch, match="belongs to store"):
        await site.move("other", "new")
    await site.move("old", "new")


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


# --- buckets ----------------------------------------------------------------------------------------


@pytest.fixture
def bucket(tmp_path: Path, server: S3Server) -> Site:
    return Site(tmp_path, server)


async def test_e5_a_store_is_moved_to_a_bucket_and_back(bucket: Site) -> None:
    async with bucket.opened("old") as store:
        before = await filled(store)
        await store.backup("monday")
    done = await bucket.move("old", "bucket-a")
    assert done.left == (f"{bucket.path}/old/",)
    await bucket.is_refused("old")
    shutil.rmtree(bucket.path / "old")
    async with bucket.opened("bucket-a") as store:
        await check_moved(store, before)
        after = await seen(store)
    assert (await bucket.move("bucket-a", "new")).left == (f"s3://{BUCKET}/bucket-a/",)
    await bucket.is_refused("bucket-a")
    bucket.remove("bucket-a/")
    async with bucket.opened("new") as store:
        assert await seen(store) == after
        assert [(each.name, each.problem) for each in await store.backups()] == [("monday", "")]


@pytest.mark.extended
async def test_e5_chunks_may_stay_in_their_bucket(bucket: Site) -> None:
    async with bucket.opened("old", config=bucket.with_chunks("bucket-a/lts")) as store:
        before = await filled(store)
    done = await bucket.move("old", "bucket-a")
    assert (done.keeps_chunks, done.copied_objects) == (True, 0)
    await bucket.is_refused("old")
    await bucket.is_refused("old", adopt=True)
    async with bucket.opened("bucket-a") as store:
        await check_moved(store, before)
        after = await seen(store)
    await bucket.is_refused("old")
    done = await bucket.move("bucket-a", "new", chunks="keep")
    prefix = f"s3://{BUCKET}/bucket-a/"
    assert done.left[:2] == (f"{prefix}wal/", f"{prefix}store")
    for place in done.left:
        bucket.remove(place.removeprefix(f"s3://{BUCKET}/"))
    async with bucket.opened("new") as store:
        assert await seen(store) == after
        assert await list_unconfirmed(store) == [None, None]
        await store.append("s#0", b"goes on")
        await store.flush()


@pytest.mark.extended
async def test_e1_an_owner_that_was_cut_off_acks_nothing_more(bucket: Site) -> None:
    """Nothing locks a bucket. What it acked before is there."""
    async with bucket.opened("bucket-a") as cut_off:
        await filled(cut_off)
        await cut_off.append("s#0", b"acked")
        before = await seen(cut_off)
        await bucket.move("bucket-a", "new")
        with pytest.raises((NotOwner, OutcomeUnknown)):
            await cut_off.append("s#0", b"too late")
    await bucket.is_refused("bucket-a")
    async with bucket.opened("new") as store:
        await check_moved(store, before)


@pytest.mark.extended
async def test_e4_a_move_without_copies_that_was_cut_off_goes_on(bucket: Site) -> None:
    async with bucket.opened("old", config=bucket.with_chunks("bucket-a/lts")) as store:
        before = await filled(store)
    await end_in_old_place(bucket, "bucket-a")
    await bucket.undo("old")
    async with bucket.opened("old") as store:
        assert await seen(store) == before
    await end_in_old_place(bucket, "bucket-a", after=1)
    with pytest.raises(StoreMismatch, match="was moved to"):
        await bucket.undo("old")
    await bucket.move("old", "bucket-a")
    async with bucket.opened("bucket-a") as store:
        await check_moved(store, before)
    assert (await bucket.move("old", "bucket-a")).is_complete


@pytest.mark.extended
async def test_e5_an_owner_that_goes_on_in_the_new_place_is_not_set_back(
    bucket: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another process that is at the same move, and slower."""
    async with bucket.opened("old") as store:
        before = await filled(store)
    await end_in_old_place(bucket, "bucket-a", after=1)

    async def read_slowly(index: int, *arguments: Any) -> LtsBoot:
        boot = await read_boot(index, *arguments)
        if index == 1:
            monkeypatch.undo()
            await bucket.move("old", "bucket-a")
            async with bucket.opened("bucket-a") as store:
                await check_moved(store, before)
        return boot

    monkeypatch.setattr(migration, "read_boot", read_slowly)
    with pytest.raises(Unavailable, match="another process has completed the move"):
        await bucket.move("old", "bucket-a")
    async with bucket.opened("bucket-a") as store:
        assert (await store.segment_info("s#0")).length == before["s#0"].length + 4


@pytest.mark.extended
async def test_e6_a_bucket_with_anything_else_is_refused(bucket: Site) -> None:
    async with bucket.opened("old") as store:
        before = await filled(store)
    async with bucket.opened("bucket-b"):
        pass
    bucket.put("bucket-c/letter.txt")
    bucket.copy("bucket-b/wal/", "bucket-f/wal/")
    for name, message in {
        "bucket-b": "has a store already",
        "bucket-c": "has other objects, such as letter.txt",
    }.items():
        with pytest.raises(InvalidArgument, match=message):
            await bucket.move("old", name)
    with pytest.raises((DataCorruption, StoreMismatch), match="belongs to log"):
        await bucket.move("old", "bucket-f")
    with pytest.raises(ConfigError, match="a store in a bucket has its chunks in .*bucket-d/lts/"):
        await bucket.move("bucket-b", "bucket-d", chunks="keep")
    with pytest.raises(InvalidArgument, match="the same place"):
        await bucket.move("bucket-b", "bucket-b/within")
    await bucket.move("old", "bucket-e", confirms=False)
    with pytest.raises(StoreMismatch, match="is being moved to"):
        async with bucket.opened("bucket-e"):
            pass
    async with bucket.opened("old") as store:
        await check_moved(store, before)


# --- BookKeeper -------------------------------------------------------------------------------------


@pytest.fixture
def ledgers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Its ledgers and records are in memory."""
    in_memory(tmp_path, monkeypatch)
    return Site(tmp_path)


async def test_e5_a_store_is_moved_to_bookkeeper_and_back(ledgers: Site) -> None:
    shared = str(ledgers.path / "shared")
    async with ledgers.opened("old") as store:
        before = await filled(store)
        await store.backup("monday")
    with pytest.raises(ConfigError, match="needs to know where its chunks will be"):
        await ledgers.move("old", "ledgers-a")
    done = await ledgers.move("old", "ledgers-a", chunks=shared)
    assert (done.keeps_chunks, done.chunks) == (False, shared)
    await ledgers.is_refused("old")
    shutil.rmtree(ledgers.path / "old")
    async with ledgers.opened("ledgers-a") as store:
        await check_moved(store, before)
        after = await seen(store)
    done = await ledgers.move("ledgers-a", "new")
    assert done.left == (f"{ledgers.where('ledgers-a')}/", f"{shared}/")
    await ledgers.is_refused("ledgers-a")
    shutil.rmtree(shared)
    async with ledgers.opened("new") as store:
        assert await seen(store) == after
        assert [(each.name, each.problem) for each in await store.backups()] == [("monday", "")]


@pytest.mark.extended
async def test_e4_a_move_to_bookkeeper_that_was_cut_off_goes_on(ledgers: Site) -> None:
    shared = str(ledgers.path / "shared")
    async with ledgers.opened("ledgers-a", config=ledgers.with_chunks("shared")) as store:
        before = await filled(store)
    for after in range(2):
        await end_in_old_place(ledgers, "ledgers-b", after, source="ledgers-a", chunks="keep")
        await ledgers.is_refused("ledgers-a")
    with pytest.raises(StoreMismatch, match="was moved to"):
        await ledgers.undo("ledgers-a")
    done = await ledgers.move("ledgers-a", "ledgers-b", chunks="keep")
    assert (done.keeps_chunks, done.chunks) == (True, shared)
    assert done.left == (f"{ledgers.where('ledgers-a')}/",)
    async with ledgers.opened("ledgers-b") as store:
        await check_moved(store, before)


@pytest.mark.extended
async def test_e6_a_place_on_bookkeeper_with_anything_else_is_refused(ledgers: Site) -> None:
    async with ledgers.opened("old") as store:
        await filled(store)
    async with ledgers.opened("ledgers-b", config=ledgers.with_chunks("shared")):
        pass
    with pytest.raises(InvalidArgument, match="has a store already"):
        await ledgers.move("old", "ledgers-b", chunks=str(ledgers.path / "shared"))
    with pytest.raises(InvalidArgument, match="has other objects"):
        await ledgers.move("old", "ledgers-c", chunks=str(ledgers.path / "shared"))
    other = str(ledgers.path / "other")
    await ledgers.move("old", "ledgers-c", chunks=other, confirms=False)
    with pytest.raises(StoreMismatch, match="is being moved to"):
        async with ledgers.opened("ledgers-c", config=ledgers.with_chunks("other")):
            pass
    await ledgers.move("old", "ledgers-c", chunks=other)
