"""Requests that the supervisor sends on to all hosts: directly, whatever proxies the environment names, and
not more of them at a time than it can answer."""

from __future__ import annotations

import ssl
from pathlib import Path

import anyio
import anyio.abc
import httpx
import pytest

from support.fake_hosts import FakeHostsSupervisor
from support.http_server import service, until
from tierlog import Unavailable, Unsupported
from tierlog.actors.cli.running import ask_service
from tierlog.actors.gateway.server.listener import bind, serve_http
from tierlog.actors.store.folder_opening import system_world
from tierlog.actors.supervisor.admin import make_admin_app

pytestmark = pytest.mark.anyio


@pytest.fixture
def proxied(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment names a proxy port where nobody listens."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)


async def test_commands_and_the_supervisor_follow_no_proxy(proxied: None, tmp_path: Path) -> None:
    async with service(tmp_path) as host:
        supervisor = FakeHostsSupervisor(3, 2, url=f"http://127.0.0.1:{host.port}")
        app = make_admin_app(supervisor, {"folder": "somewhere"}, system_world())
        async with serve_http(app, bind("127.0.0.1", 0), stop_timeout=1.0) as server:
            assert "hosts" in await ask_service(server.url, "GET", "/v1/status")

            # Answered by the hosts, which the supervisor asks.
            async with httpx.AsyncClient(base_url=server.url, trust_env=False) as client:
                assert (await client.get("/v1/transactions")).json() == {"transactions": []}


async def test_a_command_finds_the_supervisor_behind_dead_addresses_and_hosts(tmp_path: Path) -> None:
    """A host answers, but has no orders for a service."""
    dead = "http://127.0.0.1:1"
    async with service(tmp_path) as host:
        url = f"http://127.0.0.1:{host.port}"
        app = make_admin_app(FakeHostsSupervisor(3, 2, url=url), {"folder": "somewhere"}, system_world())
        async with serve_http(app, bind("127.0.0.1", 0), stop_timeout=1.0) as server:
            assert "hosts" in await ask_service(f"{dead},{url},{server.url}", "GET", "/v1/status")
            done = await ask_service(f"{url},{server.url}", "POST", "/v1/hosts/host-0/drain")
            assert "hosts" in done
        with pytest.raises(
            Unavailable,
            match=rf"no supervisor is active at any of 2 addresses \({dead} \(Connection refused\)\); hosts, "
            rf"which go on serving: {url}\. .*follows when the lease of the one before has ended",
        ):
            await ask_service(f"{dead},{url}", "GET", "/v1/status")
        with pytest.raises(Unsupported, match=f"{url} is a host, and only the supervisor knows"):
            await ask_service(url, "GET", "/v1/status")


async def test_h12_requests_to_all_hosts_are_bounded_and_load_no_certificates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Loading certificates for each of 250 requests held up the supervisor's loop for seconds."""
    begun, ended = 0, anyio.Event()

    async def silent_host(stream: anyio.abc.SocketStream) -> None:
        nonlocal begun
        begun += 1
        await ended.wait()
        await stream.aclose()

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    supervisor = FakeHostsSupervisor(3, 2, url=f"http://127.0.0.1:{port}")
    app = make_admin_app(supervisor, {}, system_world())
    async with (
        listener,
        anyio.create_task_group() as tasks,
        serve_http(app, bind("127.0.0.1", 0), stop_timeout=1.0) as server,
        httpx.AsyncClient(base_url=server.url, trust_env=False) as client,
    ):
        monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", None)
        tasks.start_soon(listener.serve, silent_host)
        statuses: list[int] = []

        async def ask() -> None:
            statuses.append((await client.get("/v1/transactions")).status_code)

        async with anyio.create_task_group() as asking:
            for _ in range(16):
                asking.start_soon(ask)
            await until(lambda: begun == 16)
            refused = await client.post("/v1/flush")
            assert (refused.status_code, refused.json()["code"]) == (429, "throttled")
            assert (await client.get("/v1/containers")).status_code == 200
            ended.set()

        assert statuses == [503] * 16
        await ask()
        assert statuses[-1] == 503, "there is room again"
        tasks.cancel_scope.cancel()
