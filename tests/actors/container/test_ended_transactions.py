"""Ended transactions as rows of the system table (rule M21): they are remembered wherever their rows are."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import islice
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec.structs import replace
from simulation.records import broken_records

from support.container_parts import NAME as UNIT_NAME
from support.container_world import OPTIONS, ContainerWorld, Owner, read_all, virtual_time
from support.live_segments import cold_images
from support.stores import make
from support.table_rows import records_of
from support.transactions import TARGET, begun, committed
from tierlog import (
    CommitResult,
    SegmentStore,
    TransactionEnded,
    TransactionInfo,
    TransactionNotFound,
    TransactionState,
    TransactionToken,
)
from tierlog.actors.container.ended_rows import (
    end_of_key,
    ended_key,
    ended_of_row,
    ended_rows,
    index_key,
    split_key,
)
from tierlog.actors.container.operations.cold import UnloadRequest
from tierlog.journal.log.contract import GroupInfo
from tierlog.journal.log.memory import _LogState
from tierlog.journal.operations.ended_transactions import TransactionEnd
from tierlog.journal.operations.transaction_image import TransactionImage, TransactionStatus
from tierlog.storage_backends.base.codec import DecodeError
from tierlog.storage_backends.base.errors import DataCorruption, NotOwner, Unavailable
from tierlog.storage_backends.chunks.memory import MemoryChunk
from tierlog.storage_backends.sorted_runs.rows import Row
from tierlog.testing.faulty_chunk_storage import Call, Fault, FaultKind

pytestmark = [pytest.mark.anyio, virtual_time]

GOLDEN = Path(__file__).parents[2] / "golden"
TOMBSTONE = 6_400.0
COLD = replace(OPTIONS, active_segments_max=1, tombstone=TOMBSTONE)
OTHER = "app/other"
TOKEN = TransactionToken("q", 7)
COMMITTED, ABORTED, OPEN = TransactionState.COMMITTED, TransactionState.ABORTED, TransactionState.OPEN


async def ended(owner: Owner) -> None:
    """A target with a committed and an aborted transaction, and another one."""
    await make(owner.store, OTHER)
    await make(owner.store, TARGET, b"base")
    await committed(owner.store, "done", TOKEN, a=b"data")
    await begun(owner.store, "given-up", b=b"lost")
    await owner.store.abort_transaction(TARGET, "given-up", "of no use")


async def go_cold(owner: Owner) -> None:
    """Publish everything, unload what is idle, and forget the blocks of the runs."""
    await owner.store.flush()
    await owner.container.ask_internal(UnloadRequest(list(owner.container.segments.ids())), 8)
    owner.container.options.table_cache.clear()


def in_memory(owner: Owner) -> list[bytes]:
    """The keys of rows of ended transactions."""
    table = owner.container.state.table
    return [
        key for key in (ended_key(TARGET, "done"), ended_key(TARGET, "given-up")) if table.find_in_memory(key)
    ]


def rows_of(owner: Owner) -> list[str]:
    return [key for key in records_of(owner.container) if key.startswith(("t:", "h:"))]


async def listed(owner: Owner, prefix: str = "") -> list[tuple[str, TransactionState]]:
    return [(info.transaction_id, info.state) for info in await owner.store.list_transactions(prefix)]


async def check_queries(owner: Owner) -> None:
    """Neither a listing nor a query loads anything."""
    assert await listed(owner) == [("done", COMMITTED), ("given-up", ABORTED)]
    assert await listed(owner, "app/e") == await listed(owner)
    assert await listed(owner, "app/events/") == []
    done = await owner.store.transaction_info(TARGET, "done")
    assert (done.state, done.offset, done.length, done.token) == (COMMITTED, 4, 4, TOKEN)
    assert 0 < done.expires_in < TOMBSTONE + 0.001  # a clock that runs for long is rounded
    given_up = await owner.store.transaction_info(TARGET, "given-up")
    assert (given_up.state, given_up.reason) == (ABORTED, "of no use")
    with pytest.raises(TransactionNotFound):
        await owner.store.transaction_info(TARGET, "unknown")


async def check_verbs(owner: Owner) -> None:
    """T5: what a zombie sends changes nothing."""
    store = owner.store
    for transaction in ("done", "given-up"):
        owner.container.options.table_cache.clear()
        with pytest.raises(TransactionEnded):
            await store.append(f"{TARGET}#txn.{transaction}.a", b"late")
        with pytest.raises(TransactionEnded):
            await store.stage_segment(TARGET, transaction, "a")
    with pytest.raises(TransactionEnded, match="of no use"):
        await store.begin_transaction(TARGET, "given-up")
    with pytest.raises(TransactionEnded):
        await store.commit_transaction(TARGET, "given-up", [])
    with pytest.raises(TransactionNotFound):
        await store.append(f"{TARGET}#txn.unknown.a", b"late")
    owner.container.options.table_cache.clear()
    assert (await store.begin_transaction(TARGET, "done", TOKEN)).state is COMMITTED
    owner.container.options.table_cache.clear()
    assert await store.commit_transaction(TARGET, "done", []) == CommitResult(False, 4, 4)
    owner.container.options.table_cache.clear()
    info = await store.abort_transaction(TARGET, "done")
    assert (info.state, info.offset) == (COMMITTED, 4)
    assert 0 < info.expires_in < TOMBSTONE + 0.001
    assert (await store.abort_transaction(TARGET, "given-up", "again")).reason == "of no use"
    assert await read_all(store, TARGET) == b"basedata"


async def check(owner: Owner) -> None:
    await check_queries(owner)
    await check_verbs(owner)
    assert not list(broken_records(owner.container))


async def test_m21_ended_transactions_leave_memory_and_their_target_goes_cold() -> None:
    async with ContainerWorld(COLD).owner() as owner:
        await ended(owner)
        assert not owner.container.state.transactions.records
        await check(owner)
        await go_cold(owner)
        assert not in_memory(owner)
        assert not owner.container.segments.count
        await check_queries(owner)
        assert len(cold_images(owner.container)) == 2
        sequence = owner.container.state.sequence
        await check_verbs(owner)
        loads = 1
        assert owner.container.state.sequence == sequence + loads, "nothing else is logged"
        assert await owner.store.commit_transaction(
            TARGET, "next", await begun(owner.store, "next", c=b"more")
        ) == CommitResult(True, 8, 4)


@pytest.mark.parametrize("how", ["crash", "checkpoint", "stop"])
@pytest.mark.parametrize("flushed", [True, False], ids=["in runs", "in the log"])
async def test_t5_ended_transactions_are_remembered_by_the_next_owners(flushed: bool, how: str) -> None:
    world = ContainerWorld(COLD)
    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks)
        await ended(owner)
        for _ in range(3):
            if flushed:
                await go_cold(owner)
            if how == "checkpoint":
                await owner.checkpoint()
            await (owner.stop() if how == "stop" else owner.crash())
            owner = await world.start(tasks)
            owner.container.options.table_cache.clear()
            assert owner.container.state.transactions.ends == 2
            await check(owner)
        await owner.stop()


async def test_t5_a_tombstone_that_only_runs_have_is_forgotten_after_its_time() -> None:
    world = ContainerWorld(COLD)
    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks)
        await ended(owner)
        await go_cold(owner)
        await anyio.sleep(TOMBSTONE - 10)
        await owner.crash()

        owner = await world.start(tasks)
        await anyio.sleep(TOMBSTONE - 10)
        await check_queries(owner)
        sequence = owner.container.state.sequence
        await anyio.sleep(10 + TOMBSTONE / 64)
        assert await listed(owner) == []
        assert owner.container.state.sequence == sequence + 1, "both are forgotten by one operation"
        assert owner.container.statistics().transactions.tombstones == 0
        await owner.store.flush()
        assert rows_of(owner) == []
        assert (await owner.store.begin_transaction(TARGET, "given-up")).state is OPEN
        # T4: the token is remembered for as long as the target.
        assert await owner.store.commit_transaction(TARGET, "done", [], TOKEN) == CommitResult(False, None, 0)
        await owner.stop()


async def test_t5_tombstones_are_forgotten_in_the_order_of_their_ends() -> None:
    async with ContainerWorld(COLD).owner() as owner:
        await make(owner.store, TARGET)
        for number in range(4):
            await owner.store.abort_transaction(TARGET, f"t{number}")
            await go_cold(owner)
            await anyio.sleep(TOMBSTONE / 4)
        for number in range(1, 5):
            await anyio.sleep(TOMBSTONE / 32)
            assert [found for found, _ in await listed(owner)] == [f"t{left}" for left in range(number, 4)]
            await anyio.sleep(TOMBSTONE * (1 / 4 - 1 / 32))


async def test_t5_one_that_ends_soon_after_another_is_not_forgotten_with_it_too_early() -> None:
    async with ContainerWorld(COLD).owner() as owner:
        await make(owner.store, TARGET)
        await owner.store.abort_transaction(TARGET, "first")
        await anyio.sleep(TOMBSTONE / 70)
        await owner.store.abort_transaction(TARGET, "second")
        await anyio.sleep(TOMBSTONE - 1)
        assert await listed(owner) == [("first", ABORTED), ("second", ABORTED)]
        await anyio.sleep(2)
        assert await listed(owner) == []


async def test_t7_leases_expire_while_tombstones_wait_for_long_term_storage() -> None:
    world = ContainerWorld(COLD)
    is_down = False

    def script(call: Call) -> Fault | None:
        return Fault(FaultKind.BEFORE) if is_down else None

    world.chunks.script = script
    async with world.owner() as owner:
        await ended(owner)
        await go_cold(owner)
        await owner.store.begin_transaction(OTHER, "t", lease=TOMBSTONE)
        is_down = True
        owner.container.options.table_cache.clear()
        await owner.container.copies.remove(list(owner.container.state.table.runs))
        await anyio.sleep(TOMBSTONE * 1.3)
        assert owner.container.statistics().transactions.open == 0
        assert owner.container.state.transactions.ends == 3
        is_down = False
        await anyio.sleep(60)
        assert owner.container.state.transactions.ends == 1


async def test_m21_while_rows_cannot_be_read_calls_are_refused_and_nothing_is_forgotten() -> None:
    world = ContainerWorld(COLD)
    is_down = True

    def script(call: Call) -> Fault | None:
        return Fault(FaultKind.BEFORE) if is_down and "/runs/" in call.name else None

    async with world.owner() as owner:
        await ended(owner)
        await go_cold(owner)
        world.chunks.script = script
        await owner.container.copies.remove(list(owner.container.state.table.runs))
        for verb in (
            owner.store.transaction_info(TARGET, "done"),
            owner.store.list_transactions(),
            owner.store.begin_transaction(TARGET, "done"),
            owner.store.append(f"{TARGET}#txn.done.a", b"late"),
        ):
            owner.container.options.table_cache.clear()
            with pytest.raises(Unavailable):
                await verb
        owner.container.options.table_cache.clear()
        await anyio.sleep(TOMBSTONE * 1.1)
        assert owner.container.state.transactions.ends == 2
        is_down = False
        await anyio.sleep(60)
        assert owner.container.state.transactions.ends == 0
        assert await listed(owner) == []


async def test_t8_a_later_target_of_the_name_has_none_of_the_ended_transactions() -> None:
    async with ContainerWorld(COLD).owner() as owner:
        store = owner.store
        await ended(owner)
        await go_cold(owner)
        await store.delete_segment(TARGET)
        await go_cold(owner)
        # The records outlive the target ...
        assert await listed(owner) == [("done", COMMITTED), ("given-up", ABORTED)]
        with pytest.raises(TransactionEnded):
            await store.append(f"{TARGET}#txn.done.a", b"late")
        # ... and are not those of the next one.
        await make(store, TARGET, b"new")
        await go_cold(owner)
        assert await listed(owner) == []
        owner.container.options.table_cache.clear()
        for verb in (
            store.transaction_info(TARGET, "done"),
            store.append(f"{TARGET}#txn.done.a", b"late"),
            store.commit_transaction(TARGET, "done", []),
        ):
            owner.container.options.table_cache.clear()
            with pytest.raises(TransactionNotFound):
                await verb
        assert await committed(store, "done", a=b"er") == CommitResult(True, 3, 2)
        await go_cold(owner)
        assert await listed(owner) == [("done", COMMITTED)]
        assert owner.container.state.transactions.ends == 3
        await anyio.sleep(TOMBSTONE * 1.1)
        assert await listed(owner) == []
        assert owner.container.state.transactions.ends == 0
        await store.flush()
        assert rows_of(owner) == []


@pytest.mark.parametrize("limit", [1, 3, 4, 256])
async def test_m22_pages_merge_open_and_ended_transactions(limit: int) -> None:
    async with ContainerWorld(COLD).owner() as owner:
        expected: list[tuple[str, str, TransactionState]] = []
        for target in ("app/a", "app/a+", "app/ab"):
            await make(owner.store, target)
            for number in range(20):
                is_open = number % 3 == 1 or 8 <= number < 14
                if is_open:
                    await owner.store.begin_transaction(target, f"t{number:02}")
                else:
                    await owner.store.abort_transaction(target, f"t{number:02}")
                expected.append((target, f"t{number:02}", OPEN if is_open else ABORTED))
            await go_cold(owner)

        def shown(infos: list[TransactionInfo]) -> list[tuple[str, str, TransactionState]]:
            return [(info.target, info.transaction_id, info.state) for info in infos]

        # Targets that do not begin with the prefix have transactions behind it.
        for prefix, first, end in (("", 0, 60), ("app/a+", 20, 40), ("app/ab", 40, 60)):
            pages = [page async for page in pages_of(owner, prefix, limit)]
            assert [each for page in pages for each in shown(page)] == expected[first:end]
            assert all(len(page) <= limit for page in pages)
            assert len(pages) <= (end - first) // limit + 1, "no page is short without a reason"


async def pages_of(owner: Owner, prefix: str, limit: int) -> AsyncIterator[list[TransactionInfo]]:
    token: str | None = None
    while True:
        page = await owner.store.page_of_transactions(prefix, token=token, limit=limit)
        yield page.transactions
        if (token := page.token) is None:
            return


async def test_m22_a_transaction_with_very_many_staged_segments_ends_its_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tierlog.actors.container.transactions.PARTS_MAX", 4)
    async with ContainerWorld(COLD).owner() as owner:
        await make(owner.store, TARGET)
        for transaction, staged in (("a", 3), ("b", 3), ("c", 0), ("d", 9), ("e", 0)):
            await owner.store.begin_transaction(TARGET, transaction)
            for number in range(staged):
                await owner.store.stage_segment(TARGET, transaction, f"p{number}")
        pages = [page async for page in pages_of(owner, TARGET, 256)]
        assert [[info.transaction_id for info in page] for page in pages] == [["a", "b"], ["c", "d"], ["e"]]


async def test_m22_a_transaction_that_ends_during_a_listing_is_listed_once() -> None:
    async with ContainerWorld(COLD).owner() as owner:
        await make(owner.store, TARGET)
        names = [f"t{number:02}" for number in range(12)]
        for name in names:
            await owner.store.begin_transaction(TARGET, name)
        found: list[str] = []
        async for page in pages_of(owner, TARGET, 2):
            found += (info.transaction_id for info in page)
            left = iter(names[len(found) :])
            for name in (*found[-2:], *islice(left, 1)):
                await owner.store.abort_transaction(TARGET, name)
            await go_cold(owner)
        assert found == names


@pytest.mark.parametrize("error", [DataCorruption, Unavailable])
@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.transaction_info(TARGET, "done"),
        lambda store: store.list_transactions(),
    ],
    ids=["info", "list"],
)
async def test_queries_of_an_owner_that_was_replaced_are_refused_as_such(
    call: Callable[[SegmentStore], Awaitable[object]],
    error: type[DataCorruption | Unavailable],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its successor deletes a run while it reads the answer there."""
    world = ContainerWorld(COLD)
    owners: list[Owner] = []
    async with anyio.create_task_group() as tasks:
        former = await world.start(tasks)
        await ended(former)
        await go_cold(former)

        async def fail(*_: Any) -> Any:
            if not owners:  # a damaged run is read once more
                owners.append(await world.start(tasks))
            raise error("runs/1 is gone")

        monkeypatch.setattr(former.container.runs, "_read", fail)
        with pytest.raises(NotOwner):
            await call(former.store)

        await former.stop()
        await owners[0].crash()


