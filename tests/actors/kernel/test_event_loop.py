"""The loop's own events and answers: cheaper than the portable ones, and with the same meaning."""

from __future__ import annotations

import gc

import anyio
import pytest

from tierlog.actors.kernel.event_loop import event_source
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
