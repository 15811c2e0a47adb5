"""Mailbox: rules A1 to A4, C6 and C9."""

from __future__ import annotations

from random import Random

import anyio
import anyio.abc
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierlog.actors.kernel.mailbox import Lane, LaneBounds, Mailbox, MailboxOptions
from tierlog.storage_backends.base.errors import ClosedError, InvalidArgument

pytestmark = pytest.mark.anyio


def small(count: int = 2, size_bytes: int = 1000, *, internal: int = 2, burst: int = 2) -> Mailbox[str]:
    bounds = MailboxOptions(
        LaneBounds(count, size_bytes), LaneBounds(internal, size_bytes), internal_burst=burst
    )
    return Mailbox(bounds, overhead=10)


async def started(tasks: anyio.abc.TaskGroup, mailbox: Mailbox[str], *items: str, size: int = 1) -> None:
    """Start a put for each item, in order, and let each reach its wait."""
    for item in items:
        waiting = mailbox.statistics().normal.waiting
        tasks.start_soon(mailbox.put, item, size)
        while mailbox.statistics().normal.waiting == waiting:
            await anyio.lowlevel.checkpoint()


async def test_a_lane_is_bounded_by_count() -> None:
    mailbox = small(count=2)
    assert [mailbox.offer(item, 1) for item in "abc"] == [True, True, False]
    assert mailbox.statistics().normal.refused == 1
    assert mailbox.drain_nowait(10, 1000) == ["a", "b"]
    assert mailbox.offer("c", 1)


async def test_each_item_is_charged_an_overhead() -> None:
    mailbox = small(count=100, size_bytes=30)
    assert [mailbox.offer(item, 0) for item in "abcd"] == [True, True, True, False]
    assert mailbox.statistics().normal.size_bytes == 30


async def test_offered_together_all_items_enter_or_none() -> None:
    mailbox = small(count=3, size_bytes=60)
    assert mailbox.offer_all("ab", [1, 1])
    assert not mailbox.offer_all("cd", [1, 1]), "two more are too many"
    assert not mailbox.offer_all("c", [29]), "so many bytes are too many"
    assert mailbox.offer_all("c", [28])
    assert mailbox.statistics().normal.size_bytes == 60
    assert mailbox.drain_nowait(10, 1000) == ["a", "b", "c"]
    assert mailbox.statistics().normal.size_bytes == 0
    mailbox.close(ClosedError("closed"))
    assert not mailbox.offer_all("d", [1])


async def test_a2_items_that_are_offered_together_wake_the_consumer_and_pass_no_putter() -> None:
    mailbox = small(count=2)
    async with anyio.create_task_group() as tasks:

        async def consume() -> None:
            assert await mailbox.drain(10, 1000) == ["a", "b"]

        tasks.start_soon(consume)
        await anyio.wait_all_tasks_blocked()
        assert mailbox.offer_all("ab", [1, 1])

    mailbox.offer_all("ab", [1, 1])
    async with anyio.create_task_group() as tasks:
        await started(tasks, mailbox, "c")
        assert mailbox.drain_nowait(10, 1000) == ["a", "b"]
        assert not mailbox.offer_all("d", [1]), "the room is for the one who waits"


async def test_a1_an_item_above_the_byte_bound_is_admitted_alone() -> None:
    """Else it would wait forever."""
    mailbox = small(size_bytes=30)
    assert mailbox.offer("huge", 10_000)
    assert not mailbox.offer("small", 1)
    assert await mailbox.drain(10, 1) == ["huge"]
    assert mailbox.offer("small", 1)
    assert not mailbox.offer("huge", 10_000)


async def test_put_waits_for_room_in_order_of_arrival() -> None:
    mailbox = small(count=1)
    await mailbox.put("a", 1)
    async with anyio.create_task_group() as tasks:
        await started(tasks, mailbox, "b", "c", "d")
        assert [await mailbox.drain(10, 1000) for _ in range(4)] == [["a"], ["b"], ["c"], ["d"]]


