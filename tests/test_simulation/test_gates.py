"""The gate of a simulated process, and how calls end that wait behind it."""

from __future__ import annotations

from random import Random

import pytest
import trio
import trio.testing
from simulation.gates import Gate, Killed
from simulation.settings import Latency
from simulation.trace import Trace


def test_a_killed_call_that_waits_for_its_children_leaves_all_its_nurseries() -> None:
    """Or else an outer one fails with "Nursery misnesting", which the process could handle and go on."""
    gate, steps = Gate("p1", Trace(), Random(1), Latency()), list[str]()

    async def work(child: trio.Event) -> None:
        try:
            async with trio.open_nursery():
                async with trio.open_nursery() as inner:
                    inner.start_soon(child.wait)
                steps.append("the children have ended")
        except Exception:  # noqa: BLE001 - as an endpoint does
            steps.append("an error was handled")

    async def guarded(child: trio.Event) -> None:
        with pytest.RaisesGroup(pytest.RaisesGroup(Killed)):
            await gate.guard(work(child))
        assert not trio.lowlevel.current_task().child_nurseries
        steps.append("killed")

    async def body() -> None:
        child = trio.Event()
        async with trio.open_nursery() as tasks:
            tasks.start_soon(guarded, child)
            await trio.testing.wait_all_tasks_blocked()
            gate.kill()
            child.set()

    trio.run(body)
    assert steps == ["killed"]
