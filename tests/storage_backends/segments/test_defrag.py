"""Defrag and relocation: fewer chunks with the same bytes, through faults, crashes, cancellation and readers
meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from itertools import pairwise

import anyio
import attrs
import pytest

from support.chunked import OTHER, SID, FaultyMetadataStore, Owner, Tier2
from support.layouts import TEXT, build, check_index
from tierlog.storage_backends.base.errors import (
    DataCorruption,
    MetadataConflict,
    NotOwner,
    OutcomeUnknown,
    SegmentNotFound,
    TierlogError,
    Unavailable,
)
from tierlog.storage_backends.segments.defrag_rules import DefragOptions
from tierlog.storage_backends.segments.operations.join_chunks import COPY_BYTES
from tierlog.storage_backends.segments.options import ChunkedOptions
from tierlog.storage_backends.segments.records import BLOCK, ChunkRecord
from tierlog.storage_backends.segments.records.chunk import START_SPACING
from tierlog.testing.faulty_chunk_storage import Fault, FaultKind, every, nth

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]
APPEND = pytest.mark.parametrize("append", [True, False], ids=["append", "no-append"])
INSIDE = pytest.mark.parametrize("native_min", [0, 1 << 20], ids=["inside", "by-copy"])
MAKING = ("create_with_content", "write", "concat")


def small(**changes: object) -> ChunkedOptions:
    """Options that suit chunks of a few bytes."""
    values: dict[str, object] = {
        "small_max": 100,
        "growth": 2,
        "relocate_above": 4,
        "relocate_max": 100,
        **changes,
    }
    return ChunkedOptions(index_spacing=2, defrag=DefragOptions(**values))  # type: ignore[arg-type]  # a test's shorthand


def collect(tier2: Tier2) -> None:
    """What the collector does once all owners of before are gone: it deletes every tracked name that no
    record refers to."""
    referenced = set(tier2.referenced())
    for name in [name for name in tier2.names() if name in tier2.sink.tracked and name not in referenced]:
        del tier2.chunks.chunks[name]
    assert set(tier2.names()) == referenced


@APPEND
@INSIDE
async def test_s9_defrag_makes_few_chunks_out_of_many_and_changes_no_byte(
    append: bool, native_min: int
) -> None:
    tier2 = Tier2(append=append, options=small(native_min=native_min))
    data = await build(await tier2.owner(), [5, 1, 2, 3, 4])
    owner = await tier2.owner(2)
    before = await owner.storage.info(SID)
    result = await owner.storage.defrag(SID)

    assert (result.joined, result.made, result.copied) == (5, 1, 15)
    assert await owner.content() == data
    assert await owner.lengths() == [15]
    assert (await owner.storage.info(SID)).length == before.length
    assert len(tier2.sink.released) == 5
    assert owner.chunks.calls[0].verb == ("concat" if native_min == 0 or not append else "read")
    await check_index(owner, 2)
    collect(tier2)
    await owner.write(15, b"more")
    assert await owner.content() == data + b"more"


@APPEND
@pytest.mark.parametrize("rolling_size", [1, 2, 3, 5, 8, 100])
@pytest.mark.parametrize(
    "sizes", [[1], [1, 1, 1, 1, 1, 1], [1, 2, 3, 2, 1], [3, 1, 1, 3, 1, 1], [1, 1, 7, 1, 1]]
)
async def test_s9_no_chunk_grows_beyond_the_rolling_size_and_the_order_stays(
    append: bool, rolling_size: int, sizes: list[int]
) -> None:
    tier2 = Tier2(append=append, options=small(small_max=6))
    owner = await tier2.owner()
    await owner.write(0, rolling_size=rolling_size)
    data = await build(owner, sizes)
    before = await owner.lengths()
    await owner.storage.defrag(SID)
    after = await owner.lengths()

    assert await owner.content() == data
    assert max(after) <= max(rolling_size, *before)
    assert all(a + b > rolling_size or max(a, b) > 6 for a, b in pairwise(after))
    assert (await owner.storage.defrag(SID)).made == 0
    await check_index(owner, 2)
    collect(tier2)


async def test_s9_a_tail_that_may_still_grow_is_left_alone_until_the_segment_is_sealed() -> None:
    tier2 = Tier2(options=small())
    await build(await tier2.owner(), [1, 1])
    owner = await tier2.owner(2)
    await owner.write(2, b"tail")
    await owner.storage.defrag(SID)
    assert await owner.lengths() == [2, 4]

    await owner.write(6, b"!")
    assert await owner.lengths() == [2, 5]
    await owner.write(7, seal=True)
    await owner.storage.defrag(SID)
    assert await owner.lengths() == [7]


async def test_the_tail_of_an_earlier_owner_is_joined_and_the_next_write_begins_a_chunk() -> None:
    tier2 = Tier2(options=small())
    data = await build(await tier2.owner(), [1, 1, 1])
    owner = await tier2.owner(2)
    await owner.storage.defrag(SID)
    await owner.write(3, b"new")

    assert await owner.lengths() == [3, 3]
    assert await owner.content() == data + b"new"


@APPEND
@INSIDE
async def test_s8_checksums_and_append_starts_of_the_new_chunk_are_those_of_its_bytes(
    append: bool, native_min: int
) -> None:
    """Chunks that end inside blocks: every block of the joined chunk lies across others than its sources
    had."""
    tier2 = Tier2(append=append, options=ChunkedOptions(defrag=DefragOptions(native_min=native_min)))
    data = bytes(range(251)) * ((3 * BLOCK + 4321) // 251)
    cuts = [0, BLOCK - 7, 2 * BLOCK + 11, 2 * BLOCK + 12, len(data)]
    for start, end in pairwise(cuts):
        owner = await tier2.owner()
        with owner.storage.begin(SID, create=True) as txn:
            await owner.storage.write(txn, start, [data[start:end]], range(start, end, 1000))
            await txn.commit()
    owner = await tier2.owner(2)
    await owner.storage.defrag(SID)
    [(_, record)] = await owner.storage.chunks(SID)

    assert record.crcs == ChunkRecord("any").grown([data]).crcs
    assert await owner.content() == data
    assert record.starts[0] == 0
    assert set(record.starts) <= {
        start + each for start, end in pairwise(cuts) for each in range(0, end - start, 1000)
    }
    assert all(b - a >= START_SPACING for a, b in pairwise(record.starts))
    assert record.starts[-1] > 2 * BLOCK


async def test_a_large_run_is_copied_in_bounded_pieces() -> None:
    tier2 = Tier2()
    owner = await tier2.owner()
    data = bytes(2 * COPY_BYTES + 5)
    await owner.write(0, data)
    owner = await tier2.owner(2)
    await owner.write(len(data), b"x")
    owner = await tier2.owner(3)
    await owner.storage.defrag(SID)

    assert [call.verb for call in owner.chunks.calls] == [
        "read",
        "create_with_content",
        "read",
        "write",
        "read",
        "read",
        "write",
    ]
    assert await owner.lengths() == [len(data) + 1]


@APPEND
@pytest.mark.parametrize("native_min", [0, 1 << 20], ids=["inside", "by-copy"])
@pytest.mark.parametrize("damage", ["flipped", "short", "missing"])
async def test_s8_a_damaged_source_is_reported_and_never_joined(
    append: bool, native_min: int, damage: str
) -> None:
    tier2 = Tier2(append=append, options=small(native_min=native_min))
    await build(await tier2.owner(), [2, 2, 2])
    name = tier2.referenced()[1]
    if damage == "missing":
        del tier2.chunks.chunks[name]
    elif damage == "short":
        del tier2.chunks.chunks[name].data[-1:]
    else:
        tier2.chunks.chunks[name].data[0] ^= 1
    owner = await tier2.owner(2)
    with pytest.raises(DataCorruption):
        await owner.storage.defrag(SID)

    assert await owner.lengths() == [2, 2, 2]
    assert await owner.storage.read(SID, 4, 2) == TEXT[4:6]
    assert set(tier2.names()) - set(tier2.referenced()) <= set(tier2.sink.released)


async def test_s9_garbage_behind_the_recorded_lengths_is_left_behind() -> None:
    """{5} and {1, 2, 3, 4} with bytes in each chunk that were never committed."""
    for native_min in (0, 100):
        tier2 = Tier2(options=small(native_min=native_min))
        data = await build(await tier2.owner(), [5, 1, 2, 3, 4])
        for chunk in tier2.chunks.chunks.values():
            chunk.data += b"garbage"
        owner = await tier2.owner(2)
        await owner.storage.defrag(SID)

        assert await owner.content() == data
        assert bytes(tier2.chunks.chunks[tier2.referenced()[0]].data) == data


async def test_s9_a_segment_with_more_chunks_than_a_step_looks_at() -> None:
    tier2 = Tier2(options=attrs.evolve(small(small_max=10), maintenance_records=4))
    data = await build(await tier2.owner(), [1] * 11 + [20] + [1, 20, 1, 20, 1, 20] + [1] * 9)
    owner = await tier2.owner(2)
    await owner.storage.defrag(SID)

    assert await owner.lengths() == [11, 20, 1, 20, 1, 20, 1, 20, 9]
    assert await owner.content() == data
    await check_index(owner, 2)


async def test_defrag_of_a_truncated_segment_begins_at_its_start() -> None:
    for cut in range(8):
        tier2 = Tier2(options=small())
        data = await build(await tier2.owner(), [2, 2, 2, 2])
        owner = await tier2.owner(2)
        await owner.truncate(cut)
        await owner.storage.defrag(SID)

        assert await owner.lengths() == [8 - cut // 2 * 2]
        assert await owner.content() == data[cut:]
        await owner.truncate(8)
        assert (await owner.storage.defrag(SID)).made == 0
        assert await owner.content() == b""


async def test_defrag_of_nothing() -> None:
    owner = await Tier2().owner()
    with pytest.raises(SegmentNotFound):
        await owner.storage.defrag(SID)
    await owner.write(0)
    assert (await owner.storage.defrag(SID)).made == 0


async def test_an_earlier_owner_cannot_defrag() -> None:
    tier2 = Tier2(options=small())
    old = await tier2.owner(1)
    await build(await tier2.owner(1), [1, 1])
    await (await tier2.owner(2)).write(2, b"x")
    with pytest.raises(NotOwner):
        await old.storage.defrag(SID)
    assert old.chunks.calls == []


# --- inside a concat ----------------------------------------------------------------------------


@APPEND
@pytest.mark.parametrize("target", [[], [1], [5], [2, 2], [9, 1, 1]])
@pytest.mark.parametrize("source", [[], [1], [3], [1, 1, 1, 1], [1, 2, 3, 4]])
async def test_concat_joins_from_the_seam_on_where_that_is_asked_for(
    append: bool, target: list[int], source: list[int]
) -> None:
    tier2 = Tier2(append=append, options=small(inline=True))
    data = await build(await tier2.owner(), target)
    await (await tier2.owner()).write(len(data))
    added = await build(await tier2.owner(), source, OTHER)
    owner = await tier2.owner(2)
    await owner.write(len(added), sid=OTHER, seal=True)
    await owner.concat()

    assert await owner.content() == data + added
    if sum(source) >= 4:
        assert len(await owner.lengths()) < len(target) + len(source)
    info = await owner.storage.info(SID)
    assert (info.length, info.chunk_count) == (len(data + added), len(await owner.lengths()))
    await owner.run_deferred()
    await check_index(owner, 2)
    collect(tier2)
    await owner.write(info.length, b"tail")
    assert await owner.content() == data + added + b"tail"


@APPEND
async def test_a_transaction_that_wrote_and_concatenated_joins_its_own_chunks_too(append: bool) -> None:
    tier2 = Tier2(append=append, options=small(inline=True))
    await build(await tier2.owner(), [1, 1], OTHER)
    owner = await tier2.owner(2)
    await owner.write(2, sid=OTHER, seal=True)
    with owner.storage.begin(SID, create=True) as txn:
        await owner.storage.write(txn, 0, [b"ab"])
        await owner.storage.concat(txn, OTHER)
        await owner.storage.write(txn, 4, [b"z"])
        await txn.commit()

    assert await owner.content() == b"ab" + TEXT[:2] + b"z"
    assert await owner.lengths() == [4, 1]
    await check_index(owner, 2)
    collect(tier2)


# --- relocation ---------------------------------------------------------------------------------


@APPEND
@pytest.mark.parametrize("native_min", [0, 1 << 20], ids=["inside", "by-copy"])
@pytest.mark.parametrize(("cut", "moved"), [(15, False), (16, True), (19, True), (20, False), (21, False)])
async def test_s10_the_rest_of_a_mostly_truncated_first_chunk_moves(
    append: bool, native_min: int, cut: int, moved: bool
) -> None:
    tier2 = Tier2(append=append, options=small(native_min=native_min))
    data = await build(await tier2.owner(), [20, 3])
    owner = await tier2.owner(2)
    await owner.truncate(cut)
    assert await owner.relocate() is moved

    assert await owner.content() == data[cut:]
    assert await owner.lengths() == ([20 - cut, 3] if moved else [20, 3] if cut < 20 else [3])
    assert not await owner.relocate()
    await check_index(owner, 2)
    collect(tier2)
    await owner.write(23, b"more")
    await owner.truncate(22)
    assert await owner.content() == data[22:] + b"more"


@pytest.mark.parametrize("cut", [BLOCK // 2, BLOCK, 2 * BLOCK + 17, 3 * BLOCK + 99])
@pytest.mark.parametrize("native_min", [0, 1 << 40], ids=["inside", "by-copy"])
async def test_s10_a_cut_inside_a_block_keeps_checksums_and_starts_right(cut: int, native_min: int) -> None:
    options = ChunkedOptions(
        defrag=DefragOptions(native_min=native_min, relocate_above=0, relocate_share=0.5)
    )
    tier2 = Tier2(options=options)
    data = bytes(range(253)) * ((3 * BLOCK + 12345) // 253)
    owner = await tier2.owner()
    with owner.storage.begin(SID, create=True) as txn:
        await owner.storage.write(txn, 0, [data], range(0, len(data), 999))
        await txn.commit()
    owner = await tier2.owner(2)
    await owner.truncate(cut)
    assert await owner.relocate() is (cut >= len(data) / 2)
    [(start, record)] = await owner.storage.chunks(SID)

    assert await owner.content() == data[cut:]
    assert all((start + each) % 999 == 0 for each in record.starts)


@pytest.mark.parametrize("native_min", [0, 1 << 40], ids=["inside", "by-copy"])
async def test_s10_damage_in_the_block_of_the_cut_is_reported(native_min: int) -> None:
    """The block's checksum covers bytes on both sides of the cut."""
    for flipped in (0, 15, 17, 19):
        tier2 = Tier2(options=small(native_min=native_min))
        await build(await tier2.owner(), [20])
        owner = await tier2.owner(2)
        await owner.truncate(17)
        tier2.chunks.chunks[tier2.names()[0]].data[flipped] ^= 1
        with pytest.raises(DataCorruption):
            await owner.relocate()
        assert await owner.lengths() == [20]


