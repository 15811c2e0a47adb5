"""One-port mode: requests above the limit of a body (rules H9 and H22)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import anyio.abc
import attrs
import httpx
import pytest

from support.http_server import everything, everything_while_it_drips, until
from support.patience import scaled
from support.raw_session import OCTETS, raw_session
from support.two_hosts import Host, name_in, two_hosts
from tierlog.actors.gateway.server import forwarding
from tierlog.actors.gateway.server.context import IDLE_MAX, ServerLimits
from tierlog.actors.gateway.server.forwarding import CLIENT_EXCHANGES, POOL_EXCHANGES, Forwarder
from tierlog.actors.gateway.wire.batch import BATCH_TYPE, BatchItem, encode_batch
from tierlog.actors.gateway.wire.paths import BATCH, Verb, segment_path
from tierlog.actors.gateway.wire.session import Kind
from tierlog.actors.kernel.connection_pools import ConnectionPools

pytestmark = pytest.mark.anyio

THERE = name_in(1)
APPEND = segment_path(THERE, Verb.APPEND)
READ = ("GET", segment_path(THERE, Verb.BYTES), b"")
INFO = ("GET", segment_path(THERE, Verb.INFO), b"")
TAIL = ("GET", segment_path(THERE, Verb.TAIL), b"")
FROZEN, OTHER = "http://frozen:1", "http://other:1"


async def test_a_body_above_the_limit_ends_the_connection_as_it_does_at_the_owner(tmp_path: Path) -> None:
    async with two_hosts(tmp_path) as (store, first, _):
        await store.create_segment(THERE)
        size = store.append_bytes_max + 1
        head = f"POST {APPEND} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {size}\r\n"
        stream = await first.served.raw(f"{head}content-type: application/octet-stream\r\n\r\nx".encode())
        received = await everything_while_it_drips(stream, bytes(1 << 16))
    assert received.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in received


@pytest.mark.parametrize("size", [(8 << 20) + 1, (1 << 63) - 1])
@pytest.mark.parametrize("expect", ["", "expect: 100-continue\r\n"])
async def test_h22_a_length_above_the_limit_is_refused_by_the_head(
    tmp_path: Path, size: int, expect: str
) -> None:
    """No byte of the body is here yet, and the client is not asked for one."""
    async with two_hosts(tmp_path) as (store, first, second):
        await store.create_segment(THERE)
        assert store.append_bytes_max == 8 << 20
        head = f"POST {APPEND} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {size}\r\n{expect}"
        stream = await first.served.raw(f"{head}content-type: application/octet-stream\r\n\r\n".encode())
        with anyio.fail_after(scaled(10)):
            assert (await stream.receive()).startswith(b"HTTP/1.1 413 ")
            await everything(stream)
        assert (first.forwarded("append"), second.answered()) == (0, 0)


async def test_h22_a_body_that_grows_above_the_limit_is_refused_where_it_does(tmp_path: Path) -> None:
    """The answer of the owner, which ends its connection, could be lost, and the outcome be unknown."""
    async with two_hosts(tmp_path) as (store, first, _):
        await store.create_segment(THERE)
        size = store.append_bytes_max + 1
        head = f"POST {APPEND} HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n"
        stream = await first.served.raw(f"{head}content-type: application/octet-stream\r\n\r\n".encode())
        await stream.send(f"{size:x}\r\n".encode() + bytes(size) + b"\r\n")
        received = await everything_while_it_drips(stream, b"1\r\nx\r\n")
        assert received.startswith(b"HTTP/1.1 413 ")
        assert b'"code": "too-large"' in received
        assert (await store.segment_info(THERE)).length == 0
        assert first.served.gateway.held_bytes == 0


@attrs.define(eq=False)
class Silent:
    """Owners that take requests and never answer them."""

    host: Host
    turn: int = 0
    """The round of the event loop."""
    begun: list[tuple[int, str, str]] = attrs.field(factory=list)
    """Of each exchange: the round in which it began, the owner, and the verb."""
    under_way: Counter[httpx.AsyncBaseTransport] = attrs.field(factory=Counter)
    most: int = 0
    """In one pool at a time."""

    @property
    def forwarder(self) -> Forwarder:
        found = self.host.served.gateway.forwarder
        assert found is not None
        return found

    def count(self, *, url: str = "", verb: str = "") -> int:
        return sum(url in (each[1], "") and verb in (each[2], "") for each in self.begun)

    async def exchange(self, pool: httpx.AsyncBaseTransport, request: httpx.Request) -> httpx.Response:
        self.begun.append((self.turn, str(request.url.join("/"))[:-1], request.url.path.rpartition("/")[2]))
        self.under_way[pool] += 1
        self.most = max(self.most, *self.under_way.values())
        try:
            async for _ in request.stream:  # type: ignore[union-attr]
                pass
            await anyio.sleep_forever()
        finally:
            self.under_way[pool] -= 1
        raise AssertionError

    async def count_turns(self) -> None:
        while True:
            self.turn += 1
            await asyncio.sleep(0)


@asynccontextmanager
async def silent_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: ServerLimits | None = None
) -> AsyncIterator[Silent]:
    """A host whose container 1 is at an owner that does not answer. Where it is instead, the test says."""
    monkeypatch.setattr(forwarding, "MOVED_SECONDS", 3600)
    async with two_hosts(tmp_path, limits) as (_, first, _), anyio.create_task_group() as tasks:
        silent = Silent(first)
        first.places.urls[1] = FROZEN

        class Pool(httpx.AsyncBaseTransport):
            async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
                return await silent.exchange(self, request)

        silent.forwarder._pools = ConnectionPools(Pool, POOL_EXCHANGES)
        silent.forwarder._parking = ConnectionPools(Pool, POOL_EXCHANGES)
        tasks.start_soon(silent.count_turns)
        yield silent
        tasks.cancel_scope.cancel()


async def test_h22_many_calls_at_once_are_passed_on_one_a_turn_and_in_several_pools(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pool examines all its connections for each exchange: with thousands the loop would stand still. Of
    one client some wait, and another one's do not."""
    async with silent_owner(tmp_path, monkeypatch) as silent, raw_session(silent.host.served) as client:
        await client.begin_all([INFO] * (CLIENT_EXCHANGES + POOL_EXCHANGES))
        await until(lambda: silent.count() == CLIENT_EXCHANGES)
        async with raw_session(silent.host.served) as other:
            await other.begin_all([READ] * POOL_EXCHANGES)
            await until(lambda: silent.count(verb="bytes") == POOL_EXCHANGES)
            assert silent.count(verb="info") == CLIENT_EXCHANGES
            assert max(Counter(turn for turn, *_ in silent.begun).values()) == 1
            assert silent.most == POOL_EXCHANGES


