"""A server in this process: its socket, its start, and its graceful end.

The socket is bound before anything is served, so that a port in use is an error of the caller's and not a
line in a log. At the end parked tails end, and requests in flight finish up to a deadline. Signals are left
to the process."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import attrs
from starlette.applications import Starlette

from ....storage_backends.base.errors import ConfigError
from ...kernel.task_groups import body_group
from .app import context_of
from .connections import BACKLOG, Connections, connections_max


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
        found = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}: {error.strerror or error}") from error

    try:
        # The closed connections of an earlier process (TIME_WAIT) would keep the port for a minute.
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        # A child process would keep the port open after this one has ended.
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
    """Serve ``app`` on ``listener`` inside the body.

    At the body's end tails end, requests in flight finish within ``stop_timeout`` seconds, and the socket is
    closed.
    """
    context = context_of(app)
    limits = context.limits
    maximum = connections_max(limits.connections, limits.reserved_files)
    connections = Connections(app, maximum, lambda: context.draining)
    address = ServerAddress(*listener.getsockname()[:2])
    # Before the tasks run: a client that connects as soon as the address is known waits, and is not refused.
    listener.listen(BACKLOG)
    try:
        async with body_group() as tasks:
            tasks.start_soon(connections.accept, listener)
            tasks.start_soon(context.run)
            try:
                yield address
            finally:
                tasks.cancel_scope.cancel()
    finally:
        # H15: whatever ended the body, requests in flight get their answers.
        with anyio.CancelScope(shield=True):
            # First, or parked tails would take all of the time.
            context.drain()
            await connections.end(listener, stop_timeout, context.drop_bodies)