async def test_s10_a_first_chunk_that_may_still_grow_stays() -> None:
    owner = await Tier2(options=small()).owner()
    await owner.write(0, TEXT[:20])
    await owner.truncate(19)
    assert not await owner.relocate()
    await owner.write(20, seal=True)
    assert await owner.relocate()
    assert await owner.lengths() == [1]


async def test_s10_a_failed_copy_leaves_a_truncated_segment_as_it_was() -> None:
    for number in (1, 2):
        tier2 = Tier2(options=small())
        data = await build(await tier2.owner(), [20, 3])
        owner = await tier2.owner(2)
        await owner.truncate(17)
        owner.chunks.script = nth(number, Fault(FaultKind.BEFORE), "read", "create_with_content")
        with pytest.raises(Unavailable):
            await owner.relocate()
        owner.chunks.script = None

        assert await owner.content() == data[17:]
        assert await owner.lengths() == [20, 3]
        assert await owner.relocate()
        assert await owner.lengths() == [3, 3]


# --- crashes, faults, cancellation, readers -----------------------------------------------------


@attrs.frozen
class Scenario:
    sizes: list[int]
    cut: int
    act: Callable[[Owner], Coroutine[object, object, object]]
    layouts: list[list[int]]
    """Every layout that may be found after a crash; the last one is that of success."""


