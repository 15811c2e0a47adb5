"""Hosts of other machines join over TCP: they find the supervisor by its record, and both sides prove that
they have read it (rules V1, V11 and V12)."""

from __future__ import annotations

import errno
import resource
import socket
import struct
from contextlib import suppress
from typing import Any

import anyio
import attrs
import pytest

from support.http_server import until
from support.joining import FixedTerm, Joinable, Line, coordination_in, hello, joinable
from support.memory_objects import Bucket
from support.patience import scaled
from tierlog.actors.gateway.server.connections import REFUSED_MAX
from tierlog.actors.gateway.server.listener import bind, serve_http
from tierlog.actors.gateway.wire.errors import Conflict
from tierlog.actors.store.folder_opening import system_world
from tierlog.actors.supervisor import join_listener, supervisor
from tierlog.actors.supervisor.admin import LIMITS, make_admin_app
from tierlog.actors.supervisor.control import channel, messages
from tierlog.actors.supervisor.control.channel import Connection
from tierlog.actors.supervisor.control.messages import (
    OLDEST,
    VERSION,
    Challenge,
    Closed,
    Drain,
    Heartbeat,
    Hello,
    Leave,
    Message,
    Open,
    Opened,
    Owners,
    Refuse,
    Report,
    Welcome,
    encode,
)
from tierlog.actors.supervisor.control.proof import PROOF_BYTES_MAX
from tierlog.actors.supervisor.control.record import ControlRecord, encode_control
from tierlog.actors.supervisor.fleet import FleetOptions
from tierlog.actors.supervisor.hosts import HostPhase
from tierlog.actors.supervisor.join_listener import JoinListener, find_predecessor
from tierlog.actors.supervisor.supervisor import Supervisor
from tierlog.actors.supervisor.term import superseded
from tierlog.journal.coordination.contract import CONTROL
from tierlog.storage_backends.base.errors import NotOwner, Unavailable

pytestmark = pytest.mark.anyio
WRONG, STORE = b"w" * 32, b"s" * 16


def phase(found: Supervisor, host: str) -> HostPhase | None:
    return found.fleet.hosts[host].phase if host in found.fleet.hosts else None


async def test_a_host_that_proved_itself_is_welcomed_and_gets_orders() -> None:
    async with joinable(Bucket()) as found:
        line = await found.connect()
        async with line.stream:
            assert await line.prove((await found.record()).secret)
            await line.send(hello("a"))
            welcome = await line.receive()
            assert isinstance(welcome, Welcome)
            assert welcome.term == 1
            owners = []
            for index in range(2):
                while isinstance(order := await line.receive(), Owners):
                    owners.append(order)
                assert isinstance(order, Open)
                await line.send(Opened(index, order.request, 1))
            known: dict[int, str] = {}
            while len(known) < 2:
                news = owners.pop(0) if owners else await line.receive()
                assert isinstance(news, Owners)
                known = {**known, **news.urls}
            assert known == {0: "http://a", 1: "http://a"}
            await until(lambda: found.supervisor.is_ready)
            [host] = found.supervisor.view().document()["hosts"]
            assert (host["id"], host["machine"], host["joined"]) == ("a", "machine-of-a", True)


async def test_v12_a_connection_without_the_secret_ends_without_an_answer() -> None:
    """A host that read the record of a supervisor that is gone looks for the next one."""
    async with joinable(Bucket()) as found:
        line = await found.connect()
        async with line.stream:
            assert not await line.prove(WRONG)
            assert await line.receive() is None
        assert not found.supervisor.fleet.hosts


@pytest.mark.parametrize("first", [Heartbeat(1, 0.0), hello("a")])
async def test_v12_whatever_comes_in_place_of_a_proof_is_no_message_of_a_host(first: Heartbeat) -> None:
    async with joinable(Bucket()) as found:
        line = await found.connect()
        async with line.stream:
            await line.send(first)
            assert isinstance(await line.receive(), Challenge)
            assert await line.receive() is None
        assert not found.supervisor.fleet.hosts


async def test_v12_what_comes_before_the_proof_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "HELLO_SECONDS", 1000)
    async with joinable(Bucket()) as found:
        line = await found.connect()
        async with line.stream:
            assert isinstance(await line.receive(), Challenge)
            await line.stream.send(b"x" * 2000)
            with anyio.fail_after(scaled(10)):
                assert await line.receive() is None


