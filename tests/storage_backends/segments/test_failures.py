"""Failures: a fault at every call of a workload, commits without an answer, cancellation, owners that come
back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest

from support.chunked import OTHER, SID, FaultyMetadataStore, Owner, Tier2
from tierlog.storage_backends.base.errors import (
    MetadataConflict,
    NotOwner,
    OutcomeUnknown,
    StorageFull,
    TierlogError,
    Unavailable,
)
from tierlog.storage_backends.segments import context
from tierlog.storage_backends.segments.options import ChunkedOptions
from tierlog.testing.faulty_chunk_storage import Fault, FaultKind, every, nth

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]
FAULTS = [
    Fault(kind, keep=1)
    for kind in (FaultKind.BEFORE, FaultKind.AFTER, FaultKind.LOST, FaultKind.FULL, FaultKind.PARTIAL)
]
WRITES = ("write", "create_with_content")
OPTIONS = ChunkedOptions(index_spacing=4)
FINAL = b"cdefghijklmnop!"

STEPS: list[Callable[[Owner], Awaitable[None]]] = [
    lambda owner: owner.write(0, b"abcd", rolling_size=5),
    lambda owner: owner.write(4, b"efg"),
    lambda owner: owner.truncate(2),
    lambda owner: owner.write(0, b"hi", sid=OTHER),
    lambda owner: owner.write(2, b"jklmnop", sid=OTHER, seal=True),
    lambda owner: owner.concat(),
    lambda owner: owner.write(16, b"!"),
]


async def state_of(owner: Owner) -> list[object]:
    return [await owner.storage.info(sid) for sid in await owner.storage.list()]


def check_nothing_is_lost_or_leaked(tier2: Tier2) -> None:
    """Every chunk is referenced or was reported to the collector, and every chunk was tracked before."""
    reported = {*tier2.sink.released, *tier2.sink.doubted}
    assert set(tier2.names()) <= {*tier2.referenced(), *reported}
    assert set(tier2.names()) <= set(tier2.sink.tracked)
    assert set(tier2.referenced()) <= set(tier2.names())
    assert not set(tier2.sink.released) & set(tier2.referenced())


@pytest.mark.parametrize("append", [True, False], ids=["append", "no-append"])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.kind.value)
async def test_a_fault_at_every_chunk_call_leaves_the_metadata_as_it_was_and_a_retry_succeeds(
    append: bool, fault: Fault
) -> None:
    number, fired = 0, True
    while fired:
        number += 1
        tier2 = Tier2(append=append, options=OPTIONS)
        owner = await tier2.owner()
        owner.chunks.script = nth(number, fault, *WRITES)
        fired = await run_with_one_retry(owner)

        assert await owner.content() == FINAL
        check_nothing_is_lost_or_leaked(tier2)
    assert number > 5


async def run_with_one_retry(owner: Owner) -> bool:
    """Run all steps; the one that fails runs again. Returns whether one failed."""
    failed = False
    for step in STEPS:
        before = await state_of(owner)
        try:
            await step(owner)
        except (Unavailable, OutcomeUnknown, StorageFull):
            assert await state_of(owner) == before
            failed = True
            await step(owner)
    return failed


@pytest.mark.parametrize(
    "error",
    [Unavailable("scripted"), MetadataConflict("scripted"), StorageFull("scripted")],
    ids=lambda e: e.code,
)
async def test_a_fault_before_every_commit_changes_nothing(error: TierlogError) -> None:
    for number in range(1, len(STEPS) + 1):
        tier2 = Tier2(options=OPTIONS)
        owner = await tier2.owner(metadata=FaultyMetadataStore(tier2.metadata, number, error, after=False))
        for place, step in enumerate(STEPS, 1):
            if place == number:
                before = await state_of(owner)
                with pytest.raises(type(error)):
                    await step(owner)
                assert await state_of(owner) == before
            await step(owner)

        assert await owner.content() == FINAL
        assert tier2.sink.doubted == []
        check_nothing_is_lost_or_leaked(tier2)


@pytest.mark.parametrize("after", [True, False], ids=["applied", "not-applied"])
@pytest.mark.parametrize("error", [OutcomeUnknown("scripted"), NotOwner("scripted")], ids=lambda e: e.code)
async def test_a_commit_without_an_answer_leaves_the_state_of_every_name_unknown(
    error: TierlogError, after: bool
) -> None:
    for number in range(1, len(STEPS) + 1):
        tier2 = Tier2(options=OPTIONS)
        owner = await tier2.owner(metadata=FaultyMetadataStore(tier2.metadata, number, error, after=after))
        for place, step in enumerate(STEPS, 1):
            if place != number:
                await step(owner)
                continue
            chunks_before = set(tier2.referenced())
            with pytest.raises(type(error)):
                await step(owner)
            # What the commit would have added or dropped is decided on durable state, later.
            assert set(tier2.referenced()) ^ chunks_before <= set(tier2.sink.doubted)
            assert set(tier2.names()) - chunks_before - set(tier2.sink.released) <= set(tier2.sink.doubted)
            if not after:
                await step(owner)

        assert await owner.content() == FINAL
        check_nothing_is_lost_or_leaked(tier2)


async def test_s3_after_a_partial_write_the_next_one_begins_a_chunk() -> None:
    tier2 = Tier2()
    owner = await tier2.owner()
    await owner.write(0, b"abc")
    owner.chunks.script = nth(1, Fault(FaultKind.PARTIAL, keep=2), "write")
    with pytest.raises(OutcomeUnknown):
        await owner.write(3, b"defg")
    assert bytes(tier2.chunks.chunks[tier2.names()[0]].data) == b"abcde"
    await owner.write(3, b"DEFG")

    assert await owner.content() == b"abcDEFG"
    assert await owner.lengths() == [3, 4]


async def test_s3_a_chunk_grown_by_another_owner_is_not_appended_to() -> None:
    tier2 = Tier2()
    owner = await tier2.owner()
    await owner.write(0, b"abc")
    tier2.chunks.chunks[tier2.names()[0]].data += b"junk"
    with pytest.raises(TierlogError):
        await owner.write(3, b"d")
    await owner.write(3, b"d")

    assert await owner.content() == b"abcd"
    assert await owner.lengths() == [3, 1]


async def test_s3_uncommitted_bytes_keep_a_chunk_from_being_appended_to() -> None:
    tier2 = Tier2()
    owner = await tier2.owner()
    await owner.write(0, b"abc")
    with owner.storage.begin(SID) as txn:
        await owner.storage.write(txn, 3, [b"given up"])
    await owner.write(3, b"d")

    assert await owner.content() == b"abcd"
    assert await owner.lengths() == [3, 1]


async def test_a_storage_that_is_down_costs_no_names() -> None:
    tier2 = Tier2()
    owner = await tier2.owner()
    await owner.write(0, b"abc")
    owner.chunks.script = every(Fault(FaultKind.BEFORE), *WRITES)
    for _ in range(5):
        with pytest.raises(Unavailable):
            await owner.write(3, b"d")
    owner.chunks.script = None
    await owner.write(3, b"d")

    assert len(tier2.sink.tracked) == 1
    assert await owner.lengths() == [4]


@pytest.mark.parametrize("kind", [FaultKind.BEFORE, FaultKind.FULL], ids=lambda kind: kind.value)
async def test_a_refused_creation_leaves_its_name_to_the_next_one(kind: FaultKind) -> None:
    """Otherwise each attempt during a long outage would cost a name and an entry in the collector's queue."""
    tier2 = Tier2(append=False)
    owner = await tier2.owner()
    owner.chunks.script = every(Fault(kind), *WRITES)
    for _ in range(5):
        with pytest.raises((Unavailable, StorageFull)):
            await owner.write(0, b"abc")
    assert (len(tier2.sink.tracked), tier2.sink.released) == (1, [])

    owner.chunks.script = None
    await owner.write(0, b"abc")
    await owner.write(3, b"d")
    assert tier2.sink.tracked == tier2.sink.kept == tier2.names()
    assert await owner.content() == b"abcd"