async def test_a2_no_put_overtakes_a_waiting_putter() -> None:
    mailbox = small(count=2, size_bytes=100)
    await mailbox.put("a", 50)
    async with anyio.create_task_group() as tasks:
        await started(tasks, mailbox, "large", size=60)
        assert not mailbox.offer("tiny", 0)
        assert mailbox.drain_nowait(10, 1000) == ["a"]
        assert not mailbox.offer("tiny", 0), "room was promised to the one who waits"
        assert await mailbox.drain(10, 1000) == ["large"]


async def test_a_cancelled_put_leaves_nothing_and_passes_its_room_on() -> None:
    mailbox = small(count=1)
    await mailbox.put("a", 1)
    async with anyio.create_task_group() as tasks:
        async with anyio.create_task_group() as cancelled:
            await started(cancelled, mailbox, "b")
            await started(tasks, mailbox, "c")
            cancelled.cancel_scope.cancel()

        assert await mailbox.drain(10, 1000) == ["a"]
        assert await mailbox.drain(10, 1000) == ["c"]

    assert mailbox.statistics().normal.size_bytes == 0


async def test_a3_a_put_cancelled_after_the_grant_leaves_its_item_or_nothing() -> None:
    """The drain grants room and the cancellation strikes before the putter runs: put and mailbox agree on
    what happened."""
    mailbox = small(count=1)
    await mailbox.put("a", 1)
    finished: list[str] = []

    async def put(item: str) -> None:
        await mailbox.put(item, 1)
        finished.append(item)

    async with anyio.create_task_group() as tasks:
        async with anyio.create_task_group() as cancelled:
            cancelled.start_soon(put, "b")
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(put, "c")
            await anyio.wait_all_tasks_blocked()
            assert mailbox.drain_nowait(10, 1000) == ["a"]
            cancelled.cancel_scope.cancel()

        seen: list[str] = []
        while "c" not in seen:
            seen += await mailbox.drain(10, 1000)

    assert seen == sorted(finished)
    assert mailbox.statistics().normal.size_bytes == 0


@pytest.mark.parametrize("seed", range(5))
async def test_under_random_cancellations_exactly_the_confirmed_puts_are_drained(seed: int) -> None:
    mailbox = small(count=3)
    random = Random(seed)
    finished: list[str] = []
    drained: list[str] = []

    async def put(item: str, patience: int) -> None:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_cancel_after, patience, scope)
                await mailbox.put(item, 1)
                finished.append(item)
                tasks.cancel_scope.cancel()

    async def consume() -> None:
        while True:
            drained.extend(await mailbox.drain(random.randint(1, 3), 1000))
            await _checkpoints(random.randint(0, 4))

    async with anyio.create_task_group() as consumer:
        consumer.start_soon(consume)
        async with anyio.create_task_group() as putters:
            for number in range(200):
                putters.start_soon(put, str(number), random.randint(0, 60))
        await anyio.wait_all_tasks_blocked()
        consumer.cancel_scope.cancel()

    assert 0 < len(finished) < 200
    assert sorted(drained) == sorted(finished)
    assert mailbox.statistics().normal.size_bytes == 0


async def _checkpoints(count: int) -> None:
    for _ in range(count):
        await anyio.lowlevel.checkpoint()


async def _cancel_after(checkpoints: int, scope: anyio.CancelScope) -> None:
    await _checkpoints(checkpoints)
    scope.cancel()


async def test_a_granted_putter_that_has_not_run_blocks_those_behind_it() -> None:
    """FIFO holds although the loop may run the woken putters in any order."""
    mailbox = small(count=3)
    for item in "abc":
        await mailbox.put(item, 1)
    async with anyio.create_task_group() as tasks:
        await started(tasks, mailbox, "d", "e", "f")
        assert mailbox.drain_nowait(10, 1000) == ["a", "b", "c"]
        drained: list[str] = []
        while len(drained) < 3:
            drained += await mailbox.drain(1, 1000)

    assert drained == ["d", "e", "f"]


