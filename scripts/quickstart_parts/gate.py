"""The gate that writers pass between two pieces: it counts how far they are, and holds one while a host is killed.

Owns: the loopback connection between the writers, wherever Spark runs them, and this program; who passed. Does not own: what happens at the
gate (``Crossing``), nor what is written.

A writer says the number of its share and of its piece, and goes on when it is answered. So a kill that is done before the answer is in the
middle of the work for certain: that piece, at least, is written after it.

A writer whose gate is gone fails: nobody waits for it any more.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Self

import anyio
import anyio.abc
from anyio.streams.buffered import BufferedByteReceiveStream

Crossing = Callable[[int, int], Awaitable[None]]
"""Called with share and piece; the writer waits for its end."""
_LINE_MAX = 100


@asynccontextmanager
async def open_gate(crossing: Crossing) -> AsyncIterator[int]:
    """Yields the port on loopback."""

    async def serve(stream: anyio.abc.SocketStream) -> None:
        lines = BufferedByteReceiveStream(stream)
        try:
            async with stream:
                while True:
                    line = await lines.receive_until(b"\n", _LINE_MAX)
                    share, piece = map(int, line.split())
                    await crossing(share, piece)
                    await stream.send(b"\n")
        except (anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError):
            return  # the writer has ended

    async with await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0) as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        yield listener.extra(anyio.abc.SocketAttribute.local_port)
        tasks.cancel_scope.cancel()


class Passer:
    """A writer's side, which blocks. It is made where it is used, in the writer's process."""

    def __init__(self, port: int) -> None:
        self._connection = socket.create_connection(("127.0.0.1", port))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def cross(self, share: int, piece: int) -> None:
        self._connection.sendall(b"%d %d\n" % (share, piece))
        if not self._connection.recv(1):
            raise ConnectionError("the quickstart that started this writer is gone")
