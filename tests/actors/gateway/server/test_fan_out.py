"""Streams at the end of a segment are served together (rule H11): each gets every byte once, in order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import httpx
import pytest

from support.http_server import ServedStore, Wrapped, serving, until
from tierlog import open_store
from tierlog.actors.gateway.server.context import ServerLimits
from tierlog.storage_backends.base.errors import NotOwner, TierlogError, Unavailable

pytestmark = pytest.mark.anyio


@pytest.fixture(
    params=[pytest.param(False, id="asyncio", marks=pytest.mark.extended), pytest.param(True, id="uvloop")]
)
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param}


class Reads(NamedTuple):
    together: list[int]
    alone: list[int]
    errors: list[TierlogError]
    """The first one is raised by every read from now on."""


@asynccontextmanager
async def counted(folder: Path, **limits: int) -> AsyncIterator[tuple[ServedStore, Reads]]:
    """A service with the segment ``a``, and the offsets at which its streams read, those that wait together
    and the others."""
    async with open_store(folder / "data", containers=1) as store:
        reads = Reads([], [], [])

        def tail(name: str, offset: int = 0, **options: Any) -> Any:
            reads.alone.append(offset)
            if reads.errors:
                raise reads.errors[0]
            return store.tail(name, offset, **options)

        async def read_or_watch(name: str, sid: int, offset: int, *rest: Any) -> Any:
            found = await store.read_or_watch(name, sid, offset, *rest)
            if reads.errors:
                raise reads.errors[0]
            if isinstance(found, bytes):
                reads.together.append(offset)
            return found

        await store.create_segment("a")
        wrapped = Wrapped(store, tail=tail, read_or_watch=read_or_watch)
        async with serving(wrapped, ServerLimits(**limits)) as served:
            yield served, reads


async def follow(served: ServedStore, received: bytearray, offset: int = 0) -> None:
    path = f"/v1/segments/a/tail?stream=true&offset={offset}"
    async with served.http.stream("GET", path) as response:
        async for piece in response.aiter_raw():
            received += piece


async def test_h11_waiting_streams_share_each_read_of_the_store(tmp_path: Path) -> None:
    async with counted(tmp_path) as (served, reads):
        found = [bytearray() for _ in range(50)]
        async with anyio.create_task_group() as tasks:
            for received in found:
                tasks.start_soon(follow, served, received)
            await until(lambda: served.gateway.tails == 50)
            await anyio.wait_all_tasks_blocked()
            for number in range(10):
                await served.store.append("a", b"%d," % number)
            await until(lambda: all(received.endswith(b"9,") for received in found))
            assert reads.together == sorted(set(reads.together))
            assert not reads.alone
            assert served.gateway.metrics.operation("tail").response_bytes == 50 * 20
            await served.store.seal_segment("a")

    assert {bytes(received) for received in found} == {b"0,1,2,3,4,5,6,7,8,9,"}
    assert reads.alone == [20] * 50  # each meets the seal by itself


@pytest.mark.parametrize(("error", "logged"), [(NotOwner("moved"), False), (Unavailable("broken"), True)])
async def test_h11_streams_of_a_container_that_moves_end_without_a_warning_each(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: TierlogError, logged: bool
) -> None:
    async with counted(tmp_path) as (served, reads):
        async with anyio.create_task_group() as tasks:

            async def broken_off() -> None:
                with pytest.raises(httpx.RemoteProtocolError):
                    await follow(served, bytearray())

            for _ in range(3):
                tasks.start_soon(broken_off)
            await until(lambda: served.gateway.tails == 3)
            await anyio.wait_all_tasks_blocked()
            reads.errors.append(error)
            await served.store.append("a", b"more")
        assert ("answer_aborted" in caplog.text) is logged


async def test_h11_a_stream_that_begins_earlier_joins_the_others(tmp_path: Path) -> None:
    async with counted(tmp_path) as (served, reads):
        await served.store.append("a", b"before,")
        waiting, behind = bytearray(), bytearray()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow, served, waiting, 7)
            await until(lambda: served.gateway.tails == 1)
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(follow, served, behind)
            await until(lambda: behind == b"before,")
            for data in (b"x", b"y"):
                await served.store.append("a", data)
                await until(lambda: behind.endswith(data) and waiting.endswith(data))  # noqa: B023
            assert (reads.together, reads.alone) == ([7, 8], [0])
            await served.store.seal_segment("a")

    assert waiting == b"xy"
    assert behind == b"before,xy"


async def test_h11_a_slow_stream_delays_no_other_and_gets_every_byte(tmp_path: Path) -> None:
    block, count = bytes(range(256)) * 4096, 16
    async with counted(tmp_path, block_bytes=len(block)) as (served, reads):
        quick = bytearray()
        slow = await served.raw(b"GET /v1/segments/a/tail?stream=true HTTP/1.1\r\nhost: localhost\r\n\r\n")
        await until(lambda: served.gateway.tails == 1)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow, served, quick)
            await until(lambda: served.gateway.tails == 2)
            for _ in range(count):
                await served.store.append("a", block)
            await until(lambda: len(quick) == count * len(block))
            await served.store.seal_segment("a")
            received = bytearray()
            while not received.endswith(b"\r\n0\r\n\r\n"):
                received += await slow.receive()
        await slow.aclose()

    assert quick == block * count
    assert len(reads.alone) > 2  # the seal, which each meets, and the slow one before
    assert unchunked(bytes(received)) == block * count


def unchunked(answer: bytes) -> bytes:
    rest, found = answer.partition(b"\r\n\r\n")[2], bytearray()
    while rest:
        line, _, rest = rest.partition(b"\r\n")
        size = int(line, 16)
        found += rest[:size]
        rest = rest[size + 2 :]
    return bytes(found)


async def test_h11_streams_never_continue_in_another_segment_of_the_same_name(tmp_path: Path) -> None:
    async with counted(tmp_path) as (served, _):
        found = [bytearray() for _ in range(3)]
        async with anyio.create_task_group() as tasks:

            async def read(received: bytearray) -> None:
                with pytest.raises(Exception, match="closed"):
                    await follow(served, received)

            for received in found:
                tasks.start_soon(read, received)
            await until(lambda: served.gateway.tails == 3)
            await served.store.append("a", b"first")
            await until(lambda: all(found))
            await served.store.delete_segment("a")
            await served.store.create_segment("a")
            await served.store.append("a", b"second")

    assert [bytes(received) for received in found] == [b"first"] * 3


async def test_h15_streams_that_wait_together_end_when_the_server_stops(tmp_path: Path) -> None:
    found = [bytearray() for _ in range(3)]
    async with counted(tmp_path) as (served, _), anyio.create_task_group() as tasks:
        # Inside: the client outlives its streams, whose ends are still on their way when none is parked.
        for received in found:
            tasks.start_soon(follow, served, received)
        await until(lambda: served.gateway.tails == 3)
        await served.store.append("a", b"all")
        await until(lambda: all(found))
        served.gateway.drain()

    assert [bytes(received) for received in found] == [b"all"] * 3
