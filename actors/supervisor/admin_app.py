"""The supervisor's table of endpoints, and the application that it makes.

Owns: every path of the supervisor, with what its OpenAPI document says of it (rule H16). Does not own: the
handlers (``admin.py``), nor how a table is served (``gateway/server``).

What leads on to a host is not in the document: the host's own describes it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette

from ...storage_backends.base.errors import NotOwner, OutcomeUnknown, Throttled, TierlogError
from ...storage_backends.base.world import World
from ..gateway.server.app import app_of
from ..gateway.server.call import Answer
from ..gateway.server.context import ServerLimits
from ..gateway.server.endpoint import Body, EndpointOf, Parameter, Success
from ..gateway.server.schemas import NUMBER, TEXT, WAIT, Schema, ref
from ..gateway.wire import paths
from ..gateway.wire.documents import JSON_TYPE
from ..gateway.wire.errors import (
    Conflict,
    CrossOrigin,
    NoSuchContainer,
    NoSuchHost,
    RequestTimeout,
    TooLarge,
    UnsupportedMediaType,
)
from ..telemetry.metrics import CONTENT_TYPE as METRICS_TYPE
from ..telemetry.tracing import Tracing
from . import admin
from .admin import AdminCall, AdminContext
from .supervisor import Supervisor

LIMITS = ServerLimits(json_bytes=64 << 10)
"""An order is a name at most."""
_LIST: Schema = {"type": "array", "items": {"type": "object"}}
_FLAG: Schema = {"type": "boolean"}
_ORDERED: tuple[type[TierlogError], ...] = (
    CrossOrigin,
    TooLarge,
    UnsupportedMediaType,
    RequestTimeout,
    Throttled,
)
_NOTHING = Body(JSON_TYPE, ref("Nothing"), required=False)
_HOST: Schema = {
    "type": "object",
    "properties": {"host": TEXT},
    "required": ["host"],
    "additionalProperties": False,
}

Endpoint = EndpointOf[AdminContext]
Handler = Callable[[AdminCall], Awaitable[Answer]]


def make_admin_app(
    supervisor: Supervisor,
    facts: dict[str, Any],
    world: World,
    *,
    limits: ServerLimits = LIMITS,
    tracing: Tracing | None = None,
) -> Starlette:
    """The application. ``facts``: what the status says besides what the supervisor knows (store, folder,
    ...)."""
    front = AdminContext(supervisor, facts, world, limits, tracing)
    return app_of(front, ENDPOINTS, "tierlog supervisor", "Hosts, containers and where they are.")


def _object(properties: dict[str, Schema]) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _json(schema: Schema, help: str = "The answer.", status: int = 200) -> Success:
    return Success(status, help, JSON_TYPE, schema)


def _get(
    operation: str, path: str, handler: Handler, help: str, *successes: Success, **more: Any
) -> Endpoint:
    return Endpoint(operation, "GET", path, handler, help, successes, **more)


def _order(
    operation: str, path: str, handler: Handler, help: str, *errors: type[TierlogError], body: Body = _NOTHING
) -> Endpoint:
    success = _json(_STATUS, "The order was taken; the status tells how it goes.", 202)
    return Endpoint(
        operation, "POST", path, handler, help, (success,), body=body, errors=(*_ORDERED, *errors)
    )


_STATUS = _object(
    {
        "term": NUMBER,
        "ready": _FLAG,
        "stopping": _FLAG,
        "map_version": NUMBER,
        "hosts": _LIST,
        "containers": _LIST,
    }
)
_HEALTH = _object({"status": TEXT, "unhealthy_storage": {"type": "object"}})
_READY = _object(
    {"ready": _FLAG, "draining": _FLAG, "containers_not_served": {"type": "array", "items": NUMBER}}
)

ENDPOINTS = (
    _get(
        "page",
        "/",
        admin.page,
        "The status as a page.",
        Success(200, "HTML.", "text/html; charset=utf-8", TEXT),
    ),
    _get(
        "health",
        paths.HEALTH,
        admin.health,
        "Whether the supervisor lives.",
        _json(_HEALTH),
    ),
    _get(
        "ready",
        paths.READY,
        admin.ready,
        "Whether every container is served.",
        _json(_READY),
        _json(_READY, "Not all are.", 503),
    ),
    _get(
        "metrics",
        paths.METRICS,
        admin.metrics,
        "All numbers, for Prometheus.",
        Success(200, "One scrape.", METRICS_TYPE, TEXT),
    ),
    _get("status", "/v1/status", admin.status, "Hosts, containers, failovers.", _json(_STATUS)),
    _get(
        "containers",
        paths.CONTAINERS,
        admin.containers,
        "The container map; with `after` as a long poll.",
        _json(ref("Map")),
        parameters=(
            Parameter("after", "query", NUMBER, "Wait until the map's version is another than this."),
            Parameter("wait", "query", WAIT, "Seconds that a long poll waits."),
        ),
        errors=(Throttled,),
        tail=True,
    ),
    _order(
        "move",
        f"{paths.CONTAINERS}/{{container}}/move",
        admin.move,
        "Serve a container by another host.",
        NoSuchContainer,
        NoSuchHost,
        Conflict,
        body=Body(JSON_TYPE, _HOST),
    ),
    _order(
        "open",
        f"{paths.CONTAINERS}/{{container}}/open",
        admin.open_container,
        "Open a container that was set aside.",
        NoSuchContainer,
    ),
    _order(
        "drain",
        "/v1/hosts/{host}/drain",
        admin.drain,
        "Move a host's containers away and start it again.",
        NoSuchHost,
    ),
    _order("start", "/v1/hosts/{host}/start", admin.start, "Start a host that was given up.", NoSuchHost),
    _order("roll", "/v1/roll", admin.roll, "Start every host again, one after the other."),
    _get(
        "list",
        paths.SEGMENTS,
        admin.segments,
        "The names of all hosts' segments, sorted; every path below leads (307) to the host that has the "
        "container.",
        _json(ref("Names")),
        parameters=(Parameter("prefix", "query", TEXT, "What the names begin with."),),
        errors=(Throttled,),
    ),
    _get(
        "list-transactions",
        paths.TRANSACTIONS,
        admin.transactions,
        "The transactions of all hosts, sorted by target and id.",
        _json(ref("Transactions")),
        parameters=(Parameter("prefix", "query", TEXT, "What the names of their targets begin with."),),
        errors=(Throttled,),
    ),
    Endpoint(
        "flush",
        "POST",
        paths.FLUSH,
        admin.flush,
        "Flush every container.",
        (_json(ref("Empty")),),
        body=_NOTHING,
        errors=(*_ORDERED, OutcomeUnknown),
    ),
    Endpoint(
        "batch",
        "POST",
        paths.BATCH,
        admin.batch,
        "No owner is here, whatever the body is: batches go to hosts, which the container map names.",
        (),
        errors=(NotOwner, Throttled),
    ),
    *(
        Endpoint(
            f"redirect-{method.lower()}",
            method,
            f"{paths.SEGMENTS}/{{rest:path}}",
            admin.redirect,
            "To a host.",
            (),
            described=False,
        )
        for method in ("GET", "POST")
    ),
)
