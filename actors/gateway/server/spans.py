"""The attributes of a request's span, named by OpenTelemetry's semantic conventions for HTTP servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

METHODS = ("GET", "POST")
_TRACE_HEADERS = (b"traceparent", b"tracestate")
_TEXT_MAX = 256


def method_of(scope: Mapping[str, Any]) -> str:
    """The method, or the conventions' word for one that does not exist here."""
    return scope["method"] if scope["method"] in METHODS else "_OTHER"


def trace_headers(scope: Mapping[str, Any]) -> dict[str, str]:
    return {
        name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name in _TRACE_HEADERS
    }


def request_attributes(scope: Mapping[str, Any]) -> dict[str, object]:
    server, client = scope.get("server") or (None, None), scope.get("client") or (None, None)
    agent = next(
        (value.decode("latin-1")[:_TEXT_MAX] for name, value in scope["headers"] if name == b"user-agent"),
        None,
    )
    return {
        "http.request.method": method_of(scope),
        "url.scheme": scope["scheme"],
        "url.path": scope["path"][:_TEXT_MAX],
        "server.address": server[0],
        "server.port": server[1],
        "client.address": client[0],
        "network.protocol.version": scope["http_version"],
        "user_agent.original": agent,
    }
