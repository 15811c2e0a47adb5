"""The supervisor's HTTP side: what operators, clients and scrapers ask it.

Owns: the endpoints, the redirect of data requests to the host that has the container, the status page. Does not own: any decision
(``fleet.py``), the form of maps and problems (``gateway/wire``).

Every change is a POST, and refused when a page of another site sends it: a browser on this machine reaches this port too. Long polls for
the map end when the server drains. Data never passes through here; two requests that concern all hosts (the list of segments, the
flush) are put to each of them.
"""

from __future__ import annotations

import html
import json
from collections.abc import Awaitable, Callable, Collection
from importlib.metadata import version
from typing import Any
from urllib.parse import urlsplit

import anyio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from ...storage_backends.base.errors import InvalidArgument, NotOwner, TierlogError, Unavailable
from ...storage_backends.base.names import check_segment_name, container_of
from ..gateway.wire import paths
from ..gateway.wire.documents import map_document
from ..gateway.wire.errors import MethodNotAllowed, NoSuchPath, to_problem
from ..metrics import CONTENT_TYPE, StatisticsCollector
from .admin_openapi import openapi_document
from .page import status_page
from .phases import PlacePhase
from .supervisor import Supervisor

_WAIT_DEFAULT, _WAIT_MAX = 30.0, 60.0
_ASK_SECONDS = 30.0
Handler = Callable[[Request], Awaitable[Response]]


class AdminState:
    """What the app shares with the server that runs it: the end."""

    def __init__(self) -> None:
        self.draining = anyio.Event()

    def drain(self) -> None:
        self.draining.set()


def make_admin_app(supervisor: Supervisor, facts: dict[str, Any]) -> Starlette:
    """The application. ``facts``: what the status says besides what the supervisor knows (store, folder, ...)."""
    state = AdminState()
    endpoints = _Endpoints(supervisor, facts, state)
    app = Starlette(
        routes=[Route(path, _guarded(handler), methods=[method]) for method, path, handler in endpoints.table()],
        exception_handlers={TierlogError: _problem, HTTPException: _nowhere},
    )
    app.router.redirect_slashes = False
    app.state.gateway = state
    return app


