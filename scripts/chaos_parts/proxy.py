"""A proxy of our own that stands between two processes and can spoil what passes: TCP, or Unix sockets.

Owns: its listening sockets and every connection through them. Does not own: when what is spoilt
(``partition.py``). Needs asyncio.

A link's trouble holds at once, for the connections that there are and for new ones, or for one connection
alone:

- cut: connections are reset, new ones too
- silent: nothing passes, and nobody is told; what was sent waits, as it does in a network that drops packets
  until it heals
- delay: each piece is held back so long, in both directions
- rate: bytes a second, in each direction of each connection
- duplicate: what a client sends on a new connection arrives at two connections; only the answers of the first
  come back

Closing a proxy resets what passes through it. A target that refuses resets its client.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from random import Random
from types import TracebackType
from typing import Self

import attrs

Address = tuple[str, int] | str
"""Host and port, or the path of a Unix socket."""
_PIECE = 1 << 16
_RESET = struct.pack("ii", 1, 0)
_BROKEN = (ConnectionError, OSError, TimeoutError)


@attrs.frozen(kw_only=True)
class Trouble:
    """What a link does to its connections; nothing by default."""

    cut: bool = False
    silent: bool = False
    delay: float = 0.0
    rate: float | None = None
    duplicate: bool = False


NO_TROUBLE = Trouble()


class Passage:
    """One client's connection, and where it leads."""

    def __init__(self, client: asyncio.StreamWriter, trouble: Trouble) -> None:
        self.client = client
        self.targets: list[asyncio.StreamWriter] = []
        self.trouble = trouble
        self.flows = asyncio.Event()
        self.set(trouble)

    def set(self, trouble: Trouble) -> None:
        self.trouble = trouble
        if trouble.cut:
            self.reset()
        if trouble.silent:
            self.flows.clear()
        else:
            self.flows.set()

    def reset(self) -> None:
        for writer in (self.client, *self.targets):
            reset(writer)

    async def hold(self, size: int) -> None:
        """As long as the trouble says. A silence that begins meanwhile holds it as well."""
        seconds = self.trouble.delay + (size / self.trouble.rate if self.trouble.rate else 0.0)
        if seconds:
            await asyncio.sleep(seconds)
        await self.flows.wait()


class Link:
    """One listening socket and where it leads."""

    def __init__(self, name: str, listen: Address, target: Address) -> None:
        self.name = name
        self.target = target
        self.accepted = 0
        self.bytes = 0
        self._listen = listen
        self._trouble = NO_TROUBLE
        self._passages: list[Passage] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        if isinstance(self._listen, str):
            self._server = await asyncio.start_unix_server(self._accept, self._listen)
        else:
            self._server = await asyncio.start_server(self._accept, *self._listen)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for passage in list(self._passages):
            passage.reset()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if isinstance(self._listen, str):
            with suppress(FileNotFoundError):
                os.unlink(self._listen)

    @property
    def address(self) -> Address:
        """Where it listens; with the real port if the system chose it."""
        if isinstance(self._listen, str):
            return self._listen
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()[:2]
        return host, port

    @property
    def connections(self) -> int:
        return len(self._passages)

    @property
    def trouble(self) -> Trouble:
        return self._trouble

    def set(self, trouble: Trouble) -> None:
        """From now on."""
        self._trouble = trouble
        for passage in list(self._passages):
            passage.set(trouble)

    def spoil_one(self, trouble: Trouble, random: Random) -> bool:
        """Only one of the connections that there are; new ones pass. Whether there was one."""
        if not self._passages:
            return False
        random.choice(self._passages).set(trouble)
        return True

    def heal(self) -> None:
        self.set(NO_TROUBLE)

    # --- inside ----------------------------------------------------------------------------------

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        passage = Passage(writer, self._trouble)
        self._passages.append(passage)
        self._start(self._carry(passage, reader))

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry(self, passage: Passage, reader: asyncio.StreamReader) -> None:
        try:
            await self._pass(passage, reader)
        except _BROKEN:
            pass  # One side is gone: the other one learns it below.
        finally:
            self._passages.remove(passage)
            passage.reset()

    async def _pass(self, passage: Passage, reader: asyncio.StreamReader) -> None:
        """Carry bytes in both directions until both have ended."""
        if passage.trouble.cut:
            return

        await passage.flows.wait()
        answers, target = await _connect(self.target)
        passage.targets.append(target)
        if passage.trouble.duplicate:
            await self._add_shadow(passage)
        await _both(
            lambda: self._pump(passage, reader, passage.targets),
            lambda: self._pump(passage, answers, [passage.client]),
        )

    async def _add_shadow(self, passage: Passage) -> None:
        """A second connection to the target; what it answers is read and thrown away."""
        answers, shadow = await _connect(self.target)
        passage.targets.append(shadow)
        self._start(_swallow(answers))

    async def _pump(
        self, passage: Passage, reader: asyncio.StreamReader, writers: Sequence[asyncio.StreamWriter]
    ) -> None:
        while data := await reader.read(_PIECE):
            await passage.hold(len(data))
            self.bytes += len(data)
            for writer in writers:
                if writer.transport.is_closing():
                    raise ConnectionResetError("the other side is gone")  # uvloop would say RuntimeError
                writer.write(data)
            for writer in writers:
                await writer.drain()
        await passage.flows.wait()
        for writer in writers:
            if not writer.transport.is_closing():
                writer.write_eof()


async def _both(*pumps: Callable[[], Awaitable[None]]) -> None:
    """Run both; when one breaks the other one is cancelled."""
    tasks = [asyncio.ensure_future(pump()) for pump in pumps]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _swallow(reader: asyncio.StreamReader) -> None:
    with suppress(*_BROKEN):
        while await reader.read(_PIECE):
            pass


async def _connect(target: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if isinstance(target, str):
        return await asyncio.open_unix_connection(target)
    return await asyncio.open_connection(*target)


def reset(writer: asyncio.StreamWriter) -> None:
    """End a connection hard: the other side gets a reset instead of an end."""
    if writer.transport.is_closing():
        return

    connection = writer.get_extra_info("socket")
    if connection.family != socket.AF_UNIX:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()


def free_ports(hosts: Sequence[str], count: int, first: int) -> int:
    """The first of ``count`` ports in a row, from ``first`` on, that are free on every one of ``hosts``."""
    for base in range(first, 60_000, count):
        if all(_is_free(host, port) for host in hosts for port in range(base, base + count)):
            return base
    raise OSError(f"no {count} free ports in a row from {first} on")


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
