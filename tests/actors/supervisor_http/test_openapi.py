"""The supervisor does what its OpenAPI document says, whatever is sent to it (rule H16)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar

import httpx

from support.fake_hosts import FakeHostsSupervisor
from support.http_server import service
from support.schema_fuzz import SchemaTests
from tierlog.actors.gateway.server.app import ENDPOINTS
from tierlog.actors.gateway.server.listener import bind, serve_http
from tierlog.actors.kernel.backoff import Backoff
from tierlog.actors.store.folder_opening import system_world
from tierlog.actors.supervisor.admin import make_admin_app
from tierlog.actors.supervisor.fleet import FleetOptions


class TestSupervisor(SchemaTests):
    refusals: ClassVar = {
        "batch": ["421"],  # no server owns it here
        "list": ["400"],  # a token is one that a page gave
        "list-transactions": ["400"],
        "session": ["400"],  # it takes an upgrade
    }
    requests_min = 75
    # The hosts check these requests, and their document is tested with them.
    excluded = "^/v1/(segments/|containers/.*(/unconfirmed|/confirm|/gc|/gc-order|/backups|/backup-steps)$)"

    @asynccontextmanager
    async def served(self, folder: Path) -> AsyncIterator[str]:
        """Hosts that are one real server. A host that was drained starts again at once, so that all stay
        ready."""
        async with service(folder) as host:
            restart = Backoff(first=0, maximum=0)
            options = FleetOptions(adoption=0, silence=3600, restart=restart, exits_max=1_000_000)
            supervisor = FakeHostsSupervisor(3, 2, url=f"http://127.0.0.1:{host.port}", options=options)
            app = make_admin_app(supervisor, {"folder": "somewhere"}, system_world())
            async with serve_http(app, bind("127.0.0.1", 0), stop_timeout=1.0) as server:
                yield server.url

    def test_h16_the_document_has_the_paths_that_redirect_to_hosts(self, url: str) -> None:
        redirects = {
            path: operation["operationId"]
            for path, operations in httpx.get(f"{url}/openapi.json").json()["paths"].items()
            for operation in operations.values()
            if "307" in operation["responses"]
        }

        expected = {
            endpoint.path.replace(":path", ""): endpoint.operation
            for endpoint in ENDPOINTS
            if endpoint.path.startswith(("/v1/segments/", "/v1/containers/{"))
        }
        assert redirects == expected
