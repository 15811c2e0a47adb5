"""Structured concurrency in the three forms that the library needs besides anyio's own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TypeVar

import anyio
import anyio.abc

from ...storage_backends.base.errors import TierlogError

T = TypeVar("T")


@asynccontextmanager
async def body_group() -> AsyncIterator[anyio.abc.TaskGroup]:
    """A task group for a body that belongs to the caller.

    A plain task group wraps the body's own exception into a group. Here the body's exception comes out as it
    was raised, after all tasks have ended; what a task raises comes in a group. The body ends the tasks
    itself (``cancel_scope.cancel``, or a stop that they obey).
    """
    failure: BaseException | None = None
    async with anyio.create_task_group() as tasks:
        try:
            yield tasks
        except BaseException as error:  # noqa: BLE001 - raised again below
            # Raised below: the task group would wrap it.
            failure = error

    if failure is not None:
        raise failure


async def work_through(items: Iterable[T], count: int, act: Callable[[T], Awaitable[None]]) -> None:
    """Call ``act`` on each item, at most ``count`` at the same time, starting in order.

    The first ``TierlogError`` cancels the others and is raised by itself, not in a group.
    """
    # One iterator for all workers, so that each item goes to one of them.
    pending = iter(items)
    errors: list[TierlogError] = []

    async def work() -> None:
        for item in pending:
            try:
                await act(item)
            except TierlogError as error:
                errors.append(error)
                tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        for _ in range(count):
            tasks.start_soon(work)
    if errors:
        raise errors[0]


async def finish_within(seconds: float, clean_up: Callable[[], Awaitable[object]]) -> bool:
    """Run ``clean_up``, shielded from cancellation, for at most ``seconds``. Returns whether it finished; its
    exceptions pass (rule A11)."""
    with anyio.move_on_after(seconds, shield=True) as scope:
        await clean_up()
    return not scope.cancelled_caught