async def test_v12_few_lines_are_decoded_before_the_first_one_ends_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoded = 0

    def decode(line: bytes) -> Message:
        nonlocal decoded
        decoded += 1
        return real(line)

    real = messages.decode
    monkeypatch.setattr(messages, "decode", decode)
    async with joinable(Bucket()) as found:
        stream = await anyio.connect_tcp("127.0.0.1", (await found.record()).port)
        async with stream:
            await stream.send(encode(Closed(0)) * 2000)
            with anyio.fail_after(scaled(10)), suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                while True:
                    await stream.receive()
        assert 0 < decoded <= PROOF_BYTES_MAX


async def test_v12_the_time_before_the_proof_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "HELLO_SECONDS", 0.05)
    async with joinable(Bucket()) as found:
        line = await found.connect()
        async with line.stream:
            assert isinstance(await line.receive(), Challenge)
            with anyio.fail_after(scaled(10)):
                assert await line.receive() is None


async def challenged(found: Joinable) -> Line:
    """A connection that was accepted, and has its challenge still to read."""
    line = await found.connect()
    challenge = await line.receive()
    assert isinstance(challenge, Challenge)
    line._messages.append(challenge)
    return line


async def has_ended(line: Line) -> bool:
    return isinstance(await line.receive(), Challenge) and await line.receive() is None


async def test_v12_connections_without_a_proof_are_bounded_and_keep_no_host_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(join_listener, "UNPROVEN_MAX", 3)
    async with joinable(Bucket()) as found:
        secret = (await found.record()).secret
        idle = [await challenged(found) for _ in range(6)]
        for line in idle[:3]:
            assert await has_ended(line), "the oldest ones end"
        host = await found.connect()
        assert await host.prove(secret)
        assert await has_ended(idle[3])
        assert await idle[4].prove(secret), "and no others"
        for line in (*idle, host):
            await line.stream.aclose()
    assert caplog.text.count("connections_not_proven") == 1, "no line for each connection"


async def test_v12_who_holds_most_connections_without_a_proof_loses_the_oldest_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(join_listener, "UNPROVEN_MAX", 3)
    addresses = iter(["10.0.0.1", "10.0.0.2", "10.0.0.2", "10.0.0.3"])
    monkeypatch.setattr(channel, "_address_of", lambda raw: next(addresses))
    async with joinable(Bucket()) as found:
        lines = [await challenged(found) for _ in range(4)]
        assert await has_ended(lines[1])
        for line in (lines[0], lines[2], lines[3]):
            assert await line.prove((await found.record()).secret)
        for line in lines:
            await line.stream.aclose()


def test_v12_a_connection_that_is_reset_at_once_ends_no_supervisor() -> None:
    """As many checks of a port do. On uvloop, where services run."""

    async def run() -> None:
        async with joinable(Bucket()) as found:
            port = (await found.record()).port
            for _ in range(20):
                with socket.create_connection(("127.0.0.1", port)) as reset:
                    reset.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                await anyio.sleep(0.002)
            line = await found.connect()
            async with line.stream:
                assert await line.prove((await found.record()).secret)

    anyio.run(run, backend="asyncio", backend_options={"use_uvloop": True})