SCENARIOS = {
    "defrag": Scenario(
        [4, 2, 1, 1, 9, 2, 2],
        0,
        lambda owner: owner.storage.defrag(SID),
        [[4, 2, 1, 1, 9, 2, 2], [8, 9, 2, 2], [8, 9, 4]],
    ),
    "relocation": Scenario([20, 3], 17, Owner.relocate, [[20, 3], [3, 3]]),
}
EACH = pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS.keys())


async def prepared(scenario: Scenario, *, append: bool, native_min: int) -> tuple[Tier2, bytes]:
    small_max = 8 if scenario.cut == 0 else 100
    tier2 = Tier2(append=append, options=small(native_min=native_min, small_max=small_max))
    data = await build(await tier2.owner(), scenario.sizes)
    await (await tier2.owner()).truncate(scenario.cut)
    return tier2, data[scenario.cut :]


async def check_whole(tier2: Tier2, scenario: Scenario, data: bytes) -> list[int]:
    """What the next owner finds: one of the layouts, all bytes, and after a collection no other chunk."""
    owner = await tier2.owner(9)
    lengths = await owner.lengths()
    assert lengths in scenario.layouts
    collect(tier2)
    assert await owner.content() == data
    await check_index(owner, 2)
    return lengths


@EACH
@APPEND
@INSIDE
@pytest.mark.parametrize(
    "kind",
    [FaultKind.BEFORE, FaultKind.AFTER, FaultKind.LOST, FaultKind.PARTIAL],
    ids=lambda kind: kind.value,
)
async def test_s8_a_crash_at_any_storage_call_leaves_one_layout_and_no_garbage(
    scenario: Scenario, append: bool, native_min: int, kind: FaultKind
) -> None:
    number, lengths = 0, list[int]()
    while lengths != scenario.layouts[-1]:
        number += 1
        tier2, data = await prepared(scenario, append=append, native_min=native_min)
        owner = await tier2.owner(2)
        owner.chunks.script = nth(number, Fault(kind, keep=1))
        failed = False
        try:
            await scenario.act(owner)
        except (Unavailable, OutcomeUnknown):
            failed = True
        lengths = await check_whole(tier2, scenario, data)
        assert failed == (lengths != scenario.layouts[-1])
        await scenario.act(await tier2.owner(10))
        assert await check_whole(tier2, scenario, data) == scenario.layouts[-1]
    assert number > 2