async def test_a_name_that_is_left_is_released_when_its_segment_goes() -> None:
    tier2 = Tier2(append=False)
    owner = await tier2.owner()
    await owner.write(0, b"abc")
    for data in (b"d", b"e"):
        owner.chunks.script = every(Fault(FaultKind.FULL), *WRITES)
        with pytest.raises(StorageFull):
            await owner.write(3, data)
    owner.chunks.script = None
    with owner.storage.begin(SID) as txn:
        await owner.storage.delete(txn)
        await txn.commit()

    assert len(tier2.sink.tracked) == 2
    assert sorted(tier2.sink.released) == sorted(tier2.sink.tracked)


async def test_an_append_of_unknown_outcome_is_called_once() -> None:
    owner = await Tier2().owner()
    await owner.write(0, b"abc")
    owner.chunks.script = every(Fault(FaultKind.AFTER), "write")
    with pytest.raises(OutcomeUnknown):
        await owner.write(3, b"d")

    assert [call.verb for call in owner.chunks.calls] == ["create_with_content", "write"]


async def test_s3_a_new_owner_begins_a_chunk_and_late_bytes_of_the_old_one_are_invisible() -> None:
    tier2 = Tier2()
    old = await tier2.owner(epoch=1)
    await old.write(0, b"abc")
    for epoch in range(2, 6):
        new = await tier2.owner(epoch=epoch)
        length = (await new.storage.info(SID)).length
        await new.write(length, b"%d" % epoch)
        with old.storage.begin(SID) as txn, pytest.raises(NotOwner):
            await old.storage.write(txn, length, [b"zombie"])
        for chunk in tier2.chunks.chunks.values():
            chunk.data += b"zombie"
        old = new

    assert await old.content() == b"abc2345"
    assert await old.lengths() == [3, 1, 1, 1, 1]


