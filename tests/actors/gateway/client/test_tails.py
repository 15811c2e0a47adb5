"""Tails of both clients: streams on connections of their own, and what ends them."""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx
import pytest

import tierlog
from support.patience import scaled
from support.scripted_server import Act, Answer, Fault, Received, scripted
from support.service import service
from support.sync_client import CONNECTS, KINDS
from tierlog.actors.gateway.client import session_stream
from tierlog.actors.gateway.client.requests import PollResult, TailCursor

pytestmark = pytest.mark.anyio
Connect = Callable[..., Any]


@pytest.fixture(params=KINDS)
def connect(request: pytest.FixtureRequest) -> Connect:
    return CONNECTS[request.param]


async def follow(client: Any, name: str, take: Callable[[bytes], object], offset: int = 0) -> None:
    """``take`` each block of a tail until its end, whichever client it is of."""
    if isinstance(client, tierlog.Client):
        async for block in client.tail(name, offset):
            take(block)
    else:

        def run() -> None:
            for block in client._client.tail(name, offset):
                take(block)

        await anyio.to_thread.run_sync(run, limiter=anyio.CapacityLimiter(1))


@asynccontextmanager
async def following(client: Any, url: str, name: str, count: int) -> AsyncIterator[list[bytearray]]:
    """``count`` tails of a segment, each of which waits behind its first byte; sealing it ends them."""
    found = [bytearray() for _ in range(count)]
    async with anyio.create_task_group() as tasks:
        for received in found:
            tasks.start_soon(follow, client, name, received.extend)
        await client.append(name, b"!")
        async with httpx.AsyncClient(base_url=url) as page:
            while not all(found) or f"{count} readers wait" not in (await page.get("/")).text:
                await anyio.sleep(0.01)
        yield found
        await client.seal_segment(name)


async def test_r10_each_request_of_a_tail_names_the_history_that_its_position_is_of() -> None:
    """So it ends where a recovery between two of them left other bytes."""
    tail = TailCursor("s", 5, 100, None)
    assert "history" not in tail.poll().request.path
    assert not [*tail.take_poll(PollResult(b"", False, "1", 7))]
    assert "history=7" in tail.poll().request.path
    assert "history=7" in tail.stream().path
    head = {"tierlog-offset": "5", "tierlog-segment-id": "1"}
    assert tail.starts_stream(200, {**head, "tierlog-history": "7"})
    assert not tail.starts_stream(200, {**head, "tierlog-history": "8"})
    assert not tail.starts_stream(200, head)


async def test_a_tail_takes_no_request_for_each_append(tmp_path: Path, connect: Connect) -> None:
    with service(tmp_path / "data") as url:
        async with connect(url) as client:
            await client.create_segment("s")
            async with following(client, url, "s", 3) as found:
                before = (await _statistics(client)).requests
                for _ in range(30):
                    await client.append("s", b"x")
                while not all(len(received) == 31 for received in found):
                    await anyio.sleep(0.005)

                assert (await _statistics(client)).requests - before <= 30 + 3

    assert found == [b"!" + b"x" * 30] * 3


async def _statistics(client: Any) -> Any:
    found = client.statistics()
    return found if isinstance(client, tierlog.Client) else await found


def test_a_tail_that_is_idle_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_stream, "POLL_SECONDS", 0.05)
    with service(tmp_path / "data") as url, tierlog.connect_sync(url) as client:
        client.create_segment("s")
        found = bytearray()

        def read() -> None:
            for block in client.tail("s"):
                found.extend(block)

        reader = threading.Thread(target=read)
        reader.start()
        before = client.statistics().requests
        while (
            client.statistics().requests < before + 10
        ):  # five streams that had nothing, and a request behind each
            time.sleep(0.01)
        client.append("s", b"late")
        client.seal_segment("s")
        reader.join()

    assert found == b"late"


OPEN, SEALED = Answer(204, b"", {"Tierlog-Sealed": "false"}), Answer(204, b"", {"Tierlog-Sealed": "true"})


def stream_of(offset: int, data: bytes, cut: int | None = None) -> Answer:
    return Answer(200, data, {"Tierlog-Offset": str(offset)}, cut)


@pytest.mark.parametrize(
    "broken",
    [
        stream_of(0, b"abcdef", cut=3),
        stream_of(0, b"abc"),
        Fault.RESET,
        Fault.CLOSE,
        Answer(503, json.dumps({"detail": "no"}).encode()),
        stream_of(7, b"xyz"),
        Answer(200, b"<html>"),
    ],
)
async def test_a_tail_whose_stream_ends_goes_on_where_it_was(connect: Connect, broken: Act) -> None:
    whole = b"abcdef"

    def script(received: Received) -> Act:
        query = received.path.partition("?")[2]
        offset = int(query.partition("&")[0].removeprefix("offset="))
        if "stream=true" in query:
            streams.append(offset)
            return broken if len(streams) == 1 else stream_of(offset, whole[offset:])
        if offset == len(whole):
            return SEALED
        return OPEN

    streams: list[int] = []
    found = bytearray()
    with scripted(script) as server:
        async with connect(server.url) as client:
            await follow(client, "s", found.extend)

    assert found == whole
    assert streams[0] == 0


async def test_a_tail_goes_on_behind_an_answer_that_does_not_come(connect: Connect) -> None:
    """As of a connection that a firewall has forgotten: the poll is sent again, from where the tail was."""

    def script(received: Received) -> Act:
        if "offset=3" not in received.path:
            return Answer(200, b"abc")
        polls.append(received.path)
        return Fault.SILENCE if len(polls) == 1 else SEALED

    polls: list[str] = []
    found = bytearray()
    with scripted(script) as server:
        async with connect(server.url, deadline=scaled(1.0)) as client:
            await follow(client, "s", found.extend)

    assert found == b"abc"
    assert len(polls) == 2
    assert polls[0] == polls[1]


async def test_an_error_of_a_tail_is_raised(tmp_path: Path, connect: Connect) -> None:
    with service(tmp_path / "data") as url:
        async with connect(url) as client:
            await client.create_segment("s")
            found = bytearray()
            async with anyio.create_task_group() as tasks:

                async def read() -> None:
                    with pytest.raises(tierlog.SegmentNotFound):
                        await follow(client, "s", found.extend)

                tasks.start_soon(read)
                await client.append("s", b"!")
                while not found:
                    await anyio.sleep(0.005)
                await client.delete_segment("s")


@pytest.mark.extended
async def test_appends_beside_300_tails_take_less_than_twice_as_long(
    tmp_path: Path, connect: Connect
) -> None:
    """Beside a service without tails, in turn, so that other programs slow both alike."""

    async def seconds(client: Any) -> float:
        begin = time.perf_counter()
        for _ in range(10):
            await client.append("busy", bytes(100))
        return time.perf_counter() - begin

    with service(tmp_path / "crowded") as url, service(tmp_path / "empty") as other:
        async with connect(url, deadline=300) as client, connect(other) as alone:
            for each in (client, alone):
                await each.create_segment("busy")
                await seconds(each)
            await client.create_segment("quiet")
            async with following(client, url, "quiet", 300):
                rounds = [(await seconds(client), await seconds(alone)) for _ in range(15)]

    ratio = statistics.median(beside / without for beside, without in rounds)
    assert ratio < 2, rounds
