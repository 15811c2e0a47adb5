from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from tierlog.actors.kernel.task_groups import body_group

pytestmark = pytest.mark.anyio


async def test_an_error_of_the_body_is_raised_unwrapped_after_the_tasks_have_ended() -> None:
    ended = False

    async def task() -> None:
        nonlocal ended
        try:
            await anyio.sleep_forever()
        finally:
            ended = True

    with pytest.raises(LookupError, match="the body's"):
        async with body_group() as tasks:
            tasks.start_soon(task)
            try:
                await anyio.lowlevel.checkpoint()
                raise LookupError("the body's")
            finally:
                tasks.cancel_scope.cancel()
    assert ended


async def test_an_error_of_a_task_is_raised_in_a_group_and_cancels_the_body() -> None:
    async def task() -> None:
        raise LookupError("the task's")

    with pytest.raises(BaseExceptionGroup) as caught:
        async with body_group() as tasks:
            tasks.start_soon(task)
            await anyio.sleep_forever()
    assert caught.group_contains(LookupError, match="the task's")


async def test_a_cancellation_passes() -> None:
    with anyio.CancelScope() as scope:
        async with body_group() as tasks:
            try:
                scope.cancel()
                await anyio.lowlevel.checkpoint()
            finally:
                tasks.cancel_scope.cancel()
    assert scope.cancelled_caught
