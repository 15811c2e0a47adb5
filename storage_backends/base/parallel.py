"""Several calls at a time, up to a limit, with the errors of one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import anyio

from .errors import TierlogError

T = TypeVar("T")


async def in_parallel(limit: int, calls: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """The results of ``calls``, with at most ``limit`` at a time. The first error cancels the others and is
    raised."""
    if len(calls) <= 1:
        return [await call() for call in calls]

    results: dict[int, T] = {}
    failures: list[TierlogError] = []
    turns = anyio.CapacityLimiter(limit)

    async def carry_out(index: int, call: Callable[[], Awaitable[T]]) -> None:
        async with turns:
            try:
                results[index] = await call()
            except TierlogError as error:
                failures.append(error)
                group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        for index, call in enumerate(calls):
            group.start_soon(carry_out, index, call)
    if failures:
        raise failures[0]

    return [results[index] for index in range(len(calls))]