async def test_v6_a_connection_that_cannot_be_accepted_waits_and_one_that_fails_ends_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process without a descriptor left, and a fault of our own about one host."""
    monkeypatch.setattr(channel, "_ACCEPT_PAUSE", 0.001)
    async with joinable(Bucket()) as found:
        opened = found.supervisor._join_listener
        assert opened is not None
        listener: Any = opened._listener
        accept, failures = listener.accept, 3

        async def scarce() -> Any:
            nonlocal failures
            failures -= 1
            if failures >= 0:
                raise OSError(errno.EMFILE, "Too many open files")
            return await accept()

        monkeypatch.setattr(listener, "accept", scarce)
        # The one that waits already takes the old way.
        for _ in range(2):
            line = await found.connect()
            async with line.stream:
                assert isinstance(await line.receive(), Challenge)
        assert failures < 0

        failing = await found.connect()
        async with failing.stream:
            monkeypatch.setattr(found.supervisor.fleet, "hello", lambda *_, **more: 1 / 0)
            assert await failing.prove((await found.record()).secret)
            await failing.send(hello("a"))
            while await failing.receive() is not None:
                pass
        monkeypatch.undo()
        line = await found.connect()
        async with line.stream:
            assert await line.prove((await found.record()).secret)
            await line.send(hello("b"))
            assert isinstance(await line.receive(), Welcome)


def test_h12_a_supervisor_leaves_descriptors_to_the_hosts_that_join(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (200, 200))

    async def is_full(port: int, streams: list[anyio.abc.SocketStream], seconds: float) -> bool:
        stream = await anyio.connect_tcp("127.0.0.1", port)
        streams.append(stream)
        await stream.send(b"GET /health HTT")  # a request that is being sent makes no room
        with anyio.move_on_after(seconds):
            return (await stream.receive()).startswith(b"HTTP/1.1 503 ")
        return False

    async def run() -> None:
        limits = attrs.evolve(LIMITS, reserved_files=200 - 2 - REFUSED_MAX)
        async with joinable(Bucket()) as found:
            app = make_admin_app(found.supervisor, {}, system_world(), limits=limits)
            async with serve_http(app, bind("127.0.0.1", 0), stop_timeout=0.1) as served:
                streams: list[anyio.abc.SocketStream] = []
                assert not await is_full(served.port, streams, 0.05)
                assert not await is_full(served.port, streams, 0.05)
                assert await is_full(served.port, streams, scaled(10))
                line = await found.connect()
                assert await line.prove((await found.record()).secret)
                await line.send(hello("a"))
                assert isinstance(await line.receive(), Welcome)
                await streams.pop(0).aclose()
                assert await is_full(served.port, streams, scaled(10))
                for stream in (*streams, line.stream):
                    await stream.aclose()

    anyio.run(run, backend="asyncio")


async def test_v11_a_second_process_with_a_living_hosts_id_is_refused() -> None:
    async with joinable(Bucket()) as found:
        secret = (await found.record()).secret
        first, second = await found.connect(), await found.connect()
        async with first.stream, second.stream:
            for line, instance in ((first, "1"), (second, "2")):
                assert await line.prove(secret)
                await line.send(hello("a", instance))
            refusal = await second.receive()
            assert isinstance(refusal, Refuse)
            assert "process 7 on machine-of-a is a now, and alive" in refusal.reason
            assert isinstance(await first.receive(), Welcome)
        await until(lambda: phase(found.supervisor, "a") is HostPhase.SILENT)


@pytest.mark.parametrize("term", [0, 9])
async def test_v11_a_host_of_the_store_that_was_there_before_is_refused(term: int) -> None:
    """It would find each container's log to be another store's, for which the container is quarantined. Its
    term is that store's, and ends no supervisor."""
    async with joinable(Bucket(), store="22" * 16) as found:
        refused = []
        for store in ("11" * 16, "22" * 16, ""):
            line = await found.connect()
            async with line.stream:
                assert await line.prove((await found.record()).secret)
                await line.send(hello(f"h{store[:1]}", store=store, term=term if store[:1] == "1" else 0))
                answer = await line.receive()
                if isinstance(answer, Refuse):
                    refused.append(answer.reason)
                else:
                    assert isinstance(answer, Welcome)
        [reason] = refused
        assert "h1 has store 1111" in reason
        assert reason.endswith("start the host again")


async def test_v11_the_same_process_replaces_its_own_connection() -> None:
    async with joinable(Bucket()) as found:
        secret = (await found.record()).secret
        first, second = await found.connect(), await found.connect()
        async with second.stream:
            async with first.stream:
                for line in (first, second):
                    assert await line.prove(secret)
                    await line.send(hello("a"))
                    assert isinstance(await line.receive(), Welcome)
                while await first.receive() is not None:
                    continue
            assert phase(found.supervisor, "a") is HostPhase.SERVING


async def test_v11_what_only_a_hosts_own_machine_can_do_is_refused() -> None:
    async with joinable(Bucket()) as found:
        line = await found.connect()
        async with line.stream:
            assert await line.prove((await found.record()).secret)
            await line.send(hello("a"))
            await until(lambda: phase(found.supervisor, "a") is HostPhase.SERVING)
            with pytest.raises(Conflict, match="a joined from machine-of-a: only there can it be started"):
                found.supervisor.start("a")
            with pytest.raises(Conflict, match="restart those that joined where they run"):
                found.supervisor.roll()


