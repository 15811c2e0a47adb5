"""The supervisor's HTTP application: what operators, clients and scrapers ask it, served as a host's
endpoints are (``gateway/server``).

A long poll for the map ends with a change, with its time, with its client or with the server.
Data never passes through here, but in one-port mode: requests for a segment, or for what a container deletes,
are redirected to the host that has the container, and requests that concern all hosts (the lists, the flush)
are sent to each of them.
"""

from __future__ import annotations

import html
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import anyio
import attrs
from msgspec import Struct
from starlette.applications import Starlette

from ...storage_backends.base.errors import (
    NotOwner,
    OutcomeUnknown,
    Throttled,
    TierlogError,
    Unavailable,
)
from ...storage_backends.base.list_pages import SEGMENTS, TRANSACTIONS
from ...storage_backends.base.names import check_segment_name, container_of
from ...storage_backends.base.world import World
from ..gateway.server.admin_handlers import HTML, SCRAPE
from ..gateway.server.all_hosts import AllHosts
from ..gateway.server.app import ENDPOINTS, app_of
from ..gateway.server.call import Answer, HttpCall, json_answer
from ..gateway.server.context import ServerContext, ServerLimits
from ..gateway.server.endpoint import BODY_ERRORS, Endpoint, Parameter, Success, endpoint, endpoints_of
from ..gateway.server.read_handlers import SEGMENTS_PARAMETERS
from ..gateway.server.tails import Wait
from ..gateway.server.transaction_handlers import TRANSACTIONS_PARAMETERS
from ..gateway.server.write_handlers import answer_batch, receive_batch
from ..gateway.wire import paths
from ..gateway.wire.batch import BatchItem, Outcome
from ..gateway.wire.bodies import (
    JSON_TYPE,
    ContainerMap,
    ContainerStatus,
    Empty,
    HostStatus,
    Move,
    Nothing,
    Number,
    SegmentNames,
    Transactions,
)
from ..gateway.wire.errors import (
    Conflict,
    CrossOrigin,
    NoSuchContainer,
    NoSuchHost,
    NoSuchPath,
)
from ..telemetry.metrics import CONTENT_TYPE
from ..telemetry.tracing import Tracing
from .assignment import AssignmentPhase
from .page import status_page
from .statistics import url_of
from .supervisor import Supervisor

_REDIRECT = Success(
    307,
    "Send the same request to the host that has the container.",
    headers={"Location": "The URL there."},
)
# Documented here too, so that one document describes what can be asked at this address.
_REDIRECTED = [
    attrs.evolve(endpoint, successes=(_REDIRECT, *endpoint.successes))
    for endpoint in ENDPOINTS
    if endpoint.path.startswith((f"{paths.SEGMENTS}/", f"{paths.CONTAINERS}/{{container}}/"))
]
LIMITS = ServerLimits(json_bytes=64 << 10)
"""A command is a name at most."""
_ACTIVE = "active"
"""The state of a served container, as its host reports it."""


class Status(Struct):
    term: Number
    ready: bool
    stopping: bool
    map_version: Number
    hosts: list[dict[str, Any]]
    containers: list[dict[str, Any]]


class SupervisorHealth(Struct):
    status: str
    unhealthy_storage: dict[str, Any]


class Readiness(HostStatus, frozen=True):
    containers_not_served: list[Number]


class AdminContext(ServerContext):
    """The supervisor, for its endpoints."""

    def __init__(
        self,
        supervisor: Supervisor,
        facts: dict[str, Any],
        world: World,
        limits: ServerLimits,
        tracing: Tracing | None,
        names: Iterable[str],
        *,
        forwards: bool,
    ) -> None:
        super().__init__(world, limits, tracing, names)
        self.supervisor = supervisor
        self._facts = facts
        self.all_hosts = AllHosts(lambda: supervisor.map().containers)
        if forwards:
            from ..gateway.server.forwarding import Forwarder  # takes 0.1 s

            # Asked for each item of a batch: a whole map each time would stop the loop for seconds.
            self.forwarder = Forwarder(partial(url_of, supervisor.fleet), tracing=tracing)

    async def run(self) -> None:
        if self.forwarder is not None:
            await self.forwarder.run()

    def taken_files(self) -> int:
        return self.supervisor.connected

    def container_map(self) -> ContainerMap:
        """As clients get it: in one-port mode they send everything here (rule H22)."""
        found = self.supervisor.map()
        return found if self.forwarder is None else found.behind_one_port()

    def status(self) -> dict[str, Any]:
        return {**self._facts, **self.supervisor.view().document()}


