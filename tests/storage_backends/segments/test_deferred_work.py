"""Deferred work (rule S11): operations cost the same however many chunks a segment has, and what they leave
is done in bounded steps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs
import pytest
from msgspec.structs import replace

from support.chunked import OTHER, SID, CountingStore, FaultyMetadataStore, Owner, Tier2
from support.layouts import check_index
from tierlog.storage_backends.base.errors import (
    DataCorruption,
    NotOwner,
    OutcomeUnknown,
    SegmentNotFound,
    Unavailable,
)
from tierlog.storage_backends.segments.deferred_work_index import DeferredWorkIndex
from tierlog.storage_backends.segments.defrag_rules import DefragOptions
from tierlog.storage_backends.segments.memory_store import MemoryMetadataState, MemoryMetadataStore
from tierlog.storage_backends.segments.options import ChunkedOptions
from tierlog.storage_backends.segments.records import DeferredWorkKind, DeferredWorkRecord

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]

THIRD = 0x1_0000_0003
CHUNKS = 3_000
SPACING = 2
NO_DEFRAG = DefragOptions(loose_chunks=0)
OPTIONS = ChunkedOptions(index_spacing=SPACING, defrag=NO_DEFRAG)
SMALL = ChunkedOptions(index_spacing=SPACING, inline_records=2, maintenance_records=3, defrag=NO_DEFRAG)
HANDFUL = 60

BUILT: dict[tuple[tuple[int, ...], int], Tier2] = {}
"""Stores that take long to build, by their segments and chunks; not changed by tests."""


async def many_chunks(tier2: Tier2, *sids: int, chunks: int = CHUNKS) -> tuple[Owner, CountingStore]:
    """Segments of that many chunks of one byte, all but ``SID`` sealed, and an owner whose record store
    counts."""
    built = BUILT.get((sids, chunks))
    if built is None:
        built = BUILT[sids, chunks] = Tier2(options=tier2.options)
        owner = await built.owner()
        for sid in sids:
            await owner.write(0, bytes(chunks), sid=sid, rolling_size=1, seal=sid != SID)
    tier2.chunks.chunks.update(built.chunks.chunks)
    tier2.metadata.entries.update(built.metadata.entries)
    tier2.metadata.version = built.metadata.version
    store = CountingStore(tier2.metadata)
    return await tier2.owner(2, metadata=store), store


async def check_nothing_is_left(owner: Owner, *sids: int) -> None:
    """The records are those of the live segments, and no others; chunks that nothing refers to were
    released."""
    chains = {sid: [record for _, record in await owner.storage.chunks(sid)] for sid in sids}
    keys = {key for key in owner.tier2.metadata.entries if not key.startswith("i:")}
    assert keys == {f"s:{sid:016x}" for sid in sids} | {
        record.key for chain in chains.values() for record in chain
    }
    assert {int(key[2:18], 16) for key in owner.tier2.metadata.entries if key.startswith("i:")} <= set(sids)
    for sid in sids:
        await check_index(owner, SPACING, sid)
        assert (await owner.storage.info(sid)).chunk_count == len(chains[sid])
    assert set(owner.tier2.names()) == set(owner.tier2.referenced()) | set(owner.tier2.sink.released)
    assert not set(owner.tier2.referenced()) & set(owner.tier2.sink.released)


async def concat(owner: Owner) -> None:
    with owner.storage.begin(SID) as txn:
        await owner.storage.concat(txn, OTHER)
        await txn.commit()


# --- O(1) ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("act", "live"),
    [(concat, (SID,)), (Owner.delete, (OTHER,)), (lambda owner: owner.truncate(CHUNKS - 7), (SID, OTHER))],
    ids=["concat", "delete", "truncate"],
)
async def test_s11_an_operation_on_thousands_of_chunks_touches_a_handful_of_records(
    act: Callable[[Owner], Awaitable[None]], live: tuple[int, ...]
) -> None:
    owner, store = await many_chunks(Tier2(options=OPTIONS), SID, OTHER)
    store.records = 0
    await act(owner)

    assert store.records < HANDFUL
    assert len(await owner.storage.deferred_work()) == 1
    store.records = 0
    steps = await owner.run_deferred()
    assert store.records < 4 * CHUNKS, "the work is linear in what there is to do"
    assert steps < 4 * CHUNKS / OPTIONS.maintenance_records
    await check_nothing_is_left(owner, *live)


async def test_s11_a_step_is_bounded() -> None:
    options = attrs.evolve(OPTIONS, maintenance_records=10)
    owner, store = await many_chunks(Tier2(options=options), SID, OTHER, chunks=100)
    await concat(owner)
    await owner.truncate(90)
    await owner.storage.deferred_work()
    while pending := await owner.storage.deferred_work():
        store.records = 0
        await owner.storage.run_deferred(pending[0])
        assert 0 < store.records <= 2 * 10 + 8
    await check_nothing_is_left(owner, SID)


async def test_a_small_operation_leaves_no_deferred_work() -> None:
    owner, _ = await many_chunks(Tier2(options=OPTIONS), SID, OTHER, chunks=5)
    await concat(owner)
    assert await owner.storage.deferred_work() == []
    await owner.delete()
    assert await owner.storage.deferred_work() == []
    assert not owner.tier2.metadata.entries


# --- deferred work is invisible -------------------------------------------------------------------


async def test_s11_a_deleted_segment_is_gone_at_once() -> None:
    owner, _ = await many_chunks(Tier2(options=SMALL), SID, chunks=40)
    await owner.delete()

    assert not await owner.storage.exists(SID)
    assert await owner.storage.list() == []
    for look in (
        owner.storage.info(SID),
        owner.storage.read(SID, 0, 1),
        owner.storage.chunks(SID),
        owner.concat(SID, OTHER),
    ):
        with pytest.raises(SegmentNotFound):
            await look
    with pytest.raises(SegmentNotFound):
        await owner.delete()
    with pytest.raises(RuntimeError, match="not completely deleted"):
        await owner.write(0, b"x")
    await owner.run_deferred()
    assert not owner.tier2.metadata.entries


async def test_s11_what_was_truncated_is_gone_at_once() -> None:
    owner, _ = await many_chunks(Tier2(options=SMALL), SID, chunks=40)
    for cut in (30, 35, 40):
        await owner.truncate(cut)
        assert await owner.content() == bytes(40 - cut)
        assert await owner.lengths() == [1] * (40 - cut)
        with pytest.raises(Exception, match="truncated"):
            await owner.storage.read(SID, cut - 1, 1)
    await owner.write(40, b"abc")
    assert await owner.content() == b"abc"
    await owner.run_deferred()
    assert await owner.content() == b"abc"
    await check_nothing_is_left(owner, SID)


async def test_f2_a_chunk_stays_referenced_until_its_record_goes() -> None:
    """So no collector, and no listing of a later owner, takes it for garbage before a commit has released
    it."""
    owner, _ = await many_chunks(Tier2(options=SMALL), SID, chunks=40)
    await owner.delete()
    released = set(owner.tier2.sink.released)
    while pending := await owner.storage.deferred_work():
        assert set(owner.tier2.names()) - released == set(owner.tier2.referenced())
        await owner.storage.run_deferred(pending[0])
        assert released <= set(owner.tier2.sink.released)
        released = set(owner.tier2.sink.released)
    assert released == set(owner.tier2.names())


# --- deferred work that meet ----------------------------------------------------------------------------


async def merged(owner: Owner) -> bytes:
    """``THIRD`` into ``OTHER`` into ``SID``, with no deferred work done between."""
    for sid in (SID, OTHER, THIRD):
        await owner.write(0, bytes([sid & 255]) * 30, sid=sid, rolling_size=1, seal=sid == THIRD)
    await owner.concat(THIRD, OTHER)
    await owner.write(60, sid=OTHER, seal=True)
    await owner.concat()
    return b"\1" * 30 + b"\2" * 30 + b"\3" * 30


@pytest.mark.parametrize("run_before", [0, 1, 3, 5, 99])
@pytest.mark.parametrize("cut", [None, 45, 61, 90])
@pytest.mark.parametrize("is_deleted", [False, True])
async def test_s11_splices_of_splices_truncated_and_deleted(
    run_before: int, cut: int | None, is_deleted: bool
) -> None:
    owner = await Tier2(options=SMALL).owner()
    data = await merged(owner)
    await run_some(owner, run_before)
    if cut is not None:
        await owner.truncate(cut)
        await run_some(owner, run_before)
        assert await owner.content() == data[cut:]
    if is_deleted:
        await owner.delete()
    await owner.run_deferred()

    assert is_deleted or await owner.content() == data[cut or 0 :]
    await check_nothing_is_left(owner, *([] if is_deleted else [SID]))


async def run_some(owner: Owner, steps: int) -> None:
    """The last deferred work first: no order is needed."""
    for _ in range(steps):
        if pending := await owner.storage.deferred_work():
            await owner.storage.run_deferred(pending[-1])


@pytest.mark.parametrize("after", [False, True])
async def test_s11_a_crash_at_any_commit_leaks_nothing(after: bool) -> None:
    """The next owner finds exactly what is left to be done."""

    async def run(owner: Owner) -> None:
        await merged(owner)
        await run_some(owner, 2)
        await owner.truncate(47)
        await run_some(owner, 2)
        await owner.delete()
        await owner.run_deferred()

    number = 0
    while True:
        number += 1
        tier2 = Tier2(options=SMALL)
        store = FaultyMetadataStore(
            tier2.metadata, number, OutcomeUnknown("scripted: no answer"), after=after
        )
        try:
            await run(await tier2.owner(metadata=store))
        except OutcomeUnknown:
            owner = await tier2.owner(2)
            await owner.run_deferred()
            tier2.sink.released = [
                name for name in tier2.names() if name not in tier2.referenced()
            ]  # as its listing finds them
            await check_nothing_is_left(owner, *await owner.storage.list())
        else:
            assert number > 20
            return


# --- whose deferred work --------------------------------------------------------------------------------


async def test_s6_deferred_work_of_a_newer_owner_is_not_touched() -> None:
    tier2 = Tier2(options=SMALL)
    old, _ = await many_chunks(tier2, SID, chunks=40)
    new = await tier2.owner(3)
    await new.delete()
    [work] = await new.storage.deferred_work()
    with pytest.raises(NotOwner):
        await old.storage.run_deferred(work)


async def test_deferred_work_that_is_already_done_is_skipped() -> None:
    owner, _ = await many_chunks(Tier2(options=SMALL), SID, chunks=40)
    await owner.delete()
    [work] = await owner.storage.deferred_work()
    await owner.run_deferred()

    assert await owner.storage.run_deferred(work) is False


async def test_deferred_work_is_read_once() -> None:
    """An idle store costs nothing; after a commit of unknown outcome they are read again."""
    tier2 = Tier2(options=SMALL)
    _, store = await many_chunks(tier2, SID, chunks=40)
    owner = await tier2.owner(2, metadata=store)
    await owner.delete()
    pending = await owner.storage.deferred_work()
    store.records = 0

    assert await owner.storage.deferred_work() == pending
    assert store.records == 0


async def test_after_a_commit_of_unknown_outcome_deferred_work_is_read_again() -> None:
    tier2 = Tier2(options=SMALL)
    await many_chunks(tier2, SID, chunks=40)
    owner = await tier2.owner(
        2, metadata=FaultyMetadataStore(tier2.metadata, 1, OutcomeUnknown("scripted"), after=True)
    )
    assert await owner.storage.deferred_work() == []
    with pytest.raises(OutcomeUnknown):
        await owner.delete()

    assert [work.kind for work in await owner.storage.deferred_work()] == [DeferredWorkKind.DELETE]


async def test_a_failed_step_leaves_the_deferred_work_as_it_was() -> None:
    tier2 = Tier2(options=SMALL)
    owner, _ = await many_chunks(tier2, SID, chunks=40)
    await owner.delete()
    before = dict(tier2.metadata.entries)
    failing = await tier2.owner(
        2, metadata=FaultyMetadataStore(tier2.metadata, 1, Unavailable("scripted"), after=False)
    )
    [work] = await failing.storage.deferred_work()
    with pytest.raises(Unavailable):
        await failing.storage.run_deferred(work)

    assert tier2.metadata.entries == before
    assert await failing.storage.run_deferred(work)


async def test_deferred_work_of_a_newer_version_is_left_alone_and_the_rest_runs() -> None:
    tier2 = Tier2(options=SMALL)
    owner, _ = await many_chunks(tier2, SID, chunks=40)
    await owner.delete()
    newer = replace(next(iter(await owner.storage.deferred_work())), segment=OTHER).encode()
    newer = newer[:2] + bytes([max(DeferredWorkKind) + 1]) + newer[3:] + b"fields"
    key = f"d:{OTHER:016x}:rewrite"
    tier2.metadata.entries[key] = (1, newer)
    owner = await tier2.owner(2)
    await owner.run_deferred()

    assert owner.storage.newer_deferred_work() == {key}
    assert tier2.metadata.entries == {key: (1, newer)}


async def test_damaged_deferred_work_is_reported() -> None:
    tier2 = Tier2(options=SMALL)
    tier2.metadata.entries[f"d:{SID:016x}:delete"] = (1, b"\4\1\1damaged")
    with pytest.raises(DataCorruption):
        await (await tier2.owner()).storage.deferred_work()


async def test_a_broken_chain_is_reported() -> None:
    owner, _ = await many_chunks(Tier2(options=SMALL), SID, chunks=40)
    await owner.delete()
    [work] = await owner.storage.deferred_work()
    del owner.tier2.metadata.entries[f"c:{work.chunk}"]
    with pytest.raises(DataCorruption):
        await owner.storage.run_deferred(work)


# --- defrag and relocation as deferred work -------------------------------------------------------------


async def test_s9_enough_small_chunks_make_deferred_work() -> None:
    options = ChunkedOptions(index_spacing=SPACING, defrag=DefragOptions(loose_chunks=4, growth=2))
    owner = await Tier2(append=False, options=options).owner()
    for place in range(4):
        await owner.write(place, b"x")
    assert await owner.storage.deferred_work() == []
    await owner.write(4, b"x")
    assert [work.kind for work in await owner.storage.deferred_work()] == [DeferredWorkKind.DEFRAG]
    await owner.run_deferred()

    assert await owner.lengths() == [4, 1]
    assert await owner.content() == b"xxxxx"
    assert await owner.storage.deferred_work() == []


async def test_s10_a_mostly_truncated_first_chunk_is_moved_by_a_step() -> None:
    options = ChunkedOptions(index_spacing=SPACING, defrag=DefragOptions(relocate_above=1))
    tier2 = Tier2(options=options)
    await (await tier2.owner()).write(0, bytes(range(20)))
    owner = await tier2.owner(2)
    await owner.truncate(18)
    assert await owner.lengths() == [20], "not by the operation itself"
    await owner.run_deferred()

    assert await owner.lengths() == [2]
    assert await owner.content() == bytes([18, 19])
    await check_nothing_is_left(owner, SID)


async def test_s11_work_is_read_again_if_a_commit_becomes_unknown_during_the_read() -> None:
    """The commit of a step has removed it, behind the read of its record; its answer was lost."""
    work = DeferredWorkRecord(DeferredWorkKind.DELETE, SID)

    class StepDuringTheRead(MemoryMetadataStore):
        async def get(self, key: str) -> tuple[int, bytes] | None:
            found = await super().get(key)
            if found is not None:
                await self.commit({key: found[0]}, {key: None})
                index.invalidate()
            return found

    store = StepDuringTheRead(MemoryMetadataState())
    index = DeferredWorkIndex(store)
    await store.commit({work.key: 0}, {work.key: work.encode()})
    assert await index.read() == []
    assert await index.changes() == {work.key: None}
