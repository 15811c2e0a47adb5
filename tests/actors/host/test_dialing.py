"""How a host that joins finds its supervisor, and what it says when it does not (V1, V4, V11, V12)."""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import anyio.abc
import attrs
import pytest

from support.joining import WORLD, coordination_in, hello, joinable
from support.memory_objects import Bucket
from support.patience import scaled
from tierlog.actors.folder.identity import StoreIdentity
from tierlog.actors.folder.identity import encode as encode_identity
from tierlog.actors.host import dialing
from tierlog.actors.host.dialing import RecordDialer, Refused, is_loopback
from tierlog.actors.supervisor.control.messages import Challenge, Lines, Proved, Refuse, Welcome, encode
from tierlog.actors.supervisor.control.record import ControlRecord, encode_control
from tierlog.journal.coordination.contract import CONTROL, IDENTITY

pytestmark = pytest.mark.anyio
STORE = "73" * 16


def dialer(bucket: Bucket, url_host: str = "127.0.0.1") -> RecordDialer:
    return RecordDialer(coordination_in(bucket), STORE, url_host, WORLD.new_id)


def put(bucket: Bucket, record: ControlRecord) -> None:
    bucket.objects.pop(CONTROL, None)
    bucket.put(CONTROL, encode_control(record), "")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
    return port


def record(port: int, **changes: object) -> ControlRecord:
    found = ControlRecord(3, b"s" * 32, "127.0.0.1", port, socket.gethostname())
    return attrs.evolve(found, **changes)  # type: ignore[arg-type]  # a test's own


async def reason_of(found: RecordDialer, caplog: pytest.LogCaptureFixture, term: int = 0) -> str:
    """Why it does not connect: what it logs once, however often it tries."""
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="tierlog.host"):
        for _ in range(2):
            with anyio.fail_after(scaled(20)):
                assert await found.dial(term) is None
    [line] = [each.getMessage() for each in caplog.records]
    assert "supervisor_not_reached" in line
    return line


async def test_v12_it_proves_itself_to_the_supervisor_of_the_record_and_says_hello() -> None:
    bucket = Bucket()
    async with joinable(bucket):
        connection = await dialer(bucket).dial(0)
        assert connection is not None
        with connection:
            connection.send(encode(hello("a")))
            await anyio.wait_readable(connection)
            assert isinstance(Lines().feed(connection.recv(1 << 16))[0], Welcome)


