"""The supervisor's HTTP side: what operators, clients and scrapers ask it.

Owns: the endpoints' handlers, the redirect of data requests to the host that has the container. Does not own:
any decision (``fleet.py``), the table of endpoints (``admin_app.py``), the status page's look (``page.py``),
the form of maps and problems (``gateway/wire``), limits, request ids and spans (``gateway/server``, which
serves this table as it serves a host's).

Every change is a POST, and refused when a page of another site sends it: a browser on this machine reaches
this port too. A long poll for the map ends with a change, with its time, with its client or with the server.
Data never passes through here; two requests that concern all hosts (the list of segments, the flush) are put
to each of them.
"""

from __future__ import annotations

import html
from typing import Any
from urllib.parse import urlsplit

import anyio

from ...storage_backends.base.errors import InvalidArgument, NotOwner, Unavailable
from ...storage_backends.base.names import check_segment_name, container_of
from ...storage_backends.base.world import World
from ..gateway.server.call import Answer, HttpCall, document
from ..gateway.server.context import ServerContext, ServerLimits
from ..gateway.wire import documents, paths
from ..gateway.wire.documents import JSON_TYPE, map_document
from ..gateway.wire.errors import CrossOrigin, NoSuchPath
from ..telemetry.metrics import CONTENT_TYPE
from ..telemetry.tracing import Tracing
from .page import status_page
from .phases import AssignmentPhase
from .supervisor import Supervisor

_ASK_SECONDS = 30.0


class AdminContext(ServerContext):
    """What the endpoints share: the supervisor."""

    def __init__(
        self,
        supervisor: Supervisor,
        facts: dict[str, Any],
        world: World,
        limits: ServerLimits,
        tracing: Tracing | None,
    ) -> None:
        super().__init__(world, limits, tracing)
        self.supervisor = supervisor
        self._facts = facts

    def status(self) -> dict[str, Any]:
        return {**self._facts, **self.supervisor.view().document()}


AdminCall = HttpCall[AdminContext]


# --- looking ------------------------------------------------------------------------------------


async def health(call: AdminCall) -> Answer:
    unhealthy = call.server.supervisor.view().unhealthy_storage()
    return document({"status": "ok", "unhealthy_storage": unhealthy})


async def ready(call: AdminCall) -> Answer:
    supervisor = call.server.supervisor
    missing = [place.index for place in supervisor.fleet.places if place.phase is not AssignmentPhase.SERVING]
    told = {
        "ready": supervisor.is_ready,
        "draining": supervisor.is_stopping,
        "containers_not_served": missing,
    }
    return document(told, 200 if supervisor.is_ready else 503)


async def metrics(call: AdminCall) -> Answer:
    supervisor = call.server.supervisor
    text = call.server.metrics.render(lambda: (supervisor.view().statistics(),), supervisor.failover_times)
    return Answer(200, text, CONTENT_TYPE)


async def status(call: AdminCall) -> Answer:
    return document(call.server.status())


async def page(call: AdminCall) -> Answer:
    return Answer(200, status_page(call.server.status(), html.escape).encode(), "text/html; charset=utf-8")


async def containers(call: AdminCall) -> Answer:
    """The map; with ``after`` only once its version is another, or after ``wait`` seconds."""
    front = call.server
    query = call.query(after="a version", wait="seconds")
    wait = paths.query_seconds(query, "wait", front.limits.wait_default, front.limits.wait_max)
    if "after" in query and not front.draining:
        await _wait_for_change(call, paths.query_number(query, "after", 0), wait)
    return document(map_document(front.supervisor.map()))


async def _wait_for_change(call: AdminCall, known: int, seconds: float) -> None:
    """Ends early when the server drains, and with ``Disconnected`` when the client goes (rule H11)."""
    supervisor = call.server.supervisor
    async with call.while_connected() as scope:
        with call.server.parked(scope), anyio.move_on_after(seconds):
            while supervisor.map_version == known:
                await supervisor.changed.wait()


# --- orders -------------------------------------------------------------------------------------


async def move(call: AdminCall) -> Answer:
    body = documents.read_request(await _order_body(call), ("host",))
    call.server.supervisor.move(_container(call), documents.request_member(body, "host", str))
    return _taken(call)


async def open_container(call: AdminCall) -> Answer:
    documents.parse_nothing(await _order_body(call))
    call.server.supervisor.release(_container(call))
    return _taken(call)


async def drain(call: AdminCall) -> Answer:
    documents.parse_nothing(await _order_body(call))
    call.server.supervisor.drain(call.scope["path_params"]["host"])
    return _taken(call)