AdminCall = HttpCall[AdminContext]


def make_admin_app(
    supervisor: Supervisor,
    facts: dict[str, Any],
    world: World,
    *,
    limits: ServerLimits = LIMITS,
    tracing: Tracing | None = None,
    names: Iterable[str] = (),
    forwards: bool = False,
) -> Starlette:
    """The application. ``facts``: what the status has besides what the supervisor knows (store, folder,
    ...). ``names``: under which clients reach the supervisor, besides loopback (rule H18). ``forwards``:
    requests for a container are passed on to its host, and not redirected (rule H22)."""
    context = AdminContext(supervisor, facts, world, limits, tracing, names, forwards=forwards)
    endpoints = endpoints_of(sys.modules[__name__])
    summary = (
        "Hosts, containers and which host serves which; requests for a segment are redirected to its host."
    )
    return app_of(context, endpoints, "tierlog supervisor", summary, redirected=_REDIRECTED)


# --- status -------------------------------------------------------------------------------------


@endpoint("GET", "/", "page", successes=(HTML,))
async def page(call: AdminCall) -> Answer:
    """The status as a page."""
    return Answer(200, status_page(call.server.status(), html.escape).encode(), "text/html; charset=utf-8")


@endpoint("GET", paths.HEALTH, "health")
async def health(call: AdminCall) -> SupervisorHealth:
    """Whether the supervisor is alive, and which hosts see long-term storage unhealthy, which is no reason to
    restart anything."""
    return SupervisorHealth("ok", call.server.supervisor.view().unhealthy_storage())


@endpoint(
    "GET",
    paths.READY,
    "ready",
    successes=(
        Success(200, "Every container is served.", JSON_TYPE, Readiness),
        Success(503, "Not all are.", JSON_TYPE, Readiness),
    ),
)
async def ready(call: AdminCall) -> Answer:
    """Whether every container is served."""
    supervisor = call.server.supervisor
    containers = tuple(
        ContainerStatus(assignment.index, _state(assignment.phase))
        for assignment in supervisor.fleet.assignments
    )
    # In the answer, because a probe shows its body and not the status page.
    missing = [each.container for each in containers if each.state != _ACTIVE]
    found = Readiness(supervisor.is_ready, supervisor.is_stopping, containers, missing)
    return json_answer(found, 200 if supervisor.is_ready else 503)


def _state(phase: AssignmentPhase) -> str:
    return _ACTIVE if phase is AssignmentPhase.SERVING else phase.value


@endpoint("GET", paths.METRICS, "metrics", successes=(SCRAPE,))
async def metrics(call: AdminCall) -> Answer:
    """All metrics, in Prometheus' text format."""
    supervisor = call.server.supervisor
    text = call.server.metrics.render(lambda: (supervisor.view().statistics(),), supervisor.failover_times)
    return Answer(200, text, CONTENT_TYPE)


@endpoint("GET", "/v1/status", "status", successes=(Success(200, "The status.", JSON_TYPE, Status),))
async def status(call: AdminCall) -> Answer:
    """Hosts, containers, failovers."""
    return json_answer(call.server.status())


@endpoint(
    "GET",
    paths.CONTAINERS,
    "containers",
    Throttled,
    is_tail=True,
    help="The map.",
    parameters=(
        Parameter("after", Number, "Wait until the map has another version than this."),
        Parameter("wait", Wait, "Seconds that a long poll waits; 30 by default."),
    ),
)
async def containers(call: AdminCall) -> ContainerMap:
    """The container map; with `after` as a long poll."""
    server = call.server
    query = call.query()
    wait = paths.query_seconds(query, "wait", server.limits.wait_default, server.limits.wait_max)
    # H15: a client that polls again while this stops gets the map as it is.
    if "after" in query and not server.draining:
        await _wait_for_change(call, paths.query_number(query, "after", 0), wait)
    return server.container_map()


