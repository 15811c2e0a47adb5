"""What all requests of one server share, whatever it serves: the limits, the counters, and the graceful end.

Requests are admitted by count and by bytes (rule H12); a full server refuses at once and says when to retry.
It never queues. Parked long polls and streams end when the server drains (rule H15). Plain code of the event
loop's thread."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import anyio
import attrs

from ....storage_backends.base.errors import Throttled, Unavailable
from ....storage_backends.base.world import World
from ...telemetry.tracing import Tracing
from ..wire.batch import ITEMS_MAX
from ..wire.bodies import COMMIT_BYTES_MAX
from .guard import Guard
from .request_metrics import RequestMetrics


@attrs.frozen
class ServerLimits:
    """Bounds of one server. Above a bound the answer is a refusal, never a queue."""

    json_bytes: int = 1 << 20
    """Of a JSON body: 413."""
    commit_bytes: int = COMMIT_BYTES_MAX
    """Of the body of a commit, which names every part: 413."""
    batch_bytes: int = 32 << 20
    """Of the body of a batch: 413."""
    batch_items: int = ITEMS_MAX
    in_flight_bytes: int = 256 << 20
    """Of all bodies in memory: 429."""
    requests: int = 4096
    """In flight beside the tails: 429."""
    connections: int = 0
    """0: as many as the limit of open files allows beside storage. Above: 503."""
    tails: int = 20_000
    """Parked long polls and streams: 429."""
    block_bytes: int = 1 << 20
    """Of one read of a stream: a reader that is slow costs about two of them, and the windows that they are
    views of."""
    body_timeout: float = 30.0
    """Seconds without a byte of a body that is not complete, or behind ``body_rate``: 408."""
    body_rate: int = 16 << 10
    """Bytes a second that a body comes with at least."""
    wait_default: float = 30.0
    wait_max: float = 60.0
    """Seconds that a long poll waits."""


class ServerContext:
    def __init__(
        self, world: World, limits: ServerLimits, tracing: Tracing | None = None, names: Iterable[str] = ()
    ) -> None:
        """``names``: under which clients reach the server, besides loopback."""
        self.guard = Guard(names)
        self.world = world
        self.limits = limits
        self.metrics = RequestMetrics()
        self.tracing = tracing
        self.draining = False
        self._server_id = world.new_id()[:12]
        self._request_ids = itertools.count(1)
        self._in_flight_bytes = 0
        self._requests = 0
        self._parked: dict[int, anyio.CancelScope] = {}

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self._requests} requests, {len(self._parked)} "
            f"tails{', draining' if self.draining else ''}>"
        )

    def new_request_id(self) -> str:
        """This server's id and a number. A random id would be a system call for each request."""
        return f"{self._server_id}-{next(self._request_ids)}"

    def located(self, error: BaseException, name: str | None) -> BaseException:
        """``error`` about the segment ``name``, with the owner's URL if this server knows it."""
        return error

    # --- admission -------------------------------------------------------------------------------

    @contextmanager
    def request(self) -> Iterator[None]:
        """Counts a request that is not a tail while it is in flight."""
        if self._requests >= self.limits.requests:
            raise Throttled(f"{self._requests} requests are in flight: slow down and try again")

        self._requests += 1
        try:
            yield
        finally:
            self._requests -= 1

    def check_room(self, size: int, held: int = 0) -> None:
        """Raises ``Throttled`` if there is no room for ``size`` more bytes of a body that holds ``held``
        already. One body that is larger than the whole bound is admitted alone."""
        others = self._in_flight_bytes - held
        if others and self._in_flight_bytes + size > self.limits.in_flight_bytes:
            raise Throttled(f"{self._in_flight_bytes} bytes are in flight: slow down and try again")

    def reserve(self, size: int, held: int) -> None:
        """``check_room``, and takes it: with each piece of a body that arrives, so that a request without its
        body holds nothing."""
        self.check_room(size, held)
        self._in_flight_bytes += size

    def release(self, size: int) -> None:
        self._in_flight_bytes -= size

    # --- long polls and streams ------------------------------------------------------------------

    @contextmanager
    def parked(self, scope: anyio.CancelScope) -> Iterator[None]:
        """A tail that waits inside ``scope``, which is cancelled when the server drains."""
        self.check_serving()
        if len(self._parked) >= self.limits.tails:
            raise Throttled(f"{len(self._parked)} readers wait at tails: no more are taken, try again later")

        self._parked[id(scope)] = scope
        try:
            yield
        finally:
            del self._parked[id(scope)]

    @property
    def tails(self) -> int:
        return len(self._parked)

    def check_serving(self) -> None:
        if self.draining:
            raise Unavailable("this server is stopping: ask again, another one will answer")

    def drain(self) -> None:
        """Before the server stops: end parked tails and refuse new ones; ``/ready`` answers 503. Other
        requests continue."""
        self.draining = True
        for scope in list(self._parked.values()):
            scope.cancel()
