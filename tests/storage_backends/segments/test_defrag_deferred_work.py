"""Defrag and relocation as deferred work: when they become due, step by step, over takeovers, and past damage
(rules S9, S10, S11)."""

from __future__ import annotations

import attrs
import pytest

from support.chunked import OTHER, SID, FaultyMetadataStore, Owner, Tier2
from support.layouts import TEXT, build, check_index
from tierlog.storage_backends.base.errors import InvalidArgument, OutcomeUnknown, Unavailable
from tierlog.storage_backends.segments.defrag_rules import DefragOptions
from tierlog.storage_backends.segments.options import ChunkedOptions
from tierlog.storage_backends.segments.records import DeferredWorkKind
from tierlog.testing.faulty_chunk_storage import Fault, FaultKind, every, nth

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]
OPTIONS = ChunkedOptions(
    index_spacing=2,
    defrag=DefragOptions(
        small_max=100, native_min=4, growth=2, loose_chunks=3, relocate_above=4, relocate_max=100
    ),
)


async def kinds(owner: Owner) -> list[DeferredWorkKind]:
    return [work.kind for work in await owner.storage.deferred_work()]


async def run_all_deferred(owner: Owner) -> int:
    """Run deferred work until none is due; how many steps it took."""
    steps = 0
    while pending := await owner.storage.deferred_work():
        await owner.storage.run_deferred(pending[0])
        steps += 1
    return steps


async def write_each(owner: Owner, count: int, *, at: int = 0) -> None:
    for offset in range(at, at + count):
        await owner.write(offset, TEXT[offset : offset + 1])


async def test_s9_chunks_of_a_storage_without_append_are_joined_once_there_are_enough() -> None:
    owner = await Tier2(append=False, options=OPTIONS).owner()
    await write_each(owner, 3)
    assert await kinds(owner) == []
    await write_each(owner, 1, at=3)
    assert await kinds(owner) == [DeferredWorkKind.DEFRAG]
    await run_all_deferred(owner)

    assert await owner.lengths() == [4]
    assert await kinds(owner) == []


async def test_s9_large_chunks_make_no_deferred_work() -> None:
    tier2 = Tier2(
        append=False, options=attrs.evolve(OPTIONS, defrag=attrs.evolve(OPTIONS.defrag, small_max=2))
    )
    owner = await tier2.owner()
    for offset in range(0, 30, 3):
        await owner.write(offset, TEXT[offset : offset + 3])
    assert await kinds(owner) == []


async def test_s9_no_deferred_work_where_joining_is_left_to_the_operator() -> None:
    tier2 = Tier2(
        append=False, options=attrs.evolve(OPTIONS, defrag=attrs.evolve(OPTIONS.defrag, loose_chunks=0))
    )
    owner = await tier2.owner()
    await write_each(owner, 20)
    assert await kinds(owner) == []
    await owner.storage.defrag(SID)
    assert await owner.lengths() == [20]


async def test_s9_small_chunks_that_came_with_a_concat_are_joined_with_those_before_them() -> None:
    tier2 = Tier2(options=OPTIONS)
    data = await build(await tier2.owner(), [2, 2])
    added = await build(await tier2.owner(), [1, 1, 2], OTHER)
    owner = await tier2.owner(2)
    await owner.write(len(added), sid=OTHER, seal=True)
    await owner.concat()
    assert DeferredWorkKind.DEFRAG in await kinds(owner)
    await run_all_deferred(owner)

    assert await owner.lengths() == [8]
    assert await owner.content() == data + added


async def test_s9_a_growing_segment_of_small_chunks_costs_few_copies_and_stays_short() -> None:
    """A hundred writes of a byte: copied some log2(100) times each, not once per write."""
    owner = await Tier2(append=False, options=OPTIONS).owner()
    for offset in range(100):
        await write_each(owner, 1, at=offset)
        await run_all_deferred(owner)

    assert await owner.content() == TEXT[:100]
    assert len(await owner.lengths()) <= 10
    assert owner.storage.statistics().bytes_joined <= 100 * 7


@pytest.mark.parametrize("applied", [True, False], ids=["applied", "not-applied"])
async def test_s9_a_new_owner_continues_with_due_work(applied: bool) -> None:
    """Every commit's answer is lost in turn: a new owner finds the rest of the deferred work, and the same
    bytes."""
    number, ended = 0, False
    while not ended:
        number += 1
        tier2 = Tier2(append=False, options=attrs.evolve(OPTIONS, maintenance_records=4))
        await write_each(await tier2.owner(), 23)
        owner = await tier2.owner(
            2, metadata=FaultyMetadataStore(tier2.metadata, number, OutcomeUnknown("scripted"), after=applied)
        )
        try:
            await run_all_deferred(owner)
            ended = True
        except OutcomeUnknown:
            assert await owner.content() == TEXT[:23]
        owner = await tier2.owner(3)
        await run_all_deferred(owner)

        assert await owner.content() == TEXT[:23]
        assert len(await owner.lengths()) <= 6
        check_garbage(tier2)
    assert number > 5


def check_garbage(tier2: Tier2) -> None:
    referenced = set(tier2.referenced())
    assert referenced <= set(tier2.names()) <= referenced | set(tier2.sink.tracked)
    assert not referenced & set(tier2.sink.released)
    assert set(tier2.names()) - referenced <= {*tier2.sink.released, *tier2.sink.doubted}


