"""Running a test body on one event loop: on trio with nothing left to chance, on asyncio in its one order and
real time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import TypeVar

import anyio
from simulation import loop

from support.patience import scaled
from tierlog.storage_backends.base.world import World

T = TypeVar("T")


def run_virtual(body: Callable[[], Awaitable[T]], seed: int, backend: str = "trio") -> T:
    """Run ``body`` to its end. On trio the order of ready tasks comes from ``seed``, and time jumps when
    everybody waits.

    asyncio has one order only; there the time is real, so a body that needs a delay to pass should run on
    trio. A deadlock is a timeout.
    """
    if backend == "trio":
        return loop.run_virtual(body, seed)

    async def bounded() -> T:
        with anyio.fail_after(scaled(60)):
            return await body()

    return anyio.run(bounded, backend=backend)


def virtual_world(process: int) -> World:
    """A world whose ids and chances depend on ``process`` alone; no two processes of a test share one."""
    count = iter(range(1, 1 << 32))
    return World(lambda: 0.0, Random(process), lambda: f"{process:016x}{next(count):016x}")
