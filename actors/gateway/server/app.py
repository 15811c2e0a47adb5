"""Starlette applications made of endpoints: the one over a store, and others with a table of their own. Paths
that no endpoint has are answered with problems."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, cast

import attrs
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Match, Route

from ....storage_backends.base.world import World
from ...telemetry.tracing import Tracing
from ..wire import paths
from ..wire.bodies import JSON_TYPE, ContainerMap, encode_json
from ..wire.errors import MethodNotAllowed, NoSuchPath
from . import (
    admin_handlers,
    gc_handlers,
    read_handlers,
    session_endpoint,
    table_handlers,
    tails,
    transaction_handlers,
    write_handlers,
)
from .call import Answer, HttpCall, Receive, Send
from .context import ServerContext, ServerLimits
from .endpoint import Endpoint, EndpointApp, Success, endpoint, endpoints_of, refuse
from .exchange import App
from .gateway import Gateway, Store
from .middleware import RequestMiddleware
from .openapi import openapi_document

ENDPOINTS = endpoints_of(
    write_handlers, read_handlers, tails, transaction_handlers, table_handlers, admin_handlers, gc_handlers
)

VERSION = "1"
"""The version of the interface: the ``v1`` of its paths."""


def make_app(
    store: Store,
    world: World,
    *,
    limits: ServerLimits | None = None,
    container_map: Callable[[], ContainerMap] | None = None,
    owner_of: Callable[[int], str | None] | None = None,
    absence_of: Callable[[int], str] | None = None,
    tracing: Tracing | None = None,
    names: Iterable[str] = (),
    serves: Callable[[int], bool] | None = None,
) -> Starlette:
    """The application over ``store``; ``gateway_of`` returns its ``Gateway``, whose ``drain()`` is called
    before the server stops.

    ``container_map``: the answer of ``/v1/containers``; by default all containers are here.
    ``owner_of(index)``: the URL of the host that serves another container, if it is known here.
    ``absence_of(index)``: why no host does until an operator opens it, or empty. ``tracing``
    gets a span for every request. ``names``: under which clients reach the server, besides loopback (rule
    H18). ``serves(index)``: whether a container is served here; requests for others are passed on to their
    owners then (rule H22)."""
    limits = limits or ServerLimits()
    gateway = Gateway(
        store, world, limits, container_map, owner_of, tracing, names, serves=serves, absence_of=absence_of
    )
    return app_of(
        gateway, ENDPOINTS, "tierlog", "Segments: append-only sequences of bytes, durable when acked."
    )


def app_of(
    context: ServerContext,
    endpoints: Sequence[Endpoint],
    title: str,
    summary: str,
    *,
    redirected: Sequence[Endpoint] = (),
) -> Starlette:
    """An application of these endpoints and of the OpenAPI document that describes them. The document also
    has ``redirected``: endpoints of other servers, whose paths redirect there."""
    # H16: what is served and what is documented come from one list.
    served = (*endpoints, session_endpoint.session)
    table = (*served, _openapi_endpoint((*served, *redirected), title, summary))
    routes = [_route(context, endpoint) for endpoint in table]
    app = Starlette(routes=routes, middleware=[Middleware(cast(Any, RequestMiddleware), gateway=context)])
    # H1: the name of a segment may end with a slash. Another path is another segment.
    app.router.redirect_slashes = False
    app.router.default = cast(Any, _NotFound(context, routes))
    app.state.gateway = context
    app.state.requests = RequestMiddleware(_Dispatch(app.router, routes), context)
    return app


class _Dispatch:
    """Routes of one path without the search that the router makes for each request, which costs an append
    more than its own endpoint."""

    def __init__(self, router: App, routes: Sequence[Route]) -> None:
        self._router = router
        self._exact = {
            (method, route.path): cast(App, route.app)
            for route in routes
            for method in route.methods or ()
            if "{" not in route.path
        }

    def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> Awaitable[object]:
        app = self._exact.get((scope["method"], scope["path"]))
        if app is None:
            return self._router(scope, receive, send)

        scope["path_params"] = {}
        return app(scope, receive, send)


def requests_of(app: Starlette) -> App:
    """What answers the app's requests, without Starlette's own handlers of errors: each endpoint answers
    every error itself."""
    found: App = app.state.requests
    return found


def context_of(app: Starlette) -> ServerContext:
    context: ServerContext = app.state.gateway
    return context


def gateway_of(app: Starlette) -> Gateway:
    gateway: Gateway = app.state.gateway
    return gateway


def _openapi_endpoint(endpoints: Sequence[Endpoint], title: str, summary: str) -> Endpoint:
    body: list[bytes] = []

    async def openapi(call: HttpCall[ServerContext]) -> Answer:
        """This document."""
        # By the first request: schemas of all endpoints would delay each start.
        if not body:
            body.append(encode_json(openapi_document((*endpoints, made), VERSION, title, summary)))
        return Answer(200, body[0])

    success = Success(200, "This document.", JSON_TYPE, dict[str, Any])
    made = endpoint("GET", paths.OPENAPI, "openapi", successes=(success,))(openapi)
    return made


class _OneMethod(Route):
    """A route that matches its own method only, and HEAD where that is GET: what is left goes to
    ``_NotFound``, which knows all methods of a path."""

    def matches(self, scope: Any) -> tuple[Match, Any]:
        match, child = super().matches(scope)
        return (match, child) if match is Match.FULL else (Match.NONE, {})


def _route(context: ServerContext, endpoint: Endpoint) -> Route:
    route = _OneMethod(
        endpoint.path, EndpointApp(context, endpoint), methods=[endpoint.method], name=endpoint.operation
    )
    route.methods = {"GET", "HEAD"} if endpoint.method == "GET" else {endpoint.method}
    # Whatever a name is, it is a name: Starlette's pattern stops at a line feed, and ignores one at the end.
    route.path_regex = re.compile(route.path_regex.pattern.removesuffix("$") + r"\Z", re.DOTALL)
    return route


@attrs.frozen
class _NotFound:
    """Answers what no route matches: 405 if the path exists, else 404."""

    context: ServerContext
    routes: list[Route]

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        allowed = sorted(
            {
                method
                for route in self.routes
                if route.path_regex.match(scope["path"])
                for method in route.methods or ()
            }
        )
        # A path may be as long as a head is allowed to be.
        shown = f"{scope['method']} {scope['path'][:200]}"
        error = (
            MethodNotAllowed(f"{shown}: this path takes {', '.join(allowed)}", allowed=", ".join(allowed))
            if allowed
            else NoSuchPath(f"{shown}: there is nothing here; {paths.OPENAPI} lists what there is")
        )
        await refuse(self.context, scope, receive, send, error)


__all__ = ["ServerLimits", "app_of", "context_of", "gateway_of", "make_app"]
