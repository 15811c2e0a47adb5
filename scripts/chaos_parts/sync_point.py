"""Sync points: a writer in another process stops between two steps until its parent lets it go on.

The writer reports two numbers over a loopback connection, such as the segment and the piece that it is about
to append. The parent runs its handler, for example a kill, and then answers. So the kill happens in the
middle of the work for certain: at least the next step comes after it. A writer whose parent is gone fails.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Self

import anyio
import anyio.abc
from anyio.streams.buffered import BufferedByteReceiveStream

_LINE_MAX = 100


@asynccontextmanager
async def open_sync_point(handler: Callable[[int, int], Awaitable[None]]) -> AsyncIterator[int]:
    """Yields the port on loopback. Writers wait while ``handler`` runs with their two numbers."""

    async def serve(stream: anyio.abc.SocketStream) -> None:
        lines = BufferedByteReceiveStream(stream)
        try:
            async with stream:
                while True:
                    line = await lines.receive_until(b"\n", _LINE_MAX)
                    first, second = map(int, line.split())
                    await handler(first, second)
                    await stream.send(b"\n")
        except (anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError):
            return  # the writer has ended

    async with (
        await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0) as listener,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(listener.serve, serve)
        yield listener.extra(anyio.abc.SocketAttribute.local_port)
        tasks.cancel_scope.cancel()


class SyncPoint:
    """A writer's side, which blocks. Make it in the writer's process."""

    def __init__(self, port: int) -> None:
        self._connection = socket.create_connection(("127.0.0.1", port))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def reach(self, first: int, second: int) -> None:
        """Wait for the parent. Raises ``ConnectionError`` if it is gone."""
        self._connection.sendall(b"%d %d\n" % (first, second))
        if not self._connection.recv(1):
            raise ConnectionError("the program that started this writer is gone")