async def test_v13_a_host_that_shares_no_version_is_refused_and_one_of_a_later_release_is_not() -> None:
    async with joinable(Bucket()) as found:
        secret = (await found.record()).secret
        for oldest, expected in ((VERSION + 1, Refuse), (OLDEST, Welcome)):
            line = await found.connect()
            async with line.stream:
                assert await line.prove(secret)
                await line.send(attrs.evolve(hello("a"), version=oldest, newest=VERSION + 1))
                answer = await line.receive()
                assert isinstance(answer, expected)
                if isinstance(answer, Welcome):
                    assert answer.version == VERSION


async def test_v4_a_joined_host_hears_of_its_supervisor_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervisor, "GREETING_SECONDS", 0.01)
    async with joinable(Bucket(), containers=1) as found:
        line = await found.connect()
        async with line.stream:
            assert await line.prove((await found.record()).secret)
            await line.send(hello("a"))
            received = [await line.receive() for _ in range(5)]
            assert [type(each) for each in received].count(Welcome) >= 2
            assert all(each.held for each in received if isinstance(each, Welcome))
            # It is cut off from the bucket, and may have a successor.
            monkeypatch.setattr(FixedTerm, "is_held", lambda term: False)
            with anyio.fail_after(scaled(10)):
                while not isinstance(message := await line.receive(), Welcome) or message.held:
                    continue


async def test_v11_the_record_names_the_hosts_that_joined_for_the_next_supervisor() -> None:
    bucket = Bucket()
    async with joinable(bucket) as found:
        secret = (await found.record()).secret
        line = await found.connect()
        async with line.stream:
            assert await line.prove(secret)
            await line.send(attrs.evolve(hello("a"), newest=VERSION))
            with anyio.fail_after(scaled(10)):
                while (await find_predecessor(coordination_in(bucket), STORE.hex())).hosts != ("a",):
                    await anyio.sleep(0.01)
            assert (await found.record()).secret == secret
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(found.supervisor.drain, "a")
                while not isinstance(await line.receive(), Leave):
                    continue
                await line.send(Heartbeat(1, 0.0, {}, leaving=True))
                while not isinstance(await line.receive(), Drain):
                    continue
        with anyio.fail_after(scaled(10)):
            while (await find_predecessor(coordination_in(bucket), STORE.hex())).hosts != ():
                await anyio.sleep(0.01)


async def test_v4_hosts_that_joined_the_supervisor_before_are_awaited() -> None:
    bucket = Bucket()
    async with joinable(bucket, term=2, awaited=["a", "b"]) as found:
        assert (await found.record()).hosts == ("a", "b")
        assert phase(found.supervisor, "b") is HostPhase.DOWN
        line = await found.connect()
        async with line.stream:
            assert await line.prove((await found.record()).secret)
            await line.send(hello("a", served={0: 4}))
            await until(lambda: phase(found.supervisor, "a") is HostPhase.SERVING)
            [first, second] = found.supervisor.fleet.assignments
            assert (first.host, first.epoch, second.host) == ("a", 4, "")


@pytest.mark.parametrize("late", [0.7, 1.7])
async def test_v4_joined_hosts_are_awaited_from_when_the_record_is_there(
    monkeypatch: pytest.MonkeyPatch, late: float
) -> None:
    rejoin, keep = scaled(0.5), JoinListener._keep

    async def put_late(joins: JoinListener, record: ControlRecord, *, is_new: bool) -> None:
        await anyio.sleep(late * rejoin)
        await keep(joins, record, is_new=is_new)

    monkeypatch.setattr(JoinListener, "_keep", put_late)
    began = anyio.current_time()
    options = FleetOptions(silence=30, adoption=0, rejoin=rejoin)
    async with joinable(Bucket(), awaited=["a"], options=options) as found:
        await anyio.sleep_until(began + (late + 0.6) * rejoin)
        assert phase(found.supervisor, "a") is HostPhase.DOWN
        await until(lambda: "a" not in found.supervisor.fleet.hosts)


