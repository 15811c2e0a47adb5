"""Request ids, health, metrics, the OpenAPI document, and the server's end (rules H14 to H16)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from support.http_server import ServedStore, Wrapped, everything, service, serving, until
from support.patience import scaled
from support.stores import CONFIG
from tierlog import open_store
from tierlog.actors.gateway.server.app import ENDPOINTS, gateway_of, make_app
from tierlog.actors.gateway.server.listener import bind, serve_http
from tierlog.actors.gateway.wire import bodies
from tierlog.actors.gateway.wire.paths import Verb
from tierlog.actors.store.folder_opening import system_world
from tierlog.storage_backends.segments.records.unconfirmed import Reason, UnconfirmedRecord

pytestmark = pytest.mark.anyio


# --- request ids --------------------------------------------------------------------------------


async def test_h14_a_clients_request_id_is_returned(served: ServedStore) -> None:
    response = await served.http.get("/nowhere", headers={"X-Request-Id": "mine-1"})

    assert (response.headers["x-request-id"], response.json()["request_id"]) == ("mine-1", "mine-1")


@pytest.mark.parametrize("given", ["", "a b", "x" * 129, 'a"b'])
async def test_h14_an_id_that_logs_should_not_hold_is_replaced(served: ServedStore, given: str) -> None:
    made = [
        (await served.http.get("/health", headers={"X-Request-Id": given})).headers["x-request-id"]
        for _ in range(2)
    ]

    assert given not in made
    assert made[0] != made[1]


# --- confirming ---------------------------------------------------------------------------------


async def test_g4_garbage_is_counted_before_a_container_is_confirmed_and_collected_after_it(
    tmp_path: Path,
) -> None:
    async with open_store(tmp_path / "data", containers=1, config=CONFIG) as store:
        record = UnconfirmedRecord(Reason.RESTORED)
        await store.on_container(0, lambda container: container.confirmation.mark(record))
    unknown = tmp_path / "data/lts/containers/0000" / f"{1:016x}" / f"{1:016x}-{0:016x}-id"
    unknown.parent.mkdir(parents=True)
    unknown.write_bytes(b"01234")

    async with service(tmp_path, containers=1) as served:
        before = await served.http.get("/v1/containers/0/unconfirmed")
        assert before.json() == {"container": 0, "reason": record.explanation, "chunks": 1, "bytes": 5}
        assert unknown.exists()

        for _ in range(2):
            assert (await served.http.post("/v1/containers/0/confirm")).json() == {}
        after = await served.http.get("/v1/containers/0/unconfirmed")
        assert after.json()["reason"] == ""
        await until(lambda: not unknown.exists())


@pytest.mark.parametrize(
    "container, status, code", [("2", 404, "no-such-container"), ("x", 400, "invalid-argument")]
)
async def test_a_container_that_does_not_exist_is_refused(
    served: ServedStore, container: str, status: int, code: str
) -> None:
    asked = await served.http.get(f"/v1/containers/{container}/unconfirmed")
    ordered = await served.http.post(f"/v1/containers/{container}/confirm")

    assert [(each.status_code, each.json()["code"]) for each in (asked, ordered)] == [(status, code)] * 2


async def test_h18_a_page_of_another_site_confirms_nothing(served: ServedStore) -> None:
    answer = await served.http.post(
        "/v1/containers/0/confirm", headers={"Origin": "http://elsewhere.example"}
    )

    assert (answer.status_code, answer.json()["code"]) == (403, "cross-origin")


# --- health -------------------------------------------------------------------------------------


async def test_health_and_readiness_of_a_store_that_serves(served: ServedStore) -> None:
    assert (await served.http.get("/health")).json() == {
        "alive": True,
        "storage": {"state": "ok", "cause": ""},
    }
    response = await served.http.get("/ready")
    status = bodies.decode_answer(response.content, bodies.HostStatus)

    assert response.status_code == 200
    assert status.ready
    assert [container.state for container in status.containers] == ["active", "active"]


async def test_a_store_that_recovers_is_alive_and_not_ready(tmp_path: Path) -> None:
    class Host:
        container, state, current = 0, "recovering", None

    class Statistics:
        containers = (Host,)
        storage = None

    async with (
        open_store(tmp_path / "data", containers=1) as store,
        serving(Wrapped(store, statistics=Statistics)) as served,
    ):
        assert (await served.http.get("/health")).status_code == 200
        response = await served.http.get("/ready")
        page = await served.http.get("/")

    assert response.status_code == 503
    assert bodies.decode_answer(response.content, bodies.HostStatus).containers[0].state == "recovering"
    assert "not ready" in page.text


async def test_metrics_are_the_stores_and_the_servers(served: ServedStore) -> None:
    await served.store.create_segment("a")
    await served.http.post(
        "/v1/segments/a/append", content=b"hello", headers={"Content-Type": "application/octet-stream"}
    )
    await served.http.get("/nowhere")

    response = await served.http.get("/metrics")

    samples = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }
    append = ("operation", "append")
    assert samples["tierlog_http_requests_total", (("method", "POST"), append, ("status", "200"))] == 1
    assert (
        samples["tierlog_http_requests_total", (("method", "GET"), ("operation", "none"), ("status", "404"))]
        == 1
    )
    assert samples["tierlog_http_request_bytes_total", (append,)] == 5
    assert samples["tierlog_http_response_bytes_total", (append,)] == len(b'{"offset":0}')
    assert samples["tierlog_http_request_duration_seconds_count", (append,)] == 1
    assert samples["tierlog_http_request_duration_seconds_bucket", (("le", "+Inf"), append)] == 1
    assert samples["tierlog_http_requests_in_flight", (("operation", "metrics"),)] == 1
    assert samples["tierlog_container_epoch", (("container", "0"),)] == 1


# --- the document -------------------------------------------------------------------------------


async def test_h16_the_document_has_every_route_and_nothing_else(served: ServedStore) -> None:
    document = (await served.http.get("/openapi.json")).json()

    found = {
        (method.upper(), path) for path, operations in document["paths"].items() for method in operations
    }

    assert document["openapi"] == "3.1.0"
    of_all_servers = {("GET", "/openapi.json"), ("GET", "/v1/session")}
    assert found == {(e.method, e.path.replace(":path", "")) for e in ENDPOINTS} | of_all_servers
    assert {verb.value for verb in Verb} <= {
        operation["operationId"] for _, operation in operations_of(document)
    }


async def test_h16_the_documents_references_lead_somewhere(served: ServedStore) -> None:
    document = (await served.http.get("/openapi.json")).json()

    text = json.dumps(document)
    references = {part.split('"')[0] for part in text.split('"$ref": "#/components/schemas/')[1:]}

    assert references <= document["components"]["schemas"].keys()
    assert document["components"]["schemas"].keys() <= references


async def test_h16_every_operation_is_complete(served: ServedStore) -> None:
    document = (await served.http.get("/openapi.json")).json()

    for path, operation in operations_of(document):
        assert operation["summary"]
        assert all(response["description"] for response in operation["responses"].values())
        assert {"500", "503"} <= operation["responses"].keys()
        names = {parameter["name"] for parameter in operation["parameters"] if parameter["in"] == "path"}
        assert names == {name for name in ("name", "container") if f"{{{name}}}" in path}


def operations_of(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, operations in document["paths"].items():
        for operation in operations.values():
            yield path, operation


@pytest.mark.parametrize(
    "path, schema",
    [
        ("/v1/segments/a/info", "SegmentInfo"),
        ("/v1/segments", "SegmentNames"),
        ("/v1/containers", "ContainerMap"),
        ("/ready", "HostStatus"),
        ("/health", "Health"),
        ("/v1/segments/b/info", "ProblemDocument"),
        ("/v1/segments/a/last-event-number?writer_id=w", "EventNumber"),
        ("/v1/segments/a/list-attributes", "ListedAttributes"),
    ],
)
async def test_h16_answers_have_the_members_that_their_schemas_name(
    served: ServedStore, path: str, schema: str
) -> None:
    await served.store.create_segment("a")
    schemas = (await served.http.get("/openapi.json")).json()["components"]["schemas"]

    answer = (await served.http.get(path)).json()

    assert (
        set(schemas[schema]["required"])
        <= answer.keys()
        <= schemas[schema]["properties"].keys() | {"segment"}
    )


# --- the end ------------------------------------------------------------------------------------


async def test_h15_a_stopping_server_finishes_requests_and_ends_its_tails(tmp_path: Path) -> None:
    release = anyio.Event()
    async with open_store(tmp_path / "data", containers=1) as store:

        async def append(name: str, data: bytes, **more: Any) -> int | None:
            await release.wait()
            return await store.append(name, data)

        await store.create_segment("a")
        app = make_app(Wrapped(store, append=append), system_world())
        gateway = gateway_of(app)
        answers: dict[str, httpx.Response] = {}
        async with (
            anyio.create_task_group() as tasks,
            serve_http(app, bind("127.0.0.1", 0)) as served,
            httpx.AsyncClient(base_url=served.url) as http,
        ):

            async def ask(what: str, *request: Any, **more: Any) -> None:
                answers[what] = await http.request(*request, **more)

            tasks.start_soon(ask, "poll", "GET", "/v1/segments/a/tail?wait=60")
            tasks.start_soon(ask, "stream", "GET", "/v1/segments/a/tail?stream=true")
            raw = {"Content-Type": "application/octet-stream"}
            tasks.start_soon(
                lambda: ask("append", "POST", "/v1/segments/a/append", content=b"x", headers=raw)
            )
            await until(lambda: gateway.tails == 2 and gateway.metrics.operation("append").in_flight == 1)

            gateway.drain()
            await until(lambda: len(answers) == 2)
            answers["ready"] = await http.get("/ready")
            answers["late"] = await http.get("/v1/segments/a/tail?wait=60")
            release.set()
            await until(lambda: len(answers) == 5)

    assert (answers["poll"].status_code, answers["poll"].json()["code"]) == (503, "unavailable")
    assert (answers["stream"].status_code, answers["stream"].content) == (200, b"")
    assert answers["append"].json() == {"offset": 0}
    assert (answers["ready"].status_code, answers["ready"].json()["draining"]) == (503, True)
    assert answers["late"].status_code == 503


async def test_h15_the_end_of_a_server_frees_its_port_and_its_connections(tmp_path: Path) -> None:
    async with open_store(tmp_path / "data", containers=1) as store:
        app = make_app(store, system_world())
        async with serve_http(app, bind("127.0.0.1", 0)) as served:
            idle = await anyio.connect_tcp("127.0.0.1", served.port)
            await idle.send(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
            await idle.receive(10)

        assert await everything(idle) is not None
        bind("127.0.0.1", served.port).close()


async def test_h15_an_error_in_the_body_ends_the_server_and_is_not_wrapped(tmp_path: Path) -> None:
    async with open_store(tmp_path / "data", containers=1) as store:
        app = make_app(store, system_world())
        with pytest.raises(KeyError):
            async with serve_http(app, bind("127.0.0.1", 0)):
                raise KeyError("mine")


async def test_a_server_that_is_cancelled_while_it_starts_ends(tmp_path: Path) -> None:
    listener = bind("127.0.0.1", 0)
    async with open_store(tmp_path / "data", containers=1) as store:
        with anyio.fail_after(scaled(30)), anyio.CancelScope() as scope:
            scope.cancel()
            async with serve_http(make_app(store, system_world()), listener):
                pytest.fail("the body began")

        assert scope.cancelled_caught
        assert listener.fileno() == -1
