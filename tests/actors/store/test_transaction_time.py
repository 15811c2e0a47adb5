"""Leases and tombstones in virtual time: rules T5, T7 and T9, and the quiet of a store without transactions
(F5)."""

from __future__ import annotations

import anyio
import pytest
from msgspec.structs import replace

from support.container_world import OPTIONS, ContainerWorld, Owner, referenced_chunks, virtual_time
from support.pipeline import GatedLog
from support.stores import make
from support.transactions import TARGET, begun, committed
from tierlog import (
    CommitResult,
    SegmentStore,
    TransactionEnded,
    TransactionNotFound,
    TransactionState,
    TransactionToken,
)
from tierlog.actors.container.statistics import TransactionStatistics
from tierlog.testing.faulty_chunk_storage import Call, Fault, FaultKind

pytestmark = [pytest.mark.anyio, virtual_time]

LEASE = 100.0
TOMBSTONE = 6_400.0
QUICK = replace(OPTIONS, tombstone=TOMBSTONE)


async def state_of(store: SegmentStore, transaction: str = "t") -> TransactionState:
    return (await store.transaction_info(TARGET, transaction)).state


def statistics(owner: Owner) -> TransactionStatistics:
    return owner.container.statistics().transactions


async def end_of(store: SegmentStore, transaction: str = "t") -> float:
    """When the transaction is found to be aborted."""
    while await state_of(store, transaction) is TransactionState.OPEN:
        await anyio.sleep(0.5)
    return anyio.current_time()


# --- leases (T7) --------------------------------------------------------------------------------


async def test_t7_a_transaction_without_appends_is_aborted_after_its_lease() -> None:
    async with ContainerWorld().owner() as owner:
        store = owner.store
        await make(store, TARGET)
        begin = anyio.current_time()
        await store.begin_transaction(TARGET, "t", lease=LEASE)
        name = await store.stage_segment(TARGET, "t", "a")

        assert LEASE <= await end_of(store) - begin <= 1.25 * LEASE + 1
        assert (await store.transaction_info(TARGET, "t")).reason == "its lease of 100 s expired"
        assert await store.list_segments(f"{TARGET}#txn.") == []
        with pytest.raises(TransactionEnded, match="lease of 100 s"):
            await store.append(name, b"late")
        assert statistics(owner) == TransactionStatistics(
            open=0, tombstones=1, committed=0, aborted=1, expired=1
        )


@pytest.mark.parametrize("pause", [1.0, 26.0, 49.0, 99.9])
async def test_t7_appends_renew_the_lease_which_expires_at_most_a_quarter_late(
    pause: float,
) -> None:
    async with ContainerWorld().owner() as owner:
        store = owner.store
        await make(store, TARGET)
        await store.begin_transaction(TARGET, "t", lease=LEASE)
        name = await store.stage_segment(TARGET, "t", "a")
        for _ in range(12):
            await anyio.sleep(pause)
            await store.append(name, b"x")
        last = anyio.current_time()

        assert LEASE <= await end_of(store) - last <= 1.25 * LEASE + 1


async def test_t7_a_flush_is_no_append() -> None:
    """What the store does with staged bytes by itself keeps no transaction alive."""
    async with ContainerWorld().owner() as owner:
        store = owner.store
        await make(store, TARGET)
        await store.begin_transaction(TARGET, "t", lease=LEASE)
        await store.append(await store.stage_segment(TARGET, "t", "a"), b"data")
        last = anyio.current_time()
        for _ in range(4):
            await anyio.sleep(24)
            await store.flush()

        assert LEASE <= await end_of(store) - last <= 1.25 * LEASE + 1


async def test_t7_leases_of_different_length_end_each_in_its_time() -> None:
    async with ContainerWorld().owner() as owner:
        store = owner.store
        await make(store, TARGET)
        begin = anyio.current_time()
        for lease in (300, 20, 100):
            await store.begin_transaction(TARGET, f"t{lease}", lease=lease)

        for lease in (20, 100, 300):
            assert lease <= await end_of(store, f"t{lease}") - begin <= 1.25 * lease + 1


async def test_t7_an_answer_has_the_rest_of_the_lease() -> None:
    async with ContainerWorld().owner() as owner:
        store = owner.store
        await make(store, TARGET)
        assert (await store.begin_transaction(TARGET, "t", lease=LEASE)).expires_in == pytest.approx(LEASE)
        await anyio.sleep(30)
        assert (await store.transaction_info(TARGET, "t")).expires_in == pytest.approx(70)
        await store.stage_segment(TARGET, "t", "a")
        assert [info.expires_in for info in await store.list_transactions()] == [LEASE]


