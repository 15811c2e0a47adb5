"""One-port mode: what a host does with requests for another host's containers (rule H22)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import attrs
import httpx
import pytest
from msgspec.structs import replace

from support.http_server import Wrapped, everything, until
from support.lost_sockets import ask_lost_socket
from support.scripted_server import Answer, Fault, Received, json_answer, problem, script_of, scripted
from support.spans import Recorder
from support.two_hosts import Host, host, name_in, two_hosts
from tierlog import InvalidArgument, NotOwner, OutcomeUnknown
from tierlog.actors.gateway.server.context import Arrival, ServerLimits
from tierlog.actors.gateway.server.passing import KEPT_BYTES, passed_headers
from tierlog.actors.gateway.wire.batch import BATCH_TYPE, BatchItem, decode_outcomes, encode_batch
from tierlog.actors.gateway.wire.errors import OwnedElsewhere, UnknownHost
from tierlog.actors.gateway.wire.paths import Verb, segment_path
from tierlog.actors.kernel.connection_pools import ConnectionPools
from tierlog.actors.telemetry.opentelemetry import opentelemetry_tracing
from tierlog.storage_backends.base.errors import TierlogError, TooLarge

pytestmark = pytest.mark.anyio

HERE, THERE = name_in(0), name_in(1)
BYTES = {"Content-Type": "application/octet-stream"}
APPEND = segment_path(THERE, Verb.APPEND)
INFO = segment_path(THERE, Verb.INFO)
OFFSET = json_answer({"offset": 3})
SIZE = 1 << 30
"""More than the buffers of sockets take."""


def batch(*items: BatchItem) -> bytes:
    return b"".join(encode_batch(items))


# --- what is passed on ---------------------------------------------------------------------------


async def test_h22_requests_for_another_hosts_segment_are_answered_by_it(tmp_path: Path) -> None:
    async with two_hosts(tmp_path) as (store, first, _):
        http = first.served.http
        created = await http.post(segment_path(THERE, Verb.CREATE), json={})
        appended = await http.post(APPEND, content=b"hello", headers={**BYTES, "X-Request-Id": "mine"})
        read = await http.get(segment_path(THERE, Verb.BYTES), headers={"Range": "bytes=1-3"})
        head = await http.head(segment_path(THERE, Verb.BYTES))

        assert (created.status_code, appended.json()) == (201, {"offset": 0})
        assert appended.headers.get_list("x-request-id") == ["mine"]
        assert (read.status_code, read.content, read.headers["content-range"]) == (206, b"ell", "bytes 1-3/5")
        assert (head.headers["content-length"], head.headers["tierlog-length"]) == ("5", "5")
        assert await store.read(THERE, 0, 9) == b"hello"
        assert [first.forwarded(name) for name in ("create", "append", "bytes")] == [1, 1, 2]
        scrape = (await http.get("/metrics")).text
        assert 'tierlog_http_forwarded_requests_total{operation="append"} 1.0' in scrape


async def test_requests_for_its_own_segments_stay_here(tmp_path: Path) -> None:
    async with two_hosts(tmp_path) as (_, first, second):
        await first.served.http.post(segment_path(HERE, Verb.CREATE), json={})
        assert (first.forwarded("create"), second.answered()) == (0, 0)


async def test_errors_of_the_owner_arrive_unchanged(tmp_path: Path) -> None:
    async with two_hosts(tmp_path) as (_, first, _):
        missing = await first.served.http.get(INFO)
        bad = await first.served.http.post(APPEND, content=b"x", headers={"Content-Type": "text/plain"})
    assert (missing.status_code, missing.json()["code"]) == (404, "segment-not-found")
    assert bad.status_code == 415


@pytest.mark.parametrize("has_length", [True, False])
async def test_large_bodies_are_passed_on_whole(tmp_path: Path, has_length: bool) -> None:
    data = bytes(range(256)) * (3 << 12)  # 3 MiB

    async def pieces() -> Any:
        for start in range(0, len(data), 1 << 16):
            yield data[start : start + (1 << 16)]

    async with two_hosts(tmp_path) as (store, first, _):
        await store.create_segment(THERE)
        sent = data if has_length else pieces()
        answer = await first.served.http.post(APPEND, content=sent, headers=BYTES)
        assert answer.json() == {"offset": 0}
        assert (await first.served.http.get(segment_path(THERE, Verb.BYTES))).content == data
        assert first.served.gateway.held_bytes == 0


async def test_a_poll_and_a_stream_of_a_tail_get_bytes_as_they_come(tmp_path: Path) -> None:
    async with two_hosts(tmp_path) as (store, first, _):
        await store.create_segment(THERE)
        polls: list[bytes] = []

        async def poll() -> None:
            polls.append((await first.served.http.get(segment_path(THERE, Verb.TAIL))).content)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(poll)
            await until(lambda: first.served.gateway.tails == 1)
            await store.append(THERE, b"one")
        assert polls == [b"one"]

        path = f"{segment_path(THERE, Verb.TAIL)}?stream=true"
        async with first.served.http.stream("GET", path) as stream:
            pieces = stream.aiter_raw()
            assert await anext(pieces) == b"one"
            await store.append(THERE, b"two")
            assert await anext(pieces) == b"two"
            await store.seal_segment(THERE)
            assert [piece async for piece in pieces] == []
        assert first.served.gateway.tails == 0


async def test_containers_are_asked_at_their_owner(tmp_path: Path) -> None:
    async with two_hosts(tmp_path) as (_, first, second):
        answer = await first.served.http.get("/v1/containers/1/gc")
        unknown = await first.served.http.get("/v1/containers/7/gc")
    assert (answer.status_code, second.answered()) == (200, 1)
    assert unknown.json()["code"] == "no-such-container"


async def test_lists_and_flush_concern_all_hosts(tmp_path: Path) -> None:
    async with two_hosts(tmp_path) as (store, first, second):
        for name in (HERE, THERE):
            await store.create_segment(name)
        own = {0: [HERE], 1: [THERE]}
        for each, index in ((first, 0), (second, 1)):
            each.served.gateway.store = Wrapped(store, page_of_segments=lister(own[index]))
        page = await first.served.http.get("/v1/segments")
        rest = await first.served.http.get("/v1/segments?limit=1")
        flushed = await first.served.http.post("/v1/flush", json={})
        listed = await first.served.http.get("/v1/transactions")
    assert page.json() == {"segments": sorted([HERE, THERE])}
    assert rest.json()["segments"] == [min(HERE, THERE)]
    assert (flushed.status_code, listed.json()) == (200, {"transactions": []})


def lister(names: list[str]) -> Any:
    async def page_of_segments(prefix: str = "", *, token: Any = None, limit: int = 9) -> Any:
        return attrs.make_class("Page", {"names": attrs.field(), "token": attrs.field()})(names, None)

    return page_of_segments


async def test_a_list_without_all_hosts_is_refused(tmp_path: Path) -> None:
    async with two_hosts(tmp_path) as (_, first, _):
        first.places.urls.clear()
        answer = await first.served.http.get("/v1/segments")
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
    assert "serves container 1" in answer.json()["detail"]


async def test_a_list_names_the_host_that_does_not_answer_and_the_reason(tmp_path: Path) -> None:
    async with two_hosts(tmp_path) as (_, first, _):
        first.places.urls[1] = "http://127.0.0.1:1"
        answer = await first.served.http.get("/v1/segments")
    assert answer.status_code == 503
    assert "the host at http://127.0.0.1:1 did not answer: All connection" in answer.json()["detail"]


async def test_the_container_map_leads_clients_nowhere_else(tmp_path: Path) -> None:
    async with two_hosts(tmp_path) as (_, first, _):
        found = (await first.served.http.get("/v1/containers")).json()["containers"]
    assert [each["url"] for each in found] == [None, None]
    assert [each["epoch"] for each in found] == [1, None]


# --- batches -------------------------------------------------------------------------------------


async def post_batch(sender: Host, *items: BatchItem) -> list[Any]:
    answer = await sender.served.http.post(
        "/v1/batch", content=batch(*items), headers={"Content-Type": BATCH_TYPE}
    )
    assert answer.status_code == 200, answer.text
    return list(decode_outcomes(answer.content, len(items)))


async def test_h22_a_batch_is_divided_among_the_owners_in_order(tmp_path: Path) -> None:
    async with two_hosts(tmp_path) as (store, first, second):
        for name in (HERE, THERE):
            await store.create_segment(name)
        items = [BatchItem(name, data) for data in (b"a", b"bb") for name in (THERE, HERE)]
        assert await post_batch(first, *items, BatchItem(name_in(1, "none"), b"x")) == [0, 0, 1, 1, ANY_ERROR]
        assert await store.read(THERE, 0, 9) == await store.read(HERE, 0, 9) == b"abb"
        assert (first.forwarded("batch"), second.forwarded("batch")) == (1, 0)


class _AnyError:
    def __eq__(self, other: object) -> bool:
        return isinstance(other, TierlogError)

    __hash__ = None  # type: ignore[assignment]


ANY_ERROR = _AnyError()


@pytest.mark.parametrize(("act", "kind"), [(Fault.RESET, OutcomeUnknown), (Fault.CLOSE, OutcomeUnknown)])
async def test_a_lost_part_of_a_batch_is_unknown_and_no_other(tmp_path: Path, act: str, kind: type) -> None:
    async with two_hosts(tmp_path) as (store, first, _):
        await store.create_segment(HERE)
        with scripted(script_of(act)) as owner:
            first.places.urls[1] = owner.url
            lost, found = await post_batch(first, BatchItem(THERE, b"x"), BatchItem(HERE, b"y"))
            assert (type(lost), found, len(owner.received)) == (kind, 0, 1)


async def test_a_part_that_the_owner_refuses_has_its_refusal(tmp_path: Path) -> None:
    """Of an owner with a smaller limit, for example: nothing was done, and the client may send less."""
    async with two_hosts(tmp_path) as (_, first, _):
        with scripted(lambda received: problem(TooLarge("more than this host takes"))) as owner:
            first.places.urls[1] = owner.url
            [refused] = await post_batch(first, BatchItem(THERE, b"x"))
    assert isinstance(refused, TooLarge)


async def test_a_batch_for_an_owner_that_is_gone_has_no_effect_there(tmp_path: Path) -> None:
    async with two_hosts(tmp_path) as (_, first, _):
        first.places.urls[1] = "http://127.0.0.1:1"
        [lost] = await post_batch(first, BatchItem(THERE, b"x"))
    assert lost.code == "unavailable"
    assert "nothing was done" in str(lost)


async def test_a_refused_part_is_sent_to_the_owner_that_the_refusal_names(tmp_path: Path) -> None:
    async with two_hosts(tmp_path) as (store, first, second):
        await store.create_segment(THERE)
        refusal = OwnedElsewhere("not here", owner=second.url)
        with scripted(lambda received: json_answer({"results": [problem_of(refusal)]})) as stale:
            first.places.urls[1] = stale.url
            assert await post_batch(first, BatchItem(THERE, b"x")) == [0]


def problem_of(error: TierlogError) -> object:
    return json.loads(problem(error).body)


# --- owners that are gone, or are others ---------------------------------------------------------


async def appended(sender: Host, **headers: str) -> Any:
    return await sender.served.http.post(APPEND, content=b"x", headers={**BYTES, **headers})


@pytest.mark.parametrize("act", [Fault.RESET, Fault.CLOSE, Answer(200, b'{"offset": 3}', cut=5)])
async def test_h22_an_append_whose_answer_is_lost_may_be_applied(tmp_path: Path, act: Any) -> None:
    async with two_hosts(tmp_path) as (_, first, second):
        with scripted(script_of(act)) as owner:
            first.places.urls[1] = owner.url
            if isinstance(act, Answer):  # H10: the head is on its way
                with pytest.raises(Exception, match="peer closed|incomplete"):
                    await appended(first)
            else:
                answer = await appended(first)
                assert answer.json()["code"] == "outcome-unknown"
                assert answer.json()["retry"] == "identified"
            assert len(owner.received) == 1, "not a second time"
        assert second.answered() == 0


async def test_a_read_without_an_answer_is_passed_on_to_the_owner_of_now(tmp_path: Path) -> None:
    async with two_hosts(tmp_path) as (store, first, second):
        await store.create_segment(THERE)

        def dies(received: Received) -> str:
            first.places.urls[1] = second.url
            return Fault.RESET

        with scripted(dies) as owner:
            first.places.urls[1] = owner.url
            assert (await first.served.http.get(INFO)).json()["name"] == THERE


async def test_h22_a_chunked_body_whose_end_was_not_sent_has_no_effect(tmp_path: Path) -> None:
    """Of an owner that ends, or one with a smaller limit, whose answer is lost with the connection."""
    left = anyio.Event()

    async def pieces() -> Any:
        yield b"x"
        await left.wait()
        for _ in range(64):
            yield bytes(1 << 16)

    async with (
        two_hosts(tmp_path) as (_, first, _),
        await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
        anyio.create_task_group() as tasks,
    ):

        async def leave(stream: anyio.abc.SocketStream) -> None:
            await stream.receive()
            await stream.aclose()
            left.set()

        tasks.start_soon(listener.serve, leave)
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        first.places.urls[1] = f"http://127.0.0.1:{port}"
        answer = await first.served.http.post(APPEND, content=pieces(), headers=BYTES)
        tasks.cancel_scope.cancel()
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
    assert "nothing was done" in answer.json()["detail"]


class Failing(httpx.AsyncBaseTransport):
    """As httpcore on uvloop with a connection that is reset before or while it is used."""

    def __init__(self, *, asks: bool) -> None:
        self._asks = asks

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self._asks:
            assert isinstance(request.stream, httpx.AsyncByteStream)
            await anext(aiter(request.stream))
        ask_lost_socket()
        raise AssertionError("it breaks")


@pytest.mark.parametrize("in_batch", [False, True])
async def test_h22_nothing_was_done_over_a_connection_that_is_reset_before_it_is_used(
    tmp_path: Path, in_batch: bool
) -> None:
    async with two_hosts(tmp_path) as (_, first, _):
        forwarder = first.served.gateway.forwarder
        assert forwarder is not None
        forwarder._pools = ConnectionPools(lambda: Failing(asks=False), 1)
        if in_batch:
            [lost] = await post_batch(first, BatchItem(THERE, b"x"))
            assert (lost.code, "nothing was done" in str(lost)) == ("unavailable", True)
        else:
            answer = await appended(first)
            assert (answer.status_code, answer.json()["retry"]) == (503, "later")
            assert "the connection was reset; nothing was done" in answer.json()["detail"]
        forwarder._pools = ConnectionPools(lambda: Failing(asks=True), 1)
        # It was used: what was sent may be applied.
        if in_batch:
            [lost] = await post_batch(first, BatchItem(THERE, b"x"))
            assert lost.code == "outcome-unknown"
        else:
            assert (await appended(first)).json()["code"] == "outcome-unknown"


async def test_an_owner_that_is_gone_has_done_nothing(tmp_path: Path) -> None:
    async with two_hosts(tmp_path) as (_, first, _):
        first.places.urls[1] = "http://127.0.0.1:1"
        answer = await appended(first)
    assert (answer.status_code, answer.json()["retry"]) == (503, "later")
    assert "nothing was done" in answer.json()["detail"]


@pytest.mark.parametrize("size", [1, KEPT_BYTES])
async def test_h22_a_refusal_leads_to_one_fresh_look_for_the_owner(tmp_path: Path, size: int) -> None:
    async with two_hosts(tmp_path) as (store, first, second):
        await store.create_segment(THERE)
        refusal = problem(OwnedElsewhere("not here", owner=second.url))
        with scripted(script_of(refusal)) as stale:
            first.places.urls[1] = stale.url
            answer = await first.served.http.post(APPEND, content=b"x" * size, headers=BYTES)
            assert answer.json() == {"offset": 0}
            assert len(stale.received) == 1
        assert await store.read(THERE, 0, size + 1) == b"x" * size


async def test_a_refused_body_that_is_not_kept_is_the_clients_to_send_again(tmp_path: Path) -> None:
    async with two_hosts(tmp_path) as (_, first, second):
        with scripted(script_of(problem(OwnedElsewhere("not here", owner=second.url)))) as stale:
            first.places.urls[1] = stale.url
            answer = await first.served.http.post(APPEND, content=b"x" * (1 << 20), headers=BYTES)
    assert (answer.status_code, answer.json()["retry"]) == (421, "elsewhere")
    assert "tierlog-owner" not in answer.headers, "the client need not reach it"


async def test_h22_two_hosts_that_name_each_other_end_after_one_more_attempt(tmp_path: Path) -> None:
    async with two_hosts(tmp_path) as (_, first, second):
        second.places.served.clear()
        second.places.urls[1] = first.url
        for answer in (await first.served.http.get(INFO), await appended(first)):
            assert (answer.status_code, answer.json()["code"]) == (421, "not-owner")
            assert "tierlog-owner" not in answer.headers
        # To the other host, and once to the one that this names: itself.
        assert (first.answered(), second.answered()) == (4, 2)


async def test_an_owner_that_refuses_this_hosts_name_for_it_is_unavailable(tmp_path: Path) -> None:
    async with two_hosts(tmp_path) as (_, first, _):
        with scripted(script_of(problem(UnknownHost("'b' is not a name")))) as owner:
            first.places.urls[1] = owner.url
            answer = await appended(first)
    assert (answer.status_code, "the owner refuses this host" in answer.text) == (503, True)


async def test_a_frozen_owner_is_left_when_the_container_has_another(tmp_path: Path) -> None:
    async with two_hosts(tmp_path) as (store, first, second):
        await store.create_segment(THERE)
        with scripted(script_of(Fault.SILENCE)) as frozen:
            first.places.urls[1] = frozen.url
            answers: list[Any] = []

            async def ask() -> None:
                answers.append(await first.served.http.get(INFO))

            async def append() -> None:
                answers.append(await appended(first))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask)
                tasks.start_soon(append)
                await until(lambda: len(frozen.received) == 2)
                first.places.urls[1] = second.url
            frozen.release()
    codes = sorted(answer.json().get("code", "") for answer in answers)
    assert codes == ["", "outcome-unknown"], "the read has its answer, and the append may be applied"


async def test_an_owner_that_moves_during_a_forwarded_tail_ends_the_stream(tmp_path: Path) -> None:
    """As a stream of a server that stops ends: a poll at the next offset goes to the new owner (H11)."""
    async with two_hosts(tmp_path) as (store, first, second):
        await store.create_segment(THERE)
        await store.append(THERE, b"one")
        async with host(store, {1}) as old:
            first.places.urls[1] = old.url
            path = f"{segment_path(THERE, Verb.TAIL)}?stream=true"
            async with first.served.http.stream("GET", path) as stream:
                pieces = stream.aiter_raw()
                assert await anext(pieces) == b"one"
                first.places.urls[1] = second.url
                assert [piece async for piece in pieces] == []
            assert (
                await first.served.http.get(f"{segment_path(THERE, Verb.TAIL)}?offset=1")
            ).content == b"ne"
            await until(lambda: old.served.gateway.tails == 0)


async def test_h15_forwarded_tails_end_when_the_server_stops(tmp_path: Path) -> None:
    async with two_hosts(tmp_path) as (store, first, _):
        await store.create_segment(THERE)
        path = f"{segment_path(THERE, Verb.TAIL)}?stream=true"
        answers: list[Any] = []

        async def poll() -> None:
            answers.append(await first.served.http.get(segment_path(THERE, Verb.TAIL)))

        async with anyio.create_task_group() as tasks, first.served.http.stream("GET", path) as stream:
            tasks.start_soon(poll)
            await until(lambda: first.served.gateway.tails == 2)
            first.served.gateway.drain()
            assert [piece async for piece in stream.aiter_raw()] == []
        assert [answer.status_code for answer in answers] == [503]


# --- clients that leave, are slow, or are hostile ------------------------------------------------


async def test_a_client_that_leaves_takes_its_request_to_the_owner_along(tmp_path: Path) -> None:
    async with two_hosts(tmp_path) as (store, first, second):
        await store.create_segment(THERE)
        path = segment_path(THERE, Verb.TAIL)
        stream = await first.served.raw(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        await until(lambda: second.served.gateway.tails == 1)
        await stream.aclose()
        await until(lambda: second.served.gateway.tails == first.served.gateway.tails == 0)


async def settled(number: Callable[[], int]) -> None:
    """Return when it does not change any more, at a bound that the test asserts."""
    last, rounds = -1, 0
    while rounds < 50:
        last, rounds = (last, rounds + 1) if last == number() else (number(), 0)
        await anyio.sleep(0.002)


async def test_h10_a_slow_reader_holds_the_owner_back(tmp_path: Path) -> None:
    """What is on its way is in the buffers of sockets; the rest stays unread at the owner."""
    async with two_hosts(tmp_path) as (store, first, second):
        await store.create_segment(THERE)
        large, read = replace(await store.segment_info(THERE), length=SIZE), 0

        async def segment_info(name: str) -> Any:
            return large

        async def read_view(name: str, offset: int, size: int, **more: Any) -> bytes:
            nonlocal read
            read += size
            return bytes(size)

        second.served.gateway.store = Wrapped(store, read_view=read_view, segment_info=segment_info)
        path = segment_path(THERE, Verb.BYTES)
        stream = await first.served.raw(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        assert await stream.receive(10) == b"HTTP/1.1 2"
        await settled(lambda: read)
        assert read < SIZE // 2
        await stream.aclose()


async def test_h9_the_time_that_the_owner_takes_is_not_the_clients(tmp_path: Path) -> None:
    async with two_hosts(tmp_path) as (_, first, _):
        arrival = Arrival(first.served.gateway)
        with arrival:
            arrival.take_more(1000)
        before = arrival.deadline
        arrival.covered -= 60  # as if a minute passed, in which the owner took these bytes
        arrival._paused -= 60
        arrival.resume()
        assert (
            before - 1 < arrival.deadline <= anyio.current_time() + first.served.gateway.limits.body_timeout
        )
        arrival.release()
        assert first.served.gateway.held_bytes == 0


async def test_h22_a_slow_owner_holds_the_client_back(tmp_path: Path) -> None:
    async def slow_owner(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            await stream.receive(1)  # anyio reads ahead until the first one
            await anyio.sleep_forever()

    async with (
        two_hosts(tmp_path) as (store, first, _),
        await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
        anyio.create_task_group() as tasks,
    ):
        store.append_bytes_max = SIZE
        tasks.start_soon(listener.serve, slow_owner)
        first.places.urls[1] = f"http://127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}"
        head = f"POST {APPEND} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {SIZE}\r\n"
        stream = await first.served.raw(f"{head}content-type: application/octet-stream\r\n\r\n".encode())
        sent = 0

        async def send() -> None:
            nonlocal sent
            while True:
                await stream.send(bytes(1 << 16))
                sent += 1 << 16

        tasks.start_soon(send)
        await settled(lambda: sent)
        assert 0 < sent < SIZE // 2
        assert first.served.gateway.held_bytes < 1 << 20
        tasks.cancel_scope.cancel()
        await stream.aclose()


async def test_h9_a_body_that_stalls_is_the_clients_fault(tmp_path: Path) -> None:
    async with two_hosts(tmp_path, attrs.evolve(ServerLimits(), body_timeout=0.05)) as (store, first, _):
        await store.create_segment(THERE)
        head = f"POST {APPEND} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n"
        stream = await first.served.raw(f"{head}content-type: application/octet-stream\r\n\r\nx".encode())
        assert (await everything(stream)).startswith(b"HTTP/1.1 408 ")
        assert (await store.segment_info(THERE)).length == 0


async def test_h12_exchanges_with_owners_are_bounded(tmp_path: Path) -> None:
    async with two_hosts(tmp_path) as (store, first, _):
        await store.create_segment(THERE)
        assert first.served.gateway.forwarder is not None
        first.served.gateway.forwarder.exchanges_max = 0
        answer = await first.served.http.get(INFO)
    assert (answer.status_code, answer.json()["code"]) == (429, "throttled")


async def test_headers_of_the_exchange_are_not_passed_on(tmp_path: Path) -> None:
    async with two_hosts(tmp_path) as (_, first, _):
        with scripted(script_of(OFFSET)) as owner:
            first.places.urls[1] = owner.url
            mine = {
                "Connection": "close, X-Mine",
                "X-Mine": "1",
                "Keep-Alive": "timeout=5",
                "TE": "trailers",
                "Upgrade": "h2c",
                "Origin": f"http://127.0.0.1:{first.served.port}",
                "Sec-Fetch-Site": "same-origin",
                "Expect": "100-continue",
                "Proxy-Authorization": "secret",
                "Tierlog-Writer-Id": "w",
                "Tierlog-Event-Number": "1",
                "X-Other": "kept",
                "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                "X-Request-Id": "mine",
            }
            answer = await appended(first, **mine)
            [received] = owner.received
    assert answer.json() == {"offset": 3}
    assert dict(received.headers) == {
        "host": owner.url.removeprefix("http://"),
        "accept": "*/*",
        "accept-encoding": received.headers["accept-encoding"],
        "user-agent": received.headers["user-agent"],
        "content-type": "application/octet-stream",
        "content-length": "1",
        "tierlog-writer-id": "w",
        "tierlog-event-number": "1",
        "tierlog-forwarded": "1",
        "x-other": "kept",
        "x-request-id": "mine",
        "traceparent": mine["traceparent"],
    }


async def test_the_owners_span_is_a_child_of_the_hosts_own(tmp_path: Path) -> None:
    recorder = Recorder()
    trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    async with two_hosts(tmp_path, tracing=opentelemetry_tracing(recorder.provider)) as (_, first, _):
        headers = {"traceparent": f"00-{trace}-{parent}-01"}
        assert (await first.served.http.get(INFO, headers=headers)).status_code == 404
    children = {span.parent.span_id: span for span in recorder.all() if span.parent is not None}
    host_span = children[int(parent, 16)]
    passed = children[host_span.context.span_id]
    owner_span = children[passed.context.span_id]
    assert (host_span.name, owner_span.name) == ("GET /v1/segments/{name}/info",) * 2
    assert {f"{span.context.trace_id:032x}" for span in (host_span, owner_span)} == {trace}


@pytest.mark.parametrize(
    "named", ["Tierlog-Writer-Id", "close, tierlog-expected-offset", "RANGE", "Host", "content-encoding"]
)
def test_a_connection_header_must_not_take_away_what_the_owner_acts_on(named: str) -> None:
    with pytest.raises(InvalidArgument, match="Connection names"):
        passed_headers([(b"connection", named.encode()), (b"tierlog-writer-id", b"w")])


async def test_headers_of_answers_that_concern_the_connection_end_here(tmp_path: Path) -> None:
    made = Answer(
        200,
        b"{}",
        {
            "Content-Type": "application/json",
            "Connection": "X-Secret",
            "X-Secret": "1",
            "Keep-Alive": "max=1",
        },
    )
    async with two_hosts(tmp_path) as (_, first, _):
        with scripted(script_of(made)) as owner:
            first.places.urls[1] = owner.url
            answer = await first.served.http.get(INFO)
    assert {"x-secret", "keep-alive", "connection"}.isdisjoint(answer.headers)


async def test_a_client_that_calls_its_request_forwarded_is_sent_to_the_owner(tmp_path: Path) -> None:
    """It gets what another host would get, and nothing is passed on."""
    async with two_hosts(tmp_path) as (_, first, second):
        answer = await appended(first, **{"Tierlog-Forwarded": "1"})
        assert (answer.status_code, answer.headers["tierlog-owner"]) == (421, second.url)
        assert second.answered() == 0


async def test_a_host_without_the_mode_sends_clients_to_the_owner(tmp_path: Path) -> None:
    async def elsewhere(*args: Any, **named: Any) -> None:
        raise NotOwner("not here")

    async with two_hosts(tmp_path, serves=None) as (store, first, second):
        first.served.gateway.store = Wrapped(store, append=elsewhere)
        answer = await appended(first)
    assert (answer.status_code, answer.headers["tierlog-owner"]) == (421, second.url)


async def test_a_name_that_needs_escapes_arrives_as_it_was_sent(tmp_path: Path) -> None:
    name = name_in(1, "a/b+~$:@=")
    async with two_hosts(tmp_path) as (store, first, _):
        await store.create_segment(name)
        answer = await first.served.http.get(segment_path(name, Verb.INFO))
    assert answer.json()["name"] == name
