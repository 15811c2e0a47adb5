"""Just enough HTTP/1.1 for a small S3 server, over streams that a fault can cut at any byte.

Owns: reading a request, writing an answer, and the ways in which an answer may fail to arrive. Does not own:
what is asked (``s3_server.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from http import HTTPStatus
from urllib.parse import parse_qsl, unquote, urlsplit

import attrs

READ_BYTES_MAX = 4 << 20
"""How much a connection keeps of what it has not asked for yet, before it makes the client wait."""


@attrs.frozen
class Request:
    method: str
    path: str
    """Decoded."""
    query: Mapping[str, str]
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes


@attrs.frozen
class Answer:
    status: int
    body: bytes | memoryview = b""
    headers: Mapping[str, str] = attrs.field(factory=dict)


async def read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Request | None:
    """The next request, or None when the client is gone (also in the middle of one: nothing of it counts
    then)."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        line, *lines = head.rstrip("\r\n").split("\r\n")
        headers = {
            name.strip().lower(): value.strip() for name, _, value in (each.partition(":") for each in lines)
        }
        if headers.get("expect", "").lower() == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await reader.readexactly(int(headers.get("content-length", "0")))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None

    method, target, _ = line.split(" ", 2)
    parts = urlsplit(target)
    return Request(
        method, unquote(parts.path), dict(parse_qsl(parts.query, keep_blank_values=True)), headers, body
    )


async def write_answer(
    writer: asyncio.StreamWriter,
    request: Request,
    answer: Answer,
    *,
    body_bytes: int | None = None,
    rate: float = 0,
) -> None:
    """Send ``answer``; only ``body_bytes`` of its body if that is given, at ``rate`` bytes a second if that
    is not 0."""
    headers = {"Content-Length": str(len(answer.body)), "Server": "tierlog-testing", **answer.headers}
    head = f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in headers.items()) + "\r\n"
    writer.write(head.encode("latin-1"))
    if request.method != "HEAD":
        body = memoryview(answer.body)[:body_bytes]
        step = max(1, int(rate / 20)) if rate else max(1, len(body))
        for start in range(0, len(body), step):
            writer.write(body[start : start + step])
            await writer.drain()
            if rate:
                await asyncio.sleep(step / rate)
    await writer.drain()
