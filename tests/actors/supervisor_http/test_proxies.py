"""A service is asked directly, whatever proxies the environment names: they are not for machines of one's
own."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from support.fake_hosts import FakeHostsSupervisor
from support.http_server import service
from tierlog.actors.cli.running import ask_service
from tierlog.actors.gateway.server.listener import bind, serve_http
from tierlog.actors.store.opening import system_world
from tierlog.actors.supervisor.admin import make_admin_app

pytestmark = pytest.mark.anyio


@pytest.fixture
def proxied(monkeypatch: pytest.MonkeyPatch) -> None:
    """By way of a port where nobody listens."""
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
