"""The bare loop behind a socket: what a service in Python takes at least. The server writes and syncs what
has arrived as one group, in a thread, and answers each message with a byte; meanwhile the next group arrives.

``python bare_service.py PORT FILE`` is the server. A message is its size in four bytes, and as many bytes."""

from __future__ import annotations

import asyncio
import os
import struct
import sys
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from queue import SimpleQueue
from threading import Thread
from typing import Any

import uvloop
from crc32c import crc32c

_SIZE = struct.Struct(">I")
_ROOM = 1 << 30
"""Bytes of the file, which is then written over."""
_BUFFERS_MAX = 1000

Message = tuple["_Received", bytes]


# --- the server ---------------------------------------------------------------------------------


class _Log:
    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.posix_fallocate(self._fd, 0, _ROOM)
        self._end = 0
        self._loop = asyncio.get_running_loop()
        self._waiting: list[Message] = []
        self._groups: SimpleQueue[list[Message]] = SimpleQueue()
        self._is_writing = False
        Thread(target=self._write_groups, daemon=True).start()

    def add(self, messages: list[Message]) -> None:
        self._waiting += messages
        if not self._is_writing:
            self._write_waiting()

    def _write_waiting(self) -> None:
        group, self._waiting = self._waiting, []
        self._is_writing = bool(group)
        if group:
            self._groups.put(group)

    def _write_groups(self) -> None:
        while True:
            group = self._groups.get()
            parts = [part for _, data in group for part in (_SIZE.pack(crc32c(data)), data)]
            if self._end > _ROOM:
                self._end = 0
            buffers = parts if len(parts) <= _BUFFERS_MAX else [b"".join(parts)]
            self._end += os.pwritev(self._fd, buffers, self._end)
            os.fdatasync(self._fd)
            self._loop.call_soon_threadsafe(self._written, group)

    def _written(self, group: list[Message]) -> None:
        self._write_waiting()
        acked: dict[_Received, int] = {}
        for connection, _ in group:
            acked[connection] = acked.get(connection, 0) + 1
        for connection, count in acked.items():
            connection.transport.write(b"." * count)


class _Received(asyncio.Protocol):
    transport: Any

    def __init__(self, log: _Log) -> None:
        self._log = log
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        data = self._rest + data if self._rest else data
        found: list[Message] = []
        position = 0
        while len(data) - position >= _SIZE.size:
            end = position + _SIZE.size + _SIZE.unpack_from(data, position)[0]
            if end > len(data):
                break
            found.append((self, data[position + _SIZE.size : end]))
            position = end
        self._rest = data[position:]
        self._log.add(found)


async def _serve(port: str, path: str) -> None:
    log = _Log(path)
    server = await asyncio.get_running_loop().create_server(lambda: _Received(log), "127.0.0.1", int(port))
    await server.serve_forever()


# --- the client ---------------------------------------------------------------------------------


class BareClient(asyncio.Protocol):
    """One stream, whatever its number."""

    _transport: Any

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._count = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        for _ in data:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_exception(exc or ConnectionResetError("the bare service has ended"))

    async def append(self, stream: int, event: bytes) -> None:
        answer = self._loop.create_future()
        self._waiting.append(answer)
        self._transport.write(_SIZE.pack(len(event)) + event)
        await answer
        self._count += 1

    async def append_many(self, stream: int, events: Sequence[bytes]) -> None:
        await self.append(stream, b"".join(events))
        self._count += len(events) - 1

    async def create(self) -> None:
        """It has one stream."""

    async def count(self) -> int:
        return self._count

    async def settle(self) -> None:
        """Nothing is deferred."""

    def follow(self, stream: int) -> AbstractAsyncContextManager[AsyncGenerator[bytes]]:
        raise NotImplementedError

    def read(self, stream: int, count: int) -> AsyncIterator[Sequence[bytes]]:
        raise NotImplementedError


@asynccontextmanager
async def connect(port: int) -> AsyncIterator[BareClient]:
    transport, client = await asyncio.get_running_loop().create_connection(BareClient, "127.0.0.1", port)
    try:
        yield client
    finally:
        transport.close()


if __name__ == "__main__":
    uvloop.run(_serve(*sys.argv[1:]))
