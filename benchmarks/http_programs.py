"""The other processes of the HTTP benchmarks: servers, and clients that load them.

``python -m benchmarks.http_programs store FOLDER`` serves a store, ``swallow`` is bare uvicorn that reads a
body and answers, ``static FILE`` serves one file; each prints its URL and serves until its stdin ends. ``load
URL SEGMENT COUNT SIZE IN_FLIGHT`` appends through a client, ``post`` sends the same bytes to ``swallow``;
both connect, print a line, wait for one, work, and print another. ``idle FOLDER COUNT`` serves a store to
itself, and prints what its idle tails and sessions take.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.abc
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


async def print_idle(folder: str, count: int) -> None:
    """Bytes of memory: of a tail, with its task; of a task that waits in a generator of its own; of a
    session. Client and server together."""
    from tierlog.actors.gateway.client.sessions import upgrade_request
    from tierlog.actors.gateway.server.app import gateway_of, make_app
    from tierlog.actors.gateway.server.listener import bind, serve_http
    from tierlog.actors.store.folder_opening import system_world

    segment, dues = "bench/idle", list[asyncio.Future[None]]()

    async def waiting() -> AsyncIterator[bytes]:
        dues.append(asyncio.get_running_loop().create_future())
        await dues[-1]
        yield b""

    async def take(blocks: AsyncIterator[bytes]) -> None:
        async for _ in blocks:
            pass

    async def growth(start: Callable[[], Awaitable[object]], there: Callable[[], int]) -> float:
        gc.collect()
        tracemalloc.start()
        goal = there() + count
        for number in range(count):
            await start()
            if number % 50 == 49:  # not all at once: what a burst of them takes is another question
                await anyio.sleep(0.05)
        while there() < goal:
            await anyio.sleep(0.05)
        await anyio.sleep(0.5)  # their handlers end
        gc.collect()
        found = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        return found / count

    async with tierlog.open_store(folder, containers=4) as store:
        app = make_app(store, system_world())
        async with (
            serve_http(app, bind("127.0.0.1", 0), stop_timeout=2.0) as served,
            tierlog.connect(served.url) as client,
            anyio.create_task_group() as tasks,
        ):
            await client.create_segment(segment)
            tasks.start_soon(take, client.tail(segment))
            while gateway_of(app).tails < 1:
                await anyio.sleep(0.05)

            async def start_tail() -> None:
                tasks.start_soon(take, client.tail(segment))

            async def start_waiting() -> None:
                tasks.start_soon(take, waiting())

            streams: list[anyio.abc.SocketStream] = []

            async def start_session() -> None:
                streams.append(await anyio.connect_tcp("127.0.0.1", served.port))
                await streams[-1].send(upgrade_request(served.url))
                await streams[-1].receive()

            tail = await growth(start_tail, lambda: gateway_of(app).tails)
            task = await growth(start_waiting, lambda: len(dues))
            session = await growth(start_session, lambda: len(streams))
            print(tail, task, session, flush=True)
            for stream in streams:
                await stream.aclose()
            tasks.cancel_scope.cancel()


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
    elif role == "idle":
        await print_idle(rest[0], int(rest[1]))
    elif role in {"swallow", "static"}:
        await serve_bare(swallow if role == "swallow" else static(*rest))
    else:
        url, segment, *numbers = rest
        await load(through_client if role == "load" else bare, url, segment, *map(int, numbers))


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:], backend="asyncio", backend_options={"use_uvloop": True})
