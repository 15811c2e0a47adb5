"""The proxy passes bytes as they are, and breaks them exactly as configured."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import TypeVar

import pytest

from chaos_parts.proxy import Link, LinkFault
from support.patience import scaled

T = TypeVar("T")

pytestmark = pytest.mark.anyio
NEVER = 0.1
"""What should not come, has not come within this."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Echo:
    """A server that answers each line with the line, and remembers what it got."""

    def __init__(self) -> None:
        self.received = b""
        self.connections = 0
        self.ends = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while data := await reader.read(65536):
                self.received += data
                writer.write(data)
                await writer.drain()
            writer.write_eof()
        except ConnectionError:
            pass
        finally:
            self.ends.set()
            writer.close()


@asynccontextmanager
async def linked(unix: Path | None = None) -> AsyncIterator[tuple[Link, Echo]]:
    echo = Echo()
    if unix is None:
        server = await asyncio.start_server(echo.serve, "127.0.0.1", 0)
        link = Link(("127.0.0.1", 0), server.sockets[0].getsockname())
    else:
        server = await asyncio.start_unix_server(echo.serve, unix / "real")
        link = Link(str(unix / "shown"), str(unix / "real"))
    async with link:
        yield link, echo
    for writer in _opened:
        writer.transport.abort()
    _opened.clear()
    server.close()
    await server.wait_closed()


_opened: list[asyncio.StreamWriter] = []
"""The connections of the test that runs."""


async def connect(link: Link) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    address = link.address
    reader, writer = await (
        asyncio.open_unix_connection(address)
        if isinstance(address, str)
        else asyncio.open_connection(*address)
    )
    _opened.append(writer)
    return reader, writer


async def soon(awaited: Awaitable[T]) -> T:
    """What should come, comes."""
    return await asyncio.wait_for(awaited, scaled(30))


async def echoed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes) -> bytes:
    writer.write(data)
    return await soon(reader.readexactly(len(data)))


async def silent(reader: asyncio.StreamReader) -> bool:
    try:
        await asyncio.wait_for(reader.read(1), NEVER)
    except TimeoutError:
        return True
    return False


async def until(holds: Callable[[], bool]) -> None:
    async def wait() -> None:
        while not holds():
            await asyncio.sleep(0.001)

    await soon(wait())


@pytest.mark.parametrize("is_unix", [False, True])
async def test_bytes_pass_in_both_directions_to_the_end(is_unix: bool, tmp_path: Path) -> None:
    async with linked(tmp_path if is_unix else None) as (link, echo):
        reader, writer = await connect(link)
        data = bytes(range(256)) * 4000

        assert await echoed(reader, writer, data) == data
        writer.write_eof()
        assert await soon(reader.read()) == b""
        assert echo.received == data
        await until(lambda: link.connections == 0)
        writer.close()
    assert not (tmp_path / "shown").exists()


async def test_a_cut_resets_what_there_is_and_what_comes() -> None:
    async with linked() as (link, echo):
        reader, writer = await connect(link)
        await echoed(reader, writer, b"hello")

        link.set(LinkFault(cut=True))
        with pytest.raises(ConnectionResetError):
            await soon(reader.read(1))
        await soon(echo.ends.wait())
        with pytest.raises(ConnectionError):
            later_reader, later = await connect(link)
            later.write(b"x")
            if not await soon(later_reader.read(1)):
                raise ConnectionResetError

        link.heal()
        assert await echoed(*await connect(link), b"again") == b"again"


async def test_a_silent_link_delivers_when_it_heals() -> None:
    async with linked() as (link, echo):
        reader, writer = await connect(link)
        await echoed(reader, writer, b"hello")

        link.set(LinkFault(silent=True))
        writer.write(b"lost?")
        new_reader, new_writer = await connect(link)
        new_writer.write(b"anybody?")
        assert [await silent(reader), await silent(new_reader)] == [True, True]
        assert echo.received == b"hello"

        link.heal()
        assert await soon(reader.readexactly(5)) == b"lost?"
        assert await soon(new_reader.readexactly(8)) == b"anybody?"


async def test_a_single_connection_can_be_broken() -> None:
    async with linked() as (link, _):
        first, second = await connect(link), await connect(link)
        await echoed(*first, b"1")
        await echoed(*second, b"2")

        assert link.set_one(LinkFault(silent=True), Random(1))
        for _, writer in (first, second):
            writer.write(b"x")
        answers = [asyncio.ensure_future(reader.read(1)) for reader, _ in (first, second)]
        answered, unanswered = await soon(asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED))
        assert [each.result() for each in answered] == [b"x"]
        assert (await asyncio.wait(unanswered, timeout=NEVER))[0] == set()
        for each in unanswered:
            each.cancel()


@pytest.mark.parametrize("fault", [LinkFault(delay=0.05), LinkFault(rate=200_000)])
async def test_delay_and_rate_hold_bytes_back(fault: LinkFault) -> None:
    async with linked() as (link, _):
        link.set(fault)
        connection = await connect(link)
        began = time.monotonic()
        await echoed(*connection, b"x" * 10_000)

        assert time.monotonic() - began >= 0.1  # there and back


async def test_a_doubled_connection_arrives_twice_and_answers_once() -> None:
    async with linked() as (link, echo):
        link.set(LinkFault(duplicate=True))
        reader, writer = await connect(link)

        assert await echoed(reader, writer, b"once") == b"once"
        await until(lambda: echo.received == b"onceonce")
        assert await silent(reader)
        assert echo.connections == 2


async def test_a_target_that_is_gone_resets_its_clients() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        async with Link(("127.0.0.1", 0), taken.getsockname()) as link:
            reader, writer = await connect(link)

            with pytest.raises(ConnectionResetError):
                await soon(reader.read(1))
            writer.close()


async def test_closing_it_ends_everything(tmp_path: Path) -> None:
    ended: list[Awaitable[bytes]] = []
    async with linked(tmp_path) as (link, echo):
        reader, writer = await connect(link)
        await echoed(reader, writer, b"x")
        ended.append(reader.read())
    assert await soon(ended[0]) == b""
    await soon(echo.ends.wait())
