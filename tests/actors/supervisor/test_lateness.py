"""The supervisor's own delays do not count as a host's silence (rule V7)."""

from __future__ import annotations

import time
from collections.abc import Callable

import anyio
import pytest

from support.fake_hosts import FakeHostsSupervisor
from tierlog.actors.supervisor.fleet import FleetOptions
from tierlog.actors.supervisor.hosts import HostPhase

pytestmark = pytest.mark.anyio

SILENCE = 0.3


def phases(supervisor: FakeHostsSupervisor) -> set[HostPhase]:
    return {host.phase for host in supervisor.fleet.hosts.values()}


async def test_the_log_says_which_host_was_silent_for_how_long_and_by_which_setting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    supervisor = FakeHostsSupervisor(4, 2, options=FleetOptions(adoption=0, silence=SILENCE))
    supervisor.silent.add("host-0")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervisor.tick)
        with anyio.fail_after(10):
            while supervisor.fleet.hosts["host-0"].phase is HostPhase.SERVING:
                supervisor.beat()
                await anyio.sleep(SILENCE / 10)
        tasks.cancel_scope.cancel()
    [record] = [each for each in caplog.records if "host_silent" in each.getMessage()]
    text = record.getMessage()
    assert record.levelname == "WARNING"
    assert "host-0" in text
    assert "server.silence" in text


EVENTS: dict[str, Callable[[FakeHostsSupervisor], None]] = {
    "an order": lambda supervisor: supervisor.unpin(0),
    "an order that ticks": lambda supervisor: supervisor.start("host-0"),
    "an exit, and the next process": lambda supervisor: supervisor.end("host-0"),
}


@pytest.mark.parametrize("event", EVENTS)
async def test_v7_a_late_loop_that_an_event_wakes_declares_no_host_silent(event: str) -> None:
    """Heartbeats are unread whatever ends the wait: the timer, or an event that was handled before it."""
    supervisor = FakeHostsSupervisor(4, 2, options=FleetOptions(adoption=0, silence=SILENCE))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervisor.tick)
        await anyio.sleep(0.01)
        supervisor.beat()
        time.sleep(2 * SILENCE)  # the loop stands still
        EVENTS[event](supervisor)

        assert phases(supervisor) == {HostPhase.SERVING}
        await anyio.sleep(0.01)
        assert phases(supervisor) == {HostPhase.SERVING}
        tasks.cancel_scope.cancel()


async def test_v7_a_round_of_the_timers_that_stands_still_declares_no_host_silent() -> None:
    supervisor = FakeHostsSupervisor(4, 2, options=FleetOptions(adoption=0, silence=SILENCE))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervisor.tick)
        await anyio.sleep(0.01)
        supervisor.end("host-0")
        supervisor.beat()
        # The second exit is replaced after a pause, and so by the timers.
        supervisor.spawn_seconds = 2 * SILENCE
        supervisor.end("host-0")
        assert supervisor.fleet.hosts["host-0"].phase is HostPhase.DOWN
        with anyio.fail_after(10):
            while supervisor.fleet.hosts["host-0"].phase is HostPhase.DOWN:
                await anyio.sleep(0.01)
        await anyio.sleep(0.01)

        assert phases(supervisor) == {HostPhase.SERVING}
        tasks.cancel_scope.cancel()