async def test_s9_a_storage_that_is_down_leaves_the_deferred_work_as_it_was() -> None:
    tier2 = Tier2(append=False, options=OPTIONS)
    owner = await tier2.owner()
    await write_each(owner, 4)
    before = await owner.storage.deferred_work()
    owner.chunks.script = every(Fault(FaultKind.BEFORE), "read", "create_with_content", "concat")
    with pytest.raises(Unavailable):
        await owner.storage.run_deferred(before[0])
    owner.chunks.script = None

    assert await owner.storage.deferred_work() == before
    assert await owner.lengths() == [1, 1, 1, 1]
    await run_all_deferred(owner)
    assert await owner.lengths() == [4]


async def test_s9_a_damaged_chunk_is_passed_and_the_deferred_work_ends() -> None:
    """Otherwise it would be tried forever. Readers report the damage."""
    tier2 = Tier2(append=False, options=attrs.evolve(OPTIONS, maintenance_records=4))
    owner = await tier2.owner()
    await write_each(owner, 12)
    tier2.chunks.chunks[tier2.referenced()[1]].data[0] ^= 1
    await run_all_deferred(owner)
    lengths = await owner.lengths()

    assert owner.storage.statistics().joins_refused >= 1
    assert sum(lengths) == 12
    assert len(lengths) < 12
    assert await owner.storage.read(SID, 4, 8) == TEXT[4:12]
    check_garbage(tier2)


async def test_s9_a_sealed_segment_is_packed() -> None:
    owner = await Tier2(append=False, options=OPTIONS).owner()
    await owner.write(0, TEXT[:10])
    for offset in range(10, 14):
        await write_each(owner, 1, at=offset)
    await owner.write(14, seal=True)
    await run_all_deferred(owner)
    assert await owner.lengths() == [14]


async def test_s9_the_deferred_work_of_a_segment_ends_with_it() -> None:
    owner = await Tier2(append=False, options=OPTIONS).owner()
    await write_each(owner, 5)
    stale = (await owner.storage.deferred_work())[0]
    await owner.delete()
    await run_all_deferred(owner)
    assert await owner.storage.run_deferred(stale) is False
    assert list(owner.tier2.metadata.entries) == []


@pytest.mark.parametrize("append", [True, False], ids=["append", "no-append"])
async def test_s10_a_truncation_defers_the_relocation_and_copies_nothing_itself(append: bool) -> None:
    tier2 = Tier2(append=append, options=OPTIONS)
    data = await build(await tier2.owner(), [20, 3])
    owner = await tier2.owner(2)
    await owner.truncate(17)
    assert owner.chunks.calls == []
    assert await kinds(owner) == [DeferredWorkKind.TRUNCATE]
    assert await owner.lengths() == [20, 3]
    await run_all_deferred(owner)

    assert await owner.lengths() == [3, 3]
    assert await owner.content() == data[17:]
    assert owner.storage.statistics().chunks_relocated == 1


async def test_s10_a_relocation_that_fails_stays_due_and_one_of_a_damaged_chunk_is_given_up() -> None:
    tier2 = Tier2(options=OPTIONS)
    data = await build(await tier2.owner(), [20, 3])
    owner = await tier2.owner(2)
    await owner.truncate(17)
    owner.chunks.script = nth(1, Fault(FaultKind.LOST), "create_with_content")
    with pytest.raises(OutcomeUnknown):
        await run_all_deferred(owner)
    assert await owner.content() == data[17:]
    assert await kinds(owner) == [DeferredWorkKind.TRUNCATE]

    owner.chunks.script = None
    tier2.chunks.chunks[tier2.referenced()[0]].data[18] ^= 1
    await run_all_deferred(owner)
    assert await owner.lengths() == [20, 3]
    assert owner.storage.statistics().joins_refused == 1
    check_garbage(tier2)


@pytest.mark.parametrize("append", [True, False], ids=["append", "no-append"])
async def test_s11_a_concat_that_joins_does_a_bounded_part_at_once_and_defers_the_rest(append: bool) -> None:
    defrag = attrs.evolve(OPTIONS.defrag, inline=True, loose_chunks=1)
    options = attrs.evolve(OPTIONS, defrag=defrag, inline_records=3, maintenance_records=4)
    made = []
    for count in (40, 80):
        tier2 = Tier2(append=append, options=options)
        await build(await tier2.owner(), [4])
        data = await build(await tier2.owner(), [1] * count, OTHER)
        owner = await tier2.owner(2)
        await owner.write(count, sid=OTHER, seal=True)
        owner.chunks.calls.clear()
        await owner.concat()
        made.append(
            len(
                [
                    call
                    for call in owner.chunks.calls
                    if call.verb in ("create_with_content", "write", "concat")
                ]
            )
        )

        assert DeferredWorkKind.DEFRAG in await kinds(owner)
        await run_all_deferred(owner)
        assert len(await owner.lengths()) < count // 4
        assert (await owner.content())[4:] == data
        await check_index(owner, 2)
    assert made[0] == made[1] > 0


def test_a_step_that_sees_one_chunk_only_is_refused() -> None:
    """It would join nothing, and never come to the next chunk."""
    with pytest.raises(InvalidArgument, match="maintenance_records is 1"):
        ChunkedOptions(maintenance_records=1)
