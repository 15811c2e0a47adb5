"""A connection whose bytes go from the event loop to their receiver in one step, on asyncio.

A stream of anyio wakes a task for each arrival, starts and stops to read around it, and gives the loop a turn
with each piece that is sent. For a short call that costs more than all else. ``stream_of`` makes a stream of
this kind out of one of anyio, which has connected. Until ``carry`` it is read as any other one."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from typing import Any, cast

import anyio
import anyio.abc
import anyio.lowlevel


class LoopStream(asyncio.Protocol, anyio.abc.ByteStream):
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = cast(asyncio.Transport, None)
        self._unread = bytearray()
        self._arrived = self._loop.create_future()
        self._over: asyncio.Future[None] = self._loop.create_future()
        """Why nothing comes any more, or None if the receiver wants no more."""
        self._take: Callable[[bytes], bool] | None = None
        self._flush: Callable[[], None] | None = None
        self._is_full = False

    # --- its receiver ------------------------------------------------------------------------------

    async def carry(self, take: Callable[[bytes], bool], flush: Callable[[], None]) -> None:
        """Call ``take`` with what arrives until it returns False, and ``flush`` when there is room to write
        again. Raises what ``take`` raises, ``OSError`` or ``anyio.EndOfStream``."""
        self._take, self._flush = take, flush
        unread, self._unread = bytes(self._unread), bytearray()
        if unread:
            self.data_received(unread)
        await self._over

    @property
    def is_writable(self) -> bool:
        """Whether the connection has taken all that was written."""
        return not (self._is_full or self._transport.is_closing())

    def write(self, data: Any) -> None:
        self._transport.write(data)

    def soon(self, act: Callable[[], None]) -> None:
        """Call it once what is ready now has run."""
        self._loop.call_soon(act)

    # --- as a stream -------------------------------------------------------------------------------

    async def receive(self, max_bytes: int = 65536) -> bytes:
        while not self._unread:
            if self._over.done():
                self._over.result()
                raise anyio.EndOfStream
            self._arrived = self._loop.create_future()
            await self._arrived
        data = bytes(self._unread[:max_bytes])
        del self._unread[:max_bytes]
        return data

    async def send(self, item: bytes) -> None:
        self._transport.write(item)
        await anyio.lowlevel.checkpoint()

    async def send_eof(self) -> None:
        self._transport.write_eof()
        await anyio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        self._transport.abort()
        await anyio.lowlevel.checkpoint()

    # --- what the loop calls -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        # What it has taken counts as sent, so it takes no more than the network does.
        self._transport.set_write_buffer_limits(high=0)

    def data_received(self, data: bytes) -> None:
        if self._over.done():
            return
        if self._take is None:
            self._unread += data
            self._wake()
            return
        try:
            if not self._take(data):
                self._over.set_result(None)
        except Exception as error:  # noqa: BLE001 - raised by ``carry``
            self._end(error)

    def eof_received(self) -> None:
        self._end(anyio.EndOfStream())

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc or anyio.EndOfStream())

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        if self._flush is not None:
            self._flush()

    def _end(self, error: Exception) -> None:
        if not self._over.done():
            self._over.set_exception(error)
            self._over.exception()  # marks it as retrieved: asyncio logs errors that are never retrieved
        self._wake()

    def _wake(self) -> None:
        if not self._arrived.done():
            self._arrived.set_result(None)


async def stream_of(stream: anyio.abc.SocketStream, tls: ssl.SSLContext | None, host: str) -> LoopStream:
    """Takes the connection of ``stream`` over, from which nothing has been read. ``tls``: speak TLS with
    ``host``. Raises ``OSError``."""
    # A descriptor of its own for the same connection: no stream of anyio gives its one away.
    given = stream.extra(anyio.abc.SocketAttribute.raw_socket)  # noqa: S610 - no query of Django's
    own = socket.socket(fileno=os.dup(given.fileno()))
    try:
        own.setblocking(False)
        await stream.aclose()
        _, made = await asyncio.get_running_loop().create_connection(
            LoopStream, sock=own, ssl=tls, server_hostname=None if tls is None else host
        )
    except BaseException:
        own.close()
        raise
    return made
