"""The other processes of the HTTP benchmarks: servers, and clients that load them.

``python -m benchmarks.http_programs store FOLDER`` serves a store, ``swallow`` is bare uvicorn that reads a
body and answers, ``static FILE`` serves one file; each prints its URL and serves until its stdin ends. ``load
URL SEGMENT COUNT SIZE IN_FLIGHT`` appends through a client, ``post`` sends the same bytes to ``swallow``;
both connect, print a line, wait for one, work, and print another.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx

import tierlog


async def serve_store(folder: str) -> None:
    from tierlog.actors.gateway.server.app import make_app
    from tierlog.actors.gateway.server.listener import bind, serve_http
    from tierlog.actors.store.folder_opening import system_world

    async with tierlog.open_store(folder, containers=4) as store:
        with bind("127.0.0.1", 0) as listener:
            async with serve_http(make_app(store, system_world()), listener, stop_timeout=2.0) as served:
                await until_stdin_line(served.url)


async def serve_bare(app: Any) -> None:
    import uvicorn

    from tierlog.actors.gateway.server.listener import bind

    with bind("127.0.0.1", 0) as listener:
        config = uvicorn.Config(
            app, http="httptools", ws="none", lifespan="off", log_config=None, access_log=False
        )
        server = uvicorn.Server(config)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve, [listener])
            await until_stdin_line(f"http://127.0.0.1:{listener.getsockname()[1]}")
            server.should_exit = True


async def until_stdin_line(url: str) -> None:
    print(url, flush=True)
    await anyio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)


async def swallow(
    scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
) -> None:
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"{}"})


def static(file: str) -> Any:
    from starlette.applications import Starlette
    from starlette.responses import FileResponse
    from starlette.routing import Route

    return Starlette(routes=[Route("/file", lambda request: FileResponse(file))])


Post = Callable[[bytes], Awaitable[object]]


@asynccontextmanager
async def through_client(url: str, segment: str) -> AsyncIterator[Post]:
    async with tierlog.connect(url) as client:
        yield lambda data: client.append(segment, data)


@asynccontextmanager
async def bare(url: str, segment: str) -> AsyncIterator[Post]:
    async with httpx.AsyncHTTPTransport(verify=False) as transport:

        async def post(data: bytes) -> None:
            response = await transport.handle_async_request(httpx.Request("POST", url, content=data))
            await response.aread()

        yield post


async def load(
    open_post: Callable[[str, str], Any], url: str, segment: str, count: int, size: int, in_flight: int
) -> None:
    data = os.urandom(size)
    async with open_post(url, segment) as post:
        print("ready", flush=True)
        await anyio.to_thread.run_sync(sys.stdin.readline)

        async def work() -> None:
            for _ in range(count // in_flight):
                await post(data)

        async with anyio.create_task_group() as tasks:
            for _ in range(in_flight):
                tasks.start_soon(work)
        print("done", flush=True)


async def main(*arguments: str) -> None:
    role, *rest = arguments
    if role == "store":
        await serve_store(*rest)
    elif role in {"swallow", "static"}:
        await serve_bare(swallow if role == "swallow" else static(*rest))
    else:
        url, segment, *numbers = rest
        await load(through_client if role == "load" else bare, url, segment, *map(int, numbers))


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:], backend="asyncio", backend_options={"use_uvloop": True})
