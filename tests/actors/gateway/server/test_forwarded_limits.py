"""One-port mode: requests above the limit of a body (rules H9 and H22)."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from support.http_server import everything, everything_while_it_drips
from support.patience import scaled
from support.two_hosts import name_in, two_hosts
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
