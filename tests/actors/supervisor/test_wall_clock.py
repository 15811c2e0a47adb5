"""The machine's wall clock may be set at any time: who serves what depends on elapsed time alone (rule
C8)."""

from __future__ import annotations

import time

import anyio
import pytest

from support.fake_hosts import FakeHostsSupervisor
from support.patience import scaled
from tierlog.actors.supervisor.fleet import FleetOptions

pytestmark = pytest.mark.anyio

SILENCE = 0.3
HOUR = 3600.0


async def test_a_wall_clock_jump_neither_causes_nor_delays_a_failover(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, jumps = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: real() + jumps[-1])
    supervisor = FakeHostsSupervisor(4, 2, options=FleetOptions(adoption=0, silence=SILENCE))

    async def beat() -> None:
        while True:
            supervisor.beat()
            await anyio.sleep(SILENCE / 10)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(beat)
        tasks.start_soon(supervisor.tick)
        version = supervisor.published.version
        for jump in (-HOUR, HOUR, 0.0):
            jumps.append(jump)
            await anyio.sleep(
                1.5 * SILENCE
            )  # Longer than a silence: a beat that counts for nothing would show.
            assert (supervisor.is_ready, supervisor.fleet.failovers, supervisor.published.version) == (
                True,
                0,
                version,
            )

        for jump, host in ((-HOUR, "host-1"), (HOUR, "host-0")):
            jumps.append(jump)
            supervisor.silent = {host}
            with anyio.fail_after(scaled(30)):
                while (
                    not all(assignment.host not in ("", host) for assignment in supervisor.fleet.assignments)
                    or not supervisor.is_ready
                ):
                    await supervisor.published.changed.wait()
            supervisor.silent = set()
            with anyio.fail_after(scaled(30)):
                while (
                    len({assignment.host for assignment in supervisor.fleet.assignments}) < 2
                    or not supervisor.is_ready
                ):
                    await supervisor.published.changed.wait()
        tasks.cancel_scope.cancel()

    assert supervisor.published.version > version
    assert supervisor.failover_times.recent
    assert all(0 <= seconds < 10 for seconds in supervisor.failover_times.recent)