class _Endpoints:
    def __init__(self, supervisor: Supervisor, facts: dict[str, Any], state: AdminState) -> None:
        self._supervisor = supervisor
        self._facts = facts
        self._state = state

    def table(self) -> list[tuple[str, str, Handler]]:
        return [
            ("GET", "/", self.page),
            ("GET", paths.HEALTH, self.health),
            ("GET", paths.READY, self.ready),
            ("GET", paths.METRICS, self.metrics),
            ("GET", paths.OPENAPI, self.openapi),
            ("GET", "/v1/status", self.status),
            ("GET", paths.CONTAINERS, self.containers),
            ("POST", paths.CONTAINERS + "/{index}/move", self.move),
            ("POST", paths.CONTAINERS + "/{index}/open", self.open),
            ("POST", "/v1/hosts/{host}/drain", self.drain),
            ("POST", "/v1/hosts/{host}/start", self.start),
            ("POST", "/v1/roll", self.roll),
            ("GET", paths.SEGMENTS, self.segments),
            ("POST", paths.FLUSH, self.flush),
            ("POST", paths.BATCH, self.batch),
            ("GET", paths.SEGMENTS + "/{rest:path}", self.redirect),
            ("POST", paths.SEGMENTS + "/{rest:path}", self.redirect),
        ]

    # --- looking ----------------------------------------------------------------------------------------------

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        supervisor = self._supervisor
        missing = [place.index for place in supervisor.fleet.places if place.phase is not PlacePhase.SERVING]
        document = {"ready": supervisor.is_ready, "draining": supervisor.is_stopping, "containers_not_served": missing}
        return JSONResponse(document, 200 if supervisor.is_ready else 503)

    async def metrics(self, request: Request) -> Response:
        from prometheus_client import CollectorRegistry, generate_latest

        registry = CollectorRegistry(auto_describe=False)
        registry.register(StatisticsCollector(lambda: (self._supervisor.view().statistics(),)))
        registry.register(self._supervisor.failover_times)
        return Response(generate_latest(registry), media_type=CONTENT_TYPE)

    async def openapi(self, request: Request) -> Response:
        return JSONResponse(openapi_document(version("tierlog")))

    async def status(self, request: Request) -> Response:
        return JSONResponse(self._status())

    async def page(self, request: Request) -> Response:
        return HTMLResponse(status_page(self._status(), html.escape))

    def _status(self) -> dict[str, Any]:
        return {**self._facts, **self._supervisor.view().document()}

    async def containers(self, request: Request) -> Response:
        """The map; with ``after`` only once its version is another, or after ``wait`` seconds."""
        values = paths.parse_query(request.scope["query_string"], {"after": "a version", "wait": "seconds"})
        wait = paths.query_seconds(values, "wait", _WAIT_DEFAULT, _WAIT_MAX)
        if "after" in values:
            await self._wait_for_change(paths.query_number(values, "after", 0), wait)
        return JSONResponse(map_document(self._supervisor.map()))

    async def _wait_for_change(self, known: int, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            while self._supervisor.map_version == known and not self._state.draining.is_set():
                await self._first_of(self._supervisor.changed, self._state.draining)

    async def _first_of(self, *events: anyio.Event) -> None:
        async with anyio.create_task_group() as tasks:

            async def wait(event: anyio.Event) -> None:
                await event.wait()
                tasks.cancel_scope.cancel()

            for event in events:
                tasks.start_soon(wait, event)

    # --- orders -----------------------------------------------------------------------------------------------

    async def move(self, request: Request) -> Response:
        host = (await _members(request, {"host"})).get("host")
        if not isinstance(host, str):
            raise InvalidArgument('the body names the host: {"host": "host-1"}')
        self._supervisor.move(_index(request), host)
        return self._taken()

    async def open(self, request: Request) -> Response:
        await _members(request, ())
        self._supervisor.release(_index(request))
        return self._taken()

    async def drain(self, request: Request) -> Response:
        await _members(request, ())
        self._supervisor.drain(request.path_params["host"])
        return self._taken()

    async def start(self, request: Request) -> Response:
        await _members(request, ())
        self._supervisor.start(request.path_params["host"])
        return self._taken()

    async def roll(self, request: Request) -> Response:
        await _members(request, ())
        self._supervisor.roll()
        return self._taken()

    def _taken(self) -> Response:
        """The order was taken; the status tells how it goes."""
        return JSONResponse(self._status(), 202)

    # --- data -------------------------------------------------------------------------------------------------

    async def redirect(self, request: Request) -> Response:
        """To the host that has the segment's container."""
        found = paths.split_segment_path(request.scope["path"])
        if found is None:
            raise NoSuchPath(f"there is nothing at {request.scope['path']}")

        check_segment_name(found[0])
        index = container_of(found[0], len(self._supervisor.fleet.places))
        url = self._supervisor.map().containers[index].url
        if url is None:
            raise self._unserved(index)

        raw = request.scope.get("raw_path") or request.scope["path"].encode()
        query = request.scope["query_string"]
        return RedirectResponse(f"{url}{raw.decode('latin-1')}{'?' + query.decode('latin-1') if query else ''}", 307)

    def _unserved(self, index: int) -> Unavailable:
        place = self._supervisor.fleet.places[index]
        reason = f": {place.reason}" if place.reason else ""
        return Unavailable(f"container {index} is {place.phase.value}{reason}")

    async def segments(self, request: Request) -> Response:
        """All names, of all hosts."""
        query = request.scope["query_string"].decode("latin-1")
        answers = await self._ask_all("GET", f"{paths.SEGMENTS}{'?' + query if query else ''}")
        names = sorted({name for answer in answers for name in answer["segments"]})
        return JSONResponse({"segments": names})

    async def batch(self, request: Request) -> Response:
        """Clients send a batch here while they know no owner of its containers. Nothing is applied, and they look at the map (H13)."""
        raise NotOwner("the supervisor serves no container: ask it for the container map")

    async def flush(self, request: Request) -> Response:
        await self._ask_all("POST", paths.FLUSH)
        return JSONResponse({})

    async def _ask_all(self, method: str, path: str) -> list[dict[str, Any]]:
        """The documents that the hosts answer, each asked once. ``Unavailable`` if a container has no host now."""
        import httpx

        places = self._supervisor.map().containers
        for place in places:
            if place.url is None:
                raise self._unserved(place.container)

        answers: list[dict[str, Any]] = []
        async with httpx.AsyncClient(timeout=_ASK_SECONDS) as client, anyio.create_task_group() as tasks:
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


def _guarded(handler: Handler) -> Handler:
    async def guarded(request: Request) -> Response:
        origin = request.headers.get("origin")
        if request.method != "GET" and origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
            raise InvalidArgument(f"a page of {origin} may not give orders here")
        return await handler(request)

    return guarded


async def _members(request: Request, allowed: Collection[str]) -> dict[str, Any]:
    """The members of the body's JSON object; an empty body has none."""
    body = await request.body()
    try:
        document = json.loads(body or b"{}")
    except (ValueError, RecursionError) as error:
        raise InvalidArgument("the body is a JSON object") from error

    if not isinstance(document, dict) or not set(document) <= set(allowed):
        raise InvalidArgument(f"the body is a JSON object with {', '.join(sorted(allowed)) or 'nothing in it'}")
    return document


def _index(request: Request) -> int:
    text = request.path_params["index"]
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InvalidArgument(f"a container is a number, not {text[:50]!r}")
    return int(text)


async def _problem(request: Request, error: Exception) -> Response:
    problem = to_problem(error)
    return Response(problem.body(), problem.status, problem.headers)


async def _nowhere(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        return await _problem(request, MethodNotAllowed(f"{request.url.path} is not for {request.method}", allowed=allowed))
    return await _problem(request, NoSuchPath(f"there is nothing at {request.url.path}"))