async def test_v1_the_record_never_replaces_one_of_a_higher_term() -> None:
    bucket = Bucket()
    later = encode_control(ControlRecord(9, bytes(32), "10.0.0.9", 1, "node-b"))
    bucket.put(CONTROL, later, "")
    expected = pytest.RaisesExc(NotOwner, match=r"its term is 9, this one's 2")
    with pytest.RaisesGroup(expected, flatten_subgroups=True):
        async with joinable(bucket, term=2):
            await anyio.sleep(scaled(10))
    assert bucket.objects[CONTROL][0] == later


async def test_v1_a_host_that_has_seen_a_higher_term_is_left_to_that_supervisor(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check(term: FixedTerm) -> None:
        raise superseded(term.number, 3)

    with pytest.RaisesGroup(NotOwner, flatten_subgroups=True):
        async with joinable(Bucket(), term=2) as found:
            line = await found.connect()
            async with line.stream:
                assert await line.prove((await found.record()).secret)
                # Before the next check is due.
                monkeypatch.setattr(FixedTerm, "check", check)
                await line.send(hello("a", term=3))
                # No refusal, for which it would end.
                assert await line.receive() is None
                await anyio.sleep(scaled(10))
    assert "connection_closed" in caplog.text
    assert "connection_refused" not in caplog.text


async def test_v1_a_higher_term_that_the_record_does_not_confirm_ends_no_supervisor() -> None:
    """The store was put back to an earlier state, which the host does not know."""
    async with joinable(Bucket(), term=2) as found:
        for term, expected in ((3, Refuse), (2, Welcome)):
            line = await found.connect()
            async with line.stream:
                assert await line.prove((await found.record()).secret)
                await line.send(hello("a", term=term))
                answer = await line.receive()
                assert isinstance(answer, expected)
                if isinstance(answer, Refuse):
                    assert "a has seen the term 3, and this supervisor's is 2" in answer.reason
                    assert answer.reason.endswith("start the host again")


async def test_v1_a_host_whose_higher_term_cannot_be_checked_now_is_not_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may be the host of a supervisor that this one, which is cut off, does not know."""

    async def check(term: FixedTerm) -> None:
        raise Unavailable("the bucket does not answer")

    async with joinable(Bucket(), term=2) as found:
        line = await found.connect()
        async with line.stream:
            assert await line.prove((await found.record()).secret)
            monkeypatch.setattr(FixedTerm, "check", check)
            await line.send(hello("a", term=3))
            assert await line.receive() is None
        assert not found.supervisor.fleet.hosts
        assert found.supervisor._superseded is None


async def test_v11_what_a_host_sent_before_it_was_forgotten_is_ignored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was received in the same moment."""
    async with joinable(Bucket()) as found:
        running = found.supervisor
        receive = Connection.receive

        async def forget_first(connection: Connection) -> Message | None:
            message = await receive(connection)
            if message == Heartbeat(99, 0.0):
                now = anyio.current_time()
                running._execute(running.fleet.drain("a", now) + running.fleet.disconnected("a", now))
            return message

        monkeypatch.setattr(Connection, "receive", forget_first)
        line = await found.connect()
        async with line.stream:
            assert await line.prove((await found.record()).secret)
            await line.send(hello("a"), Heartbeat(99, 0.0))
            with anyio.fail_after(scaled(10)):
                while await line.receive() is not None:
                    continue
        assert not running.fleet.hosts
        again = await found.connect()
        async with again.stream:
            assert await again.prove((await found.record()).secret), "the supervisor goes on"


@pytest.mark.parametrize(
    "statistics",
    [
        {"containers": {"x": {}}},
        {"containers": {"0": {"segments": -1}}},
        {"containers": {"0": {"wal_bytes": [0]}}},
        {"requests": {"puts": "x"}},
        {"requests": {"puts": 1e300}},
    ],
)
async def test_v13_statistics_of_another_form_end_no_supervisor_and_are_not_shown(
    statistics: dict[str, Any],
) -> None:
    async with joinable(Bucket()) as found:
        line = await found.connect()
        async with line.stream:
            assert await line.prove((await found.record()).secret)
            await line.send(hello("a"), Heartbeat(1, 0.0, statistics), Heartbeat(2, 0.25))
            await until(
                lambda: (
                    found.supervisor.fleet.hosts["a"].lag == 0.25 if found.supervisor.fleet.hosts else False
                )
            )
            status = found.supervisor.view().document()
            assert status["requests"] is None
            assert [each["segments"] for each in status["containers"]] == [0, 0]


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (hello("a", term=7), b'"term":7'),
        (hello("a", served={0: 7}), b'"0":7'),
        (Heartbeat(1, 0.0, {"requests": {"puts": 7}}), b'"puts":7'),
        (Opened(0, 1, 7), b'"epoch":7'),
    ],
    ids=["term", "served", "statistics", "opened"],
)
async def test_v12_a_number_that_nothing_has_ends_its_connection_alone(right: Report, wrong: bytes) -> None:
    async with joinable(Bucket(), containers=1) as found:
        line = await found.connect()
        async with line.stream:
            assert await line.prove((await found.record()).secret)
            if not isinstance(right, Hello):
                await line.send(hello("a"))
            await line.stream.send(encode(right).replace(wrong, wrong[:-1] + b"%d" % 2**70))
            with anyio.fail_after(scaled(10)):
                while not isinstance(answer := await line.receive(), Refuse):
                    assert answer is not None
            assert "malformed message" in answer.reason
        assert found.supervisor.view().document()["requests"] is None
        assert [each.newest_epoch for each in found.supervisor.fleet.assignments] == [0]
        other = await found.connect()
        async with other.stream:
            assert await other.prove((await found.record()).secret)
            await other.send(hello("b"))
            assert isinstance(await other.receive(), Welcome)


