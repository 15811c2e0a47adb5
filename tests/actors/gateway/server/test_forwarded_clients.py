"""Clients of one-port mode that close their half of a connection, or leave (rule H22)."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

import anyio
import anyio.abc
import attrs
import pytest

from support.http_server import everything, until
from support.patience import scaled
from support.raw_session import OCTETS, raw_session
from support.scripted_server import Fault, script_of, scripted
from support.two_hosts import Host, name_in, two_hosts
from tierlog.actors.gateway.server.context import ServerLimits
from tierlog.actors.gateway.wire.batch import BATCH_TYPE, BatchItem, encode_batch
from tierlog.actors.gateway.wire.paths import BATCH, Verb, segment_path

pytestmark = pytest.mark.anyio

HERE, THERE = name_in(0), name_in(1)
APPEND = segment_path(THERE, Verb.APPEND)


def raw_append(size: int = 1) -> bytes:
    head = f"POST {APPEND} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {size}\r\n"
    return f"{head}content-type: application/octet-stream\r\n\r\n".encode() + bytes(size)


@pytest.mark.parametrize(("count", "size"), [(1, 1), (3, 1), (3, 1 << 17)])
async def test_h22_a_client_that_closes_its_half_gets_its_answers(
    tmp_path: Path, count: int, size: int
) -> None:
    """As it does of the owner itself (H9). Large requests behind the one that is passed on wait."""
    async with two_hosts(tmp_path) as (store, first, _):
        await store.create_segment(THERE)
        stream = await first.served.raw(raw_append(size) * count)
        await stream.send_eof()
        answers = await everything(stream)
        assert answers.count(b"HTTP/1.1 200 OK") == count
        assert [b'{"offset":%d}' % (size * number) in answers for number in range(count)] == [True] * count


async def test_h22_a_client_that_has_closed_its_half_is_given_up_in_time(tmp_path: Path) -> None:
    """One that has left looks the same."""
    limits = attrs.evolve(ServerLimits(), half_closed=0.05)
    async with two_hosts(tmp_path, limits) as (_, first, _):
        with scripted(script_of(Fault.SILENCE)) as owner:
            first.places.urls[1] = owner.url
            stream = await first.served.raw(raw_append())
            await until(lambda: len(owner.received) == 1)
            await stream.send_eof()
            assert await everything(stream) == b""
            await until_idle(first)
            owner.release()


async def test_n6_a_call_that_is_given_up_in_time_ends_alone(tmp_path: Path) -> None:
    """Of a session whose client has closed its half."""
    limits = attrs.evolve(ServerLimits(), half_closed=0.05)
    async with two_hosts(tmp_path, limits) as (store, first, _):
        await store.create_segment(HERE)
        await store.append(HERE, bytes(7 << 20))
        with scripted(script_of(Fault.SILENCE)) as owner:
            first.places.urls[1] = owner.url
            async with raw_session(first.served) as client:
                await client.begin("POST", APPEND, b"x", *OCTETS)
                reads = [
                    await client.begin(
                        "GET",
                        segment_path(HERE, Verb.BYTES),
                        b"",
                        "range",
                        "bytes=0-7340031",
                        window=16 << 20,
                    )
                    for _ in range(3)
                ]
                await until(lambda: len(owner.received) == 1)
                await client.stream.send_eof()
                forwarder = first.served.gateway.forwarder
                assert forwarder is not None
                await until(lambda: not forwarder._flights)
                # Nothing was read so far, so the server has most of the answers.
                frames = await client.everything()
            owner.release()

    assert [frame.call for frame in frames if frame.is_last] == reads


async def test_h22_a_lost_connection_ends_the_exchange_at_once(tmp_path: Path) -> None:
    async with two_hosts(tmp_path) as (_, first, _):
        with scripted(script_of(Fault.SILENCE)) as owner:
            first.places.urls[1] = owner.url
            stream = await first.served.raw(raw_append())
            await until(lambda: len(owner.received) == 1)
            await reset(stream)
            await until_idle(first)
            owner.release()


@pytest.mark.parametrize("is_closed", [True, False])
async def test_h22_a_batch_whose_client_has_left_holds_nothing(tmp_path: Path, is_closed: bool) -> None:
    limits = attrs.evolve(ServerLimits(), half_closed=0.05)
    async with two_hosts(tmp_path, limits) as (store, first, _):
        await store.create_segment(HERE)
        with scripted(script_of(Fault.SILENCE)) as owner:
            first.places.urls[1] = owner.url
            body = b"".join(encode_batch([BatchItem(THERE, bytes(1 << 16)), BatchItem(HERE, b"x")]))
            head = f"POST {BATCH} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
            stream = await first.served.raw(f"{head}content-type: {BATCH_TYPE}\r\n\r\n".encode() + body)
            await until(lambda: len(owner.received) == 1)
            gateway = first.served.gateway
            assert gateway.held_bytes >= len(body)
            await (stream.aclose() if is_closed else reset(stream))
            await until_idle(first)
            owner.release()


async def until_idle(sender: Host) -> None:
    """Return once nothing is passed on or held, much sooner than a silent owner closes its connection."""
    gateway = sender.served.gateway
    assert gateway.forwarder is not None
    with anyio.fail_after(min(scaled(5), 20)):
        await until(lambda: not gateway.forwarder._flights and not gateway.held_bytes)


async def reset(stream: anyio.abc.SocketStream) -> None:
    raw = stream.extra(anyio.abc.SocketAttribute.raw_socket)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await stream.aclose()


async def test_n2_a_call_with_blanks_around_a_value_is_passed_on(tmp_path: Path) -> None:
    async with two_hosts(tmp_path) as (store, first, _), raw_session(first.served) as client:
        await store.create_segment(THERE)
        for value in (" before", "behind ", "\t", ""):
            assert await client.status("GET", segment_path(THERE, Verb.INFO), b"", "x", value) == 200
