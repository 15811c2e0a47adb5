"""Transactions by a store's public verbs: rules T1 to T6, T8 and T9, live and across owners (time has a file
of its own)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

import tierlog
from support.container_world import ContainerWorld, Owner, read_all, recorded_segments, referenced_chunks
from support.stores import CONFIG, config, follow, make
from support.transactions import TARGET, begun, committed, staged
from tierlog import (
    BadOffset,
    CommitResult,
    InvalidArgument,
    SegmentSealed,
    SegmentStore,
    StagedPart,
    TransactionEnded,
    TransactionNotFound,
    TransactionState,
    TransactionToken,
)
from tierlog.actors.settings.configuration import TransactionsConfig
from tierlog.actors.store.read_only import open_reader

pytestmark = pytest.mark.anyio

TOKEN = TransactionToken("query-1", 7)
BIG = (bytes(range(253)) * 600)[:150_000]
"""More than two chunks, which roll at 64 KiB."""


@pytest.fixture
async def owner(anyio_backend: str) -> AsyncIterator[Owner]:
    async with ContainerWorld().owner() as owner:
        await make(owner.store, TARGET, b"base")
        yield owner


@pytest.fixture
def store(owner: Owner) -> SegmentStore:
    return owner.store


def assert_nothing_left(owner: Owner, names: list[str]) -> None:
    """T9: no segment, record, chunk or cached byte but those of ``names``."""
    container = owner.container
    live = {container.state.segments.sid_of(name) for name in names}
    assert set(container.state.segments.names()) == set(names)
    assert set(container.state.segments.by_id) == live
    assert recorded_segments(container) == live
    assert all(int(chunk.split("/")[2], 16) for chunk in referenced_chunks(container))
    assert container.cache.pinned_bytes == 0


# --- one step (T1, T2, T3) ----------------------------------------------------------------------


async def test_t2_a_tail_of_the_target_sees_the_parts_of_a_commit_together(store: SegmentStore) -> None:
    seen: list[bytes] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(follow, store, TARGET, seen)
        parts = await begun(store, "t", a=b"one", b=b"two")
        await anyio.wait_all_tasks_blocked()
        assert seen == [b"base"]
        await store.commit_transaction(TARGET, "t", parts)
        await store.seal_segment(TARGET)

    assert b"".join(seen) == b"baseonetwo"


async def test_staged_segments_are_read_and_described_like_any_other(store: SegmentStore) -> None:
    [part] = await begun(store, "t", a=b"one")
    await store.append_many(part.name, [b"two", b"three"], writer_id="w", first_event_number=0)

    assert await read_all(store, part.name) == b"onetwothree"
    assert (await store.segment_info(part.name)).length == 11
    assert await store.list_segments(f"{TARGET}#txn.") == [part.name]
    with pytest.raises(BadOffset):
        await store.append(part.name, b"again", expected_offset=0)


async def test_t1_staged_names_are_the_transactions_alone(store: SegmentStore) -> None:
    [part] = await begun(store, "t", a=b"one")
    await make(store, "app/events#user", b"", sealed=True)
    refused: list[Any] = [
        store.create_segment(f"{TARGET}#txn.t.other"),
        store.seal_segment(part.name),
        store.truncate_segment(part.name, 1),
        store.delete_segment(part.name),
        store.merge_segments(TARGET, [part.name]),
        store.merge_segments(part.name, ["app/events#user"]),
        store.begin_transaction(part.name, "u"),
        store.abort_transaction(part.name, "u"),
        store.commit_transaction(part.name, "u", []),
    ]
    for verb in refused:
        with pytest.raises(InvalidArgument, match="staged"):
            await verb

    assert await store.commit_transaction(TARGET, "t", [part]) == CommitResult(True, 4, 3)


async def test_an_append_that_races_with_the_commit_is_in_it_or_refused(store: SegmentStore) -> None:
    """T3, T5: whichever comes first, no acked byte is lost without a word."""
    [part] = await begun(store, "t", a=b"one")
    outcomes: dict[str, object] = {}

    async def note(what: str, verb: Any) -> None:
        try:
            outcomes[what] = await verb
        except (BadOffset, TransactionEnded) as error:
            outcomes[what] = type(error)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(note, "append", store.append(part.name, b"more"))
        tasks.start_soon(note, "commit", store.commit_transaction(TARGET, "t", [part]))

    assert outcomes in (
        {"append": 3, "commit": BadOffset},
        {"append": TransactionEnded, "commit": CommitResult(True, 4, 3)},
    )


# --- repeats (T4, T5, T6) -----------------------------------------------------------------------


async def test_t6_an_abort_that_overtook_its_begin_counts(store: SegmentStore) -> None:
    info = await store.abort_transaction(TARGET, "t", "overtaken")
    assert (info.state, info.reason, info.staged) == (TransactionState.ABORTED, "overtaken", ())
    with pytest.raises(TransactionEnded, match="overtaken"):
        await store.begin_transaction(TARGET, "t")
    with pytest.raises(TransactionEnded):
        await store.commit_transaction(TARGET, "t", [])


# --- the target (T8) ----------------------------------------------------------------------------


async def test_t8_a_deleted_target_ends_its_transactions_and_its_successor_knows_none(
    store: SegmentStore,
) -> None:
    await committed(store, "done", TOKEN, a=b"data")
    [part] = await begun(store, "open", a=b"one")
    await store.delete_segment(TARGET)

    assert (await store.transaction_info(TARGET, "open")).reason == "its target was deleted"
    with pytest.raises(TransactionEnded, match="its target was deleted"):
        await store.append(part.name, b"late")
    with pytest.raises(TransactionEnded, match="its target was deleted"):
        await store.commit_transaction(TARGET, "open", [part])

    await store.create_segment(TARGET)
    assert await store.list_transactions() == []
    with pytest.raises(TransactionNotFound):
        await store.append(part.name, b"late")
    assert await committed(store, "done", TOKEN, a=b"again") == CommitResult(True, 0, 5)


async def test_t8_transactions_that_ended_with_their_target_stay_ended_after_recovery(
    anyio_backend: str,
) -> None:
    """The aborts and the deletion are in one group of the log: an owner finds all of them or none."""
    world = ContainerWorld()
    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks)
        await make(owner.store, TARGET, b"base")
        for transaction in ("t", "u"):
            await begun(owner.store, transaction, a=b"one")
        groups = owner.container.log.next_group
        await owner.store.delete_segment(TARGET)
        assert owner.container.log.next_group == groups + 1
        await owner.crash()

        owner = await world.start(tasks)
        infos = await owner.store.list_transactions()
        assert [(info.transaction_id, info.state, info.reason) for info in infos] == [
            (transaction, TransactionState.ABORTED, "its target was deleted") for transaction in ("t", "u")
        ]
        await owner.store.flush()
        assert_nothing_left(owner, [])
        await owner.stop()


async def test_t8_a_target_merged_into_another_ends_its_transactions(store: SegmentStore) -> None:
    await begun(store, "open", a=b"one")
    await make(store, f"{TARGET}#other")
    await store.seal_segment(TARGET)
    await store.merge_segments(f"{TARGET}#other", [TARGET])

    assert (await store.transaction_info(TARGET, "open")).state is TransactionState.ABORTED
    assert await store.list_segments(TARGET) == [f"{TARGET}#other"]
    await store.flush()
    assert await read_all(store, f"{TARGET}#other") == b"base"


async def test_t8_a_commit_is_refused_by_a_sealed_target_and_applied_to_a_truncated_one(
    store: SegmentStore,
) -> None:
    parts = await begun(store, "t", a=b"one")
    await store.truncate_segment(TARGET, 4)
    assert await committed(store, "u", a=b"two") == CommitResult(True, 4, 3)
    await store.seal_segment(TARGET)
    with pytest.raises(SegmentSealed):
        await store.commit_transaction(TARGET, "t", parts)

    info = await store.transaction_info(TARGET, "t")
    assert (info.state, list(info.staged)) == (TransactionState.OPEN, parts)


# --- nothing leaks (T9), what long-term storage makes of it -------------------------------------


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("end", ["commit", "abort", "delete"])
async def test_t9_nothing_is_left_after_the_end_and_a_flush(owner: Owner, end: str, flushed: bool) -> None:
    store = owner.store
    parts = await begun(store, "t", a=BIG, b=b"small", unused=BIG)
    if flushed:
        await store.flush()
        assert len(recorded_segments(owner.container)) == 4
    if end == "commit":
        await store.commit_transaction(TARGET, "t", parts[:2])
    elif end == "abort":
        await store.abort_transaction(TARGET, "t")
    else:
        await store.delete_segment(TARGET)
    await store.flush()

    assert_nothing_left(owner, [] if end == "delete" else [TARGET])
    if end == "commit":
        assert await read_all(store, TARGET) == b"base" + BIG + b"small"
        assert (await store.segment_info(TARGET)).flushed_length == 4 + len(BIG) + 5


async def test_an_empty_commit_moves_nothing_but_counts(store: SegmentStore) -> None:
    assert await committed(store, "t", TOKEN, a=b"") == CommitResult(True, 4, 0)
    assert (await store.segment_info(TARGET)).attributes == {"txn:query-1": 7}
    assert await store.commit_transaction(TARGET, "again", [], TOKEN) == CommitResult(False, None, 0)


# --- across owners ------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", ["clean", "crash"])
@pytest.mark.parametrize("checkpoint", ["none", "before the ends", "after the ends"])
async def test_what_was_acked_is_there_after_a_takeover(
    anyio_backend: str, stop: str, checkpoint: str
) -> None:
    """From the log, from a checkpoint, and from a checkpoint with the ends behind it."""
    world = ContainerWorld()
    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks)
        store = owner.store
        await make(store, TARGET, b"base")
        done = await begun(store, "done", TOKEN, a=b"one", b=b"unused")
        await begun(store, "gone", a=b"dropped")
        parts = await begun(store, "open", a=b"three")
        if checkpoint == "before the ends":
            await owner.checkpoint()
        await store.commit_transaction(TARGET, "done", done[:1], TOKEN)
        await store.abort_transaction(TARGET, "gone", "why")
        await store.flush()
        if checkpoint == "after the ends":
            await owner.checkpoint()
        described = await store.list_transactions()
        await (owner.stop() if stop == "clean" else owner.crash())

        owner = await world.start(tasks)
        store = owner.store
        found = await store.list_transactions()
        assert [
            (i.transaction_id, i.state, i.offset, i.length, i.reason, list(i.staged), i.token, i.lease)
            for i in found
        ] == [
            (i.transaction_id, i.state, i.offset, i.length, i.reason, list(i.staged), i.token, i.lease)
            for i in described
        ]
        assert await store.commit_transaction(TARGET, "done", done[:1], TOKEN) == CommitResult(False, 4, 3)
        assert await store.commit_transaction(TARGET, "forgotten", done[:1], TOKEN) == CommitResult(
            False, None, 0
        )
        with pytest.raises(TransactionEnded, match="why"):
            await store.append(f"{TARGET}#txn.gone.a", b"late")
        parts += await staged(store, "open", b=b"four")
        assert await store.commit_transaction(TARGET, "open", parts) == CommitResult(True, 7, 9)
        assert await read_all(store, TARGET) == b"baseonethreefour"
        await store.flush()
        assert_nothing_left(owner, [TARGET])
        await owner.stop()


async def test_a_commit_whose_reply_was_lost_is_found_by_the_next_owner(anyio_backend: str) -> None:
    """T4: the caller knows nothing, asks again as it asked before, and one commit has happened."""
    world = ContainerWorld()
    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks)
        await make(owner.store, TARGET, b"base")
        parts = await begun(owner.store, "t", TOKEN, a=b"data")
        await owner.store.commit_transaction(TARGET, "t", parts, TOKEN)  # its answer is thrown away here
        await owner.crash()

        owner = await world.start(tasks)
        assert (await owner.store.begin_transaction(TARGET, "t", TOKEN)).state is TransactionState.COMMITTED
        assert await owner.store.commit_transaction(TARGET, "t", parts, TOKEN) == CommitResult(False, 4, 4)
        assert await read_all(owner.store, TARGET) == b"basedata"
        await owner.stop()


async def test_a_store_on_a_real_folder_keeps_transactions_across_openings(tmp_path: Any) -> None:
    async with tierlog.open_store(tmp_path / "s", containers=3, config=CONFIG) as store:
        for name in ("b/x", "a/y"):
            await store.create_segment(name)
            await store.begin_transaction(name, "t", lease=20)
        part = await store.stage_segment("a/y", "t", "p")
        await store.append(part, b"data")

    async with tierlog.open_store(tmp_path / "s", config=CONFIG) as store:
        assert [(info.target, info.lease) for info in await store.list_transactions()] == [
            ("a/y", 20.0),
            ("b/x", 20.0),
        ]
        assert [info.target for info in await store.list_transactions("b")] == ["b/x"]
        assert await store.commit_transaction("a/y", "t", [StagedPart(part, 4)]) == CommitResult(True, 0, 4)
        counts = [host.current.transactions for host in store.statistics().containers if host.current]
        assert (sum(each.open for each in counts), sum(each.tombstones for each in counts)) == (1, 1)
        assert (sum(each.committed for each in counts), sum(each.aborted for each in counts)) == (1, 0)
        assert b"tierlog_transaction_committed_total" in store.metrics()


async def test_the_configuration_bounds_leases_and_tombstones(tmp_path: Any) -> None:
    settings = config(transactions=TransactionsConfig(tombstone=600.0, lease_max=60.0))
    async with tierlog.open_store(tmp_path / "s", containers=1, config=settings) as store:
        await store.create_segment(TARGET)
        assert (await store.begin_transaction(TARGET, "t")).lease == 60
        assert 500 < (await store.abort_transaction(TARGET, "t")).expires_in <= 600


async def test_t9_the_staged_segments_of_a_transaction_are_limited(tmp_path: Any) -> None:
    settings = config(transactions=TransactionsConfig(staged_max=2))
    async with tierlog.open_store(tmp_path / "s", containers=1, config=settings) as store:
        await store.create_segment(TARGET)
        parts = await begun(store, "t", a=b"one", b=b"two")
        with pytest.raises(
            InvalidArgument, match=r"has 2 staged segments, and transactions\.staged_max allows no more"
        ):
            await store.stage_segment(TARGET, "t", "c")

        # Those that there are can be asked for again, other transactions have their own, and it can be
        # committed.
        info = await store.transaction_info(TARGET, "t")
        assert (info.state, info.staged) == (TransactionState.OPEN, tuple(parts))
        assert await store.stage_segment(TARGET, "t", "a") == parts[0].name
        assert await begun(store, "other", c=b"x") == [StagedPart(f"{TARGET}#txn.other.c", 1)]
        assert (await store.commit_transaction(TARGET, "t", parts)).applied


async def test_a_checkpoint_keeps_more_transactions_than_one_part_holds(
    anyio_backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tierlog.actors.container.checkpoint._PART_RECORDS", 2)
    world = ContainerWorld()
    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks)
        await make(owner.store, TARGET)
        for number in range(7):
            await owner.store.abort_transaction(TARGET, f"t{number}")
        await owner.store.begin_transaction(TARGET, "t7")
        await owner.checkpoint()
        await owner.crash()

        owner = await world.start(tasks)
        assert [info.transaction_id for info in await owner.store.list_transactions()] == [
            f"t{number}" for number in range(8)
        ]
        await owner.stop()


async def test_a_reader_of_the_folder_is_shown_no_staged_segments(tmp_path: Any) -> None:
    async with tierlog.open_store(tmp_path / "s", config=CONFIG) as store:
        await store.create_segment(TARGET)
        [part] = await begun(store, "t", a=b"one")
    async with open_reader(tmp_path / "s") as view:
        assert await view.list_segments() == [TARGET]
        assert await view.list_segments(f"{TARGET}#txn.") == [part.name]


async def test_a_commit_of_many_parts_is_one_operation(owner: Owner) -> None:
    store = owner.store
    await begun(store, "t")
    parts = await staged(store, "t", **{f"p{number}": b"%d," % number for number in range(300)})
    before = owner.container.state.sequence
    result = await store.commit_transaction(TARGET, "t", parts)

    expected = b"base" + b"".join(b"%d," % number for number in range(300))
    assert result == CommitResult(True, 4, len(expected) - 4)
    assert owner.container.state.sequence == before + 1
    assert await read_all(store, TARGET) == expected
    await store.flush()
    assert await read_all(store, TARGET) == expected
    assert_nothing_left(owner, [TARGET])
