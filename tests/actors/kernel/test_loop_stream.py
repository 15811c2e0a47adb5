"""A stream whose bytes go from asyncio to their receiver in one step."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.abc
import pytest

from tierlog.actors.kernel.loop_stream import LoopStream, stream_of

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[LoopStream, anyio.abc.SocketStream]]:
    """Both ends of a connection."""
    accepted: list[anyio.abc.SocketStream] = []
    arrived, over = anyio.Event(), anyio.Event()

    async def accept(stream: anyio.abc.SocketStream) -> None:
        accepted.append(stream)
        arrived.set()
        await over.wait()

    async with (
        await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(listener.serve, accept)
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        stream = await stream_of(await anyio.connect_tcp("127.0.0.1", port), None, "127.0.0.1")
        await arrived.wait()
        async with stream, accepted[0]:
            yield stream, accepted[0]
        over.set()
        tasks.cancel_scope.cancel()


async def test_it_is_read_and_written_as_any_stream() -> None:
    async with pair() as (stream, other):
        await other.send(b"hello")
        found = await stream.receive(2) + await stream.receive()
        await stream.send(b"there")

        assert (found, await other.receive()) == (b"hello", b"there")


async def test_what_arrives_is_carried_to_its_receiver_until_that_wants_no_more() -> None:
    found = bytearray()

    def take(data: bytes) -> bool:
        found.extend(data)
        return len(found) < 6

    async with pair() as (stream, other):
        await other.send(b"one")
        assert await stream.receive(1) == b"o"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stream.carry, take, lambda: None)
            await other.send(b"two!")

    assert found == b"netwo!"


async def test_carrying_ends_with_the_connection() -> None:
    async with pair() as (stream, other):
        await other.aclose()
        with pytest.raises((anyio.EndOfStream, OSError)):
            await stream.carry(lambda data: True, lambda: None)
        assert not stream.is_writable


async def test_what_its_receiver_raises_is_raised() -> None:
    def take(data: bytes) -> bool:
        raise ValueError(data)

    async with pair() as (stream, other):
        await other.send(b"x")
        with pytest.raises(ValueError, match="x"):
            await stream.carry(take, lambda: None)


async def test_a_full_connection_says_when_it_can_be_written_again() -> None:
    async with pair() as (stream, other):
        flushed = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stream.carry, lambda data: True, flushed.set)
            await anyio.lowlevel.checkpoint()
            size = 0
            while stream.is_writable:
                stream.write(bytes(1 << 20))
                size += 1 << 20
            while size:
                size -= len(await other.receive(1 << 20))
            await flushed.wait()
            assert stream.is_writable
            tasks.cancel_scope.cancel()
