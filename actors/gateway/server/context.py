"""What all requests of one server share, whatever it serves: the limits, the counters, and the graceful end.

Requests are admitted by count and by bytes (rule H12); a full server refuses at once and names a time to
retry. Nothing waits but answers, and requests that are passed on. Parked long polls and streams end when the
server drains (rule H15). Plain code of the event loop's thread."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

import anyio
import anyio.lowlevel
import attrs

from ....storage_backends.base.errors import Throttled, Unavailable
from ....storage_backends.base.world import World
from ...kernel.event_loop import loop_clock
from ...telemetry.tracing import Tracing
from ..wire.batch import ITEMS_MAX
from ..wire.bodies import COMMIT_BYTES_MAX
from ..wire.table_bodies import ROWS_BYTES_MAX
from .guard import Guard
from .request_metrics import RequestMetrics

if TYPE_CHECKING:
    from .forwarding import Forwarder

IDLE_MAX = 128
"""Descriptors for connections to other hosts that wait for the next request."""
WINDOWS_MAX = 16
"""Blocks of answers that may each keep a window of long-term storage in memory, of up to 4 MiB."""


@attrs.frozen
class ServerLimits:
    """Bounds of one server. Above a bound the answer is a refusal, if the field does not say that something
    waits. What is passed on to one owner waits within these bounds (rule H22)."""

    json_bytes: int = 1 << 20
    """The most bytes of a JSON body; above it the answer is 413."""
    commit_bytes: int = COMMIT_BYTES_MAX
    """The most bytes of the body of a commit, which names every part: 413."""
    rows_bytes: int = ROWS_BYTES_MAX
    """The most bytes of the body of an update of a table, or of a get of many rows: 413."""
    batch_bytes: int = 32 << 20
    """The most bytes of the body of a batch: 413."""
    batch_items: int = ITEMS_MAX
    in_flight_bytes: int = 256 << 20
    """The most bytes of all bodies in memory: 429."""
    unread_bytes: int = 256 << 20
    """The most bytes of blocks of answers that clients have not read: further ones wait, and are not read
    from the store."""
    requests: int = 4096
    """The most requests in flight besides the tails: 429."""
    connections: int = 0
    """The most connections: 503. 0 means as many as the limit of open files allows besides
    ``reserved_files``."""
    reserved_files: int = 128
    """Descriptors that connections leave to the rest of the process."""
    tails: int = 20_000
    """The most parked long polls and streams: 429."""
    block_bytes: int = 1 << 20
    """Bytes of one read of a stream: what a slow reader costs."""
    body_rate: int = 16 << 10
    """The least rate of a body, in bytes a second, whatever it sent before."""
    body_timeout: float = 10.0
    """Seconds that a body may be behind ``body_rate``: 408."""
    body_grace: float = 2.0
    """The same if another body needs the room that it holds; also for an answer that is read more slowly."""
    half_closed: float = 30.0
    """Seconds that a request that is passed on may take once its client has closed its half of the
    connection."""
    wait_default: float = 30.0
    wait_max: float = 60.0
    """Seconds that a long poll waits, by default and at most."""


class Arrival:
    """The room that one body takes with each piece that arrives, so that a request without its body holds
    nothing, and the rate at which it arrives."""

    __slots__ = ("_paused", "_received", "_server", "covered", "held", "is_dropped", "scope")

    def __init__(self, server: ServerContext) -> None:
        self._server = server
        self._received = self.held = 0
        self._paused = 0.0
        self.covered = -math.inf
        """Up to this time its bytes satisfy the minimum rate, once there is a wait for more. Never later than
        now: what came early does not allow a body to stop later, with all its room."""
        self.is_dropped = False
        self.scope: anyio.CancelScope | None = None
        """Its handler waits for more bytes in this scope."""

    def __enter__(self) -> Self:
        if self.covered == -math.inf:
            self.covered = self._server.clock()
        self._server._arriving.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server._arriving.discard(self)

    @property
    def deadline(self) -> float:
        return self.covered + self._server.limits.body_timeout

    @property
    def is_late(self) -> bool:
        return self.is_dropped or self.deadline <= self._server.clock()

    def take(self, received: int) -> None:
        """There are ``received`` bytes in all. Raises ``Throttled`` if there is no room for them."""
        if self.covered > -math.inf:
            earned = (received - self._received) / self._server.limits.body_rate
            self.covered = min(self._server.clock(), self.covered + earned)
        self.add(received - self._received)
        self._received = received

    def add(self, size: int) -> None:
        """What was made of the body takes ``size`` bytes more. Raises as ``take``."""
        server = self._server
        if server._in_flight_bytes + size > server.limits.in_flight_bytes:
            server.check_room(size, self)
        server._in_flight_bytes += size
        self.held += size

    def take_more(self, size: int) -> None:
        """``take``, of a body that is passed on."""
        self._paused = self._server.clock()
        self.take(self._received + size)

    def resume(self) -> None:
        """Its receiver takes more: the time that it took for what is there was not the sender's."""
        if self._paused:
            now = self._server.clock()
            self.covered = min(now, self.covered + now - self._paused)

    def release(self) -> None:
        """What has arrived is not in memory any more."""
        self._server._in_flight_bytes -= self.held
        self.held = 0

    def drop(self) -> None:
        """Give up the body, because another one needs its room or the server ends."""
        self.is_dropped = True
        # Now, and not when its handler runs: whoever needs the room asks again in this step.
        self.release()
        if self.scope is not None:
            self.scope.cancel()


