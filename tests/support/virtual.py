"""Running a test body on one event loop with nothing left to chance: a virtual clock, and a scheduler that obeys a seed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import TypeVar

import anyio
import trio.testing

from tierlog.storage_backends.base.world import World

T = TypeVar("T")
DEADLOCK_SECONDS = 100_000
"""Virtual seconds that no test needs: with a timer that far away, time jumps to it when everybody waits for ever."""


def run_virtual(body: Callable[[], Awaitable[T]], seed: int, backend: str = "trio") -> T:
    """Run ``body`` to its end. On trio the order of ready tasks comes from ``seed``, and time jumps when everybody waits.

    asyncio has one order only; there the time is real, so a body that needs a delay to pass should run on trio. A deadlock is a timeout.
    """

    async def bounded() -> T:
        with anyio.fail_after(DEADLOCK_SECONDS if backend == "trio" else 60):
            return await body()

    if backend != "trio":
        return anyio.run(bounded, backend=backend)

    scheduler = trio._core._run
    before = scheduler._ALLOW_DETERMINISTIC_SCHEDULING
    scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
    scheduler._r.seed(seed)
    try:
        return trio.run(bounded, clock=trio.testing.MockClock(autojump_threshold=0))
    finally:
        scheduler._ALLOW_DETERMINISTIC_SCHEDULING = before  # type: ignore[misc]


def virtual_world(process: int) -> World:
    """A world whose ids and chances depend on ``process`` alone; no two processes of a test share one."""
    count = iter(range(1, 1 << 32))
    return World(lambda: 0.0, Random(process), lambda: f"{process:016x}{next(count):016x}")
