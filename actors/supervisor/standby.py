"""What a supervisor answers while it waits for the lease: who it is, and for whom it waits (rule V1).

It answers at the address at which it serves once it is active. Everything but ``/health``, ``/metrics`` and
their description is refused with ``StandsBy``, so clients and commands go on to their next address (rule
H21).

Cancellation: requests that have arrived are answered, and connections that nobody has accepted wait for
whoever serves the address next.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterable
from typing import Any, cast

import anyio
import attrs

from ...storage_backends.base.statistics import gauge
from ...storage_backends.base.world import World
from ..gateway.server.admin_handlers import SCRAPE
from ..gateway.server.app import app_of
from ..gateway.server.call import Answer, HttpCall, Receive, Scope, Send
from ..gateway.server.context import ServerContext, ServerLimits
from ..gateway.server.endpoint import endpoint, endpoints_of, refuse
from ..gateway.server.listener import serve_http
from ..gateway.wire import paths
from ..gateway.wire.bodies import StandbyHealth
from ..gateway.wire.errors import StandsBy
from ..telemetry.metrics import CONTENT_TYPE


@attrs.frozen
class StandbyStatistics:
    waiting_seconds: float = attrs.field(
        metadata=gauge("For how long this supervisor has stood by; only while it does.")
    )


class Standby(ServerContext):
    def __init__(self, world: World, limits: ServerLimits, names: Iterable[str]) -> None:
        super().__init__(world, limits, names=names)
        self._holder = ""
        self._since = anyio.current_time()
        self._waits = anyio.Event()

    def note_wait(self, holder: str) -> None:
        """``holder`` has the lease."""
        self._holder = holder
        self._waits.set()

    async def serve(self, listener: socket.socket) -> None:
        """Answer at the address of ``listener``, which stays open, from the first ``note_wait`` until
        cancelled."""
        await self._waits.wait()
        app = app_of(self, endpoints_of(sys.modules[__name__]), "tierlog standby", "A supervisor that waits.")
        app.router.default = cast(Any, self._refuse)
        async with serve_http(app, listener.dup(), stop_timeout=0.1):
            await anyio.sleep_forever()

    def health(self) -> StandbyHealth:
        waited = round(anyio.current_time() - self._since, 3)
        return StandbyHealth("standing-by", os.getpid(), socket.gethostname(), self._holder, waited)

    def check_serving(self) -> None:
        """Nor are there sessions: the takeover would wait for the end of those whose clients are gone."""
        raise self._refusal()

    def _refusal(self) -> StandsBy:
        found = self.health()
        return StandsBy(
            f"process {found.pid} of {found.machine} stands by: {found.holder} has the lease of the store's "
            f"supervisor",
            holder=found.holder,
        )

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        await refuse(self, scope, receive, send, self._refusal())


@endpoint("GET", paths.HEALTH, "health")
async def health(call: HttpCall[Standby]) -> StandbyHealth:
    """That it stands by, and for whom."""
    return call.server.health()


@endpoint("GET", paths.METRICS, "metrics", successes=(SCRAPE,))
async def metrics(call: HttpCall[Standby]) -> Answer:
    """All metrics, in Prometheus' text format."""
    waited = call.server.health().waiting_seconds
    return Answer(200, call.server.metrics.render(lambda: (StandbyStatistics(waited),)), CONTENT_TYPE)
