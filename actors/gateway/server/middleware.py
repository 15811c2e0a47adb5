"""Around every request: its id, its span, the counters of its answer (rule H14), and whether it is taken at
all (rule H18).

A client's own request id is taken if it is short and plain, else one is made; it is in every log line of the
request and in the answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from ...telemetry.logging import add_to_events
from ...telemetry.tracing import Tracing
from ..wire.headers import REQUEST_ID, is_request_id
from .call import Receive, Send
from .context import ServerContext
from .endpoint import refuse
from .request_metrics import CLIENT_GONE

App = Callable[[dict[str, Any], Receive, Send], Awaitable[object]]
_HEADER = REQUEST_ID.lower().encode()
_METHODS = ("GET", "HEAD", "POST")
_TRACE_HEADERS = (b"traceparent", b"tracestate")
_TEXT_MAX = 256


class RequestMiddleware:
    """An ASGI middleware."""

    def __init__(self, app: App, gateway: ServerContext) -> None:
        self._app = app
        self._gateway = gateway

    def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> Awaitable[object]:
        if scope["type"] != "http":
            return self._app(scope, receive, send)

        request_id = scope["tierlog.request_id"] = self._request_id(scope)
        add_to_events(request_id=request_id)
        tracing = self._gateway.tracing
        if tracing is None:
            return self._observe(scope, receive, send)

        return self._trace(tracing, scope, receive, send)

    async def _trace(self, tracing: Tracing, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        request_id = scope["tierlog.request_id"]
        about = {**_request_attributes(scope), "request_id": request_id}
        with tracing.server(_method_of(scope), about, _trace_headers(scope)) as span:
            if span.trace_id:
                add_to_events(trace_id=span.trace_id)
            status = await self._observe(scope, receive, send)
            route = scope.get("tierlog.route")
            if route is not None:
                span.rename(f"{_method_of(scope)} {route}")
            span.answered(status, {"http.route": route})

    async def _observe(self, scope: dict[str, Any], receive: Receive, send: Send) -> int:
        """Answer, and count the answer; returns its status."""
        gateway, method = self._gateway, scope["method"]
        begun = gateway.clock()
        try:
            refusal = gateway.guard.refusal(scope)
            if refusal is None:
                await self._app(scope, receive, send)
            else:
                await refuse(gateway, scope, receive, send, refusal)
        finally:
            # Without a head from the application, the connection answers 500 itself.
            status = CLIENT_GONE if scope.get("tierlog.disconnected") else scope.get("tierlog.status", 500)
            if not scope.get("tierlog.is_parked"):  # or it counts itself when it ends
                # Only methods that exist here: the number of series must not depend on what clients send.
                known = method if method in _METHODS else "other"
                gateway.metrics.note(
                    scope.get("tierlog.operation", "none"), known, status, gateway.clock() - begun
                )
        return status

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
