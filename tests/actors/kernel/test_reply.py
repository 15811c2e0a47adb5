"""One answer for each message: rule A5."""

from __future__ import annotations

import anyio
import pytest

from tierlog.actors.kernel.reply import Reply, fail_all
from tierlog.storage_backends.base.errors import ClosedError, NotOwner

pytestmark = pytest.mark.anyio


async def test_an_answer_before_the_wait_costs_no_event() -> None:
    reply: Reply[int] = Reply()
    assert reply.resolve(7)
    assert await reply.wait() == 7
    assert reply._event is None


async def test_an_answer_wakes_all_waiters() -> None:
    reply: Reply[int] = Reply()
    answers: list[int] = []

    async def wait() -> None:
        answers.append(await reply.wait())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        reply.resolve(7)

    assert answers == [7, 7]


async def test_the_first_answer_counts() -> None:
    reply: Reply[int | None] = Reply()
    assert reply.resolve(None)
    assert not reply.resolve(8)
    assert not reply.fail(ClosedError("late"))
    assert await reply.wait() is None


async def test_an_error_is_raised_to_the_waiter() -> None:
    reply: Reply[int] = Reply()
    error = NotOwner("fenced by epoch 8")
    assert reply.fail(error)
    with pytest.raises(NotOwner) as caught:
        await reply.wait()
    assert caught.value is error


async def test_repr_shows_the_state() -> None:
    reply: Reply[int] = Reply()
    assert repr(reply) == "<Reply pending>"
    reply.resolve(1)
    assert repr(reply) == "<Reply answered>"
    failed: Reply[int] = Reply()
    failed.fail(ClosedError("gone"))
    assert "gone" in repr(failed)


async def test_a_cancelled_waiter_leaves_the_slot_valid() -> None:
    reply: Reply[int] = Reply()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reply.wait)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()

    assert reply.resolve(7)
    assert await reply.wait() == 7


async def test_an_exit_answers_in_the_order_of_the_requests() -> None:
    answered: list[int] = []

    class Noted(Reply[int]):
        def __init__(self, number: int) -> None:
            super().__init__()
            self.number = number

        def fail(self, error: BaseException) -> bool:
            answered.append(self.number)
            return super().fail(error)

    fail_all((Noted(number) for number in range(100)), ClosedError("stopped"))
    assert answered == list(range(100))


async def test_one_error_for_many_does_not_gather_their_tracebacks() -> None:
    error = ClosedError("stopped")
    replies: list[Reply[int]] = [Reply() for _ in range(50)]
    assert fail_all(replies, error) == 50
    depths = set()
    for reply in replies:
        with pytest.raises(ClosedError) as caught:
            await reply.wait()
        depths.add(len(caught.traceback))
    assert len(depths) == 1