async def test_h22_calls_to_one_owner_do_not_wait_for_those_to_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with silent_owner(tmp_path, monkeypatch) as silent, raw_session(silent.host.served) as client:
        await client.begin_all([READ] * (CLIENT_EXCHANGES + 1))
        await until(lambda: silent.count() == CLIENT_EXCHANGES)
        silent.host.places.urls[1] = OTHER
        await client.begin_all([READ] * 2)
        await until(lambda: silent.count(url=OTHER) == 2)


async def test_h12_bodies_that_wait_to_be_passed_on_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = ServerLimits(in_flight_bytes=250_000)
    async with (
        silent_owner(tmp_path, monkeypatch, limits) as silent,
        raw_session(silent.host.served) as client,
    ):
        gateway = silent.host.served.gateway
        silent.forwarder.client_exchanges = 1
        await client.begin_all([("POST", APPEND, bytes(60_000), *OCTETS)] * 4)
        await until(lambda: gateway.held_bytes == 240_000)
        assert silent.count() == 1
        await client.begin("POST", APPEND, bytes(60_000), *OCTETS)
        assert (await client.answer())[1].status == 429

    # And those that have not arrived, as far as the client may send them before they are taken.
    async with (
        silent_owner(tmp_path / "other", monkeypatch, ServerLimits(in_flight_bytes=2 << 20)) as silent,
        raw_session(silent.host.served) as client,
    ):
        gateway = silent.host.served.gateway
        first = await client.begin("POST", APPEND, bytes(1), *OCTETS, size=5 << 20)
        await until(lambda: gateway.held_bytes == 1 + (1 << 20))
        await client.begin("POST", APPEND, bytes(1), *OCTETS, size=5 << 20)
        assert (await client.answer())[1].status == 429
        await client.send(first, Kind.CANCEL)
        await until(lambda: gateway.held_bytes == 0)


