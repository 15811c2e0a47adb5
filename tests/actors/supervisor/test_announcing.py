"""When a supervisor says that it serves."""

from __future__ import annotations

from typing import cast

import anyio
import pytest

from tierlog.actors.supervisor.service import _supervise
from tierlog.actors.supervisor.supervisor import Supervisor

pytestmark = pytest.mark.anyio


class Settling:
    """A supervisor whose containers are settled once it was stopped, if not before."""

    def __init__(self, *, stops_first: bool) -> None:
        self._stops_first = stops_first
        self.is_stopping = False
        self._settled = anyio.Event()

    def stop(self) -> None:
        self.is_stopping = True
        self._settled.set()

    async def wait_settled(self) -> None:
        await self._settled.wait()

    async def run(self) -> None:
        if self._stops_first:
            self.stop()
        self._settled.set()
        await anyio.wait_all_tasks_blocked()


@pytest.mark.parametrize("stops_first, announced", [(False, 1), (True, 0)])
async def test_v10_a_supervisor_that_stops_does_not_say_that_it_serves(
    stops_first: bool, announced: int
) -> None:
    calls: list[None] = []
    supervisor = cast(Supervisor, Settling(stops_first=stops_first))
    await _supervise(supervisor, lambda: calls.append(None), has_hosts=True)
    assert len(calls) == announced
