"""Moving a store to places that all machines reach, a bucket and BookKeeper, and back (rules E1 to E6)."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import anyio
import pytest

from support.ledger_stores import in_memory
from support.moved_stores import Site, check_moved, end_in_old_place, filled, list_unconfirmed, seen
from support.s3_server import BUCKET, Fault, S3Server
from tierlog import (
    ConfigError,
    DataCorruption,
    InvalidArgument,
    NotOwner,
    OutcomeUnknown,
    StoreMismatch,
    Unavailable,
)
from tierlog.actors.container.lts_boot import LtsBoot, claim_chain, read_boot
from tierlog.actors.folder.chunk_location import ChunkLocation, encode_location
from tierlog.actors.maintenance import migration
from tierlog.actors.maintenance.migration import Migration
from tierlog.actors.maintenance.migration_places import ChunkPlace
from tierlog.actors.store.read_only import open_reader
from tierlog.journal.operations.log_element import LogElement
from tierlog.storage_backends.base.chunk_storage import ChunkStorage

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]


@pytest.fixture
def bucket(tmp_path: Path, server: S3Server) -> Site:
    return Site(tmp_path, server)


def records_of(place: str) -> tuple[str, ...]:
    """What a store on BookKeeper has below its path."""
    return tuple(f"{place}/{name}" for name in ("logs/", "store", "chunks", "term", "control", "leases/"))


@pytest.mark.extended
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
    left = (await bucket.move("bucket-a", "new")).left
    assert left[:2] + left[-2:] == tuple(
        f"s3://{BUCKET}/bucket-a/{name}" for name in ("wal/", "store", "lts/containers/", "lts/_system/")
    )
    await bucket.is_refused("bucket-a")
    for place in left:
        bucket.remove(place.removeprefix(f"s3://{BUCKET}/"))
    assert bucket.server is not None
    assert not [key for key in bucket.server.objects() if key.startswith("bucket-a/")]
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
    async with bucket.opened("new") as store:
        await store.flush()
    assert await bucket.move("bucket-a", "new", chunks="keep") == done
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
async def test_e2_a_view_of_logs_from_before_a_move_that_left_the_chunks_is_refused(bucket: Site) -> None:
    """The chain goes on with the new owner. While the bucket does not answer, the logs are shown."""
    wal, kept = bucket.path / "old" / "wal", bucket.path / "kept"
    async with bucket.opened("old", config=bucket.with_chunks("bucket-a/lts")) as store:
        await filled(store)
    shutil.copytree(wal, kept)
    await bucket.move("old", "bucket-a")
    shutil.rmtree(wal)
    shutil.move(kept, wal)
    async with open_reader(bucket.path / "old") as view:
        with pytest.raises(StoreMismatch, match=f"container . was moved to {bucket.where('bucket-a')}"):
            await view.read("s#0", 0, 10)
        assert bucket.server is not None
        bucket.server.fail(Fault("ListObjectsV2", times=1000, refuse=(403, "AccessDenied")))
        assert await view.read("s#0", 262, 11) == b"not flushed"


@pytest.mark.extended
async def test_e7_the_moved_away_store_is_in_the_way_of_a_move_back_of_which_nothing_was_done(
    bucket: Site,
) -> None:
    """Its chunks are those of the store: the chain alone does not show where that is."""
    async with bucket.opened("old", config=bucket.with_chunks("bucket-a/lts")) as store:
        before = await filled(store)
    assert (await bucket.move("old", "bucket-a")).is_complete
    moved_away = r"it is the one that was moved to s3://.*/bucket-a. Once .*, delete \S*/old/, or"
    for confirms in (False, True):
        with pytest.raises(InvalidArgument, match=moved_away):
            await bucket.move("bucket-a", "old", chunks="keep", confirms=confirms)
    async with bucket.opened("bucket-a") as store:
        await check_moved(store, before)
    with pytest.raises(InvalidArgument, match=moved_away):
        await bucket.move("bucket-a", "old", chunks="keep")
    assert (await bucket.move("old", "bucket-a")).is_complete


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


async def test_e5_a_move_that_another_process_begins_meanwhile_is_the_same_move(
    bucket: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bucket.opened("old") as store:
        before = await filled(store)
    refuse_nested = ChunkPlace.refuse_nested

    async def begin_meanwhile(place: ChunkPlace) -> None:
        monkeypatch.undo()
        await bucket.move("old", "bucket-a", confirms=False)
        await refuse_nested(place)

    monkeypatch.setattr(ChunkPlace, "refuse_nested", begin_meanwhile)
    assert (await bucket.move("old", "bucket-a")).is_complete
    async with bucket.opened("bucket-a") as store:
        await check_moved(store, before)


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
    for inner in ("x", "lts/x"):
        with pytest.raises(InvalidArgument, match="is inside the target of a move .*bucket-e/"):
            async with bucket.opened(f"bucket-e/{inner}"):
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
    assert done.left == (
        *records_of(ledgers.where("ledgers-a")),
        *(f"{shared}/{name}" for name in ("containers/", "_system/", ".tierlog-chunks")),
    )
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
    assert done.left == records_of(ledgers.where("ledgers-a"))
    async with ledgers.opened("ledgers-b") as store:
        await check_moved(store, before)


async def test_e5_two_processes_complete_the_same_move(
    ledgers: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one writes all logs again after the first one has, and before that one decides."""
    async with ledgers.opened("old") as store:
        before = await filled(store)
    shared = str(ledgers.path / "shared")
    await end_in_old_place(ledgers, "ledgers-a", after=1, chunks=shared)
    second_has_built, first_is_done = anyio.Event(), anyio.Event()
    moves: list[Migration] = []

    async def first_claim(chunks: ChunkStorage, container: int, op: LogElement) -> None:
        monkeypatch.setattr(migration, "claim_chain", second_claim)
        tasks.start_soon(complete)
        await second_has_built.wait()
        monkeypatch.setattr(migration, "claim_chain", claim_chain)
        await claim_chain(chunks, container, op)

    async def second_claim(chunks: ChunkStorage, container: int, op: LogElement) -> None:
        second_has_built.set()
        await first_is_done.wait()
        await claim_chain(chunks, container, op)

    async def complete() -> None:
        moves.append(await ledgers.move("old", "ledgers-a", chunks=shared))

    monkeypatch.setattr(migration, "claim_chain", first_claim)
    async with anyio.create_task_group() as tasks:
        await complete()
        first_is_done.set()
    assert [done.is_complete for done in moves] == [True, True]
    await ledgers.is_refused("old")
    async with ledgers.opened("ledgers-a") as store:
        await check_moved(store, before)


