"""The Starlette application over a store: routes from the table of endpoints, problems for everything else.

Owns: how the table, the middleware and the answers to unknown paths come together. Does not own: any endpoint, nor the process that runs
the application (``running.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import attrs
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Match, Route

from ....storage_backends.base.world import World
from ...tracing import Tracing
from ..wire import paths
from ..wire.documents import ContainerMap, dump
from ..wire.errors import MethodNotAllowed, NoSuchPath
from .call import Answer, Call, Disconnected, Receive, Scope, Send
from .endpoint import Endpoint, EndpointApp, Success, problem_answer
from .endpoints import ENDPOINTS
from .gateway import Gateway, ServerLimits, Store
from .observing import Observing
from .openapi import openapi_document
from .traffic import Operation

VERSION = "1"
"""Of the interface: the ``v1`` of its paths."""


def make_app(
    store: Store,
    world: World,
    *,
    limits: ServerLimits | None = None,
    container_map: Callable[[], ContainerMap] | None = None,
    owner_of: Callable[[int], str | None] | None = None,
    tracing: Tracing | None = None,
) -> Starlette:
    """The application. ``app.state.gateway`` is its ``Gateway``: ``drain()`` before the server stops, ``status()``, ``tails``.

    ``container_map``: what ``/v1/containers`` says; without it, that all containers are here. ``owner_of(container)``: the URL of the host
    that serves a container of others, if it is known here. ``tracing`` is told of every request.
    """
    gateway = Gateway(store, world, limits or ServerLimits(), container_map, owner_of, tracing)
    table = (*ENDPOINTS, _openapi_endpoint())
    routes = [_route(gateway, endpoint) for endpoint in table]
    app = Starlette(routes=routes, middleware=[Middleware(cast(Any, Observing), gateway=gateway)])
    app.router.redirect_slashes = False
    app.router.default = cast(Any, _Nowhere(gateway, routes))
    app.state.gateway = gateway
    return app


def gateway_of(app: Starlette) -> Gateway:
    gateway: Gateway = app.state.gateway
    return gateway


def _openapi_endpoint() -> Endpoint:
    body: list[bytes] = []

    async def openapi(call: Call) -> Answer:
        if not body:
            body.append(dump(openapi_document((*ENDPOINTS, endpoint), VERSION)))
        return Answer(200, body[0])

    success = Success(200, "This document.", "application/json", {"type": "object"})
    endpoint = Endpoint("openapi", "GET", paths.OPENAPI, openapi, "This document.", (success,))
    return endpoint


class _OneMethod(Route):
    """A route that matches its own method only: what is left goes to ``_Nowhere``, which knows all methods of a path."""

    def matches(self, scope: Any) -> tuple[Match, Any]:
        match, child = super().matches(scope)
        return (match, child) if match is Match.FULL else (Match.NONE, {})


def _route(gateway: Gateway, endpoint: Endpoint) -> Route:
    route = _OneMethod(endpoint.path, EndpointApp(gateway, endpoint), methods=[endpoint.method], name=endpoint.operation)
    route.methods = {endpoint.method}
    return route


@attrs.frozen
class _Nowhere:
    """Answers what no route matches: 405 if the path exists, else 404."""

    gateway: Gateway
    routes: list[Route]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        allowed = sorted({method for route in self.routes if route.path_regex.match(scope["path"]) for method in route.methods or ()})
        shown = f"{scope['method']} {scope['path'][:200]}"
        error = (
            MethodNotAllowed(f"{shown}: this path takes {', '.join(allowed)}", allowed=", ".join(allowed))
            if allowed
            else NoSuchPath(f"{shown}: there is nothing here; {paths.OPENAPI} lists what there is")
        )
        call = Call(self.gateway, Operation(), {**scope, "path_params": {}}, receive, send)
        with suppress(Disconnected):
            await call.answer(problem_answer(self.gateway, scope, error))


__all__ = ["ServerLimits", "gateway_of", "make_app"]
