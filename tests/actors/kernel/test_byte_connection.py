"""Connections that are read into the memory of their readers, on each event loop."""

from __future__ import annotations

import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import anyio
import anyio.abc
import pytest

from tierlog.actors.kernel.byte_connection import ByteConnection, LoopConnection, byte_connection

pytestmark = pytest.mark.anyio
DATA = bytes(range(256)) * 8192


@pytest.fixture(
    params=[
        pytest.param(("asyncio", {}), id="asyncio"),
        pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop"),
        pytest.param(("trio", {}), id="trio"),
    ]
)
def anyio_backend(request: pytest.FixtureRequest) -> object:
    return request.param


class Body:
    """Takes ``size`` bytes where they stay, behind a head of four that comes in the shared memory."""

    def __init__(self, size: int) -> None:
        self.head = b""
        self.memory = bytearray(size)
        self.count = 0

    def room(self, shared: memoryview) -> memoryview:
        return shared[: 4 - len(self.head)] if len(self.head) < 4 else memoryview(self.memory)[self.count :]

    def filled(self, shared: memoryview, size: int) -> bool:
        if len(self.head) < 4:
            self.head += shared[:size]
        else:
            self.count += size
        return self.count < len(self.memory)


@contextmanager
def peer(serve: Callable[[socket.socket], object]) -> Iterator[int]:
    """The port of another side, which accepts one connection."""

    def run() -> None:
        accepted, _ = listener.accept()
        with accepted:
            serve(accepted)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=run)
        thread.start()
        yield listener.getsockname()[1]
        thread.join()


@asynccontextmanager
async def connected(serve: Callable[[socket.socket], object]) -> AsyncIterator[ByteConnection]:
    """``serve`` begins when there is a connection."""
    is_connected = threading.Event()

    def begin(accepted: socket.socket) -> None:
        is_connected.wait()
        serve(accepted)

    with peer(begin) as port:
        connection = await byte_connection(await anyio.connect_tcp("127.0.0.1", port))
        is_connected.set()
        try:
            yield connection
        finally:
            await connection.aclose()


def echo(accepted: socket.socket) -> None:
    while data := accepted.recv(1 << 16):
        accepted.sendall(data)


async def test_bytes_come_into_the_readers_memory_and_what_it_does_not_want_comes_next() -> None:
    async with connected(lambda accepted: accepted.sendall(b"head" + DATA + b"next" + DATA)) as connection:
        for head in (b"head", b"next"):
            body = Body(len(DATA))
            await connection.read(body)

            assert (body.head, bytes(body.memory)) == (head, DATA)


async def test_it_sends_while_it_reads() -> None:
    async with connected(echo) as connection, anyio.create_task_group() as tasks:
        body = Body(len(DATA))
        tasks.start_soon(connection.read, body)
        await connection.send(b"head")
        for start in range(0, len(DATA), 1 << 18):
            await connection.send(memoryview(DATA)[start : start + (1 << 18)])
    assert body.memory == DATA


async def test_a_read_that_is_cancelled_loses_nothing() -> None:
    go_on = threading.Event()

    def serve(accepted: socket.socket) -> None:
        accepted.sendall(b"head" + DATA[:100])
        go_on.wait()
        accepted.sendall(DATA[100:])

    body = Body(len(DATA))
    async with connected(serve) as connection:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(connection.read, body)
            while body.count < 100:
                await anyio.sleep(0.001)
            tasks.cancel_scope.cancel()
        go_on.set()
        await connection.read(body)

    assert body.memory == DATA


async def test_the_end_is_the_end_of_the_stream() -> None:
    async with connected(lambda accepted: accepted.sendall(b"head" + DATA[:10])) as connection:
        body = Body(20)
        with pytest.raises(anyio.EndOfStream):
            await connection.read(body)

    assert body.memory[:10] == DATA[:10]


async def test_a_reset_is_an_error_of_the_connection() -> None:
    def reset(accepted: socket.socket) -> None:
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    async with connected(reset) as connection:
        with pytest.raises((OSError, anyio.BrokenResourceError)):
            await connection.read(Body(20))


async def test_a_connection_that_the_other_side_ends_at_once_has_ended() -> None:
    with peer(lambda accepted: None) as port:
        stream = await anyio.connect_tcp("127.0.0.1", port)
        await anyio.sleep(0.01)
        connection = await byte_connection(stream)
        for _ in range(2):
            with pytest.raises(anyio.EndOfStream):
                await connection.read(Body(20))
        await connection.aclose()


async def test_a_read_ends_when_another_task_closes_the_connection() -> None:
    is_over = threading.Event()
    async with connected(lambda accepted: is_over.wait()) as connection:

        async def read() -> None:
            with pytest.raises((OSError, anyio.ClosedResourceError, anyio.BrokenResourceError)):
                await connection.read(Body(20))
            is_over.set()

        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(read)
                await anyio.wait_all_tasks_blocked()
                await connection.aclose()
        finally:
            is_over.set()


async def test_what_the_reader_raises_comes_to_the_task_that_reads() -> None:
    class Refusing(Body):
        def filled(self, shared: memoryview, size: int) -> bool:
            raise LookupError("no")

    async with connected(lambda accepted: accepted.sendall(b"head")) as connection:
        with pytest.raises(LookupError):
            await connection.read(Refusing(1))


async def test_a_closed_connection_is_closed_for_the_other_side() -> None:
    found: list[bytes] = []

    def serve(accepted: socket.socket) -> None:
        accepted.settimeout(10)
        found.append(accepted.recv(10))

    async with connected(serve):
        pass

    assert found == [b""]


async def test_tls_is_read_through_its_stream() -> None:
    class Stream(anyio.abc.ByteStream):
        """Has the attributes of a socket, as one of TLS does, and other bytes."""

        async def receive(self, max_bytes: int = 65536) -> bytes:
            return b"headb" if max_bytes > 4 else b""

        async def send(self, item: bytes) -> None: ...
        async def send_eof(self) -> None: ...
        async def aclose(self) -> None: ...

    connection = await byte_connection(Stream())
    for body in (Body(1), Body(1)):
        await connection.read(body)
        assert (body.head, bytes(body.memory)) == (b"head", b"b")


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_on_asyncio_a_full_connection_says_when_it_can_be_written_again() -> None:
    begin = threading.Event()

    def serve(accepted: socket.socket) -> None:
        begin.wait()
        while accepted.recv(1 << 20):
            pass

    async with connected(serve) as connection:
        assert isinstance(connection, LoopConnection)
        flushed = anyio.Event()
        connection.on_writable = flushed.set
        try:
            while connection.is_writable:
                connection.write(bytes(1 << 20))
        finally:
            begin.set()
        await flushed.wait()
        assert connection.is_writable
    assert not connection.is_writable
