"""A proxy between two processes that injects network faults: TCP, or Unix sockets.

A link's fault holds at once, for its existing and new connections, or for one connection alone:

- cut: connections are reset, new ones too
- silent: nothing passes and no side notices; what was sent waits, as in a network that drops packets until it
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
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from random import Random
from typing import Self

import attrs

Address = tuple[str, int] | str
"""Host and port, or the path of a Unix socket."""
_PIECE = 1 << 16
_RESET = struct.pack("ii", 1, 0)


@attrs.frozen(kw_only=True)
class LinkFault:
    """What a link does to its connections; nothing by default."""

    cut: bool = False
    silent: bool = False
    delay: float = 0.0
    rate: float | None = None
    duplicate: bool = False


class Connection:
    """One client's connection, and where it leads."""

    def __init__(self, client: asyncio.StreamWriter, fault: LinkFault) -> None:
        self.client = client
        self.targets: list[asyncio.StreamWriter] = []
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
            _reset(writer)

    async def carry(self, reader: asyncio.StreamReader, target: Address) -> None:
        """Carry bytes in both directions until both have ended, or one side is gone."""
        if self.fault.cut:
            return
        await self.flows.wait()
        with suppress(OSError):
            readers = [await self._connect(target)]
            if self.fault.duplicate:
                readers.append(await self._connect(target))
            # The answers of a second connection lead nowhere.
            answers = [self._pump(each, [self.client] * (each is readers[0])) for each in readers]
            await _until_one_fails(self._pump(reader, self.targets), *answers)

    async def _connect(self, target: Address) -> asyncio.StreamReader:
        if isinstance(target, str):
            reader, writer = await asyncio.open_unix_connection(target)
        else:
            reader, writer = await asyncio.open_connection(*target)
        self.targets.append(writer)
        return reader

    async def _pump(self, reader: asyncio.StreamReader, writers: Sequence[asyncio.StreamWriter]) -> None:
        while data := await reader.read(_PIECE):
            seconds = self.fault.delay + (len(data) / self.fault.rate if self.fault.rate else 0.0)
            if seconds:
                await asyncio.sleep(seconds)
            await self.flows.wait()
            for writer in writers:
                if writer.transport.is_closing():
                    raise ConnectionResetError("the other side is gone")  # uvloop raises RuntimeError
                writer.write(data)
            for writer in writers:
                await writer.drain()
        await self.flows.wait()
        for writer in writers:
            if not writer.transport.is_closing():
                writer.write_eof()


class Link:
    """One listening socket and where it leads."""

    def __init__(self, listen: Address, target: Address) -> None:
        self._listen = listen
        self._target = target
        self._fault = LinkFault()
        self._connections: dict[Connection, asyncio.Task[None]] = {}
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        if isinstance(self._listen, str):
            self._server = await asyncio.start_unix_server(self._accept, self._listen)
        else:
            self._server = await asyncio.start_server(self._accept, *self._listen)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        tasks = list(self._connections.values())
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

    def set(self, fault: LinkFault) -> None:
        """For all connections from now on."""
        self._fault = fault
        for connection in self._connections:
            connection.set(fault)

    def set_one(self, fault: LinkFault, random: Random) -> bool:
        """For one existing connection; returns whether there was one."""
        if not self._connections:
            return False
        random.choice(list(self._connections)).set(fault)
        return True

    def heal(self) -> None:
        self.set(LinkFault())

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(writer, self._fault)
        task = asyncio.create_task(connection.carry(reader, self._target))
        self._connections[connection] = task
        task.add_done_callback(lambda _: self._end(connection))

    def _end(self, connection: Connection) -> None:
        del self._connections[connection]
        connection.reset()


async def _until_one_fails(*pumps: Coroutine[None, None, None]) -> None:
    """Run all; when one breaks the others are cancelled."""
    tasks = [asyncio.ensure_future(pump) for pump in pumps]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _reset(writer: asyncio.StreamWriter) -> None:
    if not writer.transport.is_closing():
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
    try:
        socket.create_server((host, port)).close()
    except OSError:
        return False
    return True