async def _wait_for_change(call: AdminCall, known: int, seconds: float) -> None:
    """Ends early when the server drains, and with ``Disconnected`` when the client goes (rule H11)."""
    published = call.server.supervisor.published
    async with call.while_connected() as scope:
        with call.server.parked(scope), anyio.move_on_after(seconds):
            while published.version == known:
                await published.changed.wait()


# --- commands -----------------------------------------------------------------------------------


def _command(path: str, operation: str, *errors: type[TierlogError]) -> Callable[[Any], Endpoint]:
    # 202: the supervisor has decided, and the hosts still have to act.
    accepted = Success(202, "The command was accepted; the status shows its progress.", JSON_TYPE, Status)
    return endpoint("POST", path, operation, Throttled, *BODY_ERRORS[:-1], *errors, successes=(accepted,))


@_command(f"{paths.CONTAINERS}/{{container}}/move", "move", NoSuchContainer, NoSuchHost, Conflict)
async def move(call: AdminCall, body: Move) -> Answer:
    """Move a container to another host and pin it there; `null` unpins it."""
    if body.host is None:
        call.server.supervisor.unpin(call.container)
    else:
        call.server.supervisor.move(call.container, body.host)
    return _accepted(call)


@_command(f"{paths.CONTAINERS}/{{container}}/open", "open", NoSuchContainer)
async def open_container(call: AdminCall, body: Nothing) -> Answer:
    """Open a quarantined container again."""
    call.server.supervisor.release(call.container)
    return _accepted(call)


@_command("/v1/hosts/{host}/drain", "drain", NoSuchHost, Conflict, OutcomeUnknown)
async def drain(call: AdminCall, body: Nothing) -> Answer:
    """Move a host's containers to others, and restart it, or let it exit if it joined."""
    await call.server.supervisor.drain(call.scope["path_params"]["host"])
    return _accepted(call)


@_command("/v1/hosts/{host}/start", "start", NoSuchHost, Conflict)
async def start(call: AdminCall, body: Nothing) -> Answer:
    """Start a host that was given up."""
    call.server.supervisor.start(call.scope["path_params"]["host"])
    return _accepted(call)


@_command("/v1/roll", "roll", Conflict)
async def roll(call: AdminCall, body: Nothing) -> Answer:
    """Restart every host that the supervisor has started, one after the other."""
    call.server.supervisor.roll()
    return _accepted(call)


def _accepted(call: AdminCall) -> Answer:
    return json_answer(call.server.status(), 202)


# --- data ---------------------------------------------------------------------------------------


@endpoint(
    "GET",
    paths.SEGMENTS,
    "list",
    Throttled,
    help="The answer.",
    parameters=SEGMENTS_PARAMETERS,
)
async def page_of_segments(call: AdminCall) -> SegmentNames:
    """A page of the names of all hosts' segments, sorted. With the `token` of a page the next one."""
    return await call.server.all_hosts.page_of_segments(paths.query_page(SEGMENTS, call.query()))


@endpoint(
    "GET",
    paths.TRANSACTIONS,
    "list-transactions",
    Throttled,
    parameters=TRANSACTIONS_PARAMETERS,
    successes=(Success(200, "The answer.", JSON_TYPE, Transactions),),
)
async def page_of_transactions(call: AdminCall) -> Answer:
    """A page of the transactions of all hosts, sorted by target and id. With the `token` of a page the next
    one."""
    return await call.server.all_hosts.page_of_transactions(paths.query_page(TRANSACTIONS, call.query()))


@endpoint("POST", paths.FLUSH, "flush", Throttled, *BODY_ERRORS)
async def flush(call: AdminCall, body: Nothing) -> Empty:
    """Flush every container."""
    await call.server.all_hosts.ask("POST", paths.FLUSH)
    return Empty()