async def test_the_internal_lane_has_capacity_of_its_own() -> None:
    mailbox = small(count=1, internal=1)
    assert mailbox.offer("user", 1)
    assert not mailbox.offer("user", 1)
    assert mailbox.offer("internal", 1, Lane.INTERNAL)
    assert mailbox.drain_nowait(10, 1000) == ["internal", "user"]


async def test_a2_internal_items_go_first_without_starving_normal_ones() -> None:
    mailbox = small(count=10, internal=10, burst=2)
    for item in "abc":
        mailbox.offer(item, 1)
    for item in "123456789":
        mailbox.offer(item, 1, Lane.INTERNAL)

    assert mailbox.drain_nowait(100, 10_000) == [*"12a34b56c789"]


async def test_normal_is_not_starved_by_batches_of_one() -> None:
    mailbox = small(count=10, internal=10, burst=2)
    mailbox.offer("a", 1)
    for item in "1234":
        mailbox.offer(item, 1, Lane.INTERNAL)

    assert [mailbox.drain_nowait(1, 1) for _ in range(5)] == [["1"], ["2"], ["a"], ["3"], ["4"]]


async def test_a_batch_is_bounded_by_count_and_by_charged_bytes() -> None:
    mailbox = small(count=10, size_bytes=1000)
    for item in "abcdef":
        mailbox.offer(item, 10)

    assert mailbox.drain_nowait(2, 1000) == ["a", "b"]
    assert mailbox.drain_nowait(10, 60) == ["c", "d", "e"]
    assert mailbox.drain_nowait(10, 1) == ["f"], "the first item always comes along"
    assert mailbox.drain_nowait(10, 1000) == []


@pytest.mark.parametrize("lane", list(Lane))
async def test_drain_waits_for_an_item(lane: Lane) -> None:
    mailbox = small()
    async with anyio.create_task_group() as tasks:
        batches: list[list[str]] = []

        async def consume() -> None:
            batches.append(await mailbox.drain(10, 1000))

        tasks.start_soon(consume)
        await anyio.wait_all_tasks_blocked()
        await mailbox.put("a", 1, lane)

    assert batches == [["a"]]


async def test_a_cancelled_drain_has_taken_nothing() -> None:
    mailbox = small()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await mailbox.drain(10, 1000)
    assert scope.cancelled_caught
    await mailbox.put("a", 1)
    assert await mailbox.drain(10, 1000) == ["a"]


async def test_a_second_consumer_is_a_bug_and_loud() -> None:
    mailbox = small()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(mailbox.drain, 1, 1)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(RuntimeError, match="consumer already"):
            await mailbox.drain(1, 1)
        tasks.cancel_scope.cancel()


async def test_a4_close_returns_the_items_and_fails_all_waiters() -> None:
    mailbox = small(count=1)
    await mailbox.put("inside", 1)
    await mailbox.put("urgent", 1, Lane.INTERNAL)
    errors: list[BaseException] = []

    async def put() -> None:
        try:
            await mailbox.put("waiting", 1)
        except ClosedError as error:
            errors.append(error)

    reason = ClosedError("the actor stopped")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(put)
        tasks.start_soon(put)
        await anyio.wait_all_tasks_blocked()
        assert mailbox.close(reason) == ["urgent", "inside"]

    assert errors == [reason, reason]
    assert mailbox.closed
    assert mailbox.close(ClosedError("again")) == []
    for use in (lambda: mailbox.offer("late", 1), lambda: mailbox.drain_nowait(1, 1)[0]):
        with pytest.raises((ClosedError, IndexError)):
            use()
    with pytest.raises(ClosedError, match="the actor stopped"):
        await mailbox.put("late", 1)
    with pytest.raises(ClosedError, match="the actor stopped"):
        await mailbox.drain(1, 1)


