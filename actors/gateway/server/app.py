"""A Starlette application: routes from a table of endpoints, problems for everything else; and the one over a
store.

Owns: how the table, the middleware and the answers to unknown paths come together. Does not own: any
endpoint, nor the process that runs the application (``running.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, cast

import attrs
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Match, Route

from ....storage_backends.base.world import World
from ...telemetry.tracing import Tracing
from ..wire import paths
from ..wire.documents import ContainerMap, dump
from ..wire.errors import MethodNotAllowed, NoSuchPath
from .call import Answer, Disconnected, F, HttpCall, Receive, Scope, Send
from .context import ServerContext, ServerLimits
from .endpoint import EndpointApp, EndpointOf, Success, problem_answer
from .endpoints import ENDPOINTS
from .gateway import Gateway, Store
from .middleware import RequestMiddleware
from .openapi import openapi_document
from .request_metrics import Operation

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
    """The application. ``app.state.gateway`` is its ``Gateway``: ``drain()`` before the server stops,
    ``status()``, ``tails``.

    ``container_map``: what ``/v1/containers`` says; without it, that all containers are here.
    ``owner_of(container)``: the URL of the host that serves a container of others, if it is known here.
    ``tracing`` is told of every request.
    """
    gateway = Gateway(store, world, limits or ServerLimits(), container_map, owner_of, tracing)
    return app_of(
        gateway, ENDPOINTS, "tierlog", "Segments: append-only sequences of bytes, durable when acked."
    )


def app_of(front: F, endpoints: Sequence[EndpointOf[F]], title: str, summary: str) -> Starlette:
    """The application of a table of endpoints, with its OpenAPI document, which has the title and the
    summary."""
    table = (*endpoints, _openapi_endpoint(endpoints, title, summary))
    routes = [_route(front, endpoint) for endpoint in table]
    app = Starlette(routes=routes, middleware=[Middleware(cast(Any, RequestMiddleware), gateway=front)])
    app.router.redirect_slashes = False
    app.router.default = cast(Any, _Nowhere(front, routes))
    app.state.gateway = front
    return app


def context_of(app: Starlette) -> ServerContext:
    front: ServerContext = app.state.gateway
    return front


def gateway_of(app: Starlette) -> Gateway:
    gateway: Gateway = app.state.gateway
    return gateway


def _openapi_endpoint(endpoints: Sequence[EndpointOf[F]], title: str, summary: str) -> EndpointOf[F]:
    body: list[bytes] = []

    async def openapi(call: HttpCall[F]) -> Answer:
        if not body:
            body.append(dump(openapi_document((*endpoints, endpoint), VERSION, title, summary)))
        return Answer(200, body[0])

    success = Success(200, "This document.", "application/json", {"type": "object"})
    endpoint = EndpointOf[F]("openapi", "GET", paths.OPENAPI, openapi, "This document.", (success,))
    return endpoint


class _OneMethod(Route):
    """A route that matches its own method only: what is left goes to ``_Nowhere``, which knows all methods of
    a path."""

    def matches(self, scope: Any) -> tuple[Match, Any]:
        match, child = super().matches(scope)
        return (match, child) if match is Match.FULL else (Match.NONE, {})


def _route(front: F, endpoint: EndpointOf[F]) -> Route:
    route = _OneMethod(
        endpoint.path, EndpointApp(front, endpoint), methods=[endpoint.method], name=endpoint.operation
    )
    route.methods = {endpoint.method}
    return route


@attrs.frozen
class _Nowhere:
    """Answers what no route matches: 405 if the path exists, else 404."""

    front: ServerContext
    routes: list[Route]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        allowed = sorted(
            {
                method
                for route in self.routes
                if route.path_regex.match(scope["path"])
                for method in route.methods or ()
            }
        )
        shown = f"{scope['method']} {scope['path'][:200]}"
        error = (
            MethodNotAllowed(f"{shown}: this path takes {', '.join(allowed)}", allowed=", ".join(allowed))
            if allowed
            else NoSuchPath(f"{shown}: there is nothing here; {paths.OPENAPI} lists what there is")
        )
        call = HttpCall(self.front, Operation(), {**scope, "path_params": {}}, receive, send)
        with suppress(Disconnected):
            await call.answer(problem_answer(scope, error))


__all__ = ["ServerLimits", "app_of", "context_of", "gateway_of", "make_app"]
