"""The processes of the HTTP benchmarks: a gateway, the bare servers that it is compared with, and the clients that load them.

Owns: ``python -m benchmarks.http_process ROLE ...``. A server says on standard output which port it has, and ends with its standard input.
A client is a loop over plain sockets with one request in flight on each: a client library would be what is measured.
It prints how long it took, from the moment when its standard input says go. Does not own: what is measured, nor the checks.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

MIB = 1 << 20


# --- servers --------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _gateway(folder: str, settings: str) -> AsyncIterator[int]:
    import tierlog
    from tierlog.actors.gateway.server.app import make_app
    from tierlog.actors.gateway.server.running import bind, serve_http
    from tierlog.actors.node import system_world

    config = tierlog.load_config(settings) if settings else tierlog.StoreConfig()
    async with tierlog.open_store(folder, containers=1, config=config) as store:
        async with serve_http(make_app(store, system_world()), bind("127.0.0.1", 0)) as served:
            yield served.port


@asynccontextmanager
async def _asgi(app: Any) -> AsyncIterator[int]:
    """Any application on uvicorn, as its documentation has it: uvloop and httptools."""
    import uvicorn

    config = uvicorn.Config(app, http="httptools", lifespan="off", log_config=None, access_log=False)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: server.serve(sockets=[listener]))
            yield listener.getsockname()[1]
            server.should_exit = True


async def _swallow(scope: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"12")]})
    await send({"type": "http.response.body", "body": b'{"offset":0}'})


def _server(role: str, arguments: list[str]) -> Any:
    if role == "gateway":
        return _gateway(*arguments)

    if role == "swallow":
        return _asgi(_swallow)

    from starlette.staticfiles import StaticFiles

    return _asgi(StaticFiles(directory=arguments[0]))


async def _serve(role: str, arguments: list[str]) -> None:
    async with _server(role, arguments) as port:
        print(json.dumps({"port": port}), flush=True)
        await anyio.to_thread.run_sync(sys.stdin.read)


# --- clients --------------------------------------------------------------------------------------------------


def exchange(connection: socket.socket, request: list[bytes], into: bytearray) -> tuple[int, bytes]:
    """(status, the first bytes of the answer's body); the answer is read whole, with ``into`` as room."""
    connection.sendmsg(request) if sum(map(len, request)) < MIB // 2 else [connection.sendall(part) for part in request]
    head = b""
    while b"\r\n\r\n" not in head:
        piece = connection.recv(65536)
        if not piece:
            raise ConnectionError(f"the server closed the connection after {head[:200]!r}")
        head += piece
    head, _, body = head.partition(b"\r\n\r\n")
    length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0)
    left = length - len(body)
    while left:
        count = connection.recv_into(into, min(left, len(into)))
        if not count:
            raise ConnectionError("the server closed the connection in the middle of an answer")
        left -= count
    return int(head.split(b" ", 2)[1]), body


def _load(plan: dict[str, Any]) -> dict[str, Any]:
    """``count`` requests on each of ``paths``, which have a connection each."""
    failures: list[str] = []
    body = b"".join(_body(plan))
    lines = [f"{plan['method']} %s HTTP/1.1", "Host: 127.0.0.1", *plan["headers"]]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    form = "\r\n".join(lines) + "\r\n\r\n"

    def run(path: str) -> None:
        room = bytearray(MIB)
        with socket.create_connection(("127.0.0.1", plan["port"])) as connection:
            for number in range(plan["count"]):
                first = plan["first"] + number * plan["step"]
                head = (form % path).replace("{first}", str(first)).replace("{last}", str(first + plan["step"] - 1)).encode()
                status, answer = exchange(connection, [head, body] if body else [head], room)
                if status not in (200, 206) or b'"status"' in answer[:200]:
                    failures.append(f"{status} {answer[:200]!r}")
                    return

    threads = [threading.Thread(target=run, args=(path,)) for path in plan["paths"]]
    sys.stdin.readline()
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"seconds": time.perf_counter() - begin, "failures": failures[:1]}


def _body(plan: dict[str, Any]) -> list[bytes]:
    if not plan["batch"]:
        return [os.urandom(plan["size"])] if plan["size"] else []

    from tierlog.actors.gateway.wire.batch import BatchItem, encode_batch

    return [b"".join(encode_batch([BatchItem(plan["segment"], os.urandom(plan["size"])) for _ in range(plan["batch"])]))]


def main() -> None:
    role, arguments = sys.argv[1], sys.argv[2:]
    if role == "load":
        plan = json.loads(arguments[0])
        print("ready", flush=True)
        print(json.dumps(_load(plan)), flush=True)
    else:
        Path(arguments[0] if arguments else ".").mkdir(exist_ok=True)
        anyio.run(_serve, role, arguments, backend_options={"use_uvloop": True})


if __name__ == "__main__":
    main()
