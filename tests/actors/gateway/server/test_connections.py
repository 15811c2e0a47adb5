"""What clients do to a connection: smuggling, bombs, pipelines, other protocols, odd paths and methods (rules
H9, H11, H12)."""

from __future__ import annotations

import resource
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from support.http_server import (
    ServedStore,
    Wrapped,
    everything,
    everything_while_it_drips,
    open_sockets,
    service,
    serving,
    until,
)
from support.patience import succeeds
from tierlog import open_store
from tierlog.actors.gateway.server import connection
from tierlog.actors.gateway.server.app import gateway_of, make_app
from tierlog.actors.gateway.server.context import ServerLimits
from tierlog.actors.gateway.server.listener import bind, serve_http
from tierlog.actors.store.folder_opening import system_world
from tierlog.storage_backends.base.segments import SegmentInfo

pytestmark = pytest.mark.anyio

RAW = {"Content-Type": "application/octet-stream"}
APPEND = (
    b"POST /v1/segments/a/append HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/octet-stream\r\n"
)
WELL = b'{"alive":true,"storage":{"state":"ok","cause":""}}'
HEALTH = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
LAST = b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
TAIL = b"GET /v1/segments/a/tail?wait=60 HTTP/1.1\r\nhost: localhost\r\n\r\n"
NOTHING = b"GET / HTTP/1.1\r\n\r\n"
STREAM = b"GET /v1/segments/a/tail?stream=true HTTP/1.1\r\nhost: localhost\r\n\r\n"


@pytest.fixture(
    params=[pytest.param(False, id="asyncio", marks=pytest.mark.extended), pytest.param(True, id="uvloop")]
)
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """The service runs on uvloop, whose sockets are its own."""
    return "asyncio", {"use_uvloop": request.param}


async def ask(served: ServedStore, request: bytes) -> bytes:
    """The whole answer to a connection that ends after it."""
    return await everything(await served.raw(request))


async def contents(served: ServedStore) -> bytes:
    return await served.store.read("a", 0, 1 << 20)


# --- what is no request -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "head",
    [
        b"content-length: 5\r\ntransfer-encoding: chunked\r\n",
        b"transfer-encoding: chunked\r\ncontent-length: 5\r\n",
        b"content-length: 5\r\ncontent-length: 6\r\n",
        b"content-length: 5\r\ncontent-length: 5\r\n",
        b"content-length: +5\r\n",
        b"content-length: 5 5\r\n",
        b"content-length: 5\x0b\r\n",
        b"content-length: 5 ,5 \r\n",
        b"content-length: 5 \r\ncontent-length: 5\r\n",
        b"content-length: 5 \r\ntransfer-encoding: chunked \r\n",
        b"transfer-encoding: xchunked\r\n",
        b"transfer-encoding: chunked, identity\r\n",
        b"transfer-encoding: identity\r\ncontent-length: 5\r\n",
        b"transfer-encoding : chunked\r\n",
        b"transfer-encoding: gzip, chunked\r\n",
        b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
        b"transfer-encoding: gzip\r\ntransfer-encoding: chunked\r\n",
        b"x: a\r\n b\r\ncontent-length: 5\r\n",
        b"x: a\x00b\r\ncontent-length: 5\r\n",
    ],
)
async def test_a_request_with_an_ambiguous_end_is_refused_and_ends_the_connection(
    a: ServedStore, head: bytes
) -> None:
    answer = await ask(a, APPEND + head + b"\r\n0\r\n\r\n" + HEALTH)

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") - answer.count(b"HTTP/1.1 request") == 1
    assert b"content-type: application/problem+json" in answer
    assert await contents(a) == b""


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"CONNECT x:1 HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /health HTTP/2.0\r\nhost: localhost\r\n\r\n",
        b"GET /health HTTP/0.9\r\n\r\n",
        b"GET /health\r\n\r\n",
        b"GET /health RTSP/1.1\r\nhost: localhost\r\n\r\n",
        b"DESCRIBE /health RTSP/1.0\r\n\r\n",
        b"SOURCE /health ICE/1.0\r\n\r\n",
        b"GET  /health HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /health RTSP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n",
        b"GET /health HTTP/1.2\r\nhost: localhost\r\n\r\n",
        b"POST /v1/flush HTTP/1.0\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/flush HTTP/1.0\r\nconnection: upgrade\r\nupgrade: x\r\ntransfer-encoding: chunked\r\n\r\n",
        b"GET /health\x00 HTTP/1.1\r\nhost: localhost\r\n\r\n",
    ],
)
async def test_other_protocols_are_refused(a: ServedStore, request_bytes: bytes) -> None:
    assert (await ask(a, request_bytes)).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("size", [3, 13, 20])