@pytest.mark.parametrize(
    "steps",
    [
        ("crash", "checkpoint", "flush", "crash", "flush"),
        ("record", "flush"),
        ("record", "crash", "checkpoint"),
    ],
    ids=" ".join,
)
async def test_m21_a_folder_of_an_earlier_version_keeps_its_ended_transactions(
    steps: tuple[str, ...],
) -> None:
    """Log and objects are those of the version before, which had ended transactions in checkpoints only: one
    has ended before its checkpoint, one before its newest run, one after it; another was forgotten.

    "record": the owner dies after it recorded an element and before that was created, so the next owner knows
    of no run that has them, and of one that may have."""
    world = ContainerWorld(replace(COLD, tombstone=86_400.0))
    kept = json.loads((GOLDEN / "container_without_ended_rows.json").read_text())
    journal = world.logs._states["c0"] = _LogState(kept["epoch"])
    for *info, payload in kept["groups"]:
        journal.add(GroupInfo(*info), bytes.fromhex(payload))
    for name, content in kept["objects"].items():
        world.memory.chunks[name] = MemoryChunk(bytearray.fromhex(content))

    async with anyio.create_task_group() as tasks:
        for step in steps:
            owner = await world.start(tasks)
            assert owner.container.state.transactions.ends == 4
            assert await listed(owner) == [
                ("aborted", ABORTED),
                ("committed", COMMITTED),
                ("elder", COMMITTED),
                ("last", COMMITTED),
                ("open", OPEN),
            ]
            for transaction in ("aborted", "elder", "last"):
                with pytest.raises(TransactionEnded):
                    await owner.store.begin_transaction(TARGET, transaction)
            assert await owner.store.commit_transaction(TARGET, "committed", []) == CommitResult(False, 4, 3)
            assert not list(broken_records(owner.container))
            if step == "flush":
                await owner.store.flush()
            if step == "checkpoint":
                await owner.checkpoint()
            if step == "record":
                world.chunks.script = _elements_hang
                with anyio.move_on_after(20):
                    await owner.store.flush()
                assert owner.container.state.manifest.intent is not None
            await owner.crash()
            world.chunks.script = None

        owner = await world.start(tasks)
        assert (await owner.store.begin_transaction(TARGET, "forgotten")).state is OPEN
        for transaction in ("open", "forgotten"):
            await owner.store.abort_transaction(TARGET, transaction)
        await anyio.sleep(86_400 * 1.1)
        await owner.store.flush()
        assert (owner.container.state.transactions.ends, rows_of(owner)) == (0, [])
        await owner.checkpoint()
        await owner.stop()


