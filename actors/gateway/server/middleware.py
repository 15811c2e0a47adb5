"""Around every request: its id, its span, the counters of its answer (rule H14), and whether it is taken at
all (rule H18).

A client's own request id is taken if it is short and plain, else one is made; it is in every log line of the
request and in the answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio

from ...telemetry.logging import add_to_events
from ..wire.headers import REQUEST_ID, is_request_id
from .call import Receive, Send
from .context import ServerContext
from .endpoint import refuse
from .request_metrics import CLIENT_GONE

App = Callable[[dict[str, Any], Receive, Send], Awaitable[None]]
_HEADER = REQUEST_ID.lower().encode()
_METHODS = ("GET", "HEAD", "POST")
_TRACE_HEADERS = (b"traceparent", b"tracestate")
_TEXT_MAX = 256


class RequestMiddleware:
    """An ASGI middleware."""

    def __init__(self, app: App, gateway: ServerContext) -> None:
        self._app = app
        self._gateway = gateway

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        request_id = scope["tierlog.request_id"] = self._request_id(scope)
        add_to_events(request_id=request_id)
        tracing = self._gateway.tracing
        if tracing is None:
            await self._observe(scope, receive, send, request_id)
            return

        about = {**_request_attributes(scope), "request_id": request_id}
        with tracing.server(_method_of(scope), about, _trace_headers(scope)) as span:
            if span.trace_id:
                add_to_events(trace_id=span.trace_id)
            status = await self._observe(scope, receive, send, request_id)
            route = scope.get("tierlog.route")
            if route is not None:
                span.rename(f"{_method_of(scope)} {route}")
            span.answered(status, {"http.route": route})

    async def _observe(self, scope: dict[str, Any], receive: Receive, send: Send, request_id: str) -> int:
        """Answer, and count the answer; returns its status."""
        pair, begun, status = (_HEADER, request_id.encode()), anyio.current_time(), 0

        async def observed(message: Mapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                # Here, so that refusals and problems have it too.
                message = {**message, "headers": [*message["headers"], pair]}
            await send(message)

        try:
            refusal = self._gateway.guard.refusal(scope)
            if refusal is None:
                await self._app(scope, receive, observed)
            else:
                await refuse(self._gateway, scope, receive, observed, refusal)
        finally:
            if scope.get("tierlog.disconnected"):
                status = CLIENT_GONE
            # Only methods that exist here: the number of series must not depend on what clients send.
            method = scope["method"] if scope["method"] in _METHODS else "other"
            if not scope.get("tierlog.is_parked"):  # or it counts itself when it ends
                self._gateway.metrics.note(
                    scope.get("tierlog.operation", "none"),
                    method,
                    status or 500,
                    anyio.current_time() - begun,
                )
        # Without a head from the application, the connection answers 500 itself.
        return status or 500

    def _request_id(self, scope: Mapping[str, Any]) -> str:
        for name, value in scope["headers"]:
            if name == _HEADER:
                text: str = value.decode("latin-1")
                if is_request_id(text):
                    return text

        return self._gateway.new_request_id()


def _method_of(scope: Mapping[str, Any]) -> str:
    """The method, or the conventions' word for one that does not exist here."""
    return scope["method"] if scope["method"] in _METHODS else "_OTHER"


def _trace_headers(scope: Mapping[str, Any]) -> dict[str, str]:
    return {
        name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name in _TRACE_HEADERS
    }


def _request_attributes(scope: Mapping[str, Any]) -> dict[str, object]:
    server, client = scope.get("server") or (None, None), scope.get("client") or (None, None)
    agent = next(
        (value.decode("latin-1")[:_TEXT_MAX] for name, value in scope["headers"] if name == b"user-agent"),
        None,
    )
    return {
        "http.request.method": _method_of(scope),
        "url.scheme": scope["scheme"],
        "url.path": scope["path"][:_TEXT_MAX],
        "server.address": server[0],
        "server.port": server[1],
        "client.address": client[0],
        "network.protocol.version": scope["http_version"],
        "user_agent.original": agent,
    }
