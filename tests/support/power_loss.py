"""Power loss at one I/O call of a workload on a simulated disk."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
from simulation.disk import SimulatedDisk
from simulation.file_layer import LosePower, SimulatedFiles

from tierlog.storage_backends.base.files import IoCall


async def ends_before_power_loss(
    disk: SimulatedDisk, call: int, work: Callable[[SimulatedFiles], Awaitable[None]]
) -> bool:
    """Run ``work`` until the ``call``-th I/O, in which the power fails. Returns whether it ended before."""
    over = anyio.Event()
    ended = False

    def lose_power(index: int, _: IoCall) -> LosePower | None:
        if index != call:
            return None
        over.set()
        return LosePower(written=512)

    async def run() -> None:
        nonlocal ended
        await work(SimulatedFiles(disk, lose_power))
        ended = True
        over.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await over.wait()
        tasks.cancel_scope.cancel()
    return ended