async def test_e6_a_place_on_bookkeeper_where_another_store_is_begun_meanwhile_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever begins it has its chunks elsewhere, and is killed before it makes an identity."""
    site, cluster = Site(tmp_path), in_memory(tmp_path, monkeypatch).cluster
    async with site.opened("old") as store:
        before = await filled(store)
    other = encode_location(ChunkLocation(str(tmp_path / "other"), site.settings.s3))

    async def read_slowly(*arguments: Any) -> LtsBoot:
        cluster.create("/stores/ledgers-a/chunks", other)
        return await read_boot(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(migration, "read_boot", read_slowly)
        with pytest.raises(StoreMismatch, match=r"the chunks are in .*/other, not in .*: name another path"):
            await site.move("old", "ledgers-a", chunks=str(tmp_path / "shared"))
    assert "/stores/ledgers-a/store" not in cluster.records
    await site.undo("old")
    async with site.opened("old") as store:
        await check_moved(store, before)


async def test_e6_chunks_are_moved_only_into_a_folder_that_is_there(ledgers: Site) -> None:
    """One that is missing may not be mounted: the chunks would be on this machine alone."""
    async with ledgers.opened("old") as store:
        before = await filled(store)
    absent, mounted = ledgers.path / "typo" / "absent", ledgers.path / "shared"

    async def is_refused(folder: Path) -> None:
        for confirms in (False, True):
            with pytest.raises(InvalidArgument, match=f"there is no folder {folder}: mount what all"):
                await ledgers.move("old", "ledgers-a", chunks=str(folder), confirms=confirms)
            assert not folder.exists()

    await is_refused(absent)
    assert not absent.parent.exists()
    async with ledgers.opened("old") as store:
        assert not await store.backups()

    await ledgers.move("old", "ledgers-a", chunks=str(mounted), confirms=False)
    elsewhere = mounted.rename(ledgers.path / "elsewhere")
    await is_refused(mounted)
    elsewhere.rename(mounted)
    await ledgers.move("old", "ledgers-a", chunks=str(mounted))
    async with ledgers.opened("ledgers-a") as store:
        await check_moved(store, before)


async def test_e6_chunks_do_not_stay_in_the_old_folder_however_they_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would be deleted with it. Nothing is begun."""
    site, cluster = Site(tmp_path), in_memory(tmp_path, monkeypatch).cluster
    async with site.opened("old") as store:
        before = await filled(store)
    old, inner, elsewhere = tmp_path / "old", tmp_path / "old" / "lts" / "inner", tmp_path / "elsewhere"
    elsewhere.mkdir()
    for link, to in {"folder": old, "chunks": old / "lts", "inner": inner, "old/out": elsewhere}.items():
        (tmp_path / link).symlink_to(to)
    names = (
        "",
        "/",
        "/lts",
        "/lts/",
        "//lts//",
        "/./lts",
        "/wal/../lts",
        "/../old/lts",
        "/lts/inner",
        "/out",
    )
    links = ("chunks", "chunks/", "folder/lts", "folder/../old/lts", "inner", "folder/out", "old/out/inner")
    records = dict(cluster.records)
    for chunks in ("keep", *(f"{old}{name}" for name in names), *(f"{tmp_path}/{link}" for link in links)):
        for target in ("ledgers-a", "new", "bucket-a"):
            for confirms in (False, True):
                with pytest.raises(InvalidArgument, match="is a part of .*old: its chunks must be copied"):
                    await site.move("old", target, chunks=chunks, confirms=confirms)
    assert dict(cluster.records) == records
    assert not (tmp_path / "new").exists()
    assert not inner.exists()
    async with site.opened("old") as store:
        assert await store.backups() == []
        await check_moved(store, before)


