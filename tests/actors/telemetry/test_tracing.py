"""Spans of OpenTelemetry: an append and its group in a store, a request that brings its trace along, and what
a process needs to trace."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

import tierlog
from support.service import service
from support.spans import Recorder, attributes_of
from tierlog.actors.gateway.wire.batch import BatchItem
from tierlog.actors.telemetry.opentelemetry import EXPORTER, tracing_of_process

pytestmark = pytest.mark.anyio


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    recorder = Recorder()
    yield recorder
    recorder.provider.shutdown()


def number_of(span: ReadableSpan) -> int:
    assert span.context is not None
    number: int = span.context.span_id
    return number


def linked(span: ReadableSpan) -> set[int]:
    return {link.context.span_id for link in span.links}


def numbers(spans: Sequence[ReadableSpan]) -> set[int]:
    return {number_of(span) for span in spans}


@asynccontextmanager
async def traced_store(folder: Path, recorder: Recorder) -> AsyncIterator[tierlog.SegmentStore]:
    """With a segment ``s``."""
    tracing = tierlog.opentelemetry_tracing(recorder.provider)
    async with tierlog.open_store(folder, containers=1, span=tracing) as store:
        await store.create_segment("s")
        yield store


async def test_calls_to_long_term_storage_have_a_span_with_their_chunk(
    tmp_path: Path, recorder: Recorder
) -> None:
    async with traced_store(tmp_path, recorder) as store:
        await store.append("s", b"abc")
        await store.flush()

    chunks = {
        path.relative_to(tmp_path / "lts").as_posix()
        for path in (tmp_path / "lts" / "containers").rglob("*")
        if path.is_file()
    }
    made = {
        attributes_of(span)["tierlog.chunk"]
        for span in recorder.all()
        if span.name.startswith("tierlog.chunk_storage.create")
    }
    assert len(chunks) == 1
    assert chunks <= made


async def test_a_groups_span_is_linked_to_the_appends_in_it_and_has_no_parent(
    tmp_path: Path, recorder: Recorder
) -> None:
    async with traced_store(tmp_path, recorder) as store, anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(store.append, "s", b"abc")

    appends, groups = recorder.spans("tierlog.append"), recorder.spans("tierlog.wal.append")
    assert len(appends) == 20
    assert [linked(group) for group in groups].count(set()) == 0, (
        "a group without a traced append has no span"
    )
    assert set().union(*map(linked, groups)) == numbers(appends)
    assert sum(len(group.links) for group in groups) == 20, "each append is in one group"
    assert all(group.parent is None for group in groups)
    assert sum(attributes_of(group)["tierlog.count"] for group in groups) == 20
    assert sum(attributes_of(group)["tierlog.bytes"] for group in groups) >= 60
    assert {
        (attributes_of(group)["tierlog.container"], attributes_of(group)["tierlog.epoch"]) for group in groups
    } == {(0, 1)}
    assert len({attributes_of(group)["tierlog.group"] for group in groups}) == len(groups)


async def test_a_hook_of_an_apps_own_can_start_the_spans_of_a_plain_tracer(
    tmp_path: Path, recorder: Recorder
) -> None:
    """As docs/embedding.md shows."""
    tracer = recorder.provider.get_tracer("app")

    def traced(
        name: str, attributes: Mapping[str, Any], links: Sequence[Any] = ()
    ) -> AbstractContextManager[object]:
        found = [trace.Link(span.get_span_context()) for span in links]
        return tracer.start_as_current_span(name, attributes=attributes, links=found)

    async with tierlog.open_store(tmp_path, containers=1, span=traced) as store:
        await store.create_segment("s")
        await store.append("s", b"abc")

    append = recorder.one("tierlog.append")
    assert attributes_of(append)["segment"] == "s"
    assert numbers([append]) in [linked(group) for group in recorder.spans("tierlog.wal.append")]


async def test_an_appends_span_is_below_the_callers_and_describes_the_append(
    tmp_path: Path, recorder: Recorder
) -> None:
    async with traced_store(tmp_path, recorder) as store:
        with recorder.provider.get_tracer("app").start_as_current_span("work"):
            await store.append_many("s", [b"ab", b"c"], writer_id="w", first_event_number=1)

    append, work = recorder.one("tierlog.append"), recorder.one("work")
    assert append.parent is not None
    assert append.parent.span_id == number_of(work)
    assert attributes_of(append) == {
        "tierlog.container": 0,
        "tierlog.segment": "s",
        "tierlog.bytes": 3,
        "tierlog.count": 2,
    }
    assert recorder.one("tierlog.wal.append").parent is None
    assert append.status.status_code is StatusCode.UNSET


async def test_a_batch_is_one_span_that_its_groups_name_once(tmp_path: Path, recorder: Recorder) -> None:
    async with traced_store(tmp_path, recorder) as store:
        outcomes = await store.append_each([BatchItem("s", b"ab"), BatchItem("s", b"c")])

    assert outcomes == [0, 2]
    batch = recorder.one("tierlog.append_each")
    assert attributes_of(batch) == {"tierlog.count": 2, "tierlog.bytes": 3}
    assert all(
        linked(group) == {number_of(batch)} and len(group.links) == 1
        for group in recorder.spans("tierlog.wal.append")
    )


async def test_a_refusal_is_recorded_with_its_code(tmp_path: Path, recorder: Recorder) -> None:
    async with traced_store(tmp_path, recorder) as store:
        with pytest.raises(tierlog.SegmentNotFound):
            await store.append("nothing", b"x")

    append = recorder.one("tierlog.append")
    assert attributes_of(append)["error.type"] == "segment-not-found"
    assert append.status.status_code is StatusCode.ERROR
    assert recorder.spans("tierlog.wal.append") == [], "nothing was logged for it"


async def test_unsampled_appends_make_no_group_span(tmp_path: Path) -> None:
    recorder = Recorder()
    recorder.provider.sampler = ALWAYS_OFF
    async with traced_store(tmp_path, recorder) as store:
        assert await store.append("s", b"abc") == 0

    recorder.provider.shutdown()
    assert recorder.spans("tierlog.wal.append") == []


async def test_without_a_provider_nothing_is_recorded_and_everything_works(tmp_path: Path) -> None:
    async with tierlog.open_store(tmp_path, containers=1, span=tierlog.opentelemetry_tracing()) as store:
        await store.create_segment("s")
        assert await store.append("s", b"abc") == 0
        assert await store.read("s", 0, 3) == b"abc"


# --- over HTTP ----------------------------------------------------------------------------------

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def test_a_requests_span_continues_with_the_clients_trace_down_to_the_store(
    tmp_path: Path, recorder: Recorder
) -> None:
    with traced_service(tmp_path, recorder) as url, httpx.Client(base_url=url, verify=False) as client:
        client.post("/v1/segments/a/b/create", json={}).raise_for_status()
        headers = {
            "traceparent": f"00-{TRACE}-{PARENT}-01",
            "Content-Type": "application/octet-stream",
            "X-Request-Id": "r-1",
        }
        client.post("/v1/segments/a/b/append", content=b"abc", headers=headers).raise_for_status()

    request, append = recorder.one("POST /v1/segments/{name}/append"), recorder.one("tierlog.append")
    assert request.kind is SpanKind.SERVER
    assert request.context is not None
    assert f"{request.context.trace_id:032x}" == TRACE
    assert request.parent is not None
    assert f"{request.parent.span_id:016x}" == PARENT
    assert append.parent is not None
    assert append.parent.span_id == number_of(request)
    assert linked(recorder.spans("tierlog.wal.append")[-1]) == {number_of(append)}
    reported = attributes_of(request)
    assert reported.pop("server.port") == httpx.URL(url).port
    assert reported.pop("user_agent.original").startswith("python-httpx/")
    assert reported == {
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "http.route": "/v1/segments/{name}/append",
        "url.scheme": "http",
        "url.path": "/v1/segments/a/b/append",
        "server.address": "127.0.0.1",
        "client.address": "127.0.0.1",
        "network.protocol.version": "1.1",
        "tierlog.request_id": "r-1",
    }


def test_a_refused_request_is_no_server_error_and_an_unknown_path_has_no_route(
    tmp_path: Path, recorder: Recorder
) -> None:
    with traced_service(tmp_path, recorder) as url, httpx.Client(base_url=url, verify=False) as client:
        assert client.get("/v1/segments/nothing/info").status_code == 404
        assert client.delete("/tea").status_code == 404

    refused, strange = recorder.one("GET /v1/segments/{name}/info"), recorder.one("_OTHER")
    assert attributes_of(refused)["http.response.status_code"] == 404
    assert refused.status.status_code is StatusCode.UNSET
    assert "http.route" not in attributes_of(strange)


def test_a_malformed_traceparent_begins_a_new_trace(tmp_path: Path, recorder: Recorder) -> None:
    with traced_service(tmp_path, recorder) as url, httpx.Client(base_url=url, verify=False) as client:
        client.get("/health", headers={"traceparent": "00-nonsense"}).raise_for_status()

    assert recorder.one("GET /health").parent is None


def test_a_call_its_request_and_the_servers_work_are_one_trace(tmp_path: Path, recorder: Recorder) -> None:
    tracing = tierlog.opentelemetry_tracing(recorder.provider)
    with traced_service(tmp_path, recorder) as url, tierlog.connect_sync(url, span=tracing) as client:
        client.create_segment("s")
        with recorder.provider.get_tracer("app").start_as_current_span("work"):
            assert client.append("s", b"abc") == 0

    line = [recorder.one("work"), recorder.one("tierlog.client.append")]
    line += [span for span in recorder.spans("POST") if is_below(span, line[-1])]
    line += [span for span in recorder.spans("POST /v1/batch") if is_below(span, line[-1])]
    line += recorder.spans("tierlog.append_each")
    assert len(line) == 5
    assert all(is_below(lower, upper) for upper, lower in pairwise(line))
    assert linked(recorder.spans("tierlog.wal.append")[-1]) == {number_of(line[-1])}
    assert attributes_of(line[1]) == {"tierlog.segment": "s", "tierlog.count": 1, "tierlog.bytes": 3}
    assert line[2].kind is SpanKind.CLIENT
    assert attributes_of(line[2]) == {
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "url.full": f"{url}/v1/batch",
        "server.address": "127.0.0.1",
        "server.port": httpx.URL(url).port,
    }


async def test_a_single_append_of_a_client_is_one_trace_too(tmp_path: Path, recorder: Recorder) -> None:
    async with traced_client(tmp_path, recorder) as client:
        assert await client.append("s", b"abc") == 0

    call, server = recorder.one("tierlog.client.append"), recorder.one("POST /v1/batch")
    [request] = [span for span in recorder.spans("POST") if is_below(span, call)]
    assert is_below(server, request)


async def test_a_shared_requests_span_is_linked_to_every_call_and_has_no_parent(
    tmp_path: Path, recorder: Recorder
) -> None:
    async with traced_client(tmp_path, recorder) as client, anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(client.append, "s", b"abc")

    appends = recorder.spans("tierlog.client.append")
    [request] = [span for span in recorder.spans("POST") if span.links]
    assert linked(request) == numbers(appends)
    assert request.parent is None
    assert is_below(recorder.one("POST /v1/batch"), request)


async def test_a_clients_failed_request_is_recorded(tmp_path: Path, recorder: Recorder) -> None:
    async with traced_client(tmp_path, recorder) as client:
        with pytest.raises(tierlog.SegmentNotFound):
            await client.segment_info("nothing")

    call = recorder.one("tierlog.client.info")
    [request] = [span for span in recorder.spans("GET") if is_below(span, call)]
    assert attributes_of(call)["error.type"] == "segment-not-found"
    assert (attributes_of(request)["error.type"], request.status.status_code) == ("404", StatusCode.ERROR)


async def test_a_transactions_verbs_are_traced_from_the_client_to_the_store(
    tmp_path: Path, recorder: Recorder
) -> None:
    async with traced_client(tmp_path, recorder) as client:
        await client.begin_transaction("s", "t")

    call, store = recorder.one("tierlog.client.begin-transaction"), recorder.one("tierlog.begin_transaction")
    [request] = [span for span in recorder.spans("POST") if is_below(span, call)]
    server = recorder.one("POST /v1/segments/{name}/begin-transaction")
    assert is_below(server, request)
    assert is_below(store, server)


def is_below(span: ReadableSpan, upper: ReadableSpan) -> bool:
    same_trace = (
        span.context is not None
        and upper.context is not None
        and span.context.trace_id == upper.context.trace_id
    )
    return same_trace and span.parent is not None and span.parent.span_id == number_of(upper)


@contextmanager
def traced_service(folder: Path, recorder: Recorder) -> Iterator[str]:
    with service(folder, span=tierlog.opentelemetry_tracing(recorder.provider)) as url:
        yield url


@asynccontextmanager
async def traced_client(folder: Path, recorder: Recorder) -> AsyncIterator[tierlog.Client]:
    """A client of a traced service with a segment ``s``."""
    tracing = tierlog.opentelemetry_tracing(recorder.provider)
    with traced_service(folder, recorder) as url:
        async with tierlog.connect(url, span=tracing) as client:
            await client.create_segment("s")
            yield client


# --- processes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "environment", [{}, {EXPORTER: "none"}, {EXPORTER: "console", "OTEL_SDK_DISABLED": "true"}]
)
def test_a_process_traces_only_when_its_environment_enables_it(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> None:
    for name in (EXPORTER, "OTEL_SDK_DISABLED"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert tracing_of_process("host-0") is None


def test_a_missing_sdk_is_logged_and_the_process_serves(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(EXPORTER, "console")
    monkeypatch.setenv("OTEL_PYTHON_CONFIGURATOR", "none-of-this-name")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.instance.id=one")
    assert tracing_of_process("host-0") is None
    assert "OTEL_TRACES_EXPORTER is set but OpenTelemetry's SDK is not installed" in caplog.text
