"""A server in this process: its socket, its start, and its graceful end.

The socket is bound before anything is served, so that a port in use is an error of the caller's and not a
line in a log. At the end parked tails end, and requests in flight finish up to a deadline. Signals are left
to the process."""

from __future__ import annotations

import errno
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from ipaddress import IPv6Address

import anyio
import attrs
from starlette.applications import Starlette

from ....storage_backends.base.errors import ConfigError
from ...kernel.task_groups import body_group
from .app import context_of, requests_of
from .connections import BACKLOG, Connections, connections_max
from .context import IDLE_MAX


@attrs.frozen
class ServerAddress:
    """The address of a server that accepts connections."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self}"


def is_ipv6(address: str) -> bool:
    try:
        IPv6Address(address)
    except ValueError:
        return False
    return True


def bind(host: str, port: int, option: str = "--listen") -> socket.socket:
    """A listening address; port 0 takes a free one. ``ConfigError`` if the address is not available, with
    what to do: ``option`` is the one that chose the port."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        found = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise _cannot_listen(host, port, error, option) from error

    try:
        # The closed connections of an earlier process (TIME_WAIT) would keep the port for a minute.
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        # A child process would keep the port open after this one has ended.
        found.set_inheritable(False)
    except OSError as error:
        found.close()
        raise _cannot_listen(host, port, error, option) from error

    return found


def _cannot_listen(host: str, port: int, error: OSError, option: str) -> ConfigError:
    advice = ""
    address, _, end = host.rpartition(":")
    if is_ipv6(address) and end.isdigit():
        advice = f"; with a port, an IPv6 address is in brackets: [{address}]:{end}"
    elif isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        advice = "; --listen takes an address of this machine, such as 127.0.0.1, or 0.0.0.0 for all of them"
    elif error.errno == errno.EADDRINUSE:
        advice = f"; choose another port with {option}, or stop the process that uses it"
    elif error.errno == errno.EACCES:
        advice = (
            f"; ports below 1024 need the capability CAP_NET_BIND_SERVICE: choose a higher one with {option}"
        )
    place = str(ServerAddress(host, port))
    return ConfigError(f"cannot listen on {place}: {error.strerror or error}{advice}")


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

    @cache
    def maximum(taken: int) -> int:
        found = connections_max(limits.connections, limits.reserved_files + taken)
        # Each request that is passed on takes a connection to its owner too, and some wait for the next.
        return found if context.forwarder is None else max(1, (found - IDLE_MAX) // 2)

    if context.forwarder is not None:
        context.forwarder.exchanges_max = maximum(0)
    connections = Connections(
        requests_of(app),
        lambda: maximum(context.taken_files()),
        lambda: context.draining,
        limits.in_flight_bytes,
    )
    context.frame_bytes = lambda: connections.frame_bytes
    address = ServerAddress(*listener.getsockname()[:2])
    # Before the tasks run: a client that connects as soon as the address is known waits, and is not refused.
    try:
        listener.listen(BACKLOG)
    except OSError as error:  # two processes have bound the port, and the other one listens already
        raise _cannot_listen(address.host, address.port, error, "--listen") from error
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
            await context.aclose()
