"""An object server in memory that answers fast: the requests of the S3 benchmarks and no others, so that the
clients are what is measured. Prints its URL and serves until it is terminated.

With arguments it waits so many seconds before each answer, and begins with the files of a folder as objects
below ``bench/``."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from email.utils import formatdate
from itertools import islice
from typing import Any
from urllib.parse import parse_qs

import uvicorn
from sortedcontainers import SortedDict

OBJECTS: SortedDict[str, bytes] = SortedDict()
VERSIONS: dict[str, int] = {}
"""By key, how often it was put."""
LATENCY = float(sys.argv[1]) if len(sys.argv) > 1 else 0.0
_PAGE = 1000
"""Keys in one answer, as of S3."""
Answer = tuple[int, dict[str, str], bytes]


async def serve_request(scope: Any, receive: Any, send: Any) -> None:
    body, more = bytearray(), True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    headers = {name.decode(): value.decode() for name, value in scope["headers"]}
    if LATENCY:
        await asyncio.sleep(LATENCY)
    status, added, data = _answer(
        scope["method"], scope["path"], scope["query_string"].decode(), headers, bytes(body)
    )
    added = {"content-length": str(len(data)), "date": formatdate(usegmt=True), **added}
    sent = [(name.encode(), value.encode()) for name, value in added.items()]
    await send({"type": "http.response.start", "status": status, "headers": sent})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else data})


def _answer(method: str, path: str, query: str, headers: dict[str, str], body: bytes) -> Answer:
    key = path.lstrip("/").partition("/")[2]
    if not key:
        return 200, {}, _listing(query) if "list-type" in query else b"<Uploads/>"
    if method == "PUT":
        if headers.get("if-none-match") == "*" and key in OBJECTS:
            return 412, {}, b""
        if headers.get("if-match", _tag(key)) != _tag(key):
            return 412, {}, b""
        OBJECTS[key] = body
        VERSIONS[key] = VERSIONS.get(key, 0) + 1
        return 200, {"etag": _tag(key)}, b""
    if method == "DELETE":
        OBJECTS.pop(key, None)
        return 204, {}, b""
    if key not in OBJECTS:
        return 404, {}, b"<Error><Code>NoSuchKey</Code></Error>"
    found: bytes = OBJECTS[key]
    if method == "HEAD":
        return 200, {"etag": _tag(key), "content-length": str(len(found))}, b""
    first, last = map(int, headers["range"].removeprefix("bytes=").split("-"))
    part = found[first : last + 1]
    return (
        206,
        {"etag": _tag(key), "content-range": f"bytes {first}-{first + len(part) - 1}/{len(found)}"},
        part,
    )


def _tag(key: str) -> str:
    return f'"{VERSIONS.get(key, 0)}"'


def _listing(query: str) -> bytes:
    asked = {name: values[0] for name, values in parse_qs(query).items()}
    prefix = asked.get("prefix", "")
    after = asked.get("continuation-token") or asked.get("start-after", "")
    from_prefix = (key for key in OBJECTS.irange(max(prefix, after)) if key > after)
    keys = [key for key in islice(from_prefix, _PAGE + 1) if key.startswith(prefix)]
    more = ""
    if len(keys) > _PAGE:
        more = (
            f"<IsTruncated>true</IsTruncated><NextContinuationToken>{keys[_PAGE - 1]}</NextContinuationToken>"
        )
    items = "".join(
        f"<Contents><Key>{key}</Key><Size>{len(OBJECTS[key])}</Size></Contents>" for key in keys[:_PAGE]
    )
    return f"<ListBucketResult>{more}{items}</ListBucketResult>".encode()


def _load(folder: str) -> None:
    for parent, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(parent, name)
            with open(path, "rb") as stream:
                OBJECTS[f"bench/{os.path.relpath(path, folder)}"] = stream.read()


def main() -> None:
    if len(sys.argv) > 2:
        _load(sys.argv[2])
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    uvicorn.Server(uvicorn.Config(serve_request, lifespan="off", log_level="error")).run(sockets=[listener])


if __name__ == "__main__":
    main()