@EACH
@pytest.mark.parametrize("after", [True, False], ids=["applied", "not-applied"])
@pytest.mark.parametrize(
    "error",
    [OutcomeUnknown("scripted"), MetadataConflict("scripted"), Unavailable("scripted")],
    ids=lambda e: e.code,
)
async def test_s8_a_crash_at_any_commit_leaves_one_layout_and_no_garbage(
    scenario: Scenario, error: TierlogError, after: bool
) -> None:
    if after and not isinstance(error, OutcomeUnknown):
        return  # these two promise that nothing was changed

    for number in range(1, len(scenario.layouts)):
        tier2, data = await prepared(scenario, append=True, native_min=0)
        owner = await tier2.owner(2, metadata=FaultyMetadataStore(tier2.metadata, number, error, after=after))
        with pytest.raises(type(error)):
            await scenario.act(owner)
        assert await check_whole(tier2, scenario, data) == scenario.layouts[number if after else number - 1]
        new = await tier2.owner(10)
        await scenario.act(new)
        assert await check_whole(tier2, scenario, data) == scenario.layouts[-1]


@EACH
@APPEND
@INSIDE
async def test_s8_cancelled_in_the_middle_the_old_layout_stands(
    scenario: Scenario, append: bool, native_min: int
) -> None:
    for verb in ("read", *MAKING):
        tier2, data = await prepared(scenario, append=append, native_min=native_min)
        owner = await tier2.owner(2)
        owner.chunks.script = every(Fault(FaultKind.HANG), verb)
        async with anyio.create_task_group() as group:
            group.start_soon(scenario.act, owner)
            await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()
        owner.chunks.script = None

        assert owner.storage.statistics().open_transactions == 0
        hung = owner.chunks.calls[-1].verb == verb
        assert (await owner.lengths() == scenario.layouts[0]) is hung
        assert set(tier2.names()) - set(tier2.referenced()) <= set(tier2.sink.released)
        await check_whole(tier2, scenario, data)


@EACH
@APPEND
async def test_s8_readers_meanwhile_see_either_layout_whole(scenario: Scenario, append: bool) -> None:
    """Readers on cold and warm layouts go on while the chunks are exchanged and the old ones deleted."""
    tier2, data = await prepared(scenario, append=append, native_min=0)
    owner = await tier2.owner(2)
    done = anyio.Event()
    reads = 0

    async def keep_reading() -> None:
        nonlocal reads
        while not done.is_set():
            assert await owner.content() == data
            reads += 1

    async def act() -> None:
        await scenario.act(owner)
        for name in list(tier2.sink.released):
            del tier2.chunks.chunks[name]
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
        done.set()

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(keep_reading)
        group.start_soon(act)
    assert reads > 3
    assert await owner.lengths() == scenario.layouts[-1]