@endpoint("POST", paths.BATCH, "batch", CrossOrigin, NotOwner, Throttled)
async def batch(call: AdminCall) -> None:
    """Refused, but in one-port mode: batches go to the hosts that the container map names."""
    # Clients send a batch here while they know no owner of its containers; they then refresh the map (rule
    # H13).
    nowhere = NotOwner("the supervisor serves no container: ask it for the container map")
    forwarder = call.server.forwarder
    if forwarder is None:
        raise nowhere

    found = call.server.supervisor.map()

    async def refuse_all(items: Sequence[BatchItem]) -> list[Outcome]:
        return [nowhere for _ in items]

    items = await receive_batch(call, found.append_bytes_max)
    count = len(found.containers)
    outcomes = await forwarder.append_each(call, items, lambda name: container_of(name, count), refuse_all)
    await answer_batch(call, items, outcomes)


async def _redirect_segment(call: AdminCall) -> Answer | None:
    """To the host that has the segment's container."""
    path: str = call.scope["path"]
    found = paths.split_segment_path(path)
    if found is None:
        raise NoSuchPath(
            f"{path[:200]}: the path of a segment ends with a verb; {paths.OPENAPI} lists the verbs"
        )

    # Before the hash: a bad name has the same answer here as at a host.
    check_segment_name(found[0])
    index = container_of(found[0], len(call.server.supervisor.fleet.assignments))
    return await _redirect(call, index, parks=found[1] == paths.Verb.TAIL.value)


async def _redirect_container(call: AdminCall) -> Answer | None:
    """To the host that has the container."""
    return await _redirect(call, call.server.supervisor.checked_container(call.container))


async def _redirect(call: AdminCall, index: int, *, parks: bool = False) -> Answer | None:
    supervisor, path = call.server.supervisor, call.scope["path"]
    url = url_of(supervisor.fleet, index)
    if url is None:
        raise Unavailable(supervisor.fleet.assignments[index].absence)

    if call.server.forwarder is not None:
        await call.server.forwarder.forward(call, index, url, supervisor.map().append_bytes_max, parks=parks)
        return None

    # As it was sent: decoded and encoded again, a name with ``%2F`` could become another one.
    raw: bytes = call.scope.get("raw_path") or path.encode()
    query: bytes = call.scope["query_string"]
    target = f"{url}{raw.decode('latin-1')}{'?' + query.decode('latin-1') if query else ''}"
    # RFC 9110, 15.4.8: with 307 the method and the body stay.
    return Answer(307, headers={"Location": target})


# Of its own: parked readers have a bound of their own.
redirect_tail = endpoint(
    "GET",
    f"{paths.SEGMENTS}/{{rest:path}}/{paths.Verb.TAIL.value}",
    "redirect-tail",
    successes=(),
    is_tail=True,
    is_documented=False,
)(_redirect_segment)
redirect_get = endpoint(
    "GET", f"{paths.SEGMENTS}/{{rest:path}}", "redirect-get", successes=(), is_documented=False
)(_redirect_segment)
redirect_post = endpoint(
    "POST", f"{paths.SEGMENTS}/{{rest:path}}", "redirect-post", successes=(), is_documented=False
)(_redirect_segment)

redirect_unconfirmed = endpoint(
    "GET",
    f"{paths.CONTAINERS}/{{container}}/unconfirmed",
    "redirect-unconfirmed",
    successes=(),
    is_documented=False,
)(_redirect_container)
redirect_gc_queue = endpoint(
    "GET", f"{paths.CONTAINERS}/{{container}}/gc", "redirect-gc-queue", successes=(), is_documented=False
)(_redirect_container)
redirect_gc_order = endpoint(
    "POST",
    f"{paths.CONTAINERS}/{{container}}/gc-order",
    "redirect-gc-order",
    successes=(),
    is_documented=False,
)(_redirect_container)
redirect_backups = endpoint(
    "GET",
    f"{paths.CONTAINERS}/{{container}}/backups",
    "redirect-backups",
    successes=(),
    is_documented=False,
)(_redirect_container)
redirect_backup_step = endpoint(
    "POST",
    f"{paths.CONTAINERS}/{{container}}/backup-steps",
    "redirect-backup-step",
    successes=(),
    is_documented=False,
)(_redirect_container)
redirect_confirm = endpoint(
    "POST",
    f"{paths.CONTAINERS}/{{container}}/confirm",
    "redirect-confirm",
    successes=(),
    is_documented=False,
)(_redirect_container)
