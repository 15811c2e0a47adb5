"""Generated requests that are bad, to a host and to the supervisor: each is refused in one line or by the end
of its connection, none has an effect, and none leaves anything behind (rules H2, H9, H18)."""

from __future__ import annotations

import asyncio
import gc
import json
import resource
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from support.bad_requests import bad_requests
from support.fake_hosts import FakeHostsSupervisor
from support.http_server import everything, open_sockets, serving, until
from support.patience import scaled
from tierlog import open_store
from tierlog.actors.gateway.server.app import context_of
from tierlog.actors.gateway.server.connection import HttpConnection
from tierlog.actors.gateway.server.context import ServerContext
from tierlog.actors.gateway.server.listener import bind, serve_http
from tierlog.actors.store.folder_opening import system_world
from tierlog.actors.supervisor.admin import make_admin_app

pytestmark = pytest.mark.anyio
COUNTS = [500, pytest.param(10_000, marks=pytest.mark.extended)]
RSS_MAX = 48 << 20
"""Bytes by which the process may have grown: it runs the clients too."""


@pytest.fixture(
    params=[pytest.param(False, id="asyncio", marks=pytest.mark.extended), pytest.param(True, id="uvloop")]
)
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """The service runs on uvloop, whose sockets are its own."""
    return "asyncio", {"use_uvloop": request.param}


@pytest.fixture(autouse=True)
def _no_unexpected_error(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert "unexpected_error" not in caplog.text


@pytest.mark.parametrize("count", COUNTS)
async def test_a_host_refuses_bad_requests_and_forgets_them(tmp_path: Path, count: int) -> None:
    async with open_store(tmp_path / "data", containers=1) as store, serving(store) as served:
        await store.create_segment("a")
        await _refuses_all(served.port, served.gateway, count)

        info = await store.segment_info("a")
        assert (info.length, info.sealed, await store.list_segments()) == (0, False, ["a"])


@pytest.mark.parametrize("count", COUNTS)
async def test_the_supervisor_refuses_bad_requests_and_forgets_them(count: int) -> None:
    supervisor = FakeHostsSupervisor(3, 2)
    app = make_admin_app(supervisor, {}, system_world())
    async with serve_http(app, bind("127.0.0.1", 0), stop_timeout=1.0) as address:
        await _refuses_all(address.port, context_of(app), count)


async def _refuses_all(port: int, server: ServerContext, count: int) -> None:
    await _send_all(port, bad_requests(1, 50))  # what is made once is made now
    await _is_idle(server)
    gc.collect()
    # An error that an earlier test raised from its parameters keeps its connection.
    tasks, connections = len(asyncio.all_tasks()), _connections()
    resident = _resident_bytes()

    await _send_all(port, bad_requests(2, count))

    await _is_idle(server)
    with anyio.move_on_after(scaled(30)):
        await until(lambda: len(asyncio.all_tasks()) <= tasks and open_sockets(port) <= 1)
    assert len(asyncio.all_tasks()) <= tasks
    assert open_sockets(port) <= 1  # the listener
    gc.collect()
    assert _connections() <= connections
    assert _resident_bytes() - resident < RSS_MAX
    assert (server.tails, server._in_flight_bytes, server._in_flight) == (0, 0, 0)


def _connections() -> int:
    return sum(isinstance(found, HttpConnection) for found in gc.get_objects())


async def _send_all(port: int, requests: Iterator[bytes]) -> None:
    async def work() -> None:
        for data in requests:
            answers = await _answers_to(port, data)
            assert all(_is_problem(*answer) for answer in answers), (data[:2000], answers)

    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(work)


async def _answers_to(port: int, data: bytes) -> list[tuple[bytes, bytes]]:
    stream = await anyio.connect_tcp("127.0.0.1", port)
    try:
        await stream.send(data)
        await stream.send_eof()
    except (anyio.BrokenResourceError, OSError):
        pass  # refused before the end
    return list(_split(await everything(stream)))


def _split(received: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Head and body of each answer."""
    while received:
        head, _, rest = received.partition(b"\r\n\r\n")
        size = 0
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length: "):
                size = int(line.partition(b": ")[2])
        if not head.startswith(b"HTTP/1.1 100 "):
            yield head, rest[:size]
        received = rest[size:]


def _is_problem(head: bytes, body: bytes) -> bool:
    document = json.loads(body)
    return (
        400 <= int(head.split()[1]) < 600
        and b"content-type: application/problem+json" in head
        and b"\n" not in body
        and document["code"] != "internal"
        and 0 < len(document["detail"]) < 1000
    )


async def _is_idle(server: ServerContext) -> None:
    await until(lambda: not server._in_flight and not server._in_flight_bytes)


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as stream:
        return int(stream.read().split()[1]) * resource.getpagesize()
