"""The loop's own events and answers: cheaper than the portable ones, and with the same meaning."""

from __future__ import annotations

import gc
import threading
import weakref
from functools import partial

import anyio
import anyio.to_thread
import pytest

from tierlog.actors.kernel import event_loop
from tierlog.actors.kernel.event_loop import LaneThreads, event_source, lane_thread
from tierlog.actors.kernel.event_source import Answer
from tierlog.actors.kernel.reply import Reply

pytestmark = pytest.mark.anyio


def new_answer() -> Answer:
    """As a container makes them."""
    events = event_source()
    return Reply[int](events) if events.make_answer is None else events.make_answer()


async def test_the_first_answer_counts() -> None:
    answer = new_answer()
    assert answer.resolve(1)
    assert not answer.resolve(2)
    assert not answer.fail(ValueError("late"))
    assert await answer.wait() == 1


async def test_a_waiter_gets_the_error_and_one_error_may_fail_many() -> None:
    error = ValueError("no")
    answers = [new_answer() for _ in range(3)]
    assert all(answer.fail(error) for answer in answers)
    for answer in answers:
        with pytest.raises(ValueError, match="no"):
            await answer.wait()


async def test_a_waiter_that_came_first_is_woken() -> None:
    answer = new_answer()
    got: list[int] = []

    async def wait() -> None:
        got.append(await answer.wait())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        answer.resolve(7)
    assert got == [7]


async def test_an_answer_to_a_cancelled_waiter_is_no_error() -> None:
    answer = new_answer()
    with anyio.move_on_after(0):
        await answer.wait()
    answer.resolve(1)
    answer.fail(ValueError("late"))


async def test_an_error_without_waiters_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    new_answer().fail(ValueError("nobody"))
    gc.collect()
    await anyio.wait_all_tasks_blocked()
    assert not caplog.records


async def test_an_event_is_set_once_and_again() -> None:
    event = event_source().new()
    event.set()
    event.set()
    with anyio.fail_after(1):
        await event.wait()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_thread_that_has_nothing_to_do_ends_and_the_next_job_has_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_loop, "_IDLE", 0.001)
    run = lane_thread()
    assert run is not None

    first = await run(threading.current_thread)
    await anyio.to_thread.run_sync(first.join)
    second = await run(threading.current_thread)
    assert second is not first
    assert second.daemon


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_thread_that_is_to_end_does_its_jobs_first_and_a_later_job_has_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_loop, "_IDLE", 3600)
    threads, may_go = LaneThreads(), threading.Event()
    run = threads.make()
    assert run is not None

    jobs = [run(may_go.wait), run(threading.current_thread)]
    threads.close()
    may_go.set()
    await jobs[0]
    first = await jobs[1]
    await anyio.to_thread.run_sync(first.join)
    assert await run(threading.current_thread) is not first
    threads.close()
    threads.close()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_jobs_of_a_thread_run_in_order_and_an_error_ends_only_its_own() -> None:
    run, done = lane_thread(), list[int]()
    assert run is not None
    jobs = [run(lambda: done.append(1)), run(lambda: done[7]), run(lambda: done.append(2))]

    await jobs[0]
    with pytest.raises(IndexError):
        await jobs[1]
    await jobs[2]
    assert done == [1, 2]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_thread_that_waits_keeps_nothing_of_its_last_job() -> None:
    class Data:
        pass

    run, data, is_gone = lane_thread(), Data(), threading.Event()
    assert run is not None
    weakref.finalize(data, is_gone.set)
    await run(partial(id, data))
    del data
    # Long before the thread ends.
    assert await anyio.to_thread.run_sync(is_gone.wait, event_loop._IDLE / 2)


@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_trio_has_threads_of_its_own() -> None:
    assert lane_thread() is None
