"""The supervisor's own delays do not count as a host's silence (rule V7)."""

from __future__ import annotations

import time

import anyio
import pytest

from support.fake_hosts import FakeHostsSupervisor
from tierlog.actors.supervisor.fleet import FleetOptions
from tierlog.actors.supervisor.hosts import HostPhase

pytestmark = pytest.mark.anyio

SILENCE = 0.3


async def test_v7_a_late_loop_that_an_event_wakes_takes_no_host_for_silent() -> None:
    """Heartbeats are unread whatever ends the wait: the timer, or an event that was handled before it."""
    supervisor = FakeHostsSupervisor(4, 2, options=FleetOptions(adoption=0, silence=SILENCE))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervisor.tick)
        await anyio.sleep(0.01)
        supervisor.beat()
        time.sleep(2 * SILENCE)  # the loop stands still
        supervisor.unpin(0)
        await anyio.sleep(0.01)

        assert {host.phase for host in supervisor.fleet.hosts.values()} == {HostPhase.SERVING}
        tasks.cancel_scope.cancel()
