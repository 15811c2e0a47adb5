"""The supervisor's server without processes: its bounds, its long poll, and its spans."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import attrs
import httpx
import pytest
from starlette.applications import Starlette

from support.fake_hosts import FakeHostsSupervisor
from support.http_server import everything, until
from support.patience import scaled
from support.spans import Recorder, attributes_of
from tierlog.actors.gateway.server.app import context_of
from tierlog.actors.gateway.server.context import ServerContext
from tierlog.actors.gateway.server.listener import bind, serve_http
from tierlog.actors.store.folder_opening import system_world
from tierlog.actors.supervisor.admin import LIMITS, make_admin_app
from tierlog.actors.telemetry.opentelemetry import opentelemetry_tracing
from tierlog.actors.telemetry.tracing import Tracing

pytestmark = pytest.mark.anyio


@attrs.frozen
class Admin:
    supervisor: FakeHostsSupervisor
    app: Starlette
    port: int
    http: httpx.AsyncClient

    @property
    def front(self) -> ServerContext:
        return context_of(self.app)

    def poll(self) -> bytes:
        """A long poll that has a minute to wait."""
        return (
            b"GET /v1/containers?after=%d&wait=60 HTTP/1.1\r\nhost: localhost\r\n\r\n"
            % self.supervisor.published.version
        )


@asynccontextmanager
async def admin(tracing: Tracing | None = None) -> AsyncIterator[Admin]:
    supervisor = FakeHostsSupervisor(3, 2)
    app = make_admin_app(supervisor, {}, system_world(), tracing=tracing)
    async with (
        serve_http(app, bind("127.0.0.1", 0), stop_timeout=1.0) as server,
        httpx.AsyncClient(base_url=server.url, timeout=scaled(10), verify=False) as http,
    ):
        yield Admin(supervisor, app, server.port, http)


def problem(answer: httpx.Response) -> dict[str, Any]:
    assert answer.headers["content-type"] == "application/problem+json"
    document: dict[str, Any] = answer.json()
    return document


# --- bounds -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    ["/v1/containers/0/move", "/v1/containers/0/open", "/v1/hosts/host-0/drain", "/v1/roll", "/v1/flush"],
)
async def test_h9_an_orders_body_is_bounded(path: str) -> None:
    async with admin() as served:
        stream = await anyio.connect_tcp("127.0.0.1", served.port)
        head = (
            b"POST %s HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n"
        )
        await stream.send(head % (path.encode(), LIMITS.json_bytes + 1))
        answer = await everything(stream)  # Nothing of the body was sent, and none is waited for.

    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"application/problem+json" in answer


async def test_h9_an_orders_body_without_a_length_is_bounded_too() -> None:
    async with admin() as served:
        stream = await anyio.connect_tcp("127.0.0.1", served.port)
        await stream.send(
            b"POST /v1/roll HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"transfer-encoding: "
            b"chunked\r\n\r\n"
        )
        piece = b" " * (LIMITS.json_bytes // 2)
        for _ in range(2):
            await stream.send(b"%x\r\n%s\r\n" % (len(piece), piece))
        await stream.send(b"1\r\n \r\n")  # The body goes on; nobody waits for its end.
        answer = await everything(stream)

    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"application/problem+json" in answer


async def test_h9_a_trailer_does_not_end_the_connection() -> None:
    flush = (
        b"POST /v1/flush HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nConnection: close\r\n\r\n"
    )
    last = b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    async with admin() as served:
        stream = await anyio.connect_tcp("127.0.0.1", served.port)
        await stream.send(flush + flush + last)
        answer = await everything(stream)

    assert answer.count(b"HTTP/1.1 ") == 3
    assert answer.count(b"connection: close") == 1


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]
)
async def test_h9_a_browsers_own_requests_are_no_orders(content_type: str) -> None:
    async with admin() as served:
        answer = await served.http.post(
            "/v1/containers/0/move", content=b'{"host": "host-1"}', headers={"Content-Type": content_type}
        )
        assert (answer.status_code, problem(answer)["code"]) == (415, "unsupported-media-type")


async def test_h8_a_member_that_is_given_twice_is_refused() -> None:
    async with admin() as served:
        body = b'{"host": "host-0", "host": "host-1"}'
        answer = await served.http.post(
            "/v1/containers/0/move", content=body, headers={"Content-Type": "application/json"}
        )
        assert (answer.status_code, problem(answer)["code"]) == (400, "invalid-argument")


async def test_an_order_that_is_impossible_now_is_a_conflict() -> None:
    async with admin() as served:
        served.supervisor.silent.add("host-1")
        served.supervisor.lose("host-1")
        answer = await served.http.post("/v1/containers/0/move", json={"host": "host-1"})
        assert (answer.status_code, problem(answer)["code"]) == (409, "conflict")


async def test_a_drain_of_a_host_that_does_not_serve_is_a_conflict() -> None:
    """It was accepted, and nothing followed from it."""
    async with admin() as served:
        served.supervisor.silent.add("host-1")
        served.supervisor.lose("host-1")
        answer = await served.http.post("/v1/hosts/host-1/drain")
        assert (answer.status_code, problem(answer)["code"]) == (409, "conflict")
        assert "host-1 is silent and cannot be drained now" in problem(answer)["detail"]


async def test_h14_answers_and_problems_have_the_requests_id() -> None:
    async with admin() as served:
        good = await served.http.get("/v1/status", headers={"X-Request-Id": "r-1"})
        bad = await served.http.post("/v1/hosts/host-9/drain", headers={"X-Request-Id": "r-2"})

    assert good.headers["x-request-id"] == "r-1"
    assert (bad.headers["x-request-id"], problem(bad)["request_id"]) == ("r-2", "r-2")


# --- the long poll ------------------------------------------------------------------------------


async def test_h11_a_long_poll_for_the_map_ends_when_its_client_disconnects() -> None:
    async with admin() as served:
        stream = await anyio.connect_tcp("127.0.0.1", served.port)
        await stream.send(served.poll())
        await until(lambda: served.front.tails == 1)
        await stream.aclose()
        await until(lambda: served.front.tails == 0)

        operation = served.front.metrics.operation("containers")
        await until(lambda: operation.in_flight == 0)
        assert operation.answers == {("GET", 499): 1}


async def test_h11_a_change_of_the_map_ends_a_long_poll() -> None:
    async with admin() as served:
        known = served.supervisor.published.version
        versions: list[int] = []

        async def poll() -> None:
            answer = await served.http.get("/v1/containers", params={"after": known, "wait": "60"})
            versions.append(answer.json()["version"])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(poll)
            await until(lambda: served.front.tails == 1)
            served.supervisor.lose("host-0")

    assert versions == [served.supervisor.published.version]
    assert versions[0] > known


async def test_h15_the_end_of_the_server_ends_a_long_poll() -> None:
    async with admin() as served:
        stream = await anyio.connect_tcp("127.0.0.1", served.port)
        await stream.send(served.poll())
        await until(lambda: served.front.tails == 1)

    assert (await everything(stream)).startswith(b"HTTP/1.1 200 ")


# --- spans --------------------------------------------------------------------------------------

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


async def test_each_request_is_one_span_that_continues_with_the_clients_trace() -> None:
    recorder = Recorder()
    async with admin(opentelemetry_tracing(recorder.provider)) as served:
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "X-Request-Id": "r-1"}
        assert (
            await served.http.post("/v1/containers/1/move", json={"host": "host-0"}, headers=headers)
        ).status_code == 202

    [span] = recorder.all()
    assert span.name == "POST /v1/containers/{container}/move"
    assert span.context is not None
    assert span.parent is not None
    assert (f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE, PARENT)
    reported = attributes_of(span)
    assert reported["http.route"] == "/v1/containers/{container}/move"
    assert reported["http.response.status_code"] == 202
    assert reported["url.path"] == "/v1/containers/1/move"
    assert reported["tierlog.request_id"] == "r-1"
    recorder.provider.shutdown()


async def test_a_refused_order_is_no_failure_of_the_supervisor_s() -> None:
    recorder = Recorder()
    async with admin(opentelemetry_tracing(recorder.provider)) as served:
        assert (await served.http.post("/v1/hosts/host-9/drain")).status_code == 404
        assert (await served.http.delete("/tea")).status_code == 404

    refused, strange = recorder.all()
    assert (refused.name, attributes_of(refused)["http.response.status_code"]) == (
        "POST /v1/hosts/{host}/drain",
        404,
    )
    assert refused.status.is_unset
    assert (strange.name, "http.route" in attributes_of(strange)) == ("_OTHER", False)
    recorder.provider.shutdown()