async def start(call: AdminCall) -> Answer:
    documents.parse_nothing(await _order_body(call))
    call.server.supervisor.start(call.scope["path_params"]["host"])
    return _taken(call)


async def roll(call: AdminCall) -> Answer:
    documents.parse_nothing(await _order_body(call))
    call.server.supervisor.roll()
    return _taken(call)


async def _order_body(call: AdminCall) -> bytes:
    """The body of an order, which has no query. A browser sends an empty one to any server without asking it
    first, hence the check."""
    origin = call.header("Origin")
    if origin is not None and urlsplit(origin).netloc != call.header("Host"):
        raise CrossOrigin(f"a page of {origin} may not give orders here")

    call.query()
    return await call.body(JSON_TYPE, call.server.limits.json_bytes)


def _taken(call: AdminCall) -> Answer:
    """The order was taken; the status tells how it goes."""
    return document(call.server.status(), 202)


def _container(call: AdminCall) -> int:
    text: str = call.scope["path_params"]["container"]
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InvalidArgument(f"a container is a number, not {text[:50]!r}")
    return int(text)


# --- data ---------------------------------------------------------------------------------------


async def redirect(call: AdminCall) -> Answer:
    """To the host that has the segment's container."""
    path: str = call.scope["path"]
    found = paths.split_segment_path(path)
    if found is None:
        raise NoSuchPath(f"there is nothing at {path}")

    check_segment_name(found[0])
    supervisor = call.server.supervisor
    index = container_of(found[0], len(supervisor.fleet.places))
    url = supervisor.map().containers[index].url
    if url is None:
        raise _unserved(supervisor, index)

    raw: bytes = call.scope.get("raw_path") or path.encode()
    query: bytes = call.scope["query_string"]
    target = f"{url}{raw.decode('latin-1')}{'?' + query.decode('latin-1') if query else ''}"
    return Answer(307, headers={"Location": target})


def _unserved(supervisor: Supervisor, index: int) -> Unavailable:
    place = supervisor.fleet.places[index]
    reason = f": {place.reason}" if place.reason else ""
    return Unavailable(f"container {index} is {place.phase.value}{reason}")


async def segments(call: AdminCall) -> Answer:
    """All names, of all hosts."""
    prefix = paths.query_text(call.query(prefix="what the names begin with").get("prefix", ""))
    answers = await _ask_all(call.server.supervisor, "GET", paths.list_path(prefix))
    return document({"segments": sorted({name for answer in answers for name in answer["segments"]})})


async def transactions(call: AdminCall) -> Answer:
    """All known ones, of all hosts."""
    prefix = paths.query_text(
        call.query(prefix="what the names of their targets begin with").get("prefix", "")
    )
    answers = await _ask_all(call.server.supervisor, "GET", paths.transactions_path(prefix))
    found = {
        (info["target"], info["transaction_id"]): info
        for answer in answers
        for info in answer["transactions"]
    }
    return document({"transactions": [found[key] for key in sorted(found)]})


async def batch(call: AdminCall) -> Answer:
    """Clients send a batch here while they know no owner of its containers. Nothing is applied, and they look
    at the map (H13)."""
    raise NotOwner("the supervisor serves no container: ask it for the container map")


async def flush(call: AdminCall) -> Answer:
    documents.parse_nothing(await _order_body(call))
    await _ask_all(call.server.supervisor, "POST", paths.FLUSH)
    return document({})


async def _ask_all(supervisor: Supervisor, method: str, path: str) -> list[dict[str, Any]]:
    """The documents that the hosts answer, each asked once. ``Unavailable`` if a container has no host
    now."""
    import httpx

    places = supervisor.map().containers
    for place in places:
        if place.url is None:
            raise _unserved(supervisor, place.container)

    answers: list[dict[str, Any]] = []
    async with (
        httpx.AsyncClient(timeout=_ASK_SECONDS, trust_env=False) as client,
        anyio.create_task_group() as tasks,
    ):
        for url in sorted({place.url for place in places if place.url is not None}):
            tasks.start_soon(_ask, client, method, url + path, answers)
    if any(not answer for answer in answers):
        raise Unavailable("a host did not answer: ask again")
    return [answer["document"] for answer in answers]


async def _ask(client: Any, method: str, url: str, answers: list[dict[str, Any]]) -> None:
    import httpx

    try:
        answer = await client.request(method, url)
        answers.append({"document": answer.json() if answer.content else {}} if answer.is_success else {})
    except (httpx.HTTPError, ValueError):
        answers.append({})