async def test_a_zombie_that_read_before_the_takeover_fails_its_commit() -> None:
    tier2 = Tier2()
    old, new = await tier2.owner(epoch=1), await tier2.owner(epoch=2)
    await old.write(0, b"abc")
    with old.storage.begin(SID) as txn:
        await old.storage.write(txn, 3, [b"zombie"])
        await new.write(3, b"new")
        with pytest.raises(MetadataConflict):
            await txn.commit()

    assert await new.content() == b"abcnew"
    check_nothing_is_lost_or_leaked(tier2)


@pytest.mark.parametrize("verb", ["write", "create_with_content"])
async def test_a_cancelled_write_leaves_the_segment_as_it_was(verb: str) -> None:
    tier2 = Tier2()
    owner = await tier2.owner()
    await owner.write(0, b"abcd", rolling_size=5)
    owner.chunks.script = every(Fault(FaultKind.HANG), verb)
    async with anyio.create_task_group() as group:
        group.start_soon(owner.write, 4, b"efg")
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()
    owner.chunks.script = None

    assert owner.storage.statistics().open_transactions == 0
    assert await owner.content() == b"abcd"
    await owner.write(4, b"EFG")
    assert await owner.content() == b"abcdEFG"
    check_nothing_is_lost_or_leaked(tier2)


async def test_a_name_that_could_not_be_tracked_is_not_created() -> None:
    tier2 = Tier2()
    tier2.sink.refuses = True
    owner = await tier2.owner()
    with pytest.raises(Unavailable):
        await owner.write(0, b"abc")

    assert tier2.names() == []
    assert len(tier2.sink.released) == 1


async def test_an_evicted_tail_costs_one_new_chunk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(context, "APPENDABLE_MAX", 1)
    owner = await Tier2().owner()
    await owner.write(0, b"a")
    await owner.write(0, b"x", sid=OTHER)
    await owner.write(1, b"y", sid=OTHER)
    await owner.write(1, b"b")

    assert await owner.lengths(OTHER) == [2]
    assert await owner.lengths() == [1, 1]
    assert await owner.content() == b"ab"


async def test_only_the_last_chunk_of_a_segment_is_kept_as_its_tail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A segment that rolls often does not push out the tails of others."""
    monkeypatch.setattr(context, "APPENDABLE_MAX", 2)
    owner = await Tier2().owner()
    await owner.write(0, b"x", sid=OTHER)
    for offset in range(5):
        await owner.write(offset, b"a", rolling_size=1)
    await owner.write(1, b"y", sid=OTHER)

    assert await owner.lengths(OTHER) == [2]
