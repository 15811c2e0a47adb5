"""Requests that are too large, half, late, of the wrong kind or too many (rules H9, H12)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from support.http_server import (
    ServedStore,
    Wrapped,
    everything,
    everything_while_it_drips,
    service,
    serving,
    until,
)
from support.loop_steps import LongestSteps
from tierlog import open_store
from tierlog.actors.gateway.server import connection, listener
from tierlog.actors.gateway.server.context import ServerLimits
from tierlog.actors.gateway.wire.batch import (
    BATCH_TYPE,
    ITEM_MEMORY,
    BatchItem,
    decode_outcomes,
    encode_batch,
)
from tierlog.storage_backends.base.errors import BadOffset, ConfigError

pytestmark = pytest.mark.anyio

RAW = {"Content-Type": "application/octet-stream"}
BATCH = {"Content-Type": BATCH_TYPE}
HEAD = b"POST /v1/segments/a/append HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/octet-stream\r\n"


async def length(served: ServedStore) -> int:
    return (await served.store.segment_info("a")).length


# --- size ---------------------------------------------------------------------------------------


async def test_h9_a_declared_size_above_the_limit_is_refused_before_the_body(a: ServedStore) -> None:
    stream = await a.raw(HEAD + b"content-length: 99999999999\r\n\r\n")

    answer = await everything(stream)

    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in answer
    assert b'"code": "too-large"' in answer


async def test_h9_a_body_without_a_declared_size_is_refused_at_the_first_byte_above_the_limit(
    tmp_path: Path,
) -> None:
    limits = ServerLimits(batch_bytes=1000)
    async with service(tmp_path, limits) as served:
        head = (
            f"POST /v1/batch HTTP/1.1\r\nhost: localhost\r\ncontent-type: {BATCH_TYPE}\r\ntransfer-encoding: "
            f"chunked\r\n\r\n"
        ).encode()
        batch = b"".join(encode_batch([BatchItem("a", bytes(5000))]))
        stream = await served.raw(head + b"3e8\r\n" + batch[:1000] + b"\r\n1\r\nx\r\n")

        answer = await everything(stream)

    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"too-large" in answer


async def test_h9_chunks_above_the_limit_are_refused_while_they_come(a: ServedStore) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield bytes(1 << 18)

    response = await a.http.post("/v1/segments/a/append", content=chunks(), headers=RAW)

    assert (response.status_code, response.json()["code"]) == (413, "too-large")
    assert await length(a) == 0


async def test_h9_a_chunked_body_is_a_body(a: ServedStore) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(10):
            yield b"abc"

    response = await a.http.post("/v1/segments/a/append", content=chunks(), headers=RAW)

    assert response.json() == {"offset": 0}
    assert await a.store.read("a", 0, 99) == b"abc" * 10


async def test_h9_json_is_bounded_too(a: ServedStore) -> None:
    body = b'{"updates":[' + b" " * (1 << 20) + b"]}"

    response = await a.http.post(
        "/v1/segments/a/attributes", content=body, headers={"Content-Type": "application/json"}
    )

    assert response.status_code == 413


async def test_h9_a_body_of_the_largest_size_is_taken(a: ServedStore) -> None:
    response = await a.http.post(
        "/v1/segments/a/append", content=bytes(a.store.append_bytes_max), headers=RAW
    )

    assert response.status_code == 200


# --- kind ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path, content_type",
    [
        ("/v1/segments/a/append", "application/x-www-form-urlencoded"),
        ("/v1/segments/a/append", "text/plain"),
        ("/v1/segments/a/append", None),
        ("/v1/segments/a/create", "text/plain"),
        ("/v1/segments/a/create", None),
        ("/v1/batch", "application/octet-stream"),
    ],
)
async def test_h9_a_body_of_another_type_is_refused(
    a: ServedStore, path: str, content_type: str | None
) -> None:
    response = await a.http.post(
        path, content=b"{}", headers={} if content_type is None else {"Content-Type": content_type}
    )

    assert (response.status_code, response.json()["code"]) == (415, "unsupported-media-type")


async def test_h9_a_compressed_body_is_refused(a: ServedStore) -> None:
    response = await a.http.post(
        "/v1/segments/a/append", content=b"x", headers={**RAW, "Content-Encoding": "gzip"}
    )

    assert response.status_code == 415


async def test_h9_parameters_of_a_media_type_are_ignored(a: ServedStore) -> None:
    headers = {"Content-Type": "Application/JSON; charset=utf-8"}

    assert (await a.http.post("/v1/segments/b/create", content=b"{}", headers=headers)).status_code == 201


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b'{"offset":1e400}', b"\xff", b'{"offset":1}{}', b'{"offset":' + b"9" * 5000 + b"}"]
)
async def test_h8_malformed_json_is_refused(a: ServedStore, body: bytes) -> None:
    response = await a.http.post(
        "/v1/segments/a/truncate", content=body, headers={"Content-Type": "application/json"}
    )

    assert (response.status_code, response.json()["code"]) == (400, "invalid-argument")


# --- half requests ------------------------------------------------------------------------------


async def test_h9_a_stalled_body_times_out(tmp_path: Path) -> None:
    async with service(tmp_path, ServerLimits(body_timeout=0.05)) as served:
        await served.store.create_segment("a")
        stream = await served.raw(HEAD + b"content-length: 100\r\n\r\nhalf")

        answer = await everything(stream)

        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"request-timeout" in answer
        assert await length(served) == 0


async def test_h9_a_disconnect_inside_a_request_has_no_effect(a: ServedStore) -> None:
    stream = await a.raw(HEAD + b"content-length: 100\r\n\r\nhalf")
    await until(lambda: a.gateway.metrics.operation("append").in_flight == 1)

    await stream.aclose()

    await until(lambda: a.gateway.metrics.requests(status=499) == 1)
    assert a.gateway.metrics.operation("append").in_flight == 0
    assert a.gateway._in_flight_bytes == 0
    assert await length(a) == 0


async def test_half_a_head_times_out(a: ServedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    half = await a.used()
    monkeypatch.setattr(connection, "HEAD_TIMEOUT", 0.05)
    await half.send(b"POST /v1/seg")
    silent = await a.raw(b"")

    assert await everything(silent) == b""
    answer = await everything(half)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"connection: close" in answer


async def test_requests_on_one_connection_are_answered_in_order(a: ServedStore) -> None:
    one = HEAD + b"content-length: 3\r\n\r\n"
    last = HEAD + b"connection: close\r\ncontent-length: 3\r\n\r\n"
    answer = await everything(await a.raw(one + b"one" + one + b"two" + last + b"end"))

    assert [line for line in answer.split(b"\r\n") if b"offset" in line] == [
        b'{"offset":0}HTTP/1.1 200 OK',
        b'{"offset":3}HTTP/1.1 200 OK',
        b'{"offset":6}',
    ]


# --- too many -----------------------------------------------------------------------------------


async def test_h12_more_requests_than_the_bound_are_refused(tmp_path: Path) -> None:
    release = anyio.Event()

    async def append(*args: Any, **more: Any) -> int:
        await release.wait()
        return 7

    async with (
        open_store(tmp_path / "data", containers=1) as store,
        serving(Wrapped(store, append=append), ServerLimits(requests=1)) as served,
        anyio.create_task_group() as tasks,
    ):

        async def first() -> None:
            assert (await served.http.post("/v1/segments/a/append", content=b"x", headers=RAW)).json() == {
                "offset": 7
            }

        tasks.start_soon(first)
        await until(lambda: served.gateway.metrics.operation("append").in_flight == 1)
        refused = await served.http.get("/v1/segments")
        release.set()

    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")


async def test_h12_more_bytes_than_the_bound_are_refused(tmp_path: Path) -> None:
    async with service(tmp_path, ServerLimits(in_flight_bytes=1000)) as served:
        await served.store.create_segment("a")
        stream = await served.raw(HEAD + b"content-length: 950\r\n\r\n" + bytes(900))
        await until(lambda: served.gateway._in_flight_bytes == 900)

        refused = await served.http.post("/v1/segments/a/append", content=bytes(200), headers=RAW)
        await stream.aclose()
        await until(lambda: served.gateway._in_flight_bytes == 0)
        alone = await served.http.post("/v1/segments/a/append", content=bytes(2000), headers=RAW)

    assert (refused.status_code, refused.json()["code"]) == (429, "throttled")
    assert alone.status_code == 200


def refused_batch(count: int) -> bytes:
    return b"".join(encode_batch([BatchItem("a", b"x", expected_offset=1 << 62)] * count))


async def test_h12_the_items_of_a_batch_count_besides_its_bytes(tmp_path: Path) -> None:
    async with service(tmp_path, ServerLimits(in_flight_bytes=200 * ITEM_MEMORY)) as served:
        await served.store.create_segment("a")
        stream = await served.raw(HEAD + b"content-length: 950\r\n\r\n" + bytes(900))
        await until(lambda: served.gateway._in_flight_bytes == 900)

        few = await served.http.post("/v1/batch", content=refused_batch(100), headers=BATCH)
        many = await served.http.post("/v1/batch", content=refused_batch(200), headers=BATCH)
        await until(lambda: served.gateway._in_flight_bytes == 900)
        await stream.aclose()

    assert (few.status_code, many.status_code) == (200, 429)


async def test_h12_a_large_answer_to_a_batch_is_sent_in_blocks(tmp_path: Path) -> None:
    """In steps and with room for one block, however long it is."""
    limits = ServerLimits(block_bytes=100_000, unread_bytes=200_000)
    async with service(tmp_path, limits) as served:
        await served.store.create_segment("a")
        longest, body = LongestSteps(), refused_batch(5000)
        answer = await served.http.post("/v1/batch", content=body, headers=BATCH)
        for _ in longest.attempts():
            with longest.of("batch"):
                answer = await served.http.post("/v1/batch", content=body, headers=BATCH)
        old = await served.raw(
            b"POST /v1/batch HTTP/1.0\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n"
            % (BATCH_TYPE.encode(), len(body))
            + body
        )
        whole = await everything(old)
        assert served.gateway.unread_blocks.value == served.gateway.unread_max == 1

    assert "content-length" not in answer.headers
    assert len(answer.content) > 10 * limits.block_bytes
    assert {type(outcome) for outcome in decode_outcomes(answer.content, 5000)} == {BadOffset}
    assert b"content-length: %d\r\n" % len(answer.content) in whole
    assert whole.endswith(answer.content)


async def test_h12_heads_without_their_bodies_hold_no_room(tmp_path: Path) -> None:
    async with service(tmp_path, ServerLimits(in_flight_bytes=4 << 20)) as served:
        await served.store.create_segment("a")
        heads = [await served.raw(HEAD + b"content-length: 4000000\r\n\r\n") for _ in range(8)]
        await until(lambda: served.gateway.metrics.operation("append").in_flight == 8)

        answer = await served.http.post("/v1/segments/a/append", content=bytes(1 << 20), headers=RAW)

        assert answer.status_code == 200
        for stream in heads:
            await stream.aclose()


@pytest.mark.parametrize("large", [False, True])
async def test_h12_a_body_that_outgrows_the_room_is_refused_while_it_comes(
    tmp_path: Path, large: bool
) -> None:
    size = (1 << 20) if large else 100_000
    async with service(tmp_path, ServerLimits(in_flight_bytes=size)) as served:
        await served.store.create_segment("a")
        head = HEAD + b"content-length: %d\r\n\r\n" % size
        one, other = await served.raw(head), await served.raw(head)
        await until(lambda: served.gateway.metrics.operation("append").in_flight == 2)
        await one.send(bytes(size * 2 // 3))
        await until(lambda: served.gateway._in_flight_bytes == size * 2 // 3)
        await other.send(bytes(size * 2 // 3))

        refused = await other.receive()
        await one.send(bytes(size - size * 2 // 3))
        taken = await one.receive()

        assert refused.startswith(b"HTTP/1.1 429 ")
        assert taken.startswith(b"HTTP/1.1 200 ")
        assert await length(served) == size
        await one.aclose()
        await other.aclose()
        await until(lambda: served.gateway._in_flight_bytes == 0)


@pytest.mark.parametrize("size", [200_000, 1 << 20])
async def test_h9_bytes_that_came_early_do_not_allow_a_body_to_drip_later(tmp_path: Path, size: int) -> None:
    async with service(tmp_path, ServerLimits(body_timeout=0.2)) as served:
        await served.store.create_segment("a")
        stream = await served.raw(HEAD + b"content-length: %d\r\n\r\n" % size + bytes(size - 1000))
        with anyio.fail_after(12):  # what came is worth as much or more at the minimum rate
            answer = await everything_while_it_drips(stream)

        assert answer.startswith(b"HTTP/1.1 408 ")
        await until(lambda: served.gateway._in_flight_bytes == 0)
        assert await length(served) == 0


@pytest.mark.parametrize("size", [200_000, 1 << 20])
async def test_h12_bodies_that_stopped_give_up_their_room_to_another(tmp_path: Path, size: int) -> None:
    async with service(tmp_path, ServerLimits(in_flight_bytes=2 * size, body_grace=0.1)) as served:
        await served.store.create_segment("a")
        head = HEAD + b"content-length: %d\r\n\r\n" % size
        first, second = [await served.raw(head + bytes(size - 10)) for _ in range(2)]
        await until(lambda: served.gateway._in_flight_bytes == 2 * size - 20)

        async def append() -> int:
            answer = await served.http.post("/v1/segments/a/append", content=bytes(100), headers=RAW)
            return answer.status_code

        while (status := await append()) == 429:
            await anyio.sleep(0.01)
        dropped = await everything(first)
        await second.send(bytes(10))

        assert status == 200
        assert dropped.startswith(b"HTTP/1.1 408 ")
        assert (await second.receive()).startswith(b"HTTP/1.1 200 ")  # one was enough
        assert await length(served) == size + 100
        await second.aclose()


async def test_h9_the_type_of_a_body_is_checked_before_a_byte_of_it(a: ServedStore) -> None:
    for framing in (b"content-length: 5000000", b"transfer-encoding: chunked"):
        stream = await a.raw(HEAD.replace(b"octet-stream", b"json") + framing + b"\r\n\r\n")

        assert (await stream.receive()).startswith(b"HTTP/1.1 415 ")
        await stream.aclose()


# --- sockets ------------------------------------------------------------------------------------


async def test_a_taken_port_is_a_clear_error(a: ServedStore) -> None:
    with pytest.raises(ConfigError, match=f"127.0.0.1:{a.port}"):
        listener.bind("127.0.0.1", a.port)

    with pytest.raises(ConfigError):
        listener.bind("no such host.invalid", 0)
