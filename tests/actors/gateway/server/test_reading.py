"""Ranges, streams, slow readers and tails (rules H6, H10, H11)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import httpx
import pytest

from support.http_server import ServedStore, Wrapped, service, serving, until
from tierlog import open_store
from tierlog.actors.gateway.server.context import ServerLimits
from tierlog.storage_backends.base.errors import Unavailable

pytestmark = pytest.mark.anyio

SMALL = ServerLimits(block_bytes=1000)
DATA = bytes(index % 251 for index in range(10_000))


@pytest.fixture
async def small(tmp_path: Path, anyio_backend: str) -> AsyncIterator[ServedStore]:
    """A server of small blocks, and the segment ``a`` of ten of them."""
    async with service(tmp_path, SMALL) as served:
        await served.store.create_segment("a")
        await served.store.append("a", DATA)
        yield served


async def get(served: ServedStore, range: str, name: str = "a") -> httpx.Response:
    return await served.http.get(f"/v1/segments/{name}/bytes", headers={"Range": range})


# --- HEAD ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/segments/a/bytes", "/v1/segments/a/info", "/v1/segments", "/health"])
async def test_head_has_the_head_of_get_and_no_body(small: ServedStore, path: str) -> None:
    get, head = await small.http.get(path), await small.http.head(path)

    assert (head.status_code, head.content) == (get.status_code, b"")
    own = ("date", "x-request-id")
    assert {name: value for name, value in head.headers.items() if name not in own} == {
        name: value for name, value in get.headers.items() if name not in own
    }


async def test_head_of_a_stream_ends_with_its_head_and_the_connection_goes_on(small: ServedStore) -> None:
    head = await small.http.head("/v1/segments/a/tail?offset=0&stream=true")
    assert (head.status_code, head.content) == (200, b"")

    missing = await small.http.head("/v1/segments/missing/bytes")
    assert (missing.status_code, missing.content) == (404, b"")
    assert (await small.http.get("/v1/segments/a/bytes")).content == DATA


# --- ranges -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, first, last",
    [
        ("bytes=0-0", 0, 0),
        ("bytes=5-994", 5, 994),
        ("bytes=0-999", 0, 999),
        ("bytes=0-1000", 0, 1000),
        ("bytes=3000-", 3000, 9999),
        ("bytes=-1", 9999, 9999),
        ("bytes=-99999", 0, 9999),
        ("bytes=9999-99999", 9999, 9999),
    ],
)
async def test_h6_a_range_gives_its_bytes(small: ServedStore, text: str, first: int, last: int) -> None:
    response = await get(small, text)

    assert response.status_code == 206
    assert response.content == DATA[first : last + 1]
    assert response.headers["content-range"] == f"bytes {first}-{last}/10000"
    assert response.headers["content-length"] == str(last + 1 - first)
    assert [
        response.headers[f"tierlog-{name}"] for name in ("offset", "length", "start-offset", "sealed")
    ] == [str(first), "10000", "0", "false"]


async def test_without_a_range_everything_comes(small: ServedStore) -> None:
    response = await small.http.get("/v1/segments/a/bytes")

    assert (response.status_code, response.content) == (200, DATA)
    assert "content-range" not in response.headers


@pytest.mark.parametrize("headers", [{}, {"Range": "bytes=0-"}, {"Range": "bytes=-5"}], ids=str)
async def test_a_table_has_no_bytes(small: ServedStore, headers: dict[str, str]) -> None:
    await small.store.create_table("rows")
    response = await small.http.get("/v1/segments/rows/bytes", headers=headers)

    assert (response.status_code, response.json()["code"]) == (409, "wrong-segment-kind")


@pytest.mark.parametrize("text", ["bytes=10000-", "bytes=10001-20000", "bytes=-0"])
async def test_h6_past_the_tail_there_is_nothing(small: ServedStore, text: str) -> None:
    response = await get(small, text)

    assert (response.status_code, response.headers["content-range"]) == (416, "bytes */10000")
    assert (response.json()["length"], response.json()["sealed"]) == (10_000, False)


async def test_h6_a_range_before_the_start_is_410(small: ServedStore) -> None:
    await small.store.truncate_segment("a", 100)

    response = await get(small, "bytes=99-200")

    assert (response.status_code, response.json()["start_offset"]) == (410, 100)
    whole = await small.http.get("/v1/segments/a/bytes")
    assert (whole.content, whole.headers["tierlog-offset"]) == (DATA[100:], "100")


@pytest.mark.parametrize("text", ["bytes=5-4", "bytes=0-1,4-5", "items=0-1", "bytes=x-", "bytes"])
async def test_h6_a_malformed_range_is_refused(small: ServedStore, text: str) -> None:
    response = await get(small, text)

    assert (response.status_code, response.json()["code"]) == (400, "invalid-argument")


async def test_an_empty_segment_has_no_bytes(small: ServedStore) -> None:
    await small.store.create_segment("empty")

    whole = await small.http.get("/v1/segments/empty/bytes")

    assert (whole.status_code, whole.content) == (200, b"")
    assert (await get(small, "bytes=0-", "empty")).status_code == 416


# --- streams ------------------------------------------------------------------------------------


async def test_h10_a_failure_after_the_answer_began_breaks_the_connection(tmp_path: Path) -> None:
    async with open_store(tmp_path / "data", containers=1) as store:

        async def read(name: str, offset: int, size: int) -> bytes:
            if offset > 4000:
                raise Unavailable("gone")
            return await store.read(name, offset, size)

        await store.create_segment("a")
        await store.append("a", DATA)
        async with serving(Wrapped(store, read_view=read), SMALL) as served:
            with pytest.raises(httpx.RemoteProtocolError):
                await served.http.get("/v1/segments/a/bytes")

            assert (await get(served, "bytes=5000-9999")).status_code == 503


async def test_h10_a_stream_never_continues_with_another_segment_of_the_name(tmp_path: Path) -> None:
    async with open_store(tmp_path / "data", containers=1) as store:

        async def read(name: str, offset: int, size: int) -> bytes:
            if offset == 5000:
                await store.delete_segment("a")
                await store.create_segment("a")
                await store.append("a", bytes(10_000))
            return await store.read(name, offset, size)

        await store.create_segment("a")
        await store.append("a", DATA)
        async with serving(Wrapped(store, read_view=read), SMALL) as served:
            with pytest.raises(httpx.RemoteProtocolError):
                await served.http.get("/v1/segments/a/bytes")


async def test_h10_a_stream_ends_with_its_client(tmp_path: Path) -> None:
    block = 64 << 10
    async with open_store(tmp_path / "data", containers=1) as store:
        await store.create_segment("a")
        for _ in range(8):
            await store.append("a", bytes(32 * block))
        async with serving(store, ServerLimits(block_bytes=block)) as served:
            stream = await served.raw(b"GET /v1/segments/a/bytes HTTP/1.1\r\nhost: localhost\r\n\r\n")
            await stream.receive(100)
            await stream.aclose()
            await until(lambda: served.gateway.metrics.requests(status=499) == 1)


# --- tails --------------------------------------------------------------------------------------


async def test_h11_a_long_poll_answers_with_the_bytes_that_come(small: ServedStore) -> None:
    async with anyio.create_task_group() as tasks:

        async def poll() -> None:
            response = await small.http.get("/v1/segments/a/tail?offset=10000")
            assert (response.status_code, response.content, response.headers["tierlog-offset"]) == (
                200,
                b"new",
                "10000",
            )

        tasks.start_soon(poll)
        await until(lambda: small.gateway.tails == 1)
        await small.store.append("a", b"new")

    assert small.gateway.tails == 0


async def test_h11_a_long_poll_answers_with_one_block_of_existing_bytes(small: ServedStore) -> None:
    response = await small.http.get("/v1/segments/a/tail?offset=500")

    assert response.content == DATA[500:1500]


async def test_h11_a_long_poll_ends_with_its_time_and_with_the_seal(small: ServedStore) -> None:
    late = await small.http.get("/v1/segments/a/tail?offset=10000&wait=0.01")
    async with anyio.create_task_group() as tasks:

        async def poll() -> None:
            sealed = await small.http.get("/v1/segments/a/tail?offset=10000")
            assert (sealed.status_code, sealed.headers["tierlog-sealed"]) == (204, "true")

        tasks.start_soon(poll)
        await until(lambda: small.gateway.tails == 1)
        await small.store.seal_segment("a")

    assert (late.status_code, late.headers["tierlog-sealed"]) == (204, "false")


async def test_h11_a_long_poll_ends_when_its_segment_does(small: ServedStore) -> None:
    async with anyio.create_task_group() as tasks:

        async def poll() -> None:
            assert (await small.http.get("/v1/segments/a/tail?offset=10000")).status_code == 404

        tasks.start_soon(poll)
        await until(lambda: small.gateway.tails == 1)
        await small.store.delete_segment("a")


async def test_h11_a_stream_follows_until_the_seal(small: ServedStore) -> None:
    seen = bytearray()
    async with anyio.create_task_group() as tasks:

        async def follow() -> None:
            async with small.http.stream("GET", "/v1/segments/a/tail?offset=9000&stream=true") as response:
                assert (response.status_code, response.headers["tierlog-offset"]) == (200, "9000")
                async for piece in response.aiter_raw():
                    seen.extend(piece)

        tasks.start_soon(follow)
        await until(lambda: len(seen) == 1000)
        await small.store.append("a", b"more")
        await until(lambda: len(seen) == 1004)
        await small.store.seal_segment("a")

    assert bytes(seen) == DATA[9000:] + b"more"
    assert (await small.http.get("/v1/segments/a/tail?offset=10004")).headers["tierlog-sealed"] == "true"


async def test_h11_a_stream_that_fails_is_broken_off(small: ServedStore) -> None:
    async with anyio.create_task_group() as tasks:

        async def follow() -> None:
            with pytest.raises(httpx.RemoteProtocolError):
                await small.http.get("/v1/segments/a/tail?offset=10000&stream=true")

        tasks.start_soon(follow)
        await until(lambda: small.gateway.tails == 1)
        await small.store.delete_segment("a")


@pytest.mark.parametrize("query", [b"offset=10000", b"offset=10000&stream=true"])
async def test_h11_a_parked_reader_ends_with_its_client(small: ServedStore, query: bytes) -> None:
    stream = await small.raw(b"GET /v1/segments/a/tail?" + query + b" HTTP/1.1\r\nhost: localhost\r\n\r\n")
    await until(lambda: small.gateway.tails == 1)

    await stream.aclose()

    await until(lambda: small.gateway.tails == 0)
    await until(lambda: small.gateway.metrics.requests(status=499) == 1)


async def test_h12_more_tails_than_the_bound_are_refused(tmp_path: Path) -> None:
    async with service(tmp_path, ServerLimits(tails=1)) as served:
        await served.store.create_segment("a")
        stream = await served.raw(b"GET /v1/segments/a/tail HTTP/1.1\r\nhost: localhost\r\n\r\n")
        await until(lambda: served.gateway.tails == 1)

        response = await served.http.get("/v1/segments/a/tail")

        assert (response.status_code, response.json()["code"]) == (429, "throttled")
        await stream.aclose()
