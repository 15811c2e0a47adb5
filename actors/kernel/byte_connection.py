"""A connection whose bytes are received into the memory where they stay. anyio's streams return each piece in
memory of its own, out of which a large body would be copied once more, and wait in a task for each one.

One task sends and one reads. A reader names the memory for what comes next, and then gets the number of bytes
that came. Small pieces come in one buffer, which all connections of a thread share: what is received there is
used in the same step.

On asyncio a protocol with memory of its own reads and writes, on a duplicate of the socket, because anyio's
stream keeps its transport to itself: what comes reaches the reader in the step in which it came, and what is
written needs no task that sends. On trio what comes is read from the socket, and sent over the stream. TLS,
and streams that have no socket, are used as they are.

Cancellation of a read loses nothing: what has come is with the reader, and the rest comes to the next one."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from typing import Any, Protocol

import anyio
import anyio.abc
import anyio.lowlevel

from ...storage_backends.base.checksum import Buffer
from .event_loop import running_trio
from .lost_sockets import lost_sockets

READ_BYTES = 256 << 10


class Reader(Protocol):
    def room(self, shared: memoryview, /) -> memoryview:
        """Where the next bytes go: the reader's own memory, or a part of ``shared``; never empty."""
        ...

    def filled(self, shared: memoryview, size: int, /) -> bool:
        """So many bytes came there. Returns whether more are wanted."""
        ...


class _Shared(threading.local):
    def __init__(self) -> None:
        self.buffer = memoryview(bytearray(READ_BYTES))


_shared = _Shared()


class ByteConnection:
    """Over any stream, with a copy."""

    def __init__(self, stream: anyio.abc.ByteStream) -> None:
        self._stream = stream
        self._unread = memoryview(b"")
        """What came behind the last bytes that a reader wanted."""

    async def send(self, data: Buffer) -> None:
        await self._stream.send(data)  # type: ignore[arg-type]  # any buffer will do

    async def read(self, reader: Reader) -> None:
        """Read until the reader wants no more. Raises what it raises, ``anyio.EndOfStream``, and ``OSError``
        or an error of anyio if the connection is lost."""
        wants_more = True
        while wants_more:
            if not self._unread:
                self._unread = memoryview(await self._stream.receive(READ_BYTES))
            wants_more = self._pass_on(reader)

    def _pass_on(self, reader: Reader) -> bool:
        room = reader.room(_shared.buffer)
        size = min(len(room), len(self._unread))
        room[:size] = self._unread[:size]
        self._unread = self._unread[size:]
        return reader.filled(_shared.buffer, size)

    async def aclose(self) -> None:
        await anyio.aclose_forcefully(self._stream)


class _SocketConnection(ByteConnection):
    """On trio."""

    def __init__(self, stream: anyio.abc.SocketStream, raw: socket.socket) -> None:
        super().__init__(stream)
        self._socket = raw

    async def read(self, reader: Reader) -> None:
        wants_more = True
        while wants_more:
            await anyio.lowlevel.checkpoint()
            try:
                size = self._socket.recv_into(reader.room(_shared.buffer))
            except BlockingIOError:
                await anyio.wait_readable(self._socket)
                continue
            if not size:
                raise anyio.EndOfStream
            wants_more = reader.filled(_shared.buffer, size)


class LoopConnection(ByteConnection, asyncio.BufferedProtocol):
    """On asyncio. It reads only while there is a reader. What is written is not mixed with what ``send`` has
    on its way."""

    def __init__(self, stream: anyio.abc.SocketStream) -> None:
        super().__init__(stream)
        self.on_writable: Callable[[], None] = lambda: None
        """Called when there is room to write again."""
        self._is_full = False
        self._loop = asyncio.get_running_loop()
        self._transport: Any = None
        self._reader: Reader | None = None
        self._changed: asyncio.Future[None] | None = None
        self._failure: BaseException | None = None
        """Why nothing comes any more."""

    async def read(self, reader: Reader) -> None:
        if self._failure is None:
            self._reader = reader
            self._changed = self._loop.create_future()
            self._transport.resume_reading()
            try:
                await self._changed
            finally:
                self._pause()
        if self._failure is not None:
            raise self._failure

    @property
    def is_writable(self) -> bool:
        """Whether the system has taken all that was written."""
        return not (self._is_full or self._transport.is_closing())

    def write(self, data: Buffer) -> None:
        self._transport.write(data)

    def soon(self, act: Callable[[], None]) -> None:
        """Call it once what is ready now has run."""
        self._loop.call_soon(act)

    async def aclose(self) -> None:
        self._transport.abort()
        await super().aclose()

    def _pause(self) -> None:
        self._reader = None
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def _end_read(self) -> None:
        self._pause()
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    def _fail(self, failure: BaseException) -> None:
        self._failure = self._failure or failure
        self._end_read()

    # --- what the transport calls ------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        # What it has taken counts as sent, so it takes no more than the system does.
        transport.set_write_buffer_limits(high=0)

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self.on_writable()

    def get_buffer(self, sizehint: int) -> memoryview:
        shared = _shared.buffer
        return shared if self._reader is None else self._reader.room(shared)

    def buffer_updated(self, nbytes: int) -> None:
        if self._reader is None:
            self._fail(anyio.BrokenResourceError())  # the other side speaks before it is asked
            return

        try:
            wants_more = self._reader.filled(_shared.buffer, nbytes)
        except Exception as error:  # noqa: BLE001 - the task that reads gets it
            self._fail(error)
            return

        if not wants_more:
            self._end_read()

    def eof_received(self) -> bool:
        self._fail(anyio.EndOfStream())
        return True  # what is sent still counts

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(exc or anyio.ClosedResourceError())


async def byte_connection(stream: anyio.abc.ByteStream) -> ByteConnection:
    """A connection over ``stream``, of which nothing has been received. The other side does not speak before
    it is asked: otherwise what it says may be with ``stream``. Raises ``OSError`` if it is lost."""
    # A stream of TLS has the socket below it as an attribute, too.
    if not isinstance(stream, anyio.abc.SocketStream):
        return ByteConnection(stream)

    with lost_sockets():
        raw = stream.extra(anyio.abc.SocketAttribute.raw_socket)  # noqa: S610 - not of Django
        if running_trio() is not None:
            return _SocketConnection(stream, raw)

        duplicate = raw.dup()
    connection = LoopConnection(stream)
    try:
        await asyncio.get_running_loop().create_connection(lambda: connection, sock=duplicate)
    except BaseException:
        duplicate.close()
        raise

    connection._pause()
    return connection
