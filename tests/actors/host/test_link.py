"""The host's link: it says hello to every supervisor, obeys the highest term it has seen, and gives up after
its grace (V1, V4, V5)."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import anyio
import anyio.abc
import pytest

from support.patience import scaled
from tierlog.actors.host import heartbeat
from tierlog.actors.host.dialing import Dialer, SocketDialer
from tierlog.actors.host.heartbeat import HeartbeatWriter, LoopMonitor
from tierlog.actors.host.link import Link
from tierlog.actors.supervisor.control.channel import Connection, listen
from tierlog.actors.supervisor.control.messages import (
    OLDEST,
    VERSION,
    Closed,
    Drain,
    Heartbeat,
    Hello,
    Leave,
    Open,
    Order,
    Owners,
    Refuse,
    Welcome,
)

pytestmark = pytest.mark.anyio
FACTS = {"a": 1}


@pytest.fixture
def path() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="tl-") as folder:
        yield f"{folder}/room/control"


class Host:
    """A link, the messages it received, and how it ended."""

    def __init__(
        self,
        path: str,
        grace: float = 60,
        dialer: Dialer | None = None,
        on_grace_expired: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.obeyed: list[Order] = []
        self.owners: list[Owners] = []
        self.hellos = 0
        self.ended = ""
        self.done = anyio.Event()
        self.monitor = LoopMonitor(time.monotonic)
        self.link = Link(
            dialer or SocketDialer(path),
            hello=self.hello,
            redirect=self.owners.append,
            monitor=self.monitor,
            grace=grace,
            on_grace_expired=on_grace_expired,
        )

    async def hello(self, term: int) -> Hello:
        self.hellos += 1
        leaving = self.monitor.leaving
        return Hello("host-0", os.getpid(), "http://h", {0: self.hellos}, term, leaving=leaving)

    async def run(self) -> None:
        self.ended = await self.link.run(self.obeyed.append)
        self.done.set()


@asynccontextmanager
async def running(host: Host) -> AsyncIterator[None]:
    with anyio.fail_after(scaled(30)):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(host.run)
            yield
            tasks.cancel_scope.cancel()


@asynccontextmanager
async def accepted(listener: anyio.abc.SocketListener) -> AsyncIterator[tuple[Connection, Hello]]:
    """The next connection of a host, as the supervisor sees it."""
    stream = await listener.accept()
    async with stream, anyio.create_task_group() as tasks:
        connection = Connection(stream)
        tasks.start_soon(connection.write)
        hello = await connection.hello()
        assert hello is not None
        yield connection, hello
        connection.finish()


async def test_v5_a_welcomed_host_beats_at_the_given_interval(path: str) -> None:
    host = Host(path)
    async with await listen(path) as listener, running(host), accepted(listener) as (connection, hello):
        assert hello == Hello("host-0", os.getpid(), "http://h", {0: 1}, 0)
        connection.send(Welcome(1, 0.01, 60))
        beats = [await connection.receive() for _ in range(3)]
        assert [beat.sequence for beat in beats if isinstance(beat, Heartbeat)] == [1, 2, 3]


@pytest.mark.parametrize(("version", "repeated"), [(1, FACTS), (2, {})])
async def test_v13_statistics_go_with_the_heartbeats_that_have_news(
    path: str, version: int, repeated: dict[str, int]
) -> None:
    """A supervisor of the release before takes missing statistics for those of a healthy host."""
    host = Host(path)
    host.monitor.statistics = FACTS
    async with await listen(path) as listener, running(host), accepted(listener) as (connection, _):
        connection.send(Welcome(1, 0.01, 60, version))
        beats = [await connection.receive() for _ in range(3)]
        assert [beat.statistics for beat in beats if isinstance(beat, Heartbeat)] == [
            FACTS,
            repeated,
            repeated,
        ]
        host.monitor.statistics = news = {**FACTS, "b": 2}
        while not (isinstance(beat := await connection.receive(), Heartbeat) and beat.statistics == news):
            assert beat is not None


async def test_v5_a_wall_clock_jump_does_not_change_the_heartbeats(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = time.time
    jumps = iter([-3600.0, 3600.0] * 1000)
    monkeypatch.setattr(time, "time", lambda: real() + next(jumps, 0.0))
    host = Host(path)
    async with await listen(path) as listener, running(host), accepted(listener) as (connection, _):
        began = anyio.current_time()
        connection.send(Welcome(1, 0.05, 60))
        beats = [await connection.receive() for _ in range(4)]
        assert anyio.current_time() - began >= 0.14
        assert all(isinstance(beat, Heartbeat) and 0 <= beat.lag < 10 for beat in beats)


async def test_reports_are_written_between_the_beats(path: str) -> None:
    host = Host(path)
    async with await listen(path) as listener, running(host), accepted(listener) as (connection, _):
        connection.send(Welcome(1, 30, 60))
        connection.send(Open(1, 2, 3))
        while not host.obeyed:
            await anyio.sleep(0.001)
        host.link.report(Closed(2))
        message = await connection.receive()
        while isinstance(message, Heartbeat):
            message = await connection.receive()
        assert message == Closed(2)


async def test_v4_the_next_supervisor_learns_what_is_served_by_then(path: str) -> None:
    host = Host(path)
    async with await listen(path) as listener, running(host):
        async with accepted(listener) as (connection, _):
            connection.send(Welcome(3, 30, 60))
            connection.send(Owners({0: "http://h"}))
        async with accepted(listener) as (connection, hello):
            assert hello == Hello("host-0", os.getpid(), "http://h", {0: 2}, 3)
        assert host.owners == [Owners({0: "http://h"})]


async def test_v10_a_host_that_was_asked_to_leave_says_so_to_this_supervisor_and_to_the_next(
    path: str,
) -> None:
    closed = anyio.Event()

    async def on_grace_expired() -> None:
        closed.set()

    host = Host(path, on_grace_expired=on_grace_expired)
    async with running(host):
        async with await listen(path) as listener:
            async with accepted(listener) as (connection, hello):
                assert not hello.leaving
                connection.send(Welcome(3, 0.001, 60))
                connection.send(Leave(2))
                while (beat := await connection.receive()) != Closed(7):
                    assert isinstance(beat, Heartbeat)
                    assert not beat.leaving, "that was the order of a supervisor that was replaced"
                    if beat.sequence == 5:
                        host.link.report(Closed(7))
                connection.send(Leave(3))
                while not (isinstance(beat := await connection.receive(), Heartbeat) and beat.leaving):
                    continue
            async with accepted(listener) as (connection, hello):
                assert hello.leaving
                connection.send(Welcome(4, 0.001, 0.05))
        await host.done.wait()
    # It need not wait for another supervisor, as others that joined do.
    assert (host.ended, closed.is_set()) == ("no supervisor for 0.05 s", False)


async def test_v1_a_supervisor_with_a_lower_term_is_left_alone(path: str) -> None:
    host = Host(path)
    async with await listen(path) as listener, running(host):
        async with accepted(listener) as (connection, _):
            connection.send(Welcome(5, 30, 60))
            connection.send(Drain(4))
            connection.send(Open(5, 0, 1))
        async with accepted(listener) as (connection, _):
            connection.send(Welcome(4, 30, 60))
            connection.send(Open(4, 0, 2))
        async with accepted(listener) as (_, hello):
            assert hello.term == 5
        assert host.obeyed == [Open(5, 0, 1)]


async def test_v4_without_a_supervisor_it_ends_after_the_grace(path: str) -> None:
    host = Host(path, grace=0.05)
    async with running(host):
        await host.done.wait()
    assert host.ended == "no supervisor for 0.05 s"


async def test_v4_the_grace_is_the_last_supervisors(path: str) -> None:
    host = Host(path, grace=60)
    async with running(host):
        async with await listen(path) as listener, accepted(listener) as (connection, _):
            connection.send(Welcome(1, 30, 0.1))
        await host.done.wait()
    assert host.ended == "no supervisor for 0.1 s"


class QuietDialer(SocketDialer):
    """As over TCP, where the end of a connection may not show."""

    quiet = 0.02

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.asked = 0
        self.replaced = False

    async def is_replaced(self, term: int) -> bool:
        self.asked += 1
        return self.replaced


async def test_v4_a_supervisor_that_is_not_heard_is_left_only_for_one_with_a_higher_term(path: str) -> None:
    dialer = QuietDialer(path)
    host = Host(path, dialer=dialer)
    async with await listen(path) as listener, running(host):
        async with accepted(listener) as (connection, _):
            connection.send(Welcome(1, 30, 60))
            while dialer.asked < 3:
                await anyio.sleep(0.001)
            connection.send(Open(1, 2, 3))
            while not host.obeyed:
                await anyio.sleep(0.001)
            dialer.replaced = True
            while await connection.receive() is not None:
                continue
        async with accepted(listener) as (connection, hello):
            assert hello.term == 1


async def test_v4_a_supervisor_that_is_not_heard_is_looked_for_more_often(path: str) -> None:
    """A successor waits for its hosts, and not for long."""
    dialer = QuietDialer(path)
    dialer.quiet = scaled(1.0)
    host = Host(path, dialer=dialer)
    async with await listen(path) as listener, running(host), accepted(listener) as (connection, _):
        connection.send(Welcome(1, 30, 60))
        while not dialer.asked:
            await anyio.sleep(0.001)
        with anyio.fail_after(0.9 * dialer.quiet):
            while dialer.asked < 3:
                await anyio.sleep(0.001)


async def test_v4_late_orders_of_a_supervisor_that_was_replaced_meanwhile_are_not_obeyed(path: str) -> None:
    """They were on their way while it was cut off, and would fence what its successor has found."""
    dialer = QuietDialer(path)
    dialer.quiet = 0.5
    host = Host(path, dialer=dialer)
    async with await listen(path) as listener, running(host):
        async with accepted(listener) as (connection, _):
            connection.send(Welcome(1, 30, 60))
            while not dialer.asked:
                await anyio.sleep(0.001)
            dialer.replaced = True  # just after it was asked
            connection.send(Open(1, 2, 3))
            while await connection.receive() is not None:
                continue
        async with accepted(listener) as (connection, hello):
            assert hello.term == 1
    assert host.obeyed == []


@pytest.mark.parametrize("replaced", [False, True])
async def test_v4_a_supervisor_without_a_lease_is_left_only_for_its_successor(
    path: str, replaced: bool
) -> None:
    """It is cut off from the bucket, but not from its hosts."""
    dialer = QuietDialer(path)
    dialer.quiet, dialer.replaced = 1000.0, replaced
    host = Host(path, dialer=dialer)
    async with await listen(path) as listener, running(host):
        async with accepted(listener) as (connection, _):
            connection.send(Welcome(1, 30, 60))
            connection.send(Open(1, 2, 3))
            while not host.obeyed:
                await anyio.sleep(0.001)
            assert dialer.asked == 0
            for _ in range(3):
                connection.send(Welcome(1, 30, 60, held=False))
            if not replaced:
                connection.send(Open(1, 2, 4))
                while len(host.obeyed) < 2:
                    await anyio.sleep(0.001)
                assert dialer.asked <= 1, "not for each welcome"
                return
            while await connection.receive() is not None:
                continue
        async with accepted(listener) as (connection, hello):
            assert (hello.term, dialer.asked) == (1, 1)


async def test_v4_a_supervisor_that_is_not_heard_for_the_grace_is_none(path: str) -> None:
    host = Host(path, dialer=QuietDialer(path))
    async with await listen(path) as listener, running(host), accepted(listener) as (connection, _):
        connection.send(Welcome(1, 30, 0.1))
        await host.done.wait()
    assert host.ended == "no supervisor for 0.1 s"


async def test_v4_a_joined_host_closes_its_containers_once_after_its_grace_and_looks_on(
    path: str,
) -> None:
    closed = 0
    expired = anyio.Event()

    async def on_grace_expired() -> None:
        nonlocal closed
        closed += 1
        expired.set()

    host = Host(path, grace=0.05, on_grace_expired=on_grace_expired)
    async with running(host):
        await expired.wait()
        await anyio.sleep(0.2)
        assert closed == 1
        async with await listen(path) as listener, accepted(listener) as (connection, _):
            connection.send(Welcome(1, 30, 0.05))
            expired = anyio.Event()
        await expired.wait()
    assert (closed, host.hellos, host.ended) == (2, 1, "")


async def test_v13_a_supervisor_that_shares_no_version_is_left_with_both_versions(path: str) -> None:
    host = Host(path)
    async with await listen(path) as listener, running(host), accepted(listener) as (connection, _):
        connection.send(Welcome(1, 30, 60, VERSION + 1))
        await host.done.wait()
    assert (
        f"speaks version {VERSION + 1} of the control protocol, this host {OLDEST} to {VERSION}" in host.ended
    )
    assert host.link.refusal in host.ended


async def test_v4_an_unwanted_host_ends(path: str) -> None:
    host = Host(path)
    async with await listen(path) as listener, running(host):
        async with accepted(listener) as (connection, _):
            connection.send(Refuse("process 7 is host-0 now"))
        await host.done.wait()
    assert host.ended == "refused by the supervisor: process 7 is host-0 now"


async def test_a_supervisor_that_sends_garbage_is_disconnected(path: str) -> None:
    host = Host(path)
    async with await listen(path) as listener, running(host):
        async with accepted(listener) as (connection, _):
            connection.send(Welcome(1, 30, 60))
            connection.send(Closed(1))  # type: ignore[arg-type]  # what hosts say
            assert await connection.receive() is None or await connection.receive() is None
        async with accepted(listener) as (_, hello):
            assert hello.term == 1


def test_v5_the_lag_is_what_the_loop_is_behind() -> None:
    now = [100.0]
    monitor = LoopMonitor(lambda: now[0])
    now[0] += monitor.interval
    assert monitor.lag == 0
    now[0] += 2
    assert monitor.lag == pytest.approx(2)


async def test_v5_the_monitor_records_the_lag_of_each_round() -> None:
    monitor = LoopMonitor(time.monotonic)
    monitor.interval = 0.001
    late: list[float] = []
    async with anyio.create_task_group() as tasks:

        def look(seconds: float) -> None:
            late.append(seconds)
            if len(late) == 3:
                tasks.cancel_scope.cancel()

        tasks.start_soon(monitor.watch, look)
    assert all(seconds >= 0 for seconds in late)


def test_v5_a_supervisor_that_does_not_read_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "WRITE_SECONDS", 0.05)
    here, there = socket.socketpair()
    with there:
        writer = HeartbeatWriter(here, LoopMonitor(time.monotonic))
        writer.start()
        for _ in range(1000):
            writer.send(Hello("host-0", 1, "x" * 1000, {}, 0))
        there.settimeout(10)
        while there.recv(1 << 20):
            time.sleep(0.2)  # A reader so slow that each write runs into its limit.
        writer.stop()