async def test_the_protocol_is_checked_however_the_line_arrives(a: ServedStore, size: int) -> None:
    for protocol, status in [(b"HTTP/1.1", b"200"), (b"RTSP/1.1", b"400")]:
        request = LAST.replace(b"HTTP/1.1", protocol)
        stream = await a.raw(request[:size])
        await anyio.wait_all_tasks_blocked()
        await stream.send(request[size:])
        assert (await everything(stream)).startswith(b"HTTP/1.1 " + status)


async def test_the_protocol_of_each_pipelined_request_is_checked(a: ServedStore) -> None:
    answer = await ask(a, b"\r\n" + HEALTH + HEALTH + LAST.replace(b"HTTP/1.1", b"RTSP/1.1"))

    assert answer.count(b"HTTP/1.1 200 ") == 2
    assert answer.count(b"HTTP/1.1 400 ") == 1


async def test_nonsense_in_the_middle_of_a_body_is_answered(a: ServedStore) -> None:
    answer = await ask(a, APPEND + b"transfer-encoding: chunked\r\n\r\n5\r\nhelloXX0\r\n\r\n")

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert await contents(a) == b""


@pytest.mark.parametrize("line", [b"a: b\r\n", b"b" * 1024])
async def test_h9_trailers_without_end_are_refused(a: ServedStore, line: bytes) -> None:
    head = APPEND + b"transfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\na: "

    answer = await ask(a, head + line * ((1 << 20) // len(line)))

    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"trailers" in answer
    assert await contents(a) == b""


@pytest.mark.parametrize("size, status", [(320 << 10, 200), ((576 << 10) + 1, 413)])
async def test_h9_a_chunk_extension_is_ignored_and_bounded(a: ServedStore, size: int, status: int) -> None:
    extension = b";" + b"a" * (size - 1)

    answer = await ask(
        a, APPEND + b"transfer-encoding: chunked\r\n\r\n1" + extension + b"\r\nx\r\n0\r\n\r\n" + LAST
    )

    assert answer.startswith(b"HTTP/1.1 %d " % status)


@pytest.mark.parametrize("trailer", [b"content-length: 1", b"transfer-encoding: chunked"])
async def test_h9_a_trailer_that_frames_a_body_is_refused(a: ServedStore, trailer: bytes) -> None:
    chunks = b"transfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n"

    answer = await ask(a, APPEND + chunks + trailer + b"\r\n\r\n" + LAST)

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert await contents(a) == b""


async def test_h9_trailers_do_not_change_the_request(a: ServedStore) -> None:
    trailers = b"tierlog-expected-offset: 7\r\ncontent-type: text/plain\r\n"

    answer = await ask(
        a, APPEND + b"transfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n" + trailers + b"\r\n" + LAST
    )

    assert answer.startswith(b"HTTP/1.1 200 ")
    assert await contents(a) == b"x"


@pytest.mark.parametrize("step", [1, 1 << 20])
@pytest.mark.parametrize(
    "trailer", [b"Connection: close", b"Connection: upgrade, close", b"Proxy-Connection: close"]
)
async def test_h9_a_trailer_does_not_end_the_connection(a: ServedStore, trailer: bytes, step: int) -> None:
    """The requests behind it were read and never answered."""
    one = APPEND + b"transfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n" + trailer + b"\r\n\r\n"
    sized = APPEND + b"content-length: 300000\r\n\r\n" + bytes(300_000)
    sent = HEALTH + one + one + HEALTH + (sized if step > 1 else b"") + one + LAST
    stream = await a.raw(b"")
    for start in range(0, len(sent), step):
        await stream.send(sent[start : start + step])

    answer = await everything(stream)

    assert answer.count(b"HTTP/1.1 200 OK") == (7 if step > 1 else 6)
    assert answer.count(b"connection: close") == 1
    assert (await contents(a)).startswith(b"xx")


async def test_h9_a_trailer_with_which_an_answered_request_ends_does_not_end_the_connection(
    a: ServedStore,
) -> None:
    stream = await a.raw(b"POST /v1/none HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n")
    answer = await stream.receive()
    await stream.send(b"1\r\nx\r\n0\r\nConnection: close\r\n\r\n")
    await stream.send(LAST)

    assert answer.startswith(b"HTTP/1.1 404 ")
    assert (await everything(stream)).startswith(b"HTTP/1.1 200 ")


async def test_h9_a_trailer_does_not_keep_a_connection_that_its_head_ends(a: ServedStore) -> None:
    chunks = b"transfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n"
    one = APPEND + chunks + b"Connection: close\r\n\r\n"
    last = APPEND + b"connection: close\r\n" + chunks + b"Connection: keep-alive\r\n\r\n"

    answer = await ask(a, one + last + HEALTH)

    assert answer.count(b"HTTP/1.1 200 OK") == 2
    assert answer.count(b"connection: close") == 1


@pytest.mark.parametrize("blanks", [b" ", b"\t", b" \t  "])
async def test_blanks_around_a_value_are_no_part_of_it(a: ServedStore, blanks: bytes) -> None:
    def padded(head: bytes) -> bytes:
        line, *fields = head.split(b"\r\n")
        fields = [field.replace(b": ", b":" + blanks) + blanks if field else b"" for field in fields]
        return b"\r\n".join([line, *fields])

    answer = await ask(a, padded(APPEND + b"content-length: 5\r\n\r\n") + b"hello" + padded(LAST))

    assert answer.count(b"HTTP/1.1 200 OK") == 2
    assert await contents(a) == b"hello"


@pytest.mark.parametrize("protocol", [b"h2c", b"websocket"])
async def test_an_upgrade_header_is_ignored_and_the_body_is_read(a: ServedStore, protocol: bytes) -> None:
    wish = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: " + protocol + b"\r\nhttp2-settings: AAMA\r\n"

    answer = await ask(
        a,
        APPEND + wish + b"content-length: 5\r\n\r\nhello" + HEALTH.replace(b"host:", wish + b"host:") + LAST,
    )

    assert [line for line in answer.split(b"\r\n") if line.startswith(b"{") or b"}HTTP" in line] == [
        b'{"offset":0}HTTP/1.1 200 OK',
        WELL + b"HTTP/1.1 200 OK",
        WELL,
    ]
    assert await contents(a) == b"hello"


# --- heads --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "head",
    [
        b"GET /" + b"a" * 70_000,
        b"GET /health HTTP/1.1\r\n" + b"a: b\r\n" * 30_000,
        b"GET / HTTP/1.1\r\nx: " + b"y" * 70_000,
    ],
)
async def test_a_head_that_is_too_large_is_refused(a: ServedStore, head: bytes) -> None:
    complete = head + (b" HTTP/1.1" if b"HTTP" not in head else b"") + b"\r\nhost: localhost\r\n\r\n"

    answer = await ask(a, complete)

    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"the head of a request has at most" in answer


async def test_a_long_path_is_an_argument_out_of_range(a: ServedStore) -> None:
    response = await a.http.get(f"/v1/segments/{'a' * 60_000}/info")

    assert (response.status_code, response.json()["code"]) == (400, "invalid-argument")
    assert len(response.content) < 1000


async def test_a_head_that_trickles_in_times_out(a: ServedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_TIMEOUT", 0.1)
    stream = await a.raw(b"GET /health HTTP/1.1\r\n")

    answer = await everything_while_it_drips(
        stream
    )  # faster than the limit, so that only the time of the whole head can end it

    assert answer.startswith(b"HTTP/1.1 408 ")


async def test_h9_a_body_that_trickles_in_times_out(tmp_path: Path) -> None:
    async with service(tmp_path, ServerLimits(body_timeout=0.1)) as served:
        await served.store.create_segment("a")
        answer = await everything_while_it_drips(await served.raw(APPEND + b"content-length: 1000\r\n\r\n"))

    assert answer.startswith(b"HTTP/1.1 408 ")


# --- paths and methods --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a%0d%0aset-cookie:x", "a%0a", "%0d", "a%0d%0a%0d%0a"])
async def test_a_line_break_in_a_name_is_an_invalid_name(a: ServedStore, name: str) -> None:
    response = await a.http.get(f"/v1/segments/{name}/info")

    assert (response.status_code, response.json()["code"]) == (400, "invalid-argument")
    assert "name" in response.json()["detail"]


async def test_h1_a_path_ends_with_its_last_byte(a: ServedStore) -> None:
    assert (await a.http.get("/v1/segments/a/info%0a")).status_code == 404
    assert (await a.http.get("/health%0a")).status_code == 404


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics", "/openapi.json", "/", "/v1/containers"])
async def test_h1_an_unknown_query_parameter_is_refused_on_every_path(a: ServedStore, path: str) -> None:
    response = await a.http.get(f"{path}?x=1")

    assert (response.status_code, response.json()["code"]) == (400, "invalid-argument")


@pytest.mark.parametrize("name", ["a%00", "%ff%fe", "%c0%af", "%ed%a0%80", "..%2fa", "a%0d%0aset-cookie:x"])
async def test_invalid_names_are_refused(a: ServedStore, name: str) -> None:
    answer = await ask(
        a, f"GET /v1/segments/{name}/info HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode()
    )

    assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 404 "))
    assert b"set-cookie" not in answer.partition(b"\r\n\r\n")[0]


async def test_a_path_does_not_climb(a: ServedStore) -> None:
    answer = await ask(
        a, b"GET /v1/segments/../../health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    )

    assert answer.startswith(b"HTTP/1.1 404 ")


@pytest.mark.parametrize("method", ["OPTIONS", "TRACE", "PUT", "DELETE", "PATCH", "POST"])
async def test_other_methods_are_answered_with_the_allowed_one(a: ServedStore, method: str) -> None:
    response = await a.http.request(method, "/v1/segments/a/bytes")

    assert (response.status_code, response.headers["allow"]) == (405, "GET, HEAD")
    assert (await a.http.request(method, "/v1/nothing")).status_code == 404


@pytest.mark.parametrize("header", ["Range", "Content-Type", "Tierlog-Writer-Id"])
async def test_h4_a_repeated_significant_header_is_refused(a: ServedStore, header: str) -> None:
    start = (
        b"GET /v1/segments/a/bytes HTTP/1.1\r\nhost: localhost\r\n"
        if header == "Range"
        else APPEND + b"content-length: 1\r\n"
    )
    lines = f"{header}: bytes=0-1\r\n".encode() * 2

    answer = await ask(a, start + lines + b"connection: close\r\n\r\n" + (b"" if header == "Range" else b"x"))

    assert answer.startswith(b"HTTP/1.1 400 ")


# --- pipelines ----------------------------------------------------------------------------------


@pytest.mark.parametrize("waiting", [TAIL, STREAM])
@pytest.mark.parametrize(
    "behind", [HEALTH, HEALTH * 5, b"GET /hal", APPEND + b"content-length: 9\r\n\r\nhalf"]
)
async def test_h11_a_client_that_pipelines_behind_a_tail_and_disconnects_frees_everything(
    a: ServedStore, waiting: bytes, behind: bytes
) -> None:
    stream = await a.raw(waiting)
    await until(lambda: a.gateway.tails == 1)
    await stream.send(behind)
    await anyio.wait_all_tasks_blocked()

    await stream.aclose()

    await until(lambda: a.gateway.tails == 0)
    await until(lambda: a.gateway.metrics.requests(status=499) == 1)
    assert await contents(a) == b""


async def test_h11_a_request_pipelined_behind_a_tail_is_answered_after_it(a: ServedStore) -> None:
    stream = await a.raw(TAIL + HEALTH + LAST)
    await until(lambda: a.gateway.tails == 1)

    await a.store.append("a", b"bytes")

    answer = await everything(stream)
    assert answer.count(b"HTTP/1.1 200 OK") == 3
    assert answer.index(b"bytesHTTP") < answer.index(b"alive")


async def test_h11_a_flood_behind_a_parked_tail_ends_the_connection(a: ServedStore) -> None:
    stream = await a.raw(TAIL)
    await until(lambda: a.gateway.tails == 1)

    async with anyio.create_task_group() as tasks:

        async def flood() -> None:
            try:
                while True:
                    await stream.send(HEALTH * 1000)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                pass

        tasks.start_soon(flood)
        await until(lambda: a.gateway.tails == 0)
        await stream.aclose()


async def test_bodies_behind_a_request_in_flight_wait_and_are_all_taken(a: ServedStore) -> None:
    one = APPEND + b"content-length: 300000\r\n\r\n" + bytes(300_000)

    answer = await ask(a, one * 10 + LAST)

    assert answer.count(b"HTTP/1.1 200 OK") == 11
    assert (await a.store.segment_info("a")).length == 3_000_000


async def test_h12_more_requests_than_a_pipeline_holds_end_the_connection_behind_those_that_it_holds(
    a: ServedStore,
) -> None:
    waiting = anyio.Event()
    store = Wrapped(a.store, segment_info=_waiting(a, waiting))
    async with serving(store) as served:
        stream = await served.raw(b"GET /v1/segments/a/info HTTP/1.1\r\nhost: localhost\r\n\r\n")
        await stream.send(NOTHING * 10_000)
        await until(lambda: served.gateway.metrics.operation("info").in_flight == 1)
        await anyio.wait_all_tasks_blocked()
        waiting.set()
        answer = await everything(stream)

    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.count(b"HTTP/1.1 400 ") < connection.PIPELINE_MAX
    assert answer.count(b"HTTP/1.1 429 ") == 1
    assert answer.rindex(b"HTTP/1.1 ") == answer.index(b"HTTP/1.1 429 ")


def _waiting(served: ServedStore, event: anyio.Event) -> Any:
    async def segment_info(name: str) -> SegmentInfo:
        await event.wait()
        return await served.store.segment_info(name)

    return segment_info


@pytest.mark.parametrize("garbage", [b"nonsense\r\n\r\n", b"GET / HTTP/3.7\r\n\r\n", b"\x16\x03\x01\x02"])
async def test_h9_complete_requests_get_their_answers_before_garbage_does(
    a: ServedStore, garbage: bytes
) -> None:
    one = APPEND + b"content-length: 3\r\n\r\n"

    answer = await ask(a, one + b"one" + HEALTH + one + b"two" + garbage + HEALTH)

    assert answer.count(b"HTTP/1.1 200 ") == 3
    assert answer.count(b"HTTP/1.1 400 ") == 1
    assert await contents(a) == b"onetwo"


@pytest.mark.parametrize("rest", [b"", b"GET /hea", APPEND + b"content-length: 9\r\n\r\nhalf"])
async def test_h9_complete_requests_get_their_answers_when_the_client_closes_its_half(
    a: ServedStore, rest: bytes
) -> None:
    one = APPEND + b"content-length: 3\r\n\r\n"
    stream = await a.raw(one + b"one" + HEALTH + one + b"two" + rest)
    await stream.send_eof()

    answer = await everything(stream)

    assert answer.count(b"HTTP/1.1 200 ") == answer.count(b"HTTP/1.1 ") == 3
    assert await contents(a) == b"onetwo"


async def test_h10_a_client_that_closes_its_half_gets_a_long_answer_whole(a: ServedStore) -> None:
    for _ in range(5):
        await a.store.append("a", bytes(1 << 20))
    stream = await a.raw(b"GET /v1/segments/a/bytes HTTP/1.1\r\nhost: localhost\r\n\r\n")
    await stream.send_eof()

    assert len((await everything(stream)).partition(b"\r\n\r\n")[2]) == 5 << 20


async def test_h11_a_tail_behind_another_request_ends_with_its_client(a: ServedStore) -> None:
    stream = await a.raw(HEALTH + TAIL)
    await stream.send_eof()

    answer = await everything(stream)

    assert answer.count(b"HTTP/1.1 ") == 1
    await until(lambda: a.gateway.tails == 0)


# --- connections that hold on ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100000\r\n\r\n",
        b"POST /v1/none HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nffff\r\n",
        APPEND.replace(b"octet-stream", b"json") + b"content-length: 1000000\r\n\r\n",
    ],
)
async def test_h9_the_body_of_an_answered_request_may_not_drip_for_ever(
    a: ServedStore, monkeypatch: pytest.MonkeyPatch, head: bytes
) -> None:
    stream = await a.used()
    monkeypatch.setattr(connection, "HEAD_TIMEOUT", 0.2)
    await stream.send(head)

    answer = await everything_while_it_drips(stream)

    assert answer.count(b"HTTP/1.1 ") == 1


async def test_h9_the_rest_of_an_answered_body_that_comes_in_time_keeps_the_connection(
    a: ServedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def is_kept() -> bool:
        monkeypatch.setattr(connection, "HEAD_TIMEOUT", 30.0)
        stream = await a.used()
        monkeypatch.setattr(connection, "HEAD_TIMEOUT", 0.2)
        await stream.send(b"POST /v1/none HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\n")
        assert (await stream.receive()).startswith(b"HTTP/1.1 404 ")
        with suppress(anyio.BrokenResourceError):
            await stream.send(bytes(10))
            await anyio.sleep(0.3)
            await stream.send(LAST)
        return (await everything(stream)).startswith(b"HTTP/1.1 200 ")

    assert await succeeds(is_kept)


async def test_h9_blank_lines_do_not_keep_a_connection(
    a: ServedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "KEEP_ALIVE", 0.2)
    answer = await everything_while_it_drips(await a.raw(HEALTH), b"\r\n")

    assert answer.count(b"HTTP/1.1 200 ") == 1


async def test_a_client_that_did_not_send_its_body_reconnects_for_its_next_request(
    a: ServedStore,
) -> None:
    head = b"POST /v1/none HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\ncontent-length: 50\r\n\r\n"

    answer = await ask(a, head)

    assert answer.startswith(b"HTTP/1.1 404 ")
    assert b"connection: close" in answer


# --- the protocol itself ------------------------------------------------------------------------


async def test_a_client_of_http_1_0_gets_its_answer_and_the_end(a: ServedStore) -> None:
    answer = await ask(a, b"GET /health HTTP/1.0\r\nhost: localhost\r\n\r\n" + HEALTH)

    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"connection: close\r\n" in answer
    assert answer.count(b"HTTP/1.1 ") == 1


async def test_an_idle_connection_ends_after_its_time(
    a: ServedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "KEEP_ALIVE", 0)
    async with serving(a.store) as served:
        answer = await ask(served, HEALTH)

    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"connection: close" not in answer


async def test_h10_an_answer_longer_than_its_content_length_breaks_the_connection(tmp_path: Path) -> None:
    info = SegmentInfo("a", 7, 2 << 20, 0, sealed=True, attributes={}, flushed_length=0, container=0)

    async def segment_info(name: str) -> SegmentInfo:
        return info

    async def read(name: str, offset: int, wanted: int) -> bytes:
        return bytes(wanted if not offset else wanted + 1)

    async with (
        open_store(tmp_path / "data", containers=1) as store,
        serving(Wrapped(store, segment_info=segment_info, read_view=read)) as served,
    ):
        answer = await ask(served, b"GET /v1/segments/a/bytes HTTP/1.1\r\nhost: localhost\r\n\r\n")

    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-length: 2097152" in head
    assert len(body) == 1 << 20


async def test_each_pipelined_request_has_an_id_of_its_own(a: ServedStore) -> None:
    mine = b"GET /health HTTP/1.1\r\nhost: localhost\r\nx-request-id: mine\r\n\r\n"
    answer = await ask(a, mine + HEALTH + LAST)

    ids = [line for line in answer.split(b"\r\n") if line.startswith(b"x-request-id: ")]
    assert ids[0] == b"x-request-id: mine"
    assert len(set(ids)) == 3


# --- many and slow readers ----------------------------------------------------------------------


async def test_h15_a_thousand_idle_tails_are_cheap_and_end_with_the_server(tmp_path: Path) -> None:
    async with open_store(tmp_path / "data", containers=1) as store:
        await store.create_segment("a")
        before = _rss()
        app = make_app(store, system_world())
        async with serve_http(app, bind("127.0.0.1", 0)) as served:
            streams = [await anyio.connect_tcp("127.0.0.1", served.port) for _ in range(1000)]
            for number, stream in enumerate(streams):
                await stream.send(STREAM if number % 2 else TAIL)
            await until(lambda: gateway_of(app).tails == 1000)
            assert _rss() - before < 100 << 20

        answers = [await everything(stream) for stream in streams]

    assert all(answer.startswith(b"HTTP/1.1 503 ") for answer in answers[::2])
    assert all(
        answer.startswith(b"HTTP/1.1 200 ") and answer.endswith(b"0\r\n\r\n") for answer in answers[1::2]
    )
    assert open_sockets(served.port) == 0


async def test_h10_a_slow_reader_of_a_gibibyte_costs_a_few_blocks(tmp_path: Path) -> None:
    size, block, given = 1 << 30, bytes(1 << 20), 0
    info = SegmentInfo("big", 7, size, 0, sealed=True, attributes={}, flushed_length=size, container=0)

    async def segment_info(name: str) -> SegmentInfo:
        return info

    async def read(name: str, offset: int, wanted: int) -> bytes:
        nonlocal given
        given += wanted
        return bytes(bytearray(block))[:wanted]  # a block of its own each time

    async with (
        open_store(tmp_path / "data", containers=1) as store,
        serving(Wrapped(store, segment_info=segment_info, read_view=read)) as served,
    ):
        before = _rss()
        stream = await served.raw(b"GET /v1/segments/big/bytes HTTP/1.1\r\nhost: localhost\r\n\r\n")
        taken = 0
        for _ in range(50):
            taken += len(await stream.receive(64 << 10))
            await anyio.wait_all_tasks_blocked()
            assert given - taken < 24 << 20  # two blocks, and what both sockets' buffers hold
        assert _rss() - before < 40 << 20
        await stream.aclose()
        await until(lambda: served.gateway.metrics.requests(status=499) == 1)


def _rss() -> int:
    with open("/proc/self/statm", encoding="ascii") as stream:
        return int(stream.read().split()[1]) * resource.getpagesize()
