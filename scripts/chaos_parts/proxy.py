"""A proxy between two processes that injects network faults: TCP, or Unix sockets.

A link's fault holds at once, for its existing and new connections, or for one connection alone:

- cut: connections are reset, new ones too
- silent: nothing passes and no side is told; what was sent waits, as in a network that drops packets until it
  heals
- delay: each piece is delayed by so many seconds, in both directions
- rate: bytes a second, in each direction of each connection
- duplicate: what a client sends on a new connection arrives at two connections; only the answers of the first
  one come back

Closing a proxy resets its connections. A target that refuses a connection resets its client. Needs asyncio.
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
class LinkFault:
    """What a link does to its connections; nothing by default."""

    cut: bool = False
    silent: bool = False
    delay: float = 0.0
    rate: float | None = None
    duplicate: bool = False


NO_FAULT = LinkFault()


class Connection:
    """One client's connection, and where it leads."""

    def __init__(self, client: asyncio.StreamWriter, fault: LinkFault) -> None:
        self.client = client
        self.targets: list[asyncio.StreamWriter] = []
        self.fault = fault
        self.flows = asyncio.Event()
        self.set(fault)

    def set(self, fault: LinkFault) -> None:
        self.fault = fault
        if fault.cut:
            self.reset()
        if fault.silent:
            self.flows.clear()
        else:
            self.flows.set()

    def reset(self) -> None:
        for writer in (self.client, *self.targets):
            reset(writer)

    async def hold(self, size: int) -> None:
        """Wait for the fault's delay and rate, and while it is silent."""
        seconds = self.fault.delay + (size / self.fault.rate if self.fault.rate else 0.0)
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
        self._fault = NO_FAULT
        self._connections: list[Connection] = []
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
        for connection in list(self._connections):
            connection.reset()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if isinstance(self._listen, str):
            with suppress(FileNotFoundError):
                os.unlink(self._listen)

    @property
    def address(self) -> Address:
        """Where it listens, with the actual port."""
        if isinstance(self._listen, str):
            return self._listen
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()[:2]
        return host, port

    @property
    def connections(self) -> int:
        return len(self._connections)

    @property
    def fault(self) -> LinkFault:
        return self._fault

    def set(self, fault: LinkFault) -> None:
        """For all connections from now on."""
        self._fault = fault
        for connection in list(self._connections):
            connection.set(fault)

    def set_one(self, fault: LinkFault, random: Random) -> bool:
        """For one existing connection; returns whether there was one."""
        if not self._connections:
            return False
        random.choice(self._connections).set(fault)
        return True

    def heal(self) -> None:
        self.set(NO_FAULT)

    # --- inside ----------------------------------------------------------------------------------

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        connection = Connection(writer, self._fault)
        self._connections.append(connection)
        self._start(self._carry(connection, reader))

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry(self, connection: Connection, reader: asyncio.StreamReader) -> None:
        try:
            await self._pass(connection, reader)
        except _BROKEN:
            pass  # One side is gone; the reset below tells the other one.
        finally:
            self._connections.remove(connection)
            connection.reset()

    async def _pass(self, connection: Connection, reader: asyncio.StreamReader) -> None:
        """Carry bytes in both directions until both have ended."""
        if connection.fault.cut:
            return

        await connection.flows.wait()
        answers, target = await _connect(self.target)
        connection.targets.append(target)
        if connection.fault.duplicate:
            await self._add_shadow(connection)
        await _both(
            lambda: self._pump(connection, reader, connection.targets),
            lambda: self._pump(connection, answers, [connection.client]),
        )

    async def _add_shadow(self, connection: Connection) -> None:
        """A second connection to the target, whose answers are dropped."""
        answers, shadow = await _connect(self.target)
        connection.targets.append(shadow)
        self._start(_swallow(answers))

    async def _pump(
        self, connection: Connection, reader: asyncio.StreamReader, writers: Sequence[asyncio.StreamWriter]
    ) -> None:
        while data := await reader.read(_PIECE):
            await connection.hold(len(data))
            self.bytes += len(data)
            for writer in writers:
                if writer.transport.is_closing():
                    raise ConnectionResetError("the other side is gone")  # uvloop would say RuntimeError
                writer.write(data)
            for writer in writers:
                await writer.drain()
        await connection.flows.wait()
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
    """Close a connection with a reset."""
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