@pytest.mark.parametrize("first", ["127.0.0.1", "127.0.0.2"])
async def test_a_name_with_several_addresses_leads_to_the_one_that_answers(
    first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one of both families, of which the supervisor listens on one."""

    async def both(name: str, port: int, **how: object) -> list[Any]:
        assert name == "node.example.org"
        names = sorted(["127.0.0.1", "127.0.0.2"], key=lambda each: each != first)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in names]

    monkeypatch.setattr(anyio, "getaddrinfo", both)
    with socket.create_server(("127.0.0.1", 0)) as server:
        with await dialing._connect("node.example.org", server.getsockname()[1]) as connection:
            assert connection.getpeername() == server.getsockname()
        port = server.getsockname()[1]
    with pytest.raises(ConnectionRefusedError):
        await dialing._connect("node.example.org", port)


async def test_without_a_record_it_names_what_makes_one(caplog: pytest.LogCaptureFixture) -> None:
    reason = await reason_of(dialer(Bucket()), caplog)
    assert "memory:control is missing: no supervisor that hosts can join" in reason
    assert "start `tierlog serve` or `tierlog supervise`" in reason


async def test_v1_the_record_of_a_supervisor_that_was_replaced_is_ignored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bucket = Bucket()
    async with joinable(bucket, term=2):
        reason = await reason_of(dialer(bucket), caplog, term=3)
        assert "the supervisor of term 2 was replaced by that of term 3" in reason


def put_identity(bucket: Bucket, store: bytes) -> None:
    bucket.put(IDENTITY, encode_identity(StoreIdentity(store, b"l" * 16, 1, 0)), "")


async def test_v11_the_record_of_the_store_that_was_made_in_its_place_ends_the_host() -> None:
    """Whatever its term: it is another store's."""
    bucket = Bucket()
    put_identity(bucket, b"n" * 16)
    put(bucket, record(free_port(), store_id=b"n" * 16))
    for term in (0, 9):
        with pytest.raises(Refused, match=f"has store {STORE} open, and .* of store {'6e' * 16}"):
            await dialer(bucket).dial(term)


@pytest.mark.parametrize("identity", ["its own", "damaged", "missing"])
async def test_v11_the_record_of_a_store_that_is_not_there_ends_no_host(
    identity: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It was copied, or put back by mistake: the next supervisor of the host's store replaces it."""
    bucket = Bucket()
    if identity == "damaged":
        bucket.put(IDENTITY, b"", "")
    elif identity == "its own":
        put_identity(bucket, bytes.fromhex(STORE))
    put(bucket, record(free_port(), store_id=b"n" * 16, term=50))
    reason = await reason_of(dialer(bucket), caplog)
    assert (
        "memory:store" if identity == "damaged" else f"memory:control is that of store {'6e' * 16}"
    ) in reason
    assert not await dialer(bucket).is_replaced(3), "its term is another store's"


async def test_a_supervisor_of_this_machine_that_is_gone_is_named(caplog: pytest.LogCaptureFixture) -> None:
    bucket, port = Bucket(), free_port()
    put(bucket, record(port))
    reason = await reason_of(dialer(bucket), caplog)
    assert f"at 127.0.0.1:{port} cannot be reached (Connection refused)" in reason
    assert "--listen" not in reason


async def test_a_supervisor_of_another_machine_that_listens_on_loopback_is_named_with_what_to_change(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bucket = Bucket()
    put(bucket, record(free_port(), machine="node-z"))
    reason = await reason_of(dialer(bucket), caplog)
    assert "the supervisor on node-z at 127.0.0.1:" in reason
    assert "an address which only its own machine can reach" in reason
    assert all(name in reason for name in ("--listen ADDRESS:PORT", "--advertise", "server.control_port"))


async def test_a_host_that_clients_cannot_reach_joins_no_supervisor_of_another_machine() -> None:
    bucket = Bucket()
    put(bucket, record(1, address="10.0.0.1"))
    with pytest.raises(Refused, match="this host at 127.0.0.1, which clients on other machines cannot reach"):
        await dialer(bucket).dial(0)


@asynccontextmanager
async def impostor(bucket: Bucket, *answers: bytes) -> AsyncIterator[None]:
    """What listens at the record's address sends these, one for each message, and nothing more."""
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    put(bucket, record(listener.extra(anyio.abc.SocketAttribute.local_port)))

    async def talk(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                for answer in answers:
                    await stream.send(answer)
                    await stream.receive()

    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, talk)
        yield
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize(
    "answers",
    [
        (encode(Challenge("0a" * 16)), encode(Proved("1b" * 32))),
        (encode(Challenge("0a" * 16)), encode(Refuse("go away"))),
        (encode(Welcome(9, 0.1, 1)),),
        (encode(Challenge("0a" * 16)) * 2,),
        (encode(Challenge("0a" * 16)),),
        (),
    ],
    ids=["wrong proof", "refusal", "no challenge", "two at once", "silence after it", "nothing"],
)
async def test_v12_whoever_does_not_know_the_secret_is_no_supervisor(
    answers: tuple[bytes, ...], caplog: pytest.LogCaptureFixture
) -> None:
    bucket = Bucket()
    async with impostor(bucket, *answers):
        assert "is not the supervisor of term 3" in await reason_of(dialer(bucket), caplog)


async def test_v12_what_comes_before_the_proof_is_bounded_here_too(caplog: pytest.LogCaptureFixture) -> None:
    bucket = Bucket()
    async with impostor(bucket, b"x" * 5000):
        assert "a line of more than 512 bytes" in await reason_of(dialer(bucket), caplog)


async def test_v4_what_accepts_and_sends_nothing_does_not_hold_the_host(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a supervisor that stands still."""
    monkeypatch.setattr(dialing, "DIAL_SECONDS", 0.1)
    bucket = Bucket()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        put(bucket, record(silent.getsockname()[1]))
        assert "no answer within 0.1 s" in await reason_of(dialer(bucket), caplog)


async def test_a_damaged_record_ends_no_host(caplog: pytest.LogCaptureFixture) -> None:
    bucket = Bucket()
    bucket.put(CONTROL, b"x" * 100, "")
    assert "the control record is damaged" in await reason_of(dialer(bucket), caplog)


async def test_v1_only_a_higher_term_replaces_a_supervisor_that_is_not_heard() -> None:
    bucket = Bucket()
    found = dialer(bucket)
    assert not await found.is_replaced(3)
    put(bucket, record(1))
    assert not await found.is_replaced(3)
    put(bucket, record(1, term=4))
    assert await found.is_replaced(3)


@pytest.mark.parametrize(
    ("address", "expected"),
    [("127.0.0.7", True), ("::1", True), ("localhost", True), ("10.0.0.1", False), ("node-a", False)],
)
def test_loopback_addresses(address: str, expected: bool) -> None:
    assert is_loopback(address) is expected