class Cancellable(Protocol):
    def cancel(self) -> None: ...


class ServerContext:
    def __init__(
        self, world: World, limits: ServerLimits, tracing: Tracing | None = None, names: Iterable[str] = ()
    ) -> None:
        """``names``: under which clients reach the server, besides loopback."""
        self.clock = loop_clock()
        self.guard = Guard(names)
        self.world = world
        self.limits = limits
        self.metrics = RequestMetrics()
        self.tracing = tracing
        self.draining = False
        self.forwarder: Forwarder | None = None
        """In one-port mode."""
        # 48 bits: enough to tell the processes of one service, and their restarts, apart in logs.
        self._server_id = world.new_id()[:12]
        self._request_ids = itertools.count(1)
        # A block is in memory twice while it is read and sent: asyncio's transport copies it, and what it was
        # read from may be larger.
        self.unread_max = max(1, limits.unread_bytes // (2 * limits.block_bytes))
        # Fast: a block for which there is room costs no turn of the event loop.
        self.unread_blocks = anyio.Semaphore(self.unread_max, fast_acquire=True)
        """Blocks of answers in memory: a handler takes one before it reads a block, and returns it once the
        client has read that."""
        self.taking_many = anyio.Lock(fast_acquire=True)
        self._turn = anyio.Lock()
        self._in_flight_bytes = 0
        self._arriving: set[Arrival] = set()
        self.has_dropped_bodies = False
        self.requests = 0
        """Admitted so far, without tails."""
        self._in_flight = 0
        self._parked: dict[int, Cancellable] = {}
        self.frame_bytes: Callable[[], int] = lambda: 0
        """Bytes of frames of sessions that are not complete."""

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self._in_flight} requests, {len(self._parked)} "
            f"tails{', draining' if self.draining else ''}>"
        )

    async def run(self) -> None:
        """What the server does besides requests, until it is cancelled."""

    def taken_files(self) -> int:
        """Descriptors that the process has taken besides those that are reserved (rule H12)."""
        return 0

    async def aclose(self) -> None:
        """After the last request."""
        if self.forwarder is not None:
            await self.forwarder.aclose()

    async def forwards(self, call: Any, *, parks: bool) -> bool:
        """Whether ``call`` was for another server, and was passed on to it (rule H22). ``parks``: it is a
        tail."""
        return False

    def new_request_id(self) -> str:
        """This server's id and a number. A random id would be a system call for each request."""
        return f"{self._server_id}-{next(self._request_ids)}"

    def located(self, error: BaseException, name: str | None) -> BaseException:
        """``error`` about the segment ``name``, with the owner's URL if this server knows it."""
        return error

    @property
    def has_many_unread(self) -> bool:
        """Whether blocks of answers must not keep more memory alive than their own."""
        return self._unread_count > WINDOWS_MAX

    @property
    def held_bytes(self) -> int:
        """Bytes of bodies, of frames that are not complete, and of answers that clients have not read."""
        return self._in_flight_bytes + self.frame_bytes() + self._unread_count * self.limits.block_bytes

    @property
    def _unread_count(self) -> int:
        return self.unread_max - self.unread_blocks.value

    async def wait_turn(self) -> None:
        """Wait for a round of the event loop in which nobody else's wait ends. Clients that do not read lose
        their blocks at one moment, and as many others would read the store and write a block each in one
        round: 0.1 s. So would requests that begin to be passed on."""
        async with self._turn:
            pass  # it took a round to get it, from whomever

    # --- admission -------------------------------------------------------------------------------

    def begin_request(self) -> None:
        """Counts a request that is not a tail, until ``end_request``. Raises ``Throttled``."""
        # H12: a queue would answer when clients have given up, and do their work twice.
        if self._in_flight >= self.limits.requests:
            raise Throttled(f"{self._in_flight} requests are in flight: slow down and try again")

        self.requests += 1
        self._in_flight += 1

    def end_request(self) -> None:
        self._in_flight -= 1

    def check_room(self, size: int, body: Arrival | None = None) -> None:
        """Raises ``Throttled`` if there is no room for ``size`` bytes, or for as many more of ``body``.
        Bodies that arrive too slowly lose their room first. One body that is larger than the whole bound is
        admitted alone."""
        if self._in_flight_bytes + size <= self.limits.in_flight_bytes:
            return

        held = 0 if body is None else body.held
        if self._has_room(size, held):
            return

        late = self.clock() - self.limits.body_grace
        slow = [other for other in self._arriving if other.covered < late and other is not body]
        for other in sorted(slow, key=attrgetter("covered")):
            other.drop()
            if self._has_room(size, held):
                return

        raise Throttled(f"{self._in_flight_bytes} bytes are in flight: slow down and try again")

    def _has_room(self, size: int, held: int) -> bool:
        others = self._in_flight_bytes - held
        return not others or self._in_flight_bytes + size <= self.limits.in_flight_bytes

    @contextmanager
    def holding(self, size: int) -> Iterator[None]:
        """Room for ``size`` bytes of bodies, in the block. Raises ``Throttled`` if there is none."""
        if size:
            self.check_room(size)
        self._in_flight_bytes += size
        try:
            yield
        finally:
            self._in_flight_bytes -= size

    # --- long polls and streams ------------------------------------------------------------------

    @contextmanager
    def parked(self, scope: anyio.CancelScope, *, has_begun: bool = False) -> Iterator[None]:
        """A tail that waits inside ``scope``, which is cancelled when the server drains. ``has_begun``: its
        answer has, and ``check_tails`` came before that."""
        if not has_begun:
            self.check_tails()
        self.park(scope)
        try:
            yield
        finally:
            self.unpark(scope)

    def check_tails(self) -> None:
        """Raises ``Throttled`` if there may not be one more tail, ``Unavailable`` if the server stops."""
        self.check_serving()
        if len(self._parked) >= self.limits.tails:
            raise Throttled(f"{len(self._parked)} readers wait at tails: no more are taken, try again later")

    def park(self, tail: Cancellable) -> None:
        self._parked[id(tail)] = tail

    def unpark(self, tail: Cancellable) -> None:
        self._parked.pop(id(tail), None)

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

    def drop_bodies(self) -> bool:
        """When the time for requests in flight is over: refuse those whose body is not complete. Returns
        whether there were any."""
        self.has_dropped_bodies = True
        dropped = list(self._arriving)
        for body in dropped:
            body.drop()
        return bool(dropped)
