"""A supervisor that stands by can be seen, and keeps nobody from the active one (rules V1 and H21)."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import httpx
import pytest

from support.fake_hosts import FakeHostsSupervisor
from support.http_server import service
from tierlog import connect
from tierlog.actors.cli import running
from tierlog.actors.cli.running import ask_service, find_standbys
from tierlog.actors.gateway.server.listener import bind, serve_http
from tierlog.actors.gateway.wire.paths import SESSION
from tierlog.actors.gateway.wire.session import PROTOCOL
from tierlog.actors.store.folder_opening import system_world
from tierlog.actors.supervisor.admin import LIMITS, make_admin_app
from tierlog.actors.supervisor.standby import Standby
from tierlog.storage_backends.base.errors import Unavailable

pytestmark = pytest.mark.anyio
HOLDER = "process 7 of node-a"


def url_of(listener: socket.socket) -> str:
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


@asynccontextmanager
async def standing_by(listener: socket.socket) -> AsyncIterator[str]:
    standby = Standby(system_world(), LIMITS, ())
    standby.note_wait(HOLDER)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(standby.serve, listener)
        yield url_of(listener)
        tasks.cancel_scope.cancel()


@pytest.fixture
async def listener() -> AsyncIterator[socket.socket]:
    with bind("127.0.0.1", 0) as found:
        yield found


async def test_v1_a_standby_says_who_it_is_and_for_whom_it_waits(listener: socket.socket) -> None:
    async with standing_by(listener) as url, httpx.AsyncClient(base_url=url, trust_env=False) as client:
        health = (await client.get("/health")).json()
        assert health.pop("waiting_seconds") >= 0
        assert health == {
            "status": "standing-by",
            "pid": os.getpid(),
            "machine": socket.gethostname(),
            "holder": HOLDER,
        }
        assert "\ntierlog_standby_waiting_seconds " in (await client.get("/metrics")).text
        session = {"Connection": "Upgrade", "Upgrade": PROTOCOL}
        for method, path, headers in (
            ("GET", "/ready", {}),
            ("GET", "/v1/containers", {}),
            ("POST", "/v1/segments/a/append", {}),
            ("GET", SESSION, session),
        ):
            refused = await client.request(method, path, headers=headers)
            # The code of a plain ``Unavailable``, which clients of earlier versions know.
            assert (refused.status_code, refused.json()["code"]) == (503, "unavailable"), path
            assert refused.json()["holder"] == HOLDER


async def test_h21_commands_and_clients_go_on_to_the_active_supervisor(
    listener: socket.socket, tmp_path: Path
) -> None:
    async with standing_by(listener) as standby, service(tmp_path) as host:
        app = make_admin_app(
            FakeHostsSupervisor(3, 2, url=f"http://127.0.0.1:{host.port}"), {}, system_world()
        )
        async with serve_http(app, bind("127.0.0.1", 0), stop_timeout=1.0) as active:
            several = f"{standby},{active.url}"
            assert "hosts" in await ask_service(several, "GET", "/v1/status")
            assert "hosts" in await ask_service(several, "POST", "/v1/hosts/host-0/drain")
            assert [each["url"] for each in await find_standbys(several)] == [standby]
        async with connect(f"{standby},http://127.0.0.1:{host.port}") as client:
            await client.create_segment("a")
            assert await client.list_segments() == ["a"]


async def test_a_machine_that_stands_still_does_not_hold_up_the_search_for_standbys(
    listener: socket.socket,
) -> None:
    """The system accepts connections for it, and nobody answers."""
    with socket.create_server(("127.0.0.1", 0)) as still:
        async with standing_by(listener) as standby:
            begun = anyio.current_time()
            assert [each["url"] for each in await find_standbys(f"{url_of(still)},{standby}")] == [standby]
            assert anyio.current_time() - begun < running._REQUEST_SECONDS


async def test_v1_without_an_active_supervisor_a_command_names_the_standby_and_whom_it_waits_for(
    listener: socket.socket,
) -> None:
    dead = "http://127.0.0.1:1"
    async with standing_by(listener) as standby:
        shown = rf"{standby} \(process {os.getpid()} of \S+ stands by: {HOLDER} has the lease"
        with pytest.raises(Unavailable, match=f"active at any of 2 addresses .*{shown}.*when the lease"):
            await ask_service(f"{dead},{standby}", "GET", "/v1/status")
        with pytest.raises(Unavailable, match=f"active at this address .*{shown}.*URL of the one that has"):
            await ask_service(standby, "GET", "/v1/status")


async def test_v1_no_connection_is_lost_when_a_standby_becomes_active(listener: socket.socket) -> None:
    async with standing_by(listener) as url:
        with pytest.raises(httpx.HTTPStatusError):
            async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
                (await client.get("/ready")).raise_for_status()
    app = make_admin_app(FakeHostsSupervisor(3, 2), {}, system_world())
    statuses: list[int] = []

    async def ask() -> None:
        async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
            statuses.append((await client.get("/health")).status_code)

    async with anyio.create_task_group() as tasks:
        # Nobody accepts it yet.
        with socket.create_connection(listener.getsockname()):
            tasks.start_soon(ask)
            async with serve_http(app, listener, stop_timeout=1.0):
                while not statuses:
                    await anyio.sleep(0.01)
    assert statuses == [200]


async def test_v1_before_it_waits_it_refuses_connections(listener: socket.socket) -> None:
    standby = Standby(system_world(), LIMITS, ())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(standby.serve, listener)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(listener.getsockname())
        tasks.cancel_scope.cancel()