async def test_t7_an_expiry_that_an_append_overtook_does_not_happen() -> None:
    """The check finds the lease expired while an append is on its way to the disk, which then renews it."""
    async with ContainerWorld().owner() as owner:
        store, leases = owner.store, owner.container._components.leases
        await make(store, TARGET)
        await store.begin_transaction(TARGET, "t", lease=LEASE)
        name = await store.stage_segment(TARGET, "t", "a")
        await anyio.sleep(26)  # a check has seen the staged segment
        ask = leases._ask

        async def overtaken(request: object, size: int) -> object:
            await store.append(name, b"in time")
            return await ask(request, size)  # type: ignore[arg-type]

        leases._ask = overtaken
        await anyio.sleep(100)
        leases._ask = ask
        assert await state_of(store) is TransactionState.OPEN
        assert statistics(owner).expired == 0
        renewed = anyio.current_time()
        assert await end_of(store) - renewed <= 1.25 * LEASE + 1


async def test_t7_a_lease_starts_at_the_ack_of_the_last_append_on_a_slow_disk_too() -> None:
    """A check that took the append in before it was durable would end the lease early."""
    world = ContainerWorld()
    world.logs.log("c0")
    log = GatedLog("c0", world.logs._states["c0"])
    async with world.owner(log=log) as owner, anyio.create_task_group() as tasks:
        store = owner.store
        await make(store, TARGET)
        await store.begin_transaction(TARGET, "t", lease=LEASE)
        name = await store.stage_segment(TARGET, "t", "a")
        await anyio.sleep(20)
        log.hold()
        tasks.start_soon(store.append, name, b"slow")
        await anyio.sleep(70)
        log.gate.set()
        await anyio.wait_all_tasks_blocked()
        acked = anyio.current_time()

        assert LEASE <= await end_of(store) - acked <= 1.25 * LEASE + 1


async def test_t7_after_a_takeover_every_lease_is_whole_again() -> None:
    world = ContainerWorld()
    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks)
        await make(owner.store, TARGET)
        await owner.store.begin_transaction(TARGET, "t", lease=LEASE)
        await anyio.sleep(90)
        await owner.crash()
        await anyio.sleep(1000)

        owner = await world.start(tasks)
        takeover = anyio.current_time()
        assert (await owner.store.transaction_info(TARGET, "t")).expires_in == pytest.approx(LEASE)
        assert LEASE <= await end_of(owner.store) - takeover <= 1.25 * LEASE + 1
        await owner.stop()


async def test_t7_the_store_grants_no_longer_lease_than_its_own() -> None:
    world = ContainerWorld()
    async with world.owner() as owner:
        owner.store._lease_max = 50.0
        await make(owner.store, TARGET)
        granted = await owner.store.begin_transaction(TARGET, "t")
        assert granted.lease == 50.0
        # The clock is shared by the tests, so far from 0 its differences are not exact.
        assert granted.expires_in == pytest.approx(50.0)


async def test_queries_of_ended_transactions_do_not_pile_up() -> None:
    async with ContainerWorld().owner() as owner:
        store, leases = owner.store, owner.container._components.leases
        await make(store, TARGET)
        begin = anyio.current_time()
        await store.begin_transaction(TARGET, "open", lease=LEASE)
        for number in range(50):
            await committed(store, f"t{number}")
        assert len(leases._checks) <= 4

        assert await end_of(store, "open") - begin <= 1.25 * LEASE + 1


# --- tombstones (T5, T9) ------------------------------------------------------------------------


async def test_t5_a_tombstone_is_forgotten_after_its_time() -> None:
    token = TransactionToken("q", 1)
    async with ContainerWorld(QUICK).owner() as owner:
        store = owner.store
        await make(store, TARGET)
        await committed(store, "done", token, a=b"data")
        await store.abort_transaction(TARGET, "gone")
        assert (await store.transaction_info(TARGET, "done")).expires_in == pytest.approx(TOMBSTONE)
        await anyio.sleep(TOMBSTONE - 1)
        assert await state_of(store, "done") is TransactionState.COMMITTED
        assert (await store.transaction_info(TARGET, "gone")).expires_in == pytest.approx(1)
        await anyio.sleep(1 + TOMBSTONE / 64 + 1)

        assert await store.list_transactions() == []
        for transaction in ("done", "gone"):
            with pytest.raises(TransactionNotFound):
                await store.append(f"{TARGET}#txn.{transaction}.a", b"late")
        assert await store.commit_transaction(TARGET, "done", [], token) == CommitResult(False, None, 0)
        assert (await store.segment_info(TARGET)).attributes == {"txn:q": 1}
        assert not owner.container.state.transactions.records
        assert statistics(owner).tombstones == 0