def _elements_hang(call: Call) -> Fault | None:
    return Fault(FaultKind.HANG) if call.verb.startswith("create") and "/journal/" in call.name else None


@pytest.mark.parametrize("count", [500, pytest.param(100_000, marks=pytest.mark.extended)])
async def test_m21_any_number_of_ended_transactions_takes_no_memory_and_no_checkpoint(count: int) -> None:
    world = ContainerWorld(COLD)

    async def end(store: SegmentStore, numbers: range) -> None:
        for number in numbers:
            await store.abort_transaction(TARGET, f"t{number}")

    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks)
        await make(owner.store, TARGET)
        async with anyio.create_task_group() as clients:
            for first in range(0, count, 500):
                clients.start_soon(end, owner.store, range(first, first + 500))
        await go_cold(owner)
        await owner.checkpoint()
        await check_small(owner, count)
        await owner.crash()

        owner = await world.start(tasks)
        await check_small(owner, count)
        assert owner.container.statistics().recovery.operations < 20
        with pytest.raises(TransactionEnded):
            await owner.store.begin_transaction(TARGET, f"t{count - 1}")
        assert len(await owner.store.list_transactions()) == count
        await owner.checkpoint()
        await check_small(owner, count)

        await anyio.sleep(TOMBSTONE * 1.1)
        assert owner.container.state.transactions.ends == 0
        await owner.store.flush()
        await check_small(owner, 0)
        assert await owner.store.list_transactions() == []
        await owner.stop()


