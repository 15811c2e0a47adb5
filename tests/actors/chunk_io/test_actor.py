"""The storage-backend actor, seen through its client: rules A11 to A16, C6, S3, S7 and W7."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from support.patience import scaled
from support.scripted_chunks import Crash, Hang
from support.state_tables import check_table
from support.storage_stage import DOWN, OPTIONS, Stage, stage, virtual_time
from tierlog.actors.chunk_io.actor import STATES, StorageActor, StorageEvent, StorageState
from tierlog.actors.chunk_io.health import StorageHealth
from tierlog.actors.kernel.backoff import Backoff
from tierlog.actors.kernel.exits import CLEAN_EXIT, ActorExit, ExitKind
from tierlog.actors.kernel.mailbox import LaneBounds, MailboxOptions
from tierlog.storage_backends.base.checksum import Buffer
from tierlog.storage_backends.base.chunk_storage import ChunkRange
from tierlog.storage_backends.base.errors import (
    ChunkExists,
    ClosedError,
    InvalidArgument,
    OutcomeUnknown,
    StorageFull,
    Unavailable,
)
from tierlog.testing.faulty_chunk_storage import Fault, FaultKind

pytestmark = pytest.mark.anyio


async def test_calls_are_counted_and_errors_of_the_backend_reach_the_caller() -> None:
    async with stage() as play:
        await play.client.create("a")
        assert await play.client.write("a", 0, [b"abc"]) == 3
        assert await play.client.read("a", 1, 9) == b"bc"
        with pytest.raises(ChunkExists):
            await play.client.create("a")
        with pytest.raises(InvalidArgument, match="bad chunk name"):
            await play.client.create("../a")
        statistics = play.actor.statistics()
        assert (statistics.writes.done, statistics.writes.bytes, statistics.reads.bytes) == (2, 3, 2)
        assert statistics.writes.failed == 1
        assert play.client.statistics() == play.chunks.statistics()


async def test_an_unexpected_error_reaches_the_caller_and_the_actor_continues() -> None:
    async with stage() as play:
        play.chunks.plan("exists", Crash(ZeroDivisionError()))
        with pytest.raises(ZeroDivisionError):
            await play.client.exists("a")
        assert not await play.client.exists("a")


async def test_mutable_buffers_are_copied_when_the_call_is_made() -> None:
    async with stage() as play, anyio.create_task_group() as tasks:
        hang = Hang()
        play.chunks.plan("create_with_content", hang)
        buffer = bytearray(b"abc")
        data: list[Buffer] = [buffer, memoryview(buffer)]
        tasks.start_soon(play.client.create_with_content, "a", data)
        await anyio.wait_all_tasks_blocked()
        buffer[:] = b"new"
        hang.release.set()
        await anyio.wait_all_tasks_blocked()
        assert await play.client.read("a", 0, 9) == b"abcabc"


async def test_reads_and_writes_have_separate_limits() -> None:
    async with stage(reads_max=2, writes_max=1) as play, anyio.create_task_group() as tasks:
        hang = Hang()
        play.chunks.plan("create", hang, hang)
        play.chunks.plan("exists", hang, hang, hang)
        for name in ("a", "b"):
            tasks.start_soon(play.client.create, name)
        for _ in range(3):
            tasks.start_soon(play.client.exists, "a")
        await anyio.wait_all_tasks_blocked()
        assert (play.chunks.count("create"), play.chunks.count("exists")) == (1, 2)
        statistics = play.actor.statistics()
        assert (statistics.writes.running, statistics.writes.queue.normal.count) == (1, 1)
        assert (statistics.reads.running, statistics.reads.queue.normal.count) == (2, 1)
        hang.release.set()


async def test_the_queue_is_bounded_and_blocks_its_callers() -> None:
    queue = MailboxOptions(normal=LaneBounds(1, 1 << 20), internal=LaneBounds(1, 1 << 20))
    async with stage(writes_max=1, queue=queue) as play, anyio.create_task_group() as tasks:
        hang = Hang()
        play.chunks.plan("create", hang)
        for name in "abcd":
            tasks.start_soon(play.client.create, name)
        await anyio.wait_all_tasks_blocked()
        assert play.actor.statistics().writes.queue.normal.waiting == 2
        hang.release.set()
        await anyio.wait_all_tasks_blocked()
        assert [info.name async for info in play.client.list("")] == ["a", "b", "c", "d"]


async def test_the_stores_own_chunks_and_deletes_go_first() -> None:
    async with stage(writes_max=1) as play, anyio.create_task_group() as tasks:
        await play.client.create("old")
        hang = Hang()
        play.chunks.plan("create", hang)
        tasks.start_soon(play.client.create, "first")
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(play.client.create_with_content, "user", [b"x"])
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(play.client.delete, "old")
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(play.client.create, "_system/1")
        await anyio.wait_all_tasks_blocked()
        hang.release.set()
        await anyio.wait_all_tasks_blocked()
        assert play.chunks.verbs[-4:] == ["create", "delete", "create", "create_with_content"]


# --- deadlines ----------------------------------------------------------------------------------


@virtual_time
async def test_a_mutation_past_its_deadline_is_answered_and_continues() -> None:
    async with stage(write_deadline=10) as play:
        hang = Hang()
        play.chunks.plan("create", hang)
        with pytest.raises(OutcomeUnknown, match="no answer at its deadline"):
            await play.client.create("a")
        assert (play.actor.statistics().writes.running, play.actor.statistics().writes.late) == (1, 1)
        hang.release.set()
        await anyio.wait_all_tasks_blocked()
        statistics = play.actor.statistics().writes
        assert (statistics.running, statistics.late, statistics.went_late) == (0, 0, 1)
        assert await play.client.exists("a")


@virtual_time
async def test_a_late_operation_keeps_its_slot() -> None:
    """A backend that hangs is not sent more than its limit."""
    async with stage(write_deadline=10, writes_max=1) as play:
        hang = Hang()
        play.chunks.plan("create", hang)
        with pytest.raises(OutcomeUnknown):
            await play.client.create("a")
        with pytest.raises(Unavailable, match="still queued"):
            await play.client.create("b")
        assert play.chunks.count("create") == 1
        hang.release.set()
        await anyio.wait_all_tasks_blocked()
        assert play.chunks.count("create") == 1, "what nobody waits for any more is not begun"
        assert play.actor.statistics().writes.dropped == 1


@virtual_time
async def test_a_read_past_its_deadline_is_unavailable() -> None:
    async with stage(read_deadline=10) as play:
        hang = Hang()
        play.chunks.plan("exists", hang)
        with pytest.raises(Unavailable):
            await play.client.exists("a")
        hang.release.set()


@virtual_time
async def test_nothing_is_retried_past_the_deadline() -> None:
    async with stage(read_deadline=10, backoff=Backoff(first=100, maximum=100, jitter=0)) as play:
        play.chunks.plan("exists", DOWN)
        with pytest.raises(Unavailable):
            await play.client.exists("a")
        await anyio.sleep(1000)
        assert play.actor.statistics().reads.running == 0


async def test_a_cancelled_call_leaves_the_actor_usable() -> None:
    async with stage(writes_max=1) as play:
        hang = Hang()
        play.chunks.plan("create", hang)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(play.client.create, "running")
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(play.client.create, "queued")
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()

        hang.release.set()
        await anyio.wait_all_tasks_blocked()
        assert [info.name async for info in play.client.list("")] == ["running"]
        assert play.actor.statistics().writes.running == play.actor.statistics().writes.late == 0


# --- quota and breaker --------------------------------------------------------------------------


async def test_above_the_safe_size_users_are_refused_and_the_rest_continues() -> None:
    async with stage(safe_size_bytes=10) as play:
        await anyio.wait_all_tasks_blocked()
        await play.client.create_with_content("a", [b"0123456789"])
        for ask in (
            lambda: play.client.create("b"),
            lambda: play.client.write("a", 10, [b"x"]),
            lambda: play.client.create_with_content("b", [b"x"]),
            lambda: play.client.concat("b", [ChunkRange("a", 0, 1)]),
        ):
            with pytest.raises(StorageFull):
                await ask()
        with pytest.raises(StorageFull):
            play.client.admit("b")
        play.client.admit("_system/b")
        await play.client.create("_system/b")
        assert await play.client.read("a", 0, 1) == b"0"
        await play.client.delete("a")
        assert play.actor.statistics().quota.refused == 5


@virtual_time
async def test_space_is_measured_at_intervals_and_a_failure_keeps_the_last_figure() -> None:
    async with stage(safe_size_bytes=10, safe_size_interval=60, attempts=1) as play:
        await play.client.create_with_content("a", [b"0123456789"])
        await play.client.delete("a")
        play.chunks.plan("used_space", DOWN)
        await anyio.sleep(61)
        with pytest.raises(StorageFull):
            await play.client.create("b")
        await anyio.sleep(60)
        await play.client.create("b")
        quota = play.actor.statistics().quota
        assert (quota.measured, quota.missed) == (2, 1)


@virtual_time
async def test_while_the_storage_is_down_one_caller_per_interval_passes() -> None:
    async with stage(attempts=1) as play:
        play.chunks.plan("create", DOWN, DOWN, DOWN)
        for _ in range(2):
            play.client.admit("a")
            with pytest.raises(Unavailable):
                await play.client.create("a")

        with pytest.raises(Unavailable, match=r"failed 2 times in a row; next try in 5\.0 s"):
            play.client.admit("a")
        await anyio.sleep(5)
        play.client.admit("a")
        with pytest.raises(Unavailable):
            play.client.admit("b")
        with pytest.raises(Unavailable):
            await play.client.create("a")
        await anyio.sleep(5)
        play.client.admit("a")
        await play.client.create("a")
        play.client.admit("b")
        breaker = play.actor.statistics().breaker
        assert (breaker.state, breaker.probes, breaker.refused, breaker.opened) == ("closed", 2, 2, 2)


async def test_who_waits_for_the_next_probe_is_notified_once_a_change_succeeds() -> None:
    async with stage(attempts=1) as play:
        notified: list[str] = []
        with play.client.notifying(lambda: notified.append("inside")):
            play.chunks.plan("create", DOWN, DOWN)
            for _ in range(2):
                with pytest.raises(Unavailable):
                    await play.client.create("a")
            assert notified == []
            await play.client.create("a")
            await play.client.create("b")
            assert notified == ["inside"]

        play.chunks.plan("create", DOWN, DOWN)
        for _ in range(2):
            with pytest.raises(Unavailable):
                await play.client.create("c")
        await play.client.create("c")
        assert notified == ["inside"]


@virtual_time
async def test_a_hanging_storage_opens_the_breaker() -> None:
    async with stage(write_deadline=10, drain_deadline=0) as play:
        play.chunks.plan("create", Hang(), Hang())
        for name in "ab":
            with pytest.raises(OutcomeUnknown):
                await play.client.create(name)
        with pytest.raises(Unavailable):
            play.client.admit("c")


async def test_failed_lists_open_the_breaker_and_lists_that_work_do_not_close_it() -> None:
    """A16: a flush lists the claims before it writes, so an outage shows in lists alone."""
    async with stage(attempts=1) as play:
        play.chunks.plan("list", DOWN, DOWN)
        for _ in range(2):
            with pytest.raises(Unavailable):
                [info async for info in play.client.list("")]
        states = [play.actor.health.state]
        assert [info async for info in play.client.list("")] == []
        states.append(play.actor.health.state)
        await play.client.create_with_content("a", [b"x"])
        states.append(play.actor.health.state)
    assert states == [StorageHealth.UNREACHABLE, StorageHealth.UNREACHABLE, StorageHealth.OK]


async def test_answers_and_reads_do_not_count_for_the_breaker() -> None:
    async with stage(attempts=1) as play:
        play.chunks.plan("exists", *[DOWN] * 5)
        for _ in range(5):
            with pytest.raises(Unavailable):
                await play.client.exists("a")
        play.chunks.plan("create", *[Fault(FaultKind.FULL)] * 5)
        for _ in range(5):
            with pytest.raises(StorageFull):
                await play.client.create("a")
        play.client.admit("a")
        assert play.actor.statistics().breaker.failures == 0


# --- the end ------------------------------------------------------------------------------------


async def test_a_stop_refuses_new_calls_and_finishes_queued_ones() -> None:
    async with stage(writes_max=1) as play, anyio.create_task_group() as tasks:
        hang = Hang()
        play.chunks.plan("create", hang)
        for name in "ab":
            tasks.start_soon(play.client.create, name)
        await anyio.wait_all_tasks_blocked()
        play.actor.stop()
        play.actor.stop()
        with pytest.raises(ClosedError, match="draining"):
            await play.client.exists("a")
        hang.release.set()

    assert play.ended == ActorExit(ExitKind.CLEAN)
    assert play.chunks.memory.state.chunks.keys() == {"a", "b"}
    assert play.chunks.verbs[-1] == "close"
    with pytest.raises(ClosedError):
        play.client.admit("a")


@virtual_time
async def test_a_stop_past_its_deadline_answers_every_caller_with_its_outcome() -> None:
    async with (
        stage(writes_max=1, reads_max=1, drain_deadline=10) as play,
        anyio.create_task_group() as tasks,
    ):
        play.chunks.plan("create", Hang())
        play.chunks.plan("exists", Hang())
        asks = (
            lambda: play.client.create("a"),
            lambda: play.client.exists("a"),
            lambda: play.client.create("b"),
        )
        for ask in asks:
            tasks.start_soon(play.keep_error, ask)
            await anyio.wait_all_tasks_blocked()
        start = anyio.current_time()
        play.actor.stop()

    assert anyio.current_time() - start == pytest.approx(10)
    assert sorted(type(error).__name__ for error in play.errors) == [
        "ClosedError",
        "OutcomeUnknown",
        "Unavailable",
    ]
    assert play.actor.statistics().failed_at_exit == 2
    assert play.ended is not None
    assert play.ended.kind is ExitKind.CLEAN


async def test_cancelling_the_actor_answers_every_caller_and_closes_the_backend() -> None:
    play = Stage()
    async with anyio.create_task_group() as asks, anyio.create_task_group() as tasks:
        await tasks.start(play.run)
        play.chunks.plan("create", Hang())
        asks.start_soon(play.keep_error, lambda: play.client.create("a"))
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()

    assert [type(error) for error in play.errors] == [OutcomeUnknown]
    assert play.chunks.verbs[-1] == "close"
    assert play.actor.state is StorageState.STOPPED


async def test_an_error_of_opening_is_raised_and_ends_the_actor() -> None:
    play = Stage()
    play.chunks.plan("open", DOWN)
    with pytest.raises(Unavailable, match="cannot be reached"):
        await play.actor.run()
    assert play.actor.state is StorageState.STOPPED
    with pytest.raises(ClosedError, match="cannot be reached"):
        await play.client.open()


class StopAtStart:
    """A task status that stops the actor in the step in which it starts."""

    def __init__(self, actor: StorageActor) -> None:
        self._actor = actor

    def started(self, value: object = None) -> None:
        self._actor.stop()


async def test_a_stop_right_after_the_start_does_not_hide_the_start() -> None:
    play = Stage()
    opened = False

    async def wait_and_use() -> None:
        nonlocal opened
        await play.client.open()
        opened = True
        with pytest.raises(ClosedError):
            await play.client.exists("a")

    with anyio.fail_after(scaled(30)):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait_and_use)
            await anyio.wait_all_tasks_blocked()
            await play.run(task_status=StopAtStart(play.actor))

        assert opened
        with pytest.raises(ClosedError, match="has ended"):
            await play.client.open()


async def test_a_stop_before_the_start_does_not_hide_the_start() -> None:
    play = Stage()
    play.actor.stop()
    with anyio.fail_after(scaled(30)):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(play.client.open)
            await anyio.wait_all_tasks_blocked()
            await play.run()
    assert play.ended == CLEAN_EXIT


async def test_waiting_for_a_start_that_is_cancelled_ends_with_an_error() -> None:
    play = Stage()
    play.chunks.plan("open", Hang())
    with anyio.fail_after(scaled(30)):
        async with anyio.create_task_group() as waits:
            waits.start_soon(play.keep_error, play.client.open)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(play.run)
                await anyio.wait_all_tasks_blocked()
                tasks.cancel_scope.cancel()
    assert [type(error) for error in play.errors] == [ClosedError]


async def test_a_closed_client_refuses_even_a_bad_name() -> None:
    async with stage() as play:
        await play.client.close()
        with pytest.raises(ClosedError):
            await play.client.exists("../a")


@virtual_time
async def test_a_backend_that_does_not_close_is_reported() -> None:
    async with stage(drain_deadline=10) as play:
        play.chunks.plan("close", Hang())
    assert play.ended is not None
    assert "closing the backend" in play.ended.detail


async def test_before_the_start_calls_are_refused_as_unavailable() -> None:
    play = Stage()
    with pytest.raises(Unavailable, match="starting"):
        await play.client.exists("a")
    assert repr(play.client).startswith("<StorageClient of <StorageActor new")


def test_the_stop_order_is_in_the_table() -> None:
    check_table(STATES, StorageState.NEW, StorageEvent)
    assert STATES.reachable(StorageState.DRAINING) == {StorageState.DRAINING, StorageState.STOPPED}
    assert all(StorageState.STOPPED in STATES.reachable(state) for state in StorageState)


@pytest.mark.parametrize(
    "bad",
    [
        {"reads_max": 0},
        {"attempts": 0},
        {"read_deadline": 0},
        {"safe_size_bytes": -1},
        {"list_page": 0},
        {"sweep_interval": 0},
    ],
)
def test_options_are_checked(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        replace(OPTIONS, **bad)
