"""Working through many things, several at a time.

Owns: ``work_through``. Does not own: the work. Ordering: things are begun in order; the first error stops the
others and comes out as it is, not in a group. Cancellation: passes, after all have ended.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import anyio

from ...storage_backends.base.errors import TierlogError

T = TypeVar("T")


async def work_through(things: Iterable[T], count: int, act: Callable[[T], Awaitable[None]]) -> None:
    """``act`` on each of ``things``, ``count`` at a time."""
    pending = iter(things)
    errors: list[TierlogError] = []

    async def work() -> None:
        for thing in pending:
            try:
                await act(thing)
            except TierlogError as error:
                errors.append(error)
                tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        for _ in range(count):
            tasks.start_soon(work)
    if errors:
        raise errors[0]
