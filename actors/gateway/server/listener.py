"""A server in this process: its socket, its start, and its graceful end. uvicorn runs it.

The socket is bound before anything is served, so that a port in use is an error of the caller's and not a
line in a log. At the end parked tails end, and requests in flight finish up to a deadline. Signals are left
to the process."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, cast

import anyio
import attrs
import uvicorn
from starlette.applications import Starlette

from ....storage_backends.base.errors import ConfigError
from ...kernel.task_groups import body_group
from .app import context_of
from .connection import READ_BYTES, HttpConnection

KEEP_ALIVE = 75.0
"""Seconds that an idle connection stays: longer than clients keep theirs, so that they do not meet a closing
one."""


@attrs.frozen
class ServerAddress:
    """The address of a server that accepts connections."""

    host: str
    port: int

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


def bind(host: str, port: int) -> socket.socket:
    """A listening address; port 0 takes a free one. ``ConfigError`` if the address is not available."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        # Named as TCP, or asyncio does not turn off Nagle's algorithm on what it accepts: each answer would
        # wait 40 ms for an ACK.
        found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}: {error.strerror or error}") from error

    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.set_inheritable(False)
    except OSError as error:
        found.close()
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another port, or stop the process "
            f"that uses it"
        ) from error

    return found


@asynccontextmanager
async def serve_http(
    app: Starlette, listener: socket.socket, *, stop_timeout: float = 10.0
) -> AsyncIterator[ServerAddress]:
    """Serve ``app`` on ``listener`` inside the body, which begins when connections are taken.

    At the body's end tails end, requests in flight finish within ``stop_timeout`` seconds, and the socket is
    closed.
    """
    server = _Server(_config(app, stop_timeout))
    host, port = listener.getsockname()[:2]
    async with body_group() as tasks:
        tasks.start_soon(_run, server, listener)
        try:
            await server.answering.wait()
            yield ServerAddress(host, port)
        finally:
            context_of(app).drain()
            server.should_exit = True


async def _run(server: _Server, listener: socket.socket) -> None:
    # Not at the next await of a cancellation: the server is asked to stop, and has a deadline.
    with anyio.CancelScope(shield=True):
        await server.serve(sockets=[listener])


def _config(app: Starlette, stop_timeout: float) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=cast(Any, partial(HttpConnection, bytearray(READ_BYTES))),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=int(KEEP_ALIVE),
        timeout_graceful_shutdown=max(1, round(stop_timeout)),
        backlog=4096,
    )


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.answering = anyio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.answering.set()

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Signals are left to the process."""
        yield
