"""The gate: a writer stops there between two steps and says where it is, and goes on when what shall happen
there has happened.

Owns: the loopback connection between the writers, wherever Spark runs them, and the program that watches over
them. Does not own: what happens at the gate (``Crossing``), nor what is written.

A writer says two numbers: in the quickstart its share and its piece, in a chaos round the round and what it
has come to. A kill that is done before the answer is in the middle of the work for certain: what comes next,
at least, is written after it.

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
"""Called with both numbers; the writer waits for its end."""
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
                    first, second = map(int, line.split())
                    await crossing(first, second)
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


class Passer:
    """A writer's side, which blocks. It is made where it is used, in the writer's process."""

    def __init__(self, port: int) -> None:
        self._connection = socket.create_connection(("127.0.0.1", port))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def cross(self, first: int, second: int) -> None:
        self._connection.sendall(b"%d %d\n" % (first, second))
        if not self._connection.recv(1):
            raise ConnectionError("the program that started this writer is gone")
