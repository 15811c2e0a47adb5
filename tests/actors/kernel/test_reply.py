"""Ask and reply: rules A5 and A6."""

from __future__ import annotations

import anyio
import attrs
import pytest
from trio.testing import MockClock

from tierlog.actors.kernel.mailbox import Lane, LaneBounds, Mailbox, MailboxOptions
from tierlog.actors.kernel.reply import Reply, ask, fail_all
from tierlog.storage_backends.base.errors import ClosedError, NotOwner, OutcomeUnknown, Throttled

pytestmark = pytest.mark.anyio

virtual_time = pytest.mark.parametrize(
    "anyio_backend", [("trio", {"clock": MockClock(autojump_threshold=0)})], ids=["trio-virtual"]
)


@attrs.frozen
class Question:
    number: int
    reply: Reply[int]


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


async def test_ask_puts_the_message_and_returns_the_answer() -> None:
    mailbox: Mailbox[Question] = Mailbox()

    async def answer() -> None:
        for question in await mailbox.drain(10, 1 << 20):
            question.reply.resolve(question.number * 2)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(answer)
        question = Question(21, Reply(mailbox.events))
        assert await ask(mailbox, question, question.reply, size=8, timeout=60) == 42


async def test_a_cancelled_ask_leaves_the_actor_sound() -> None:
    mailbox: Mailbox[Question] = Mailbox()
    question = Question(1, Reply())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask, mailbox, question, question.reply)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()

    assert await mailbox.drain(1, 1) == [question]
    assert question.reply.resolve(1)


@virtual_time
async def test_a_timed_out_ask_says_that_the_outcome_is_unknown() -> None:
    mailbox: Mailbox[Question] = Mailbox()
    question = Question(1, Reply())
    with pytest.raises(OutcomeUnknown, match="within 5 s"):
        await ask(mailbox, question, question.reply, timeout=5)
    assert len(mailbox) == 1


@virtual_time
async def test_an_ask_that_never_got_in_says_that_nothing_was_done() -> None:
    mailbox: Mailbox[Question] = Mailbox(MailboxOptions(normal=LaneBounds(1, 1)))
    first, second = Question(1, Reply()), Question(2, Reply())
    mailbox.offer(first, 0)
    with pytest.raises(Throttled, match="nothing was done"):
        await ask(mailbox, second, second.reply, timeout=5)
    assert mailbox.drain_nowait(10, 1000) == [first]


async def test_ask_raises_the_close_reason() -> None:
    mailbox: Mailbox[Question] = Mailbox()
    mailbox.close(NotOwner("fenced"))
    question = Question(1, Reply())
    with pytest.raises(NotOwner):
        await ask(mailbox, question, question.reply, lane=Lane.INTERNAL)


async def test_an_exit_answers_in_the_order_of_the_asks() -> None:
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
