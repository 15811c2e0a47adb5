"""One-port mode: requests above the limit of a body (rules H9 and H22)."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import anyio
import httpx
import pytest

from support.http_server import everything, everything_while_it_drips, until
from support.patience import scaled
from support.raw_session import raw_session
from support.two_hosts import name_in, two_hosts
from tierlog.actors.gateway.server.forwarding import CLIENT_EXCHANGES, POOL_EXCHANGES
from tierlog.actors.gateway.wire.paths import Verb, segment_path

pytestmark = pytest.mark.anyio

THERE = name_in(1)
APPEND = segment_path(THERE, Verb.APPEND)


async def test_a_body_above_the_limit_ends_the_connection_as_it_does_at_the_owner(tmp_path: Path) -> None:
    async with two_hosts(tmp_path) as (store, first, _):
        await store.create_segment(THERE)
        size = store.append_bytes_max + 1
        head = f"POST {APPEND} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {size}\r\n"
        stream = await first.served.raw(f"{head}content-type: application/octet-stream\r\n\r\nx".encode())
        received = await everything_while_it_drips(stream, bytes(1 << 16))
    assert received.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in received


@pytest.mark.parametrize("size", [(8 << 20) + 1, (1 << 63) - 1])
@pytest.mark.parametrize("expect", ["", "expect: 100-continue\r\n"])
async def test_h22_a_length_above_the_limit_is_refused_by_the_head(
    tmp_path: Path, size: int, expect: str
) -> None:
    """No byte of the body is here yet, and the client is not asked for one."""
    async with two_hosts(tmp_path) as (store, first, second):
        await store.create_segment(THERE)
        assert store.append_bytes_max == 8 << 20
        head = f"POST {APPEND} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {size}\r\n{expect}"
        stream = await first.served.raw(f"{head}content-type: application/octet-stream\r\n\r\n".encode())
        with anyio.fail_after(scaled(10)):
            assert (await stream.receive()).startswith(b"HTTP/1.1 413 ")
            await everything(stream)
        assert (first.forwarded("append"), second.answered()) == (0, 0)


async def test_h22_a_body_that_grows_above_the_limit_is_refused_where_it_does(tmp_path: Path) -> None:
    """The answer of the owner, which ends its connection, could be lost, and the outcome be unknown."""
    async with two_hosts(tmp_path) as (store, first, _):
        await store.create_segment(THERE)
        size = store.append_bytes_max + 1
        head = f"POST {APPEND} HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n"
        stream = await first.served.raw(f"{head}content-type: application/octet-stream\r\n\r\n".encode())
        await stream.send(f"{size:x}\r\n".encode() + bytes(size) + b"\r\n")
        received = await everything_while_it_drips(stream, b"1\r\nx\r\n")
        assert received.startswith(b"HTTP/1.1 413 ")
        assert b'"code": "too-large"' in received
        assert (await store.segment_info(THERE)).length == 0
        assert first.served.gateway.held_bytes == 0


async def test_h22_many_calls_at_once_are_passed_on_one_a_turn_and_in_several_pools(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pool examines all its connections for each exchange: with thousands the loop would stand still. Of
    one client some wait, and another one's do not."""
    calls, turn = CLIENT_EXCHANGES + POOL_EXCHANGES, 0
    begun, under_way, asked = Counter[int](), Counter[httpx.AsyncBaseTransport](), Counter[Verb]()

    async def exchange(pool: httpx.AsyncHTTPTransport, request: httpx.Request) -> httpx.Response:
        begun[turn] += 1
        under_way[pool] += 1
        asked[Verb(request.url.path.rpartition("/")[2])] += 1
        await anyio.sleep_forever()
        raise AssertionError

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    async with two_hosts(tmp_path) as (_, first, _second), anyio.create_task_group() as tasks:
        tasks.start_soon(count_turns)
        monkeypatch.setattr(httpx.AsyncHTTPTransport, "handle_async_request", exchange)
        async with raw_session(first.served) as client:
            await client.begin_all([("GET", segment_path(THERE, Verb.INFO), b"")] * calls)
            await until(lambda: begun.total() == CLIENT_EXCHANGES)
            async with raw_session(first.served) as other:
                await other.begin_all([("GET", segment_path(THERE, Verb.BYTES), b"")] * POOL_EXCHANGES)
                await until(lambda: asked[Verb.BYTES] == POOL_EXCHANGES)
        tasks.cancel_scope.cancel()

    assert asked[Verb.INFO] == CLIENT_EXCHANGES
    assert max(begun.values()) == 1
    assert max(under_way.values()) == POOL_EXCHANGES
