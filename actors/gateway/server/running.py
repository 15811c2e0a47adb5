"""A server in this process: its socket, its start, and its graceful end.

Owns: uvicorn and how it is run (uvloop's or any asyncio loop, httptools), the bounds of a request's head, and the stop: parked tails end,
requests in flight finish, up to a deadline. Does not own: the application, nor signals (the process's entry point has them).

The socket is bound before anything is served, so that a port that is taken is an error of the caller's and not a line in a log.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
import attrs
import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from ....storage_backends.base.errors import ConfigError
from .app import gateway_of

HEAD_BYTES_MAX = 64 << 10
HEAD_TIMEOUT = 30.0
"""Seconds that a connection may take for the head of its first request."""
KEEP_ALIVE = 75.0
"""Seconds that an idle connection stays: longer than clients keep theirs, so that they do not meet a closing one."""


@attrs.frozen
class Served:
    """A server that answers."""

    host: str
    port: int

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


def bind(host: str, port: int) -> socket.socket:
    """A listening address; port 0 takes a free one. ``ConfigError`` if it cannot be had."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        found = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}: {error.strerror or error}") from error

    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.set_inheritable(False)
    except OSError as error:
        found.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}; choose another port, or stop who has it") from error

    return found


@asynccontextmanager
async def serve_http(app: Starlette, listener: socket.socket, *, stop_timeout: float = 10.0) -> AsyncIterator[Served]:
    """Serve ``app`` on ``listener`` inside the body, which begins when connections are taken.

    At the body's end tails end, requests in flight finish within ``stop_timeout`` seconds, and the socket is closed.
    """
    server = _Server(_config(app, stop_timeout))
    host, port = listener.getsockname()[:2]
    failure: BaseException | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_run, server, listener)
        await server.answering.wait()
        try:
            yield Served(host, port)
        except BaseException as error:  # noqa: BLE001 - raised again below, not wrapped in a group
            failure = error
        gateway_of(app).drain()
        server.should_exit = True

    if failure is not None:
        raise failure


async def _run(server: _Server, listener: socket.socket) -> None:
    # Not where a cancellation happens to strike: the end is asked for, and has a deadline.
    with anyio.CancelScope(shield=True):
        await server.serve(sockets=[listener])


def _config(app: Starlette, stop_timeout: float) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=_BoundedHead,
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
        """Signals are the process's."""
        yield


class _BoundedHead(HttpToolsProtocol):
    """uvicorn's protocol with a bound to the head of a request: half of one costs a connection nothing but a little time and memory."""

    _head_bytes = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait_for_head()

    def on_headers_complete(self) -> None:
        self._head_bytes = 0
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        cycle: RequestResponseCycle | None = self.cycle
        if self.transport.is_closing() or (cycle is not None and not cycle.response_complete):
            return

        self._head_bytes += len(data)
        if self._head_bytes > HEAD_BYTES_MAX:
            self.transport.close()
        elif self.timeout_keep_alive_task is None:
            self._wait_for_head()

    def _wait_for_head(self) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(HEAD_TIMEOUT, self.timeout_keep_alive_handler)
