"""A real server in a thread: a store on a folder, and the gateway over it on a port of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio.from_thread

import tierlog
from support.stores import CONFIG
from tierlog import StoreConfig
from tierlog.actors.gateway.server.app import ServerLimits, make_app
from tierlog.actors.gateway.server.listener import bind, serve_http
from tierlog.actors.store.folder_opening import system_world
from tierlog.actors.telemetry.tracing import Tracing


@asynccontextmanager
async def served(
    folder: Path,
    containers: int,
    config: StoreConfig,
    limits: ServerLimits | None,
    span: Tracing | None = None,
) -> AsyncIterator[str]:
    async with tierlog.open_store(folder, containers=containers, config=config, span=span) as store:
        app = make_app(store, system_world(), limits=limits, tracing=span)
        with bind("127.0.0.1", 0) as listener:
            async with serve_http(app, listener, stop_timeout=1.0) as server:
                yield server.url


@contextmanager
def service(
    folder: Path,
    *,
    containers: int = 2,
    config: StoreConfig = CONFIG,
    limits: ServerLimits | None = None,
    span: Tracing | None = None,
) -> Iterator[str]:
    """The server's URL."""
    with (
        anyio.from_thread.start_blocking_portal("asyncio") as portal,
        portal.wrap_async_context_manager(served(folder, containers, config, limits, span)) as url,
    ):
        yield url