async def recorded_in_the_old_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Site, dict[str, Any]]:
    """A store in ``old``, and a place on BookKeeper whose record of the chunks names that store's own."""
    site, cluster = Site(tmp_path), in_memory(tmp_path, monkeypatch).cluster
    async with site.opened("old") as store:
        before = await filled(store)
    recorded = encode_location(ChunkLocation(str(tmp_path / "old" / "lts"), site.settings.s3))
    cluster.create("/stores/ledgers-a/chunks", recorded)
    return site, before


async def test_e6_chunks_do_not_stay_in_the_old_folder_because_of_a_record_of_the_new_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, before = await recorded_in_the_old_folder(tmp_path, monkeypatch)
    with pytest.raises(InvalidArgument, match="is a part of .*old: its chunks must be copied"):
        await site.move("old", "ledgers-a")
    async with site.opened("old") as store:
        await check_moved(store, before)


async def test_e6_what_a_moved_store_needs_is_never_among_what_may_be_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If its chunks are in the old folder all the same, there is no advice."""
    site, before = await recorded_in_the_old_folder(tmp_path, monkeypatch)
    needed = "old/lts/ is a part of .*old: its chunks must be copied"
    with monkeypatch.context() as patch:
        patch.setattr(migration, "check_apart", lambda *places: None)
        for _ in ("completed", "repeated"):
            with pytest.raises(InvalidArgument, match=needed):
                await site.move("old", "ledgers-a")
    async with site.opened("ledgers-a") as store:
        await check_moved(store, before)
        after = await seen(store)
    with pytest.raises(InvalidArgument, match=needed):
        await site.move("ledgers-a", "old")
    # The way out of there.
    await site.move("ledgers-a", "ledgers-b", chunks=str(tmp_path / "shared"))
    shutil.rmtree(tmp_path / "old")
    async with site.opened("ledgers-b") as store:
        assert await seen(store) == after


async def test_e7_a_prepared_move_has_one_place_for_the_chunks(ledgers: Site) -> None:
    async with ledgers.opened("old"):
        pass
    shared, other = ledgers.path / "shared", ledgers.path / "other"
    other.mkdir()
    await ledgers.move("old", "ledgers-a", chunks=str(shared), confirms=False)
    elsewhere = f"to this place, but with its chunks elsewhere than in {other} .*the same --chunks"
    with pytest.raises(InvalidArgument, match=elsewhere):
        await ledgers.move("old", "ledgers-a", chunks=str(other))
    with pytest.raises(
        InvalidArgument, match=r"to another place than \S*/ledgers-b .*the same --to and --chunks"
    ):
        await ledgers.move("old", "ledgers-b", chunks=str(shared))
    assert (await ledgers.move("old", "ledgers-a", chunks=str(shared))).is_complete


@pytest.mark.extended
async def test_e6_chunks_are_not_moved_into_another_store(ledgers: Site) -> None:
    async with ledgers.opened("old") as store:
        before = await filled(store)
    async with ledgers.opened("ledgers-b", config=ledgers.with_chunks("shared")):
        pass
    inner = ledgers.path / "shared" / "inner"
    inner.mkdir()
    with pytest.raises(InvalidArgument, match=f"{inner} is inside the long-term storage {inner.parent}"):
        await ledgers.move("old", "ledgers-a", chunks=str(inner))
    async with ledgers.opened("old") as store:
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
    (ledgers.path / "other").mkdir()
    await ledgers.move("old", "ledgers-c", chunks=other, confirms=False)
    with pytest.raises(StoreMismatch, match="is being moved to"):
        async with ledgers.opened("ledgers-c", config=ledgers.with_chunks("other")):
            pass
    await ledgers.move("old", "ledgers-c", chunks=other)
