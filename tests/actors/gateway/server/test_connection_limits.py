"""How many connections there may be, which ones make room, and the descriptors left for storage (rules H12,
H15)."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import resource
import socket
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import msgspec
import pytest
from anyio.abc import SocketAttribute, SocketStream

from support.http_server import (
    ServedStore,
    Wrapped,
    everything,
    service,
    serving,
    until,
)
from support.patience import scaled, succeeds
from tierlog import open_store
from tierlog.actors.gateway.server import connection, connections, context, write_side
from tierlog.actors.gateway.server.app import context_of, make_app
from tierlog.actors.gateway.server.context import WINDOWS_MAX, ServerLimits
from tierlog.actors.gateway.server.listener import bind, serve_http
from tierlog.actors.store.folder_opening import system_world
from tierlog.storage_backends.base.tables import ChangesPage, TablePage, TableRow

pytestmark = pytest.mark.anyio

HEALTH = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
LAST = b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
ALL = b"GET /v1/segments/a/bytes HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
TAIL = b"GET /v1/segments/a/tail?wait=60 HTTP/1.1\r\nhost: localhost\r\n\r\n"


@pytest.fixture(
    params=[pytest.param(False, id="asyncio", marks=pytest.mark.extended), pytest.param(True, id="uvloop")]
)
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """The service runs on uvloop, whose sockets are its own."""
    return "asyncio", {"use_uvloop": request.param}


async def test_h12_above_the_bound_the_connection_that_idles_longest_makes_room(tmp_path: Path) -> None:
    async with service(tmp_path, ServerLimits(connections=3)) as served:
        idle, other = await served.raw(HEALTH), await served.raw(HEALTH)
        await until(lambda: served.gateway.metrics.requests(status=200) == 2)
        more = [await served.raw(b""), await served.raw(b"")]

        assert b"alive" in await everything(idle)
        await other.send(LAST)
        assert (await everything(other)).count(b"alive") == 2
        for stream in more:
            await stream.aclose()


async def test_h12_above_the_bound_a_connection_is_refused_and_there_is_room_again_later(
    tmp_path: Path,
) -> None:
    async with service(tmp_path, ServerLimits(connections=2)) as served:
        await served.store.create_segment("a")
        parked = [await served.raw(TAIL), await served.raw(TAIL)]
        await until(lambda: served.gateway.tails == 2)
        refused = await everything(await served.raw(HEALTH))
        queue = [await served.raw(HEALTH) for _ in range(3 * connections.REFUSED_MAX)]
        for stream in queue:
            assert (await everything(stream)).startswith(b"HTTP/1.1 503 ")
        for stream in parked:
            await stream.aclose()
        await until(lambda: served.gateway.tails == 0)
        later = await everything(await served.raw(LAST))

    assert refused.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 1\r\n" in refused
    assert later.startswith(b"HTTP/1.1 200 ")


HEAD = b"GET /health HTTP/1.1\r\n"
REST = b"POST /v1/batch HTTP/1.1\r\nhost: localhost\r\ncontent-type: x/y\r\ncontent-length: 9\r\n\r\n"
"""Its answer, 415, does not wait for the body."""


async def test_h12_connections_that_never_sent_a_request_make_room_the_longest_silent_first(
    tmp_path: Path,
) -> None:
    async with service(tmp_path, ServerLimits(connections=3)) as served:
        silent = [await served.raw(b"") for _ in range(3)]
        used = []
        for stream in silent[:2]:
            used.append(await served.raw(HEALTH))
            assert (await used[-1].receive()).startswith(b"HTTP/1.1 200 ")
            # No request of its client can have been carried out.
            assert (await everything(stream)).startswith(b"HTTP/1.1 503 ")
        await silent[2].send(LAST)
        assert (await everything(silent[2])).startswith(b"HTTP/1.1 200 ")
        for stream in used:
            await stream.aclose()


@pytest.mark.parametrize(("begun", "ending"), [(HEAD, b"HTTP/1.1 408 "), (REST, b"HTTP/1.1 415 ")])
async def test_h12_a_request_that_is_late_makes_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: bytes, ending: bytes
) -> None:
    async with service(tmp_path, ServerLimits(connections=1)) as served:
        slow = await served.raw(begun)
        if begun is REST:
            await until(lambda: served.gateway.metrics.requests(status=415) == 1)
        refused = await everything(await served.raw(LAST))
        monkeypatch.setattr(connection, "HEAD_DELAY", 0.0)
        admitted = await everything(await served.raw(LAST))
        answer = await everything(slow)

    assert refused.startswith(b"HTTP/1.1 503 ")
    assert admitted.startswith(b"HTTP/1.1 200 ")
    assert answer.startswith(ending)
    assert answer.count(b"HTTP/1.1 ") == 1


async def test_h12_refused_connections_that_stay_do_not_delay_later_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "LINGER_SECONDS", 3600.0)
    async with service(tmp_path, ServerLimits(connections=1)) as served:
        await served.store.create_segment("a")
        parked = await served.raw(TAIL)
        await until(lambda: served.gateway.tails == 1)
        refused = [await served.raw(HEALTH) for _ in range(3 * connections.REFUSED_MAX)]
        for stream in refused:
            assert (await stream.receive()).startswith(b"HTTP/1.1 503 ")
        await parked.aclose()
        await until(lambda: served.gateway.tails == 0)
        later = await everything(await served.raw(LAST))
        for stream in refused:
            await stream.aclose()

    assert later.startswith(b"HTTP/1.1 200 ")


def _write(stream: SocketStream, data: bytes) -> None:
    """Write at once: the loop cannot see it before it runs again."""
    assert os.write(stream.extra(SocketAttribute.raw_socket).fileno(), data) == len(data)


@pytest.mark.parametrize("maximum", [1, 2])
async def test_h12_a_connection_whose_next_request_is_unread_does_not_make_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, maximum: int
) -> None:
    async with service(tmp_path, ServerLimits(connections=maximum)) as served:
        idle = [await served.raw(HEALTH)]
        await until(lambda: served.gateway.metrics.requests(status=200) == 1)
        if maximum == 2:
            idle.append(await served.raw(HEALTH))
            await until(lambda: served.gateway.metrics.requests(status=200) == 2)

        class Surprised(connection.HttpConnection):
            def connection_made(self, transport: Any) -> None:
                _write(idle[0], LAST)
                super().connection_made(transport)

        monkeypatch.setattr(connections, "HttpConnection", Surprised)
        new = await everything(await served.raw(LAST))

        assert (await everything(idle[0])).count(b"alive") == 2
        if maximum == 2:
            assert (await everything(idle[1])).count(b"alive") == 1
        assert new.startswith(b"HTTP/1.1 200 " if maximum == 2 else b"HTTP/1.1 503 ")


async def test_h12_an_idle_connection_does_not_end_with_an_unread_request(
    a: ServedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "KEEP_ALIVE", 0.2)

    async def is_answered() -> bool:
        stream = await a.raw(HEALTH)
        received = await stream.receive()
        asyncio.get_running_loop().call_later(0.01, _write, stream, LAST)
        # So that the request comes in the round of the loop in which the connection's time ends.
        time.sleep(0.3)
        return (received + await everything(stream)).count(b"alive") == 2

    assert await succeeds(is_answered)


async def test_h15_a_request_that_is_unread_when_the_server_stops_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = connections.Connections.end

    async def late(self: connections.Connections, *arguments: Any) -> None:
        _write(stream, HEALTH)
        await end(self, *arguments)

    async with open_store(tmp_path / "data", containers=1) as store:
        async with serving(store) as served:
            stream = await served.raw(HEALTH)
            received = await stream.receive()
            monkeypatch.setattr(connections.Connections, "end", late)
        received += await everything(stream)

    assert received.count(b"alive") == 2
    assert received.lower().count(b"connection: close") == 1


async def test_h15_answers_of_a_stopping_server_end_their_connections(a: ServedStore) -> None:
    """A client that does not know sends its next request into the closed connection."""
    requests = {
        "long poll": TAIL,
        "bytes": b"GET /v1/segments/a/bytes HTTP/1.1\r\nhost: localhost\r\n\r\n",
        "HEAD": b"HEAD /health HTTP/1.1\r\nhost: localhost\r\n\r\n",
        "unknown path": b"GET /nothing HTTP/1.1\r\nhost: localhost\r\n\r\n",
        "incomplete body": b"POST /v1/batch HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\nx",
    }
    streams = {name: await a.raw(b"") for name in requests}
    await streams["long poll"].send(requests.pop("long poll"))
    await until(lambda: a.gateway.tails == 1)

    a.gateway.drain()
    for name, request in requests.items():
        await streams[name].send(request)
    answers = {name: await everything(stream) for name, stream in streams.items()}

    assert {name: answer.lower().count(b"\r\nconnection: close\r\n") for name, answer in answers.items()} == (
        dict.fromkeys(answers, 1)
    )
    assert answers["long poll"].startswith(b"HTTP/1.1 503 ")


async def test_h15_the_last_of_several_answers_ends_the_connection(a: ServedStore) -> None:
    for behind in (HEALTH, b"NOT HTTP\r\n\r\n"):
        stream = await a.raw(TAIL + HEALTH + behind)
        await until(lambda: a.gateway.tails == 1)
        a.gateway.drain()
        *others, last = re.split(rb"http/1\.1 (?=\d)", (await everything(stream)).lower())[1:]
        a.gateway.draining = False

        assert len(others) == 2
        assert not any(b"connection: close" in answer for answer in others)
        assert b"connection: close" in last


async def test_h15_a_request_behind_an_answer_that_ends_the_connection_is_not_begun(
    tmp_path: Path,
) -> None:
    """Its client reads that it was not, and sends it again."""
    release = anyio.Event()
    async with open_store(tmp_path / "data", containers=1) as store:
        await store.create_segment("a")

        async def read(*arguments: Any) -> bytes:
            await release.wait()
            return await store.read(*arguments)

        await store.append("a", b"abc")
        async with serving(Wrapped(store, read=read)) as served:
            stream = await served.raw(b"GET /v1/segments/a/bytes HTTP/1.1\r\nhost: localhost\r\n\r\n")
            served.gateway.drain()
            head = await stream.receive()
            await stream.send(
                b"POST /v1/segments/b/create HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n"
            )
            release.set()
            received = head + await everything(stream)
        names = await store.list_segments()

    assert received.count(b"HTTP/1.1 ") == 1
    assert b"abc" in received
    assert b"connection: close" in head.lower()
    assert names == ["a"]


async def test_h15_a_request_behind_the_last_answer_of_a_stopping_server_is_answered(tmp_path: Path) -> None:
    """Closing the connection there would reset it, and the kernel would drop what it had not sent yet."""
    release = anyio.Event()
    async with open_store(tmp_path / "data", containers=1) as store:

        async def segment_info(name: str) -> Any:
            await release.wait()
            info = await store.segment_info(name)
            _write(stream, HEALTH)  # so that it is unread when the answer to this one is complete
            return info

        await store.create_segment("a")
        async with anyio.create_task_group() as tasks:
            async with serving(Wrapped(store, segment_info=segment_info)) as served:
                stream = await served.raw(b"GET /v1/segments/a/info HTTP/1.1\r\nhost: localhost\r\n\r\n")
                await until(lambda: served.gateway.metrics.operation("info").in_flight == 1)

                async def release_when_stopping() -> None:
                    await until(lambda: served.gateway.draining)
                    await anyio.wait_all_tasks_blocked()
                    release.set()

                tasks.start_soon(release_when_stopping)
            received = await everything(stream)

    assert received.count(b"HTTP/1.1 200 ") == 2
    assert received.count(b"alive") == 1


async def test_h15_requests_of_connections_that_wait_to_be_accepted_are_answered(tmp_path: Path) -> None:
    async with open_store(tmp_path / "data", containers=1) as store:
        async with serve_http(make_app(store, system_world()), bind("127.0.0.1", 0)) as served:
            await anyio.wait_all_tasks_blocked()
            # No round of the loop from here to the stop, in which the server could accept them.
            clients = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(3)]
            for client in clients:
                client.sendall(HEALTH)
        for client in clients:
            with client, client.makefile("rb") as answer:
                assert answer.read().startswith(b"HTTP/1.1 200 ")


class Flooded(socket.socket):
    """A listener whose queue is not empty until it has given very many connections."""

    accepted, end = 0, 20_000

    def accept(self) -> Any:
        if self.accepted == self.end:
            raise BlockingIOError
        self.accepted += 1
        ours, client = socket.socketpair()
        client.close()
        return ours, ""


async def test_h15_a_server_stops_while_clients_connect_faster_than_it_accepts(
    a: ServedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_ABORT_SECONDS", 0.05)
    listener = Flooded(fileno=bind("127.0.0.1", 0).detach())
    async with serve_http(make_app(a.store, system_world()), listener, stop_timeout=0.05):
        pass

    assert listener.accepted < listener.end


class Scarce(socket.socket):
    """A listener in a process that has no descriptor left, for three attempts."""

    failures = 0

    def accept(self) -> Any:
        self.failures += 1
        if self.failures <= 3:
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


async def test_h12_connections_wait_while_the_process_has_no_descriptor(
    a: ServedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_ACCEPT_PAUSE", 0.001)
    listener = Scarce(fileno=bind("127.0.0.1", 0).detach())
    async with serve_http(make_app(a.store, system_world()), listener, stop_timeout=1.0) as served:
        stream = await anyio.connect_tcp("127.0.0.1", served.port)
        await stream.send(LAST)
        answer = await everything(stream)

    assert answer.startswith(b"HTTP/1.1 200 ")
    assert listener.failures > 3


def test_h12_connections_leave_descriptors_to_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    def limited(files: int, configured: int = 0) -> int:
        monkeypatch.setattr(resource, "getrlimit", lambda which: (files, files))
        return connections.connections_max(configured, reserved=300)

    assert limited(1024) == 1024 - 300 - connections.REFUSED_MAX
    assert limited(20_000) == 20_000 - 300 - connections.REFUSED_MAX
    assert limited(1024, configured=100) == 100
    assert limited(1024, configured=5000) == limited(1024)
    assert limited(8) == 1
    assert limited(1_000_000) == limited(resource.RLIM_INFINITY) == 32_768
    assert limited(resource.RLIM_INFINITY, configured=100_000) == 100_000
    assert limited(resource.RLIM_INFINITY, configured=7) == 7


@pytest.mark.parametrize(
    ("limits", "raised"),
    [
        ((1024, 4096), (4096, 4096)),
        ((256, resource.RLIM_INFINITY), (10_240, resource.RLIM_INFINITY)),
        ((20_000, resource.RLIM_INFINITY), (20_000, resource.RLIM_INFINITY)),
        ((4096, 4096), None),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), None),
    ],
)
def test_h12_the_limit_of_open_files_is_raised_as_far_as_it_may(
    monkeypatch: pytest.MonkeyPatch, limits: tuple[int, int], raised: tuple[int, int] | None
) -> None:
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda which, wanted: given.append(wanted))

    connections.raise_file_limit()

    assert given == ([] if raised is None else [raised])


async def test_h10_a_client_that_does_not_read_its_answer_loses_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_side, "WRITE_DELAY", 0.2)
    monkeypatch.setattr(write_side, "WRITE_RATE", 1 << 30)
    lost = anyio.Event()

    class Watched(connection.HttpConnection):
        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            lost.set()

    async with service(tmp_path) as served:
        await served.store.create_segment("a")
        for _ in range(16):
            await served.store.append("a", bytes(1 << 20))
        monkeypatch.setattr(connections, "HttpConnection", Watched)
        silent = await served.raw(ALL)
        await lost.wait()
        assert len(await everything(silent)) < 16 << 20


async def test_h10_a_client_that_reads_gets_all_of_a_large_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_side, "WRITE_DELAY", 5.0)
    async with service(tmp_path) as served:
        await served.store.create_segment("a")
        for _ in range(16):
            await served.store.append("a", bytes(1 << 20))
        assert len(await everything(await served.raw(ALL))) > 16 << 20


class Transport:
    """The transport of a client that leaves what it is sent unread."""

    def __init__(self, unread: int) -> None:
        self.unread = unread
        self.is_aborted = asyncio.Event()

    def close(self) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return self.unread

    def abort(self) -> None:
        self.is_aborted.set()


async def test_h10_a_connection_that_was_closed_does_not_wait_for_ever_for_its_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(write_side, "WRITE_DELAY", 0.01)
    closed = connection.HttpConnection(connections.Connections(None, lambda: 1, lambda: False))  # type: ignore[arg-type]
    closed.transport = Transport(1)
    closed.close()
    with anyio.fail_after(scaled(30)):
        await closed.transport.is_aborted.wait()


STREAMS = (
    b"GET /v1/segments/a/tail?offset=0&stream=true HTTP/1.1\r\nhost: localhost\r\n\r\n",
    b"GET /v1/segments/a/bytes HTTP/1.1\r\nhost: localhost\r\n\r\n",
    b"GET /v1/segments/a/tail?offset=0 HTTP/1.1\r\nhost: localhost\r\n\r\n" * 8,
)


async def test_h12_turns_that_end_at_one_moment_begin_in_rounds_of_their_own(a: ServedStore) -> None:
    """A round of the event loop in which a hundred blocks are read and written takes 0.1 s."""
    context = context_of(make_app(a.store, system_world()))
    events: list[str] = []

    async def wait_turn() -> None:
        await context.wait_turn()
        events.append("turn")

    async def others() -> None:
        for _ in range(100):
            events.append("round")
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(wait_turn)
        tasks.start_soon(others)

    assert events.count("turn") == 20
    assert ("turn", "turn") not in pairwise(events)
    assert events[events.index("turn") :][:40].count("turn") == 20, "no round is lost between them"


@pytest.mark.parametrize("request_bytes", STREAMS, ids=["tail", "read", "polls"])
async def test_h12_what_clients_do_not_read_has_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request_bytes: bytes
) -> None:
    """The store is read for a client once there is room for the block; those behind it wait."""
    made: list[connection.HttpConnection] = []

    class Recorded(connection.HttpConnection):
        def connection_made(self, transport: Any) -> None:
            # The system takes little, so that few bytes suffice.
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            super().connection_made(transport)
            made.append(self)

    monkeypatch.setattr(connections, "HttpConnection", Recorded)
    block = 1 << 20
    limits = ServerLimits(unread_bytes=4 * block, body_grace=scaled(60))
    async with service(tmp_path, limits) as served, AsyncExitStack() as open_streams:
        await served.store.create_segment("a")
        for _ in range(12):
            await served.store.append("a", bytes(block))
        for _ in range(10):
            await open_streams.enter_async_context(await served.raw(request_bytes))

        def held() -> int:
            return sum(each.transport.get_write_buffer_size() for each in made)

        await until(lambda: served.gateway.unread_blocks.statistics().tasks_waiting == 8 and held() > block)
        assert held() <= 2 * block + 10 * (64 << 10)
        # What is small is answered all the same.
        await served.store.create_segment("b")
        await served.store.append("b", b"small")
        assert (await served.http.get("/v1/segments/b/bytes")).content == b"small"


async def test_h12_a_client_that_does_not_read_makes_room_for_one_that_does(tmp_path: Path) -> None:
    limits = ServerLimits(unread_bytes=1 << 20, body_grace=0.3)
    async with service(tmp_path, limits) as served, AsyncExitStack() as silent:
        await served.store.create_segment("a")
        for _ in range(12):
            await served.store.append("a", bytes(1 << 20))

        async def is_answered() -> bool:
            for _ in range(3):
                await silent.enter_async_context(await served.raw(STREAMS[0]))
            # Reader and server share an event loop: a process that does not run for so long does not read.
            with suppress(httpx.RemoteProtocolError):
                return len((await served.http.get("/v1/segments/a/bytes")).content) == 12 << 20
            return False

        assert await succeeds(is_answered)


async def test_h12_a_tail_that_waits_keeps_no_room(tmp_path: Path) -> None:
    async with service(tmp_path, ServerLimits(unread_bytes=1 << 20)) as served, AsyncExitStack() as parked:
        await served.store.create_segment("a")
        for _ in range(2):
            for tail in (STREAMS[0], TAIL):
                await parked.enter_async_context(await served.raw(tail))
        await until(lambda: served.gateway.tails == 4)
        await served.store.create_segment("b")
        await served.store.append("b", bytes(1 << 20))
        assert len((await served.http.get("/v1/segments/b/bytes")).content) == 1 << 20


async def test_h12_a_stream_that_waits_behind_a_full_block_keeps_no_room(tmp_path: Path) -> None:
    async with service(tmp_path, ServerLimits(unread_bytes=1 << 20)) as served:
        for name in ("a", "b"):
            await served.store.create_segment(name)
            await served.store.append(name, bytes(1 << 20))
        async with await served.raw(STREAMS[0]) as parked:
            received = 0
            while received < 1 << 20:
                received += len(await parked.receive())
            assert len((await served.http.get("/v1/segments/b/bytes")).content) == 1 << 20


class Window(bytearray):
    """A window of long-term storage, from which blocks are read; it is counted while it is in memory."""

    in_memory = 0

    def __init__(self, size: int) -> None:
        super().__init__(size)
        Window.in_memory += 1

    def __del__(self) -> None:
        Window.in_memory -= 1


@pytest.mark.parametrize(("window_blocks", "most"), [(4, WINDOWS_MAX + 1), (1, 41)])
async def test_h10_unread_answers_keep_few_windows_and_no_block_that_is_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window_blocks: int, most: int
) -> None:
    class Narrow(connection.HttpConnection):
        def connection_made(self, transport: Any) -> None:
            # The system takes a few blocks, so that the next one waits behind one that was sent.
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 256 << 10)
            super().connection_made(transport)

    monkeypatch.setattr(connections, "HttpConnection", Narrow)
    block, clients = 128 << 10, 80
    limits = ServerLimits(unread_bytes=2 * 40 * block, block_bytes=block, body_grace=scaled(60))
    if window_blocks == 1:
        monkeypatch.setattr(context, "WINDOWS_MAX", 40)

    all_connected, offsets = anyio.Event(), list[int]()

    async def read_view(name: str, offset: int, size: int) -> memoryview:
        await all_connected.wait()  # so that clients take turns from the first block on
        offsets.append(offset)
        return memoryview(Window(window_blocks * block))[:size]

    async with open_store(tmp_path / "data", containers=1) as store:
        await store.create_segment("a")
        await store.append("a", bytes(8 << 20))
        async with serving(Wrapped(store, read_view=read_view), limits) as served, AsyncExitStack() as unread:
            for _ in range(clients):
                await unread.enter_async_context(await served.raw(ALL))
            await until(lambda: served.gateway.metrics.operation("bytes").in_flight == clients)
            all_connected.set()
            await until(
                lambda: (
                    len(offsets) >= 2 * clients
                    and served.gateway.unread_blocks.statistics().tasks_waiting == clients - 40
                )
            )
            await anyio.wait_all_tasks_blocked()
            assert Window.in_memory <= most
            assert served.gateway.held_bytes == 40 * block


@pytest.mark.parametrize(
    ("verb", "asked", "room"),
    [
        ("get-rows", {"keys": [b"a", b"b", b"c", b"absent"]}, 12),
        # The second row reaches the bytes of a page, which has three blocks.
        ("page-of-rows", {}, 7),
        ("page-of-changes", {}, 7),
    ],
)
async def test_h12_answers_with_many_rows_that_nobody_reads_hold_no_more_than_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, asked: dict[str, object], room: int
) -> None:
    """Room is taken before the rows are read, for the largest answer to so many keys, or the largest page;
    then what it does not need is given back."""
    keys = [b"a", b"b", b"c"]
    body = msgspec.json.encode(asked)
    head = f"POST /v1/segments/t/{verb} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    request = head.encode() + b"content-length: %d\r\n\r\n%b" % (len(body), body)
    block = 1 << 20
    limits = ServerLimits(unread_bytes=2 * room * block, block_bytes=block, body_grace=scaled(60))
    reads: list[str] = []

    class SmallBuffers(connection.HttpConnection):
        def connection_made(self, transport: Any) -> None:
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            super().connection_made(transport)

    monkeypatch.setattr(connections, "HttpConnection", SmallBuffers)
    async with open_store(tmp_path / "data", containers=1) as store:
        await store.create_table("t")
        await store.table("t").put_many(dict.fromkeys(keys, bytes((1 << 20) - 100)))

        class Tables:
            async def get(self, name: str, keys: Sequence[bytes]) -> list[TableRow | None]:
                reads.append(name)
                return await store.tables.get(name, keys)

            async def page(self, name: str, *asked: Any) -> TablePage:
                reads.append(name)
                return await store.tables.page(name, *asked)

            async def changes(self, name: str, *asked: Any) -> ChangesPage:
                reads.append(name)
                return await store.tables.changes(name, *asked)

        async with serving(Wrapped(store, tables=Tables()), limits) as served, AsyncExitStack() as unread:
            for _ in range(6):
                await unread.enter_async_context(await served.raw(request))
            await until(lambda: served.gateway.metrics.operation(verb).in_flight == 6)
            await until(lambda: served.gateway.unread_blocks.statistics().tasks_waiting == 1)
            await anyio.wait_all_tasks_blocked()
            assert (len(reads), served.gateway.unread_blocks.value) == (2, 0)
            await unread.aclose()
            await until(lambda: served.gateway.unread_blocks.value == room)