async def check_small(owner: Owner, count: int) -> None:
    state, statistics = owner.container.state, owner.container.statistics()
    assert statistics.transactions.tombstones == count
    assert (len(state.transactions.records), state.recovered_ends) == (0, None)
    assert state.table.memory < 10_000
    assert len(owner.container.leases.tombstones._ends) <= 66
    assert statistics.checkpoints.last_bytes < 10_000


# --- rows ---------------------------------------------------------------------------------------

RECORD = TransactionImage(7, UNIT_NAME, "job-7", TransactionStatus.ABORTED, ("q", 7), 1000, "why not")


async def test_m21_the_keys_and_rows_of_ended_transactions_are_permanent() -> None:
    row, index = ended_rows(RECORD, 0x1234)
    assert row.key == b"t:app/events\0job-7"
    assert index == Row(b"h:0000000000001234app/events\0job-7", 0x1234, b"")
    assert ended_of_row(row) == RECORD
    assert ended_of_row(row._replace(value=None)) is None
    assert ended_of_row(None) is None
    assert split_key(row.key) == (UNIT_NAME, "job-7")
    assert end_of_key(index.key) == TransactionEnd(0x1234, True, UNIT_NAME, "job-7")
    assert ended_key("a", "z") < ended_key("a!", "a") < ended_key("ab", "a"), "by target, then by id"
    assert index_key(9, "b", "b") < index_key(10, "a", "a")


@pytest.mark.parametrize(
    "row",
    [
        ended_rows(RECORD, 1)[0]._replace(key=b"t:app/events\0job-8"),
        ended_rows(RECORD, 1)[0]._replace(value=b""),
    ],
    ids=["of another", "empty"],
)
async def test_m21_a_row_of_another_record_is_damage(row: Row) -> None:
    with pytest.raises(DecodeError):
        ended_of_row(row)


@pytest.mark.parametrize("key", [b"h:", b"h:12", b"h:00000000000000zzapp", b"h:0000000000000001\xff"])
async def test_m21_a_key_of_the_index_that_is_none_is_damage(key: bytes) -> None:
    with pytest.raises(DecodeError):
        end_of_key(key)
