"""Large bodies of known size, which come past the parser into the memory that the store keeps (rule H9)."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import socket
import struct
import sys
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import attrs
import pytest
from anyio.abc import SocketAttribute, SocketStream

from support.http_server import (
    ServedStore,
    Wrapped,
    everything,
    everything_while_it_drips,
    service,
    serving,
    until,
)
from support.large_bodies import note_large_bodies
from support.patience import scaled, succeeds
from tierlog import open_store
from tierlog.actors.gateway.server import exchange
from tierlog.actors.gateway.server.app import gateway_of, make_app
from tierlog.actors.gateway.server.context import ServerLimits
from tierlog.actors.gateway.server.large_body import LARGE_BYTES, LargeBody
from tierlog.actors.gateway.server.listener import bind, serve_http
from tierlog.actors.store.folder_opening import system_world

pytestmark = pytest.mark.anyio

MIB = 1 << 20
SIZES = [LARGE_BYTES - 1, LARGE_BYTES, LARGE_BYTES + 1, MIB, 8 * MIB]
HEALTH = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
LAST = b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"


def head(
    size: int,
    more: bytes = b"",
    content_type: bytes = b"application/octet-stream",
    path: bytes = b"/v1/segments/a/append",
) -> bytes:
    return b"POST %s HTTP/1.1\r\nhost: localhost\r\ncontent-type: %s\r\n%scontent-length: %d\r\n\r\n" % (
        path,
        content_type,
        more,
        size,
    )


def bytes_of(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


@pytest.fixture(
    params=[pytest.param(False, id="asyncio", marks=pytest.mark.extended), pytest.param(True, id="uvloop")]
)
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """The service runs on uvloop, whose sockets are its own."""
    return "asyncio", {"use_uvloop": request.param}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[LargeBody]:
    """The bodies that came past the parser."""
    return note_large_bodies(monkeypatch, exchange)


@attrs.define
class Client:
    """One connection that reads its answers one by one."""

    stream: SocketStream
    _received: bytearray = attrs.field(factory=bytearray)

    async def send(self, data: bytes) -> None:
        await self.stream.send(data)

    async def head(self) -> bytes:
        while b"\r\n\r\n" not in self._received:
            self._received += await self.stream.receive()
        found, _, rest = self._received.partition(b"\r\n\r\n")
        self._received = rest
        return bytes(found)

    async def answer(self) -> tuple[int, Any]:
        """The status and the document of the next answer."""
        lines = (await self.head()).lower().split(b"\r\n")
        size = next(int(line.partition(b":")[2]) for line in lines if line.startswith(b"content-length:"))
        while len(self._received) < size:
            self._received += await self.stream.receive()
        body = bytes(self._received[:size])
        del self._received[:size]
        return int(lines[0].split()[1]), json.loads(body)

    def break_off(self) -> None:
        """The connection ends with a reset."""
        self.stream.extra(SocketAttribute.raw_socket).setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )


@asynccontextmanager
async def client_of(served: ServedStore) -> AsyncIterator[Client]:
    async with await anyio.connect_tcp("127.0.0.1", served.port) as stream:
        yield Client(stream)


async def contents(served: ServedStore) -> bytes:
    found, length = bytearray(), (await served.store.segment_info("a")).length
    while len(found) < length:
        found += await served.store.read("a", len(found), MIB)
    return bytes(found)


def is_idle(served: ServedStore) -> bool:
    """Nothing is being answered, and no body has room."""
    return served.gateway.metrics.operation("append").in_flight == served.gateway._in_flight_bytes == 0


async def half_sent(client: Client, served: ServedStore, made: list[LargeBody], size: int = MIB) -> bytes:
    """Send a head and half of its body; returns the other half once the server has taken the first."""
    body, before = bytes_of(size), len(made)
    await client.send(head(size) + body[: size // 2])
    await until(lambda: len(made) > before and made[-1].received == size // 2)
    return body[size // 2 :]


# --- whole bodies -------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
async def test_a_body_arrives_whole_with_its_head_or_behind_it(
    a: ServedStore, made: list[LargeBody], size: int
) -> None:
    first, second = bytes_of(size, 1), bytes_of(size, 2)
    async with client_of(a) as client:
        await client.send(head(size) + first)
        assert await client.answer() == (200, {"offset": 0})

        already = len(made)
        await client.send(head(size))
        await until(lambda: a.gateway.metrics.operation("append").in_flight == 1)
        await client.send(second)
        assert await client.answer() == (200, {"offset": size})

    assert len(made) - already == (size >= LARGE_BYTES)
    assert await contents(a) == first + second
    assert a.gateway.metrics.operation("append").request_bytes == 2 * size
    assert is_idle(a)


@pytest.mark.parametrize("size", [LARGE_BYTES + 1, MIB])
async def test_a_body_in_fragments_of_odd_sizes_arrives_whole(
    a: ServedStore, made: list[LargeBody], size: int
) -> None:
    body, sizes = bytes_of(size), random.Random(size)
    data = head(size) + body
    async with client_of(a) as client:
        sent = 0
        while sent < len(data):
            piece = sizes.choice([1, 3, 997, 4093, 65_537, 100_003])
            await client.send(data[sent : sent + piece])
            sent += piece
            await anyio.sleep(0)
        assert await client.answer() == (200, {"offset": 0})

    assert await contents(a) == body
    assert len(made) == 1


async def test_many_large_bodies_behind_each_other_on_one_connection(a: ServedStore) -> None:
    bodies = [
        bytes_of(size, seed)
        for seed, size in enumerate([LARGE_BYTES, 10, MIB, LARGE_BYTES - 1, 0, 2 * MIB + 1, 300_000])
    ]
    async with client_of(a) as client:
        for body in bodies:
            await client.send(head(len(body)) + body)
            assert (await client.answer())[0] == 200

    assert await contents(a) == b"".join(bodies)
    assert is_idle(a)


async def test_bodies_of_many_connections_do_not_mix(a: ServedStore) -> None:
    bodies = [bytes_of(300_000 + seed, seed) for seed in range(8)]
    offsets: dict[int, int] = {}

    async def append(number: int) -> None:
        async with client_of(a) as client:
            data = head(len(bodies[number])) + bodies[number]
            for start in range(0, len(data), 50_000):
                await client.send(data[start : start + 50_000])
            status, document = await client.answer()
            assert status == 200
            offsets[document["offset"]] = number

    async with anyio.create_task_group() as tasks:
        for number in range(len(bodies)):
            tasks.start_soon(append, number)

    assert await contents(a) == b"".join(bodies[offsets[offset]] for offset in sorted(offsets))


async def test_json_bodies_may_be_large_too(a: ServedStore) -> None:
    body = b"{" + b" " * LARGE_BYTES + b"}"
    async with client_of(a) as client:
        await client.send(
            head(len(body), path=b"/v1/segments/b/create", content_type=b"application/json") + body + HEALTH
        )
        assert [(await client.answer())[0] for _ in range(2)] == [201, 200]


async def test_an_upgrade_header_before_a_large_body_is_ignored(a: ServedStore) -> None:
    wish, body = b"connection: Upgrade\r\nupgrade: h2c\r\n", bytes_of(MIB)
    async with client_of(a) as client:
        await client.send(head(MIB, wish) + body + HEALTH)
        assert await client.answer() == (200, {"offset": 0})
        assert (await client.answer())[0] == 200

    assert await contents(a) == body


@pytest.mark.parametrize("size", [LARGE_BYTES, MIB, 8 * MIB])
async def test_bytes_right_behind_a_body_are_the_next_request(a: ServedStore, size: int) -> None:
    first, second = bytes_of(size, 1), bytes_of(size, 2)
    async with client_of(a) as client:
        await client.send(head(size) + first + HEALTH + head(3) + b"end" + head(size) + second + LAST)
        answers = [await client.answer() for _ in range(5)]

    assert [status for status, _ in answers] == [200] * 5
    assert [document.get("offset") for _, document in answers] == [0, None, size, size + 3, None]
    assert await contents(a) == first + b"end" + second


async def test_bytes_behind_a_large_body_stay_in_the_socket(a: ServedStore, made: list[LargeBody]) -> None:
    async with client_of(a) as client:
        rest = await half_sent(client, a, made)
        await client.send(rest + HEALTH + head(5) + b"small" + LAST)
        answers = [await client.answer() for _ in range(4)]

    assert [status for status, _ in answers] == [200] * 4
    assert await contents(a) == bytes_of(MIB) + b"small"


async def test_an_incomplete_head_behind_a_body_waits_for_the_rest(
    a: ServedStore, made: list[LargeBody]
) -> None:
    async with client_of(a) as client:
        rest = await half_sent(client, a, made)
        await client.send(rest + HEALTH[:10])
        assert (await client.answer())[0] == 200
        await client.send(HEALTH[10:])
        assert (await client.answer())[1]["alive"] is True


# --- asking first, and errors -------------------------------------------------------------------


async def test_expect_continue_is_answered_once(a: ServedStore, made: list[LargeBody]) -> None:
    body = bytes_of(MIB)
    async with client_of(a) as client:
        for offset in (0, MIB):
            await client.send(head(MIB, b"expect: 100-continue\r\n"))
            assert await client.head() == b"HTTP/1.1 100 Continue"
            await client.send(body)
            assert await client.answer() == (200, {"offset": offset})

    assert await contents(a) == body * 2
    assert len(made) == 2


@pytest.mark.parametrize("with_head", [False, True])
@pytest.mark.parametrize(
    "refused, status",
    [
        (head(MIB, content_type=b"text/plain"), 415),
        (head(MIB, b"content-encoding: gzip\r\n"), 415),
        (head(MIB, path=b"/v1/nothing"), 404),
    ],
)
async def test_h9_the_next_request_is_answered_after_a_refused_body(
    a: ServedStore, made: list[LargeBody], refused: bytes, status: int, with_head: bool
) -> None:
    async with client_of(a) as client:
        if with_head:
            await client.send(refused + bytes_of(MIB) + HEALTH)
            assert (await client.answer())[0] == status
        else:
            await client.send(refused)
            assert (await client.answer())[0] == status
            await client.send(bytes_of(MIB) + HEALTH)
        assert (await client.answer())[1]["alive"] is True

        await client.send(head(MIB) + bytes_of(MIB, 2))
        assert await client.answer() == (200, {"offset": 0})

    assert await contents(a) == bytes_of(MIB, 2)
    assert is_idle(a)


async def test_h9_a_size_above_the_limit_is_refused_before_the_first_byte(
    a: ServedStore, made: list[LargeBody]
) -> None:
    answer = await everything(await a.raw(head(a.store.append_bytes_max + 1)))

    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in answer
    assert made == []
    assert is_idle(a)


async def test_h12_a_body_without_room_is_refused_and_the_connection_continues(
    tmp_path: Path, made: list[LargeBody]
) -> None:
    async with service(tmp_path, ServerLimits(in_flight_bytes=MIB + 100)) as served:
        await served.store.create_segment("a")
        async with client_of(served) as one, client_of(served) as other:
            rest = await half_sent(one, served, made)
            await other.send(head(MIB) + bytes_of(MIB, 2))
            assert (await other.answer())[0] == 429
            await one.send(rest)
            assert await one.answer() == (200, {"offset": 0})
            await other.send(head(MIB) + bytes_of(MIB, 2))
            assert await other.answer() == (200, {"offset": MIB})


# --- slow clients, and clients that go ----------------------------------------------------------


@pytest.mark.parametrize("is_reset", [False, True])
async def test_the_memory_of_abandoned_bodies_is_free_at_once(
    a: ServedStore, monkeypatch: pytest.MonkeyPatch, is_reset: bool
) -> None:
    """Left to the garbage collector, which seldom runs, it grew far above the bound of bytes in flight."""
    alive: weakref.WeakSet[LargeBody] = weakref.WeakSet()
    begun = 0

    class Noted(LargeBody):
        def __enter__(self) -> Any:
            nonlocal begun
            begun += 1
            alive.add(self)
            return super().__enter__()

    monkeypatch.setattr(exchange, "LargeBody", Noted)

    async def abandon() -> None:
        before = begun
        async with client_of(a) as client:
            await client.send(head(LARGE_BYTES) + bytes(LARGE_BYTES - 4))
            await until(lambda: begun > before)
            if is_reset:
                client.break_off()

    gc.disable()
    try:
        for _ in range(20):
            await abandon()
        await until(lambda: is_idle(a) and not alive)
    finally:
        gc.enable()


async def test_h9_a_stalled_large_body_times_out(tmp_path: Path, made: list[LargeBody]) -> None:
    async with service(tmp_path, ServerLimits(body_timeout=0.2)) as served:
        await served.store.create_segment("a")
        answer = await everything(await served.raw(head(MIB) + bytes_of(MIB // 2) + HEALTH))

        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"connection: close" in answer
        assert answer.count(b"HTTP/1.1 ") == 1
        assert len(made) == 1
        await until(lambda: is_idle(served))
        assert await contents(served) == b""


async def test_h9_bytes_after_a_timed_out_body_are_no_request(tmp_path: Path, made: list[LargeBody]) -> None:
    async with service(tmp_path, ServerLimits(body_timeout=0.2)) as served:
        await served.store.create_segment("a")
        body = bytes_of(MIB)
        async with client_of(served) as client:
            await client.send(head(MIB) + body[: MIB // 2])
            assert (await client.answer())[0] == 408
            with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                await client.send(body[MIB // 2 :] + head(3) + b"abc")
                await client.head()

        assert len(made) == 1

        assert await contents(served) == b""


async def test_h9_a_large_body_that_trickles_in_times_out(tmp_path: Path, made: list[LargeBody]) -> None:
    async with service(tmp_path, ServerLimits(body_timeout=0.2, body_rate=100 * MIB)) as served:
        await served.store.create_segment("a")
        answer = await everything_while_it_drips(
            await served.raw(head(MIB))
        )  # so that only the rate can end it

        assert answer.startswith(b"HTTP/1.1 408 ")
        assert len(made) == 1
        assert await contents(served) == b""


async def test_h9_each_byte_of_a_large_body_extends_the_timeout(
    tmp_path: Path, made: list[LargeBody]
) -> None:
    async with service(tmp_path, ServerLimits(body_timeout=0.3, body_rate=1)) as served:
        await served.store.create_segment("a")

        async def is_taken() -> bool:
            async with client_of(served) as client:
                with suppress(anyio.BrokenResourceError, anyio.EndOfStream):
                    await client.send(head(LARGE_BYTES))
                    begun, sent = anyio.current_time(), 0
                    while anyio.current_time() < begun + 0.4:
                        await client.send(b"x")
                        sent += 1
                        await anyio.sleep(0.01)
                    await client.send(b"x" * (LARGE_BYTES - sent))
                    return (await client.answer())[0] == 200
            return False

        assert await succeeds(is_taken)
        assert (await served.store.segment_info("a")).length == LARGE_BYTES

    assert made


@pytest.mark.parametrize("reset", [False, True])
async def test_h9_a_disconnect_inside_a_large_body_has_no_effect(
    a: ServedStore, made: list[LargeBody], reset: bool
) -> None:
    before = asyncio.all_tasks()
    async with client_of(a) as client:
        await half_sent(client, a, made)
        assert a.gateway._in_flight_bytes == MIB // 2
        if reset:
            client.break_off()

    await until(lambda: a.gateway.metrics.requests(status=499) == 1)
    await until(lambda: is_idle(a))
    await until(lambda: asyncio.all_tasks() <= before)
    assert await contents(a) == b""


@pytest.mark.parametrize("reset", [False, True])
async def test_a_disconnect_after_the_last_byte_leaves_the_server_working(
    a: ServedStore, reset: bool
) -> None:
    body = bytes_of(MIB)
    for _ in range(5):
        async with client_of(a) as client:
            await client.send(head(MIB) + body)
            if reset:
                client.break_off()
        await until(lambda: is_idle(a))

    async with client_of(a) as client:
        await client.send(head(MIB) + body + LAST)
        status, document = await client.answer()
        assert (status, document["offset"] % MIB) == (
            200,
            0,
        )  # each of the others was applied whole, or not at all
        assert (await client.answer())[0] == 200

    found = await contents(a)
    assert found == body * (len(found) // MIB)


@pytest.mark.parametrize("answered_first", [False, True])
async def test_a_connection_lost_after_the_last_byte_of_a_large_body(
    a: ServedStore, monkeypatch: pytest.MonkeyPatch, answered_first: bool
) -> None:
    class Lost(LargeBody):
        def add(self, size: int) -> None:
            is_last = self.received + size == MIB
            if is_last and answered_first:
                self._carrier.transport.abort()  # type: ignore[attr-defined]
            super().add(size)
            if is_last and not answered_first:
                self._carrier.transport.abort()  # type: ignore[attr-defined]

    with monkeypatch.context() as lost:
        lost.setattr(exchange, "LargeBody", Lost)
        stream = await a.raw(head(MIB) + bytes_of(MIB))
        assert await everything(stream) == b""
        await until(lambda: is_idle(a))

    assert a.gateway.metrics.requests(status=499) == 1
    async with client_of(a) as client:
        await client.send(head(MIB) + bytes_of(MIB))
        assert await client.answer() == (200, {"offset": MIB})
    assert await contents(a) == bytes_of(MIB) * 2


async def test_h15_a_begun_body_is_received_while_the_server_stops(
    tmp_path: Path, made: list[LargeBody]
) -> None:
    async with open_store(tmp_path / "data", containers=1) as store:
        await store.create_segment("a")
        app = make_app(store, system_world())
        async with serve_http(app, bind("127.0.0.1", 0), stop_timeout=10.0) as served:
            client = Client(await anyio.connect_tcp("127.0.0.1", served.port))
            await client.send(head(MIB) + bytes_of(MIB // 2))
            await until(lambda: made and made[0].received == MIB // 2)
            tasks = asyncio.ensure_future(_rest_when(lambda: gateway_of(app).draining, client))

        assert await tasks == (200, {"offset": 0})
        assert (await store.segment_info("a")).length == MIB
        await client.stream.aclose()


async def _rest_when(condition: Callable[[], bool], client: Client) -> tuple[int, Any]:
    await until(condition)
    await client.send(bytes_of(MIB // 2, 2))
    return await client.answer()


@pytest.mark.parametrize("size", [100, MIB])
async def test_h15_an_incomplete_body_does_not_delay_the_stop(tmp_path: Path, size: int) -> None:
    """And is refused: without it nothing was done."""
    async with open_store(tmp_path / "data", containers=1) as store:
        await store.create_segment("a")
        app = make_app(store, system_world())
        with anyio.fail_after(scaled(8.0)):
            async with serve_http(app, bind("127.0.0.1", 0), stop_timeout=0.5) as served:
                client = Client(await anyio.connect_tcp("127.0.0.1", served.port))
                await client.send(head(size) + bytes_of(size // 2))
                await until(lambda: gateway_of(app)._in_flight_bytes == size // 2)

        answer = await everything(client.stream)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nretry-after: 1\r\n" in answer
        assert b"the body was complete: nothing was done" in answer
        assert gateway_of(app)._in_flight_bytes == 0
        assert (await store.segment_info("a")).length == 0


# --- what the store gets ------------------------------------------------------------------------


async def test_the_store_gets_a_buffer_of_its_own(tmp_path: Path, made: list[LargeBody]) -> None:
    kept: list[Any] = []

    async def append(name: str, data: Any, **more: Any) -> int:
        kept.append(data)
        return len(kept)

    async with (
        open_store(tmp_path / "data", containers=1) as store,
        serving(Wrapped(store, append=append)) as served,
        client_of(served) as client,
    ):
        for seed in range(3):
            await client.send(head(MIB))
            await until(lambda number=seed: len(made) == number + 1)
            await client.send(bytes_of(MIB, seed))
            assert (await client.answer())[0] == 200
            references = sys.getrefcount(kept[-1])
            assert (
                references == 2
            )  # the list's, and the call's: neither the connection nor the body itself keeps the bytes

    assert [type(data) for data in kept] == [bytes] * 3
    assert kept == [bytes_of(MIB, seed) for seed in range(3)]