@pytest.mark.parametrize("is_lost", [False, True])
async def test_h22_a_call_whose_client_has_left_does_not_wait_to_be_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    async with silent_owner(tmp_path, monkeypatch, ServerLimits(half_closed=0.05)) as silent:
        gateway = silent.host.served.gateway
        silent.forwarder.client_exchanges = 1
        async with raw_session(silent.host.served) as client:
            await client.begin(*READ)
            await until(lambda: silent.count() == 1)
            waiting = await client.begin("POST", APPEND, b"x", *OCTETS)
            await until(lambda: gateway.held_bytes == 1)
            if is_lost:
                await client.stream.aclose()
            else:
                await client.send(waiting, Kind.CANCEL)
            await until(lambda: gateway.held_bytes == 0)
        await until(lambda: not silent.forwarder._flights)
        assert silent.count(verb="append") == 0
        assert not silent.forwarder._shares


async def test_h22_what_moves_with_a_container_begins_one_a_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what waited for the old owner. All at once they would keep the loop for seconds, at a failover."""
    async with silent_owner(tmp_path, monkeypatch) as silent, raw_session(silent.host.served) as client:
        silent.forwarder.client_exchanges = 40
        await client.begin_all([TAIL] * 60 + [READ] * 60)
        await until(lambda: silent.count(url=FROZEN) == 100)
        silent.host.places.urls[1] = OTHER
        silent.forwarder.end_moved()
        await until(lambda: silent.count(url=OTHER) == 100)
        assert max(Counter(turn for turn, *_ in silent.begun).values()) == 1
        await until(lambda: sum(silent.under_way.values()) == 100)


async def test_h22_batches_wait_as_other_requests_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = b"".join(encode_batch([BatchItem(THERE, b"x")]))
    async with silent_owner(tmp_path, monkeypatch) as silent, raw_session(silent.host.served) as client:
        silent.forwarder.client_exchanges = 8
        gateway = silent.host.served.gateway
        await client.begin_all([("POST", BATCH, document, "content-type", BATCH_TYPE)] * 20)
        await until(lambda: len(silent.forwarder._flights) == 20 and silent.count() == 8)
        await client.status("GET", "/health")
        assert silent.count() == 8
        assert max(Counter(turn for turn, *_ in silent.begun).values()) == 1
        assert gateway.held_bytes >= 20 * len(document)


async def test_h22_many_tails_of_one_client_let_others_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        silent_owner(tmp_path, monkeypatch) as silent,
        raw_session(silent.host.served) as client,
        raw_session(silent.host.served) as other,
    ):
        silent.forwarder.client_exchanges = 100
        await client.begin_all([TAIL] * 500)
        await until(lambda: silent.count() > 0)
        await other.begin(*READ)
        await until(lambda: silent.count(verb="bytes") == 1)
        assert silent.count(verb="tail") < 250
        await until(lambda: silent.count(verb="tail") == 500)


async def test_few_connections_of_a_pool_wait_for_the_next_request() -> None:
    """The bound of connections leaves descriptors for those of some pools."""
    asked, release = 0, anyio.Event()

    async def answer(stream: anyio.abc.SocketStream) -> None:
        nonlocal asked
        async with stream:
            await stream.receive()
            asked += 1
            await release.wait()
            await stream.send(b"HTTP/1.1 204 No Content\r\n\r\n")
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                await stream.receive()
        asked -= 1

    async def ask(url: str) -> None:
        async with pools.one() as pool:
            found = await pool.handle_async_request(httpx.Request("GET", url))
            await found.aread()
            await found.aclose()

    pools = ConnectionPools(forwarding.new_pool, POOL_EXCHANGES)
    async with (
        await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(listener.serve, answer)
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        async with anyio.create_task_group() as asking:
            for _ in range(POOL_EXCHANGES):
                asking.start_soon(ask, f"http://127.0.0.1:{port}")
            await until(lambda: asked == POOL_EXCHANGES)
            release.set()
        await until(lambda: asked == IDLE_MAX // 8)
        await pools.aclose()
        await until(lambda: asked == 0)
        tasks.cancel_scope.cancel()


@pytest.mark.extended
async def test_h22_thousands_of_calls_at_once_leave_the_host_its_answers(tmp_path: Path) -> None:
    """Of a client that does not read: heartbeats and ``/health`` share the event loop with them."""
    slowest = 0.0
    async with two_hosts(tmp_path) as (store, first, _), raw_session(first.served) as client:
        await store.create_segment(THERE)
        await store.append(THERE, bytes(1000))
        await client.begin_all([READ] * 4000)
        for _ in range(20):
            begun = anyio.current_time()
            assert (await first.served.http.get("/health")).status_code == 200
            slowest = max(slowest, anyio.current_time() - begun)
    assert slowest < scaled(1)