async def test_close_wakes_the_consumer() -> None:
    mailbox = small()
    async with anyio.create_task_group() as tasks:

        async def consume() -> None:
            with pytest.raises(ClosedError):
                await mailbox.drain(1, 1)

        tasks.start_soon(consume)
        await anyio.wait_all_tasks_blocked()
        mailbox.close(ClosedError("stop"))


async def test_a_close_between_grant_and_confirmation_fails_the_put() -> None:
    mailbox = small(count=1)
    await mailbox.put("a", 1)
    async with anyio.create_task_group() as tasks:

        async def put() -> None:
            with pytest.raises(ClosedError):
                await mailbox.put("b", 1)

        tasks.start_soon(put)
        await anyio.wait_all_tasks_blocked()
        assert mailbox.drain_nowait(1, 1) == ["a"]
        assert mailbox.close(ClosedError("stop")) == []

    assert mailbox.statistics().normal.size_bytes == 0


async def test_repr_and_statistics_show_live_state() -> None:
    mailbox = small(count=3)
    mailbox.offer("a", 5)
    assert repr(mailbox) == "<Mailbox normal 1/3 15 B, internal 0/2 0 B>"
    mailbox.drain_nowait(1, 100)
    mailbox.close(ClosedError("stop"))
    assert repr(mailbox).endswith("closed>")
    statistics = mailbox.statistics()
    assert (statistics.batches, statistics.closed, statistics.normal.accepted) == (1, True, 1)


@pytest.mark.parametrize(
    "options", [MailboxOptions(normal=LaneBounds(0, 1)), MailboxOptions(internal_burst=0)]
)
def test_bounds_are_checked(options: MailboxOptions) -> None:
    with pytest.raises(InvalidArgument):
        Mailbox[str](options)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("offer"), st.integers(0, 120), st.sampled_from(Lane)),
        st.tuples(st.just("drain"), st.integers(1, 5), st.integers(1, 200)),
    ),
    max_size=60,
)


@given(STEPS)
def test_accounting_follows_a_model(steps: list[tuple[str, int, Lane | int]]) -> None:
    """Whatever is offered and drained: bounds hold, lanes keep their order, nothing is lost, charges come
    back to zero."""
    mailbox: Mailbox[tuple[Lane, int, int]] = Mailbox(
        MailboxOptions(LaneBounds(4, 200), LaneBounds(3, 150), internal_burst=2), overhead=10
    )
    model: dict[Lane, list[tuple[Lane, int, int]]] = {lane: [] for lane in Lane}
    for number, (verb, amount, argument) in enumerate(steps):
        if verb == "offer":
            assert isinstance(argument, Lane)
            bounds = LaneBounds(4, 200) if argument is Lane.NORMAL else LaneBounds(3, 150)
            inside = model[argument]
            charged = sum(size + 10 for _, _, size in inside)
            fits = not inside or (len(inside) < bounds.count and charged + amount + 10 <= bounds.size_bytes)
            assert mailbox.offer((argument, number, amount), amount, argument) is fits
            if fits:
                inside.append((argument, number, amount))
        else:
            assert isinstance(argument, int)
            batch = mailbox.drain_nowait(amount, argument)
            assert len(batch) <= amount
            assert len(batch) <= 1 or sum(size + 10 for _, _, size in batch) <= argument
            assert bool(batch) == any(model.values())
            for item in batch:
                assert model[item[0]].pop(0) == item

        statistics = mailbox.statistics()
        for lane, seen in ((Lane.NORMAL, statistics.normal), (Lane.INTERNAL, statistics.internal)):
            assert seen.count == len(model[lane])
            assert seen.size_bytes == sum(size + 10 for _, _, size in model[lane])

    assert mailbox.close(ClosedError("end")) == model[Lane.INTERNAL] + model[Lane.NORMAL]
