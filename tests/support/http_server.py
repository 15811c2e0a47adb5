"""A gateway on a real socket, over a real store in a folder."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import attrs
import httpx
from starlette.applications import Starlette

from support.patience import scaled
from support.stores import CONFIG
from tierlog import SegmentStore, StoreConfig, open_store
from tierlog.actors.gateway.server.app import gateway_of, make_app
from tierlog.actors.gateway.server.context import ServerLimits
from tierlog.actors.gateway.server.gateway import Gateway
from tierlog.actors.gateway.server.listener import bind, serve_http
from tierlog.actors.store.folder_opening import system_world


@attrs.frozen
class ServedStore:
    """A served store, and a client of it."""

    store: SegmentStore
    app: Starlette
    port: int
    http: httpx.AsyncClient

    @property
    def gateway(self) -> Gateway:
        return gateway_of(self.app)

    async def raw(self, data: bytes) -> anyio.abc.SocketStream:
        """A connection of its own that sent ``data``, whatever it is."""
        stream = await anyio.connect_tcp("127.0.0.1", self.port)
        await stream.send(data)
        return stream

    async def used(self) -> anyio.abc.SocketStream:
        """A connection whose first request is answered: limits that a test sets now are those of its next
        one. That of the first may come late on a machine that stands still."""
        stream = await self.raw(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert (await stream.receive()).startswith(b"HTTP/1.1 200 ")
        return stream


class Wrapped:
    """A store with verbs of our own; everything else is the real one's."""

    def __init__(self, store: Any, **verbs: Any) -> None:
        self._store = store
        self._verbs = verbs

    def __getattr__(self, name: str) -> Any:
        return self._verbs[name] if name in self._verbs else getattr(self._store, name)


@asynccontextmanager
async def serving(
    store: Any, limits: ServerLimits | None = None, **options: Any
) -> AsyncIterator[ServedStore]:
    """``store`` on a port of its own."""
    app = make_app(store, system_world(), limits=limits, **options)
    async with (
        serve_http(app, bind("127.0.0.1", 0), stop_timeout=5.0) as served,
        httpx.AsyncClient(
            base_url=served.url,
            timeout=scaled(10),
            limits=httpx.Limits(max_connections=None),
            verify=False,  # to read this machine's certificates costs more than most tests
        ) as http,
    ):
        yield ServedStore(store, app, served.port, http)


@asynccontextmanager
async def service(
    folder: Path,
    limits: ServerLimits | None = None,
    *,
    config: StoreConfig = CONFIG,
    containers: int = 2,
    **options: Any,
) -> AsyncIterator[ServedStore]:
    async with (
        open_store(folder / "data", containers=containers, config=config) as store,
        serving(store, limits, **options) as served,
    ):
        yield served


async def until(condition: Any) -> None:
    """Return once ``condition()`` holds; the test's own time limit ends a wait that is forever."""
    while not condition():
        await anyio.sleep(0.001)


async def everything(stream: anyio.abc.SocketStream) -> bytes:
    """What a connection gets until its end."""
    received = bytearray()
    try:
        while True:
            received += await stream.receive()
    except (anyio.EndOfStream, anyio.BrokenResourceError):
        await stream.aclose()
        return bytes(received)


def open_sockets(port: int) -> int:
    """Sockets of the server at ``port`` of this machine and of its clients that a process still has. The
    descriptors of a process are not its own: earlier tests leave pools that connect again."""
    lines = (line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:])
    ends = f":{port:04X}"
    return sum(
        inode != "0" and (local.endswith(ends) or remote.endswith(ends))
        for _, local, remote, _, _, _, _, _, _, inode, *_ in lines
    )


async def everything_while_it_drips(stream: anyio.abc.SocketStream, drop: bytes = b"x") -> bytes:
    """The same for a client that sends a little every 10 ms, and so is never silent for long."""
    answers: list[bytes] = []
    async with anyio.create_task_group() as tasks:

        async def listen() -> None:
            answers.append(await everything(stream))
            tasks.cancel_scope.cancel()

        tasks.start_soon(listen)
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            while True:
                await stream.send(drop)
                await anyio.sleep(0.01)

    return answers[0]
