"""What both clients have in common: their state, the checks before each call, and their statistics."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from ....storage_backends.base.errors import ClosedError
from ....storage_backends.base.names import check_segment_name
from ....storage_backends.base.statistics import counter, gauge
from ...kernel.use_guard import UseGuard
from ...telemetry.tracing import Tracing
from .attempts import ClientContext


@attrs.frozen
class ClientStatistics:
    requests: int = attrs.field(metadata=counter("Requests sent, repeats and map refreshes included."))
    appends: int = attrs.field(metadata=counter("Appends that callers made."))
    batches: int = attrs.field(metadata=counter("Requests that carried these appends."))
    appends_waiting: int = attrs.field(metadata=gauge("Appends that wait for their answer."))
    in_flight: int = attrs.field(metadata=gauge("Requests that wait for their answer."))
    map_refreshes: int = attrs.field(
        metadata=counter("Refreshes of the container map, failed ones included.")
    )


class ClientBase:
    def __init__(self, context: ClientContext, tracing: Tracing | None, guard: UseGuard) -> None:
        self._context = context
        self._tracing = tracing
        self._guard = guard
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._context.map.base}{', closed' if self._is_closed else ''}>"

    @property
    def append_bytes_max(self) -> int:
        """The largest append that the service takes, in bytes, as of the newest container map."""
        return self._context.map.append_bytes_max

    def container_of(self, name: str) -> int:
        """The index of the container that hosts ``name``. Raises ``InvalidArgument`` for a bad name."""
        check_segment_name(name)
        return self._context.map.container_of(name)

    def _check(self) -> None:
        if self._is_closed:
            raise ClosedError("the client is closed: use it inside its `with` body")

        self._guard.check()


def render(statistics: Callable[[], ClientStatistics]) -> bytes:
    from ...telemetry.metrics import render_metrics

    return render_metrics(lambda: (statistics(),))