async def test_t5_tombstones_of_one_time_are_forgotten_with_one_operation() -> None:
    async with ContainerWorld(QUICK).owner() as owner:
        store = owner.store
        await make(store, TARGET)
        for number in range(20):
            await store.abort_transaction(TARGET, f"t{number}")
            await anyio.sleep(1)
        await store.flush()
        await anyio.sleep(TOMBSTONE / 2)
        before = owner.container.state.sequence
        await anyio.sleep(TOMBSTONE)

        assert await store.list_transactions() == []
        assert owner.container.state.sequence == before + 1


async def test_t5_a_tombstones_time_begins_again_with_each_takeover() -> None:
    world = ContainerWorld(QUICK)
    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks)
        await make(owner.store, TARGET)
        await committed(owner.store, "t", a=b"data")
        await anyio.sleep(TOMBSTONE - 10)
        await owner.stop()

        owner = await world.start(tasks)
        assert (await owner.store.transaction_info(TARGET, "t")).expires_in == pytest.approx(TOMBSTONE)
        await anyio.sleep(TOMBSTONE - 10)
        assert await state_of(owner.store) is TransactionState.COMMITTED
        assert statistics(owner).committed == 0
        await owner.stop()


async def test_t8_the_tombstone_of_a_deleted_target_is_forgotten_too() -> None:
    async with ContainerWorld(QUICK).owner() as owner:
        store = owner.store
        await make(store, TARGET)
        await begun(store, "t", a=b"data")
        await store.delete_segment(TARGET)
        await store.flush()
        await anyio.sleep(TOMBSTONE * 1.1)

        assert not owner.container.state.transactions.records
        assert owner.container.statistics().pipeline.refused == 0


# --- garbage (T9) and quiet ---------------------------------------------------------------------


@pytest.mark.parametrize("end", ["commit", "abort", "lease", "delete"])
async def test_t9_no_chunk_is_left_that_nobody_refers_to(end: str) -> None:
    world = ContainerWorld()
    data = bytes(200_000)
    async with world.owner() as owner:
        store = owner.store
        await make(store, TARGET, b"base")
        await store.begin_transaction(TARGET, "t", lease=200)
        parts = await begun(store, "t", a=data, b=data)
        await store.flush()
        assert len(world.chunk_names) == 9
        if end == "commit":
            await store.commit_transaction(TARGET, "t", parts[:1])
        elif end == "abort":
            await store.abort_transaction(TARGET, "t")
        elif end == "delete":
            await store.delete_segment(TARGET)
        await anyio.sleep(300)
        await store.flush()
        await anyio.sleep(500)

        assert world.chunk_names == referenced_chunks(owner.container)
        assert len(world.chunk_names) == {"commit": 5, "delete": 0}.get(end, 1)
        assert owner.container.statistics().collector.queued == 0


async def test_t9_a_lease_expires_while_long_term_storage_is_down() -> None:
    world = ContainerWorld()
    down = True

    def script(call: Call) -> Fault | None:
        return Fault(FaultKind.BEFORE) if down else None

    async with world.owner() as owner:
        store = owner.store
        await make(store, TARGET, b"base")
        await store.begin_transaction(TARGET, "t", lease=LEASE)
        world.chunks.script = script
        await begun(store, "t", a=bytes(200_000))
        await anyio.sleep(200)
        assert await state_of(store) is TransactionState.ABORTED
        assert owner.container.cache.pinned_bytes == 4
        down = False
        await store.flush()
        assert len(world.chunk_names) == 1


@pytest.mark.parametrize("remembered", [False, True])
async def test_a_store_without_open_transactions_is_quiet(remembered: bool) -> None:
    """Nothing wakes the task, and nothing is logged, until a tombstone is over."""
    async with ContainerWorld(QUICK).owner() as owner:
        store, leases = owner.store, owner.container._components.leases
        await make(store, TARGET)
        if remembered:
            await committed(store, "t", a=b"data")
        await store.flush()
        await anyio.sleep(1000)  # past the time at which the ended one would have expired
        sequence, wakes = owner.container.state.sequence, 0
        next_time = leases._next_time

        def counted() -> float:
            nonlocal wakes
            wakes += 1
            return next_time()

        leases._next_time = counted  # type: ignore[method-assign]
        await anyio.sleep(TOMBSTONE / 2)
        assert (owner.container.state.sequence, wakes) == (sequence, 0)
