"""A supervisor that waits for another one's lease, and one that is superseded while it stops (rule V1)."""

from __future__ import annotations

import os
import signal
import socket
from contextlib import nullcontext
from typing import cast

import anyio
import attrs
import pytest

from support.fake_hosts import FakeHostsSupervisor
from support.http_server import until
from support.memory_objects import Bucket, MemoryObjects
from support.patience import scaled
from support.s3 import numbered_world
from tierlog.actors.folder.identity import StoreIdentity
from tierlog.actors.supervisor.processes import HostProcess
from tierlog.actors.supervisor.term import Term, TermOptions, claim_term
from tierlog.journal.coordination.objects import ObjectCoordination
from tierlog.storage_backends.base.errors import NotOwner

pytestmark = pytest.mark.anyio
WORLD = numbered_world()
IDENTITY = StoreIdentity(bytes(16), b"l" * 16, 2, 0)
LEASE = 0.4
"""Seconds."""


@pytest.mark.parametrize("takes_over", [False, True])
async def test_v1_who_waits_learns_what_ends_the_wait(takes_over: bool) -> None:
    """The durations are those of the holder's lease, which may be longer."""
    bucket = Bucket()
    awaited: list[tuple[str, str]] = []
    own = attrs.evolve(
        TermOptions.watched(LEASE, takes_over=takes_over), on_wait=lambda *found: awaited.append(found)
    )
    other = TermOptions.watched(120.0, takes_over=False)
    first, second = (ObjectCoordination(MemoryObjects(bucket), "", WORLD) for _ in range(2))

    async def wait() -> None:
        async with claim_term(second, IDENTITY, b"b" * 16, own):
            raise AssertionError("there are two")

    async with claim_term(first, IDENTITY, b"a" * 16, other), anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await until(lambda: bool(awaited))
        tasks.cancel_scope.cancel()
    gone = "if that process is gone, its lease ends within 151 s"
    expected = (
        f"at its next check that process finds this one, and ends, within 41 s; {gone}"
        if takes_over
        else f"{gone}, and this one follows; if it still has the lease after 180 s, this one is refused"
    )
    assert awaited == [(f"process {os.getpid()} of {socket.gethostname()}", expected)]


@pytest.mark.parametrize("stops", [False, True])
async def test_v1_one_that_stops_when_another_takes_over_ends_as_stopped(
    stops: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """It was ended by order, and its hosts do not wait for the other one."""

    class Superseded:
        number, interval = 1, 0.001
        is_superseded = False

        def is_held(self) -> bool:
            return not self.is_superseded

        async def check(self) -> None:
            if self.is_superseded:
                raise NotOwner("another supervisor took over")

    class SlowHost:
        pid = 0

        def signal(self, number: int) -> None:
            assert number == signal.SIGTERM

    term = Superseded()
    supervisor = FakeHostsSupervisor(1, 0, term=cast(Term, term))
    supervisor._watched.add(cast(HostProcess, SlowHost()))
    expected = nullcontext() if stops else pytest.RaisesGroup(NotOwner)
    with anyio.fail_after(scaled(10)), expected:
        async with anyio.create_task_group() as tasks:
            await tasks.start(supervisor.run)
            if stops:
                supervisor.stop()
            term.is_superseded = True
    assert ("superseded_while_stopping" in caplog.text) is stops
