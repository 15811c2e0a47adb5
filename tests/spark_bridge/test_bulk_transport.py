"""Connections for large bodies: what is kept, what is dropped, and how a broken connection is reported."""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
import pytest

import tierlog
from tierlog.actors.gateway.client.connect import connect_sync
from tierlog.spark_bridge.bulk_transport import IDLE_SECONDS, PIECE_BYTES, BulkTransport
from tierlog.spark_bridge.connections import new_transport

Serve = Callable[[socket.socket], None]
PATIENCE = 30.0
"""Seconds after which a client that should have done something has not."""
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody"


@contextmanager
def serving(*connections: Serve) -> Iterator[str]:
    """A server that meets its first connection with the first of these, and so on; its URL."""

    def accept() -> None:
        for serve in connections:
            peer, _ = listener.accept()
            with peer:
                peer.settimeout(PATIENCE)
                serve(peer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENCE)
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            thread.join(2 * PATIENCE)
    assert not thread.is_alive()


def answers(*given: bytes) -> Serve:
    """On one connection, in turn; then it is ended."""

    def serve(peer: socket.socket) -> None:
        for answer in given:
            asked = b""
            while b"\r\n\r\n" not in asked:
                asked += peer.recv(1 << 16)
            peer.sendall(answer)

    return serve


def get(transport: BulkTransport, url: str, read: float = PATIENCE) -> bytes:
    timeout = dict.fromkeys(("connect", "write", "pool"), PATIENCE) | {"read": read}
    response = transport.handle_request(httpx.Request("GET", url, extensions={"timeout": timeout}))
    try:
        return b"".join(response.iter_raw())
    finally:
        response.close()


def wait_for_end(transport: BulkTransport) -> None:
    """Until the end of the one idle connection has come: later than the server's ``close`` when the machine
    has much to do."""
    [[(connection, _)]] = transport._idle.values()
    readable, _, _ = select.select([connection.sock], [], [], PATIENCE)
    assert readable, "the server has not ended its connection"


@pytest.fixture
def transport() -> Iterator[BulkTransport]:
    made = new_transport()
    yield made
    made.close()


def test_a_body_of_many_pieces_arrives_whole_and_its_connection_is_kept(transport: BulkTransport) -> None:
    body = os.urandom(3 * PIECE_BYTES + 1)
    large = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    empty = b"HTTP/1.1 204 No Content\r\n\r\n"
    with serving(answers(OK, large, empty, OK)) as url:  # there is but one connection
        assert [get(transport, url) for _ in range(4)] == [b"body", body, b"", b"body"]


def test_a_connection_that_the_server_has_ended_is_not_used_again(transport: BulkTransport) -> None:
    with serving(answers(OK), answers(OK)) as url:
        assert get(transport, url) == b"body"
        wait_for_end(transport)
        assert get(transport, url) == b"body"


def test_a_connection_whose_end_the_server_announced_is_not_used_again(transport: BulkTransport) -> None:
    last = OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    with serving(answers(last), answers(OK)) as url:
        assert [get(transport, url) for _ in range(2)] == [b"body"] * 2


def test_a_connection_that_was_idle_for_long_is_not_used_again() -> None:
    now = 0.0
    transport = BulkTransport(lambda: now)
    with serving(
        lambda peer: (answers(OK)(peer), peer.recv(1))[0], answers(OK)
    ) as url:  # it waits for the client to end it
        assert get(transport, url) == b"body"
        now = IDLE_SECONDS
        assert get(transport, url) == b"body"
    transport.close()


@pytest.mark.parametrize(
    "answer, error",
    [
        (b"", httpx.RemoteProtocolError),
        (b"rubbish\r\n\r\n", httpx.RemoteProtocolError),
        (OK[:-1], httpx.RemoteProtocolError),
    ],
)
def test_half_an_answer_is_none(transport: BulkTransport, answer: bytes, error: type[Exception]) -> None:
    with serving(answers(answer), answers(OK)) as url:
        with pytest.raises((error, httpx.ReadError)):
            get(transport, url)
        assert get(transport, url) == b"body"


def test_a_silent_server_is_given_up(transport: BulkTransport) -> None:
    received = threading.Event()
    with serving(lambda peer: (received.wait(PATIENCE), None)[1]) as url:
        with pytest.raises(httpx.ReadTimeout):
            get(transport, url, read=0.05)
        received.set()


def test_where_nobody_listens_nothing_was_sent(transport: BulkTransport) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(httpx.ConnectError):
            get(transport, f"http://127.0.0.1:{taken.getsockname()[1]}")


def test_a_client_reads_and_appends_over_it(url: str, segment: str) -> None:
    data = os.urandom(3 << 20)
    with connect_sync(url, transport=new_transport) as client:
        client.create_segment(segment)
        assert client.append(segment, data, expected_offset=0) == 0
        with pytest.raises(tierlog.BadOffset):
            client.append(segment, data, expected_offset=0)

        assert client.read(segment, 1, len(data)) == data[1:]
        assert next(client.tail(segment, len(data) - 3)) == data[-3:]
