"""The supervisor does what its OpenAPI document says, whatever is sent to it (rule H16)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio.from_thread
import httpx
import pytest

from support.fake_hosts import FakeHostsSupervisor
from support.http_server import service
from support.schema_fuzz import findings
from tierlog.actors.gateway.server.app import ENDPOINTS
from tierlog.actors.gateway.server.listener import bind, serve_http
from tierlog.actors.kernel.backoff import Backoff
from tierlog.actors.store.opening import system_world
from tierlog.actors.supervisor.admin import make_admin_app
from tierlog.actors.supervisor.fleet import FleetOptions

DEPENDENT = {"batch": ["421"]}  # no server owns it here
REDIRECTED = "^/v1/segments/"
"""The hosts check these requests, and their document is tested with them."""


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[str]:
    """Hosts that are one real server. A host that was drained starts again at once, so that all stay
    ready."""
    async with service(folder) as host:
        restart = Backoff(first=0, maximum=0)
        options = FleetOptions(adoption=0, silence=3600, restart=restart, exits_max=1_000_000)
        supervisor = FakeHostsSupervisor(3, 2, url=f"http://127.0.0.1:{host.port}", options=options)
        app = make_admin_app(supervisor, {"folder": "somewhere"}, system_world())
        async with serve_http(app, bind("127.0.0.1", 0), stop_timeout=1.0) as server:
            yield server.url


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with (
        anyio.from_thread.start_blocking_portal("asyncio") as portal,
        portal.wrap_async_context_manager(served(tmp_path)) as found,
    ):
        yield found


def test_h16_the_document_has_the_paths_that_redirect_to_hosts(url: str) -> None:
    redirects = {
        path: operation["operationId"]
        for path, operations in httpx.get(f"{url}/openapi.json").json()["paths"].items()
        for operation in operations.values()
        if "307" in operation["responses"]
    }

    expected = {
        endpoint.path.replace(":path", ""): endpoint.operation
        for endpoint in ENDPOINTS
        if endpoint.path.startswith("/v1/segments/")
    }
    assert redirects == expected


@pytest.mark.timeout(120)
def test_h16_generated_requests_get_answers_that_the_document_names(url: str) -> None:
    found, count = findings(url, examples=8, refusals=DEPENDENT, excluded=REDIRECTED)

    assert found == []
    assert count > 200


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_h16_many_generated_requests_get_answers_that_the_document_names(url: str) -> None:
    found, _ = findings(url, examples=100, refusals=DEPENDENT, excluded=REDIRECTED)

    assert found == []