@pytest.mark.parametrize(("returns", "drains"), [(True, False), (True, True), (False, False)])
async def test_v6_a_joined_host_whose_connection_broke_has_a_moment_to_return(
    monkeypatch: pytest.MonkeyPatch, returns: bool, drains: bool
) -> None:
    """A reset between machines is no exit."""
    monkeypatch.setattr(supervisor, "RETURN_SECONDS", 0.3)
    async with joinable(Bucket(), containers=1) as found:
        secret = (await found.record()).secret
        lines = {}
        for name, served in (("a", {0: 3}), ("b", {})):
            line = lines[name] = await found.connect()
            assert await line.prove(secret)
            await line.send(hello(name, served=served))
            assert isinstance(await line.receive(), Welcome)
        [assignment] = found.supervisor.fleet.assignments
        await until(lambda: assignment.host == "a")
        if drains:
            found.supervisor.fleet.drain("a", anyio.current_time())
        await lines["a"].stream.aclose()
        await until(lambda: found.supervisor.connected == 1)
        if returns:
            line = lines["a"] = await found.connect()
            assert await line.prove(secret)
            await line.send(hello("a", served={0: 3}))
            assert isinstance(await line.receive(), Welcome)
            await anyio.sleep(0.4)  # longer than the moment
            assert (assignment.host, found.supervisor.fleet.failovers) == ("a", 0)
        else:
            await until(lambda: assignment.host == "b")
            assert found.supervisor.fleet.failovers == 1
        for line in lines.values():
            await line.stream.aclose()


async def test_v11_a_host_that_was_forgotten_finds_its_connection_closed() -> None:
    options = FleetOptions(silence=0.05, silent_grace=0.05, adoption=0)
    async with joinable(Bucket(), options=options) as found:
        line = await found.connect()
        async with line.stream:
            assert await line.prove((await found.record()).secret)
            await line.send(hello("a"))
            await until(lambda: phase(found.supervisor, "a") is HostPhase.SILENT)
            await until(lambda: not found.supervisor.fleet.hosts)
            with suppress(anyio.BrokenResourceError):  # it was reset before this
                await line.send(Closed(0), Heartbeat(1, 0.0))
            with anyio.fail_after(scaled(10)):
                while await line.receive() is not None:
                    continue


async def test_a_stop_without_hosts_of_its_own_leaves_those_that_joined() -> None:
    bucket = Bucket()
    async with joinable(bucket) as found:
        line = await found.connect()
        async with line.stream:
            assert await line.prove((await found.record()).secret)
            await line.send(hello("a"))
            with anyio.fail_after(scaled(10)):
                while (await find_predecessor(coordination_in(bucket), STORE.hex())).hosts != ("a",):
                    await anyio.sleep(0.01)
            found.supervisor.stop()
            messages = []
            with anyio.fail_after(scaled(10)):
                while (message := await line.receive()) is not None:
                    messages.append(message)
            assert not any(isinstance(each, Drain) for each in messages)
            assert (await find_predecessor(coordination_in(bucket), STORE.hex())).hosts == ("a",)
