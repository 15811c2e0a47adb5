"""An operator's drain is confirmed by the host, which remembers it (V10)."""

from __future__ import annotations

from contextlib import AsyncExitStack

import anyio
import pytest

from support.http_server import until
from support.joining import connected, joinable
from support.memory_objects import Bucket
from tierlog.actors.supervisor import leaving
from tierlog.actors.supervisor.control.messages import Drain, Heartbeat, Leave
from tierlog.actors.supervisor.hosts import HostPhase
from tierlog.actors.supervisor.supervisor import Supervisor
from tierlog.storage_backends.base.errors import OutcomeUnknown

pytestmark = pytest.mark.anyio


def phase(found: Supervisor, host: str) -> HostPhase:
    return found.fleet.hosts[host].phase


async def test_v10_a_drain_is_answered_when_the_host_has_confirmed_that_it_remembers_it() -> None:
    """Before that it would be lost with this supervisor, or with the connection. The same answer comes from a
    host that says so when it connects again."""
    for confirms_by_hello in (False, True):
        async with joinable(Bucket()) as found, connected(found, "a") as line:
            answered = anyio.Event()

            async def drain(supervisor: Supervisor = found.supervisor, done: anyio.Event = answered) -> None:
                await supervisor.drain("a")
                done.set()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(drain)
                while not isinstance(await line.receive(), Leave):
                    continue
                await line.send(Heartbeat(1, 0.0))
                await until(lambda: found.supervisor.fleet.hosts["a"].last_heard > 0)
                assert not answered.is_set()
                assert phase(found.supervisor, "a") is HostPhase.SERVING
                async with AsyncExitStack() as more:
                    if confirms_by_hello:
                        await more.enter_async_context(connected(found, "a", leaving=True))
                    else:
                        await line.send(Heartbeat(2, 0.0, leaving=True))
                    await answered.wait()
                    assert phase(found.supervisor, "a") is HostPhase.DRAINING


async def test_v10_a_drain_that_no_host_confirms_has_an_unknown_outcome(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leaving, "CONFIRM_SECONDS", 0.05)
    async with joinable(Bucket()) as found, connected(found, "a"):
        with pytest.raises(OutcomeUnknown, match="a did not confirm within .* `tierlog status` shows"):
            await found.supervisor.drain("a")
        assert phase(found.supervisor, "a") is HostPhase.SERVING


async def test_v13_a_host_of_the_release_before_is_drained_by_its_supervisor_alone() -> None:
    async with joinable(Bucket()) as found, connected(found, "a", newest=2) as line:
        await found.supervisor.drain("a")
        while not isinstance(message := await line.receive(), Drain):
            assert not isinstance(message, Leave)
