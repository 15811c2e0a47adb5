"""The client's spans: one for each call and one for each request, named by OpenTelemetry's semantic
conventions for HTTP; and the pools that send a trace's context along.

A request's span is a child of its call's. The span of a request that several calls share has no parent and is
linked to theirs. It ends with the head of the answer. Each attempt is a request of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import attrs
import httpx

from ...telemetry.tracing import HttpSpan, Tracing
from .attempts import Send
from .requests import Call, Request

LINKS = "tierlog.links"
"""The extension of a request that carries the spans of the calls that it is made for."""


def around(tracing: Tracing | None, call: Call[Any]) -> AbstractContextManager[object]:
    """The span of a call other than an append."""
    if tracing is None:
        return nullcontext()

    # The last component (rule H1). A span's name must not have the segment, whose names are without number.
    verb = call.request.path.partition("?")[0].rpartition("/")[2]
    return tracing(f"tierlog.client.{verb}", {"segment": call.segment})


def around_appends(
    tracing: Tracing, count: int, size: int, segment: str | None = None
) -> AbstractContextManager[object]:
    return tracing("tierlog.client.append", {"segment": segment, "count": count, "bytes": size})


class TracingPool(httpx.AsyncBaseTransport):
    """A pool whose requests have spans."""

    def __init__(self, pool: httpx.AsyncBaseTransport, tracing: Tracing) -> None:
        self._pool = pool
        self._tracing = tracing

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        headers: dict[str, str] = {}
        links = request.extensions.get(LINKS, ())
        with self._tracing.client(
            request.method, _attributes(request.method, request.url), headers, links
        ) as span:
            # The headers carry this span's context, so that the server's span becomes its child.
            request.headers.update(headers)
            response = await self._pool.handle_async_request(request)
            span.answered(response.status_code)
            return response

    async def aclose(self) -> None:
        await self._pool.aclose()


@contextmanager
def around_exchange(tracing: Tracing, send: Send) -> Iterator[tuple[Request, HttpSpan]]:
    """The span of a request in a session, and the request with the span's context."""
    headers: dict[str, str] = {}
    request, url = send.request, httpx.URL(send.url + send.request.path)
    with tracing.client(request.method, _attributes(request.method, url), headers, send.links) as span:
        yield attrs.evolve(request, headers=(*request.headers, *headers.items())), span


def _attributes(method: str, url: httpx.URL) -> dict[str, object]:
    return {
        "http.request.method": method,
        "url.full": str(url),
        "server.address": url.host,
        # httpx leaves the scheme's own port out.
        "server.port": url.port or {"http": 80, "https": 443}[url.scheme],
    }
