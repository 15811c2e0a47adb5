"""What all requests of one server share: the store, the limits, the counts, and the end.

Owns: admission of requests by count and by bytes (rule H12), the parked tails and their end (rule H15), and where another owner is (rule
H13). Does not own: any endpoint, nor the store.

Everything here is plain code of the event loop's thread. A full server refuses at once and says when to come back; it never queues.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import anyio
import attrs

from ....storage_backends.base.errors import NotOwner, Throttled, Unavailable
from ....storage_backends.base.segments import AttributeUpdate, SegmentInfo
from ....storage_backends.base.world import World
from ...tracing import Tracing
from ..wire.batch import ITEMS_MAX, BatchItem, Outcome
from ..wire.documents import ContainerMap, ContainerPlace, ContainerStatus, HostStatus
from ..wire.errors import OwnedElsewhere
from .traffic import Traffic


class Store(Protocol):
    """The verbs of ``SegmentStore`` that are served: anything that has them can stand behind a server."""

    append_bytes_max: int

    async def create_segment(self, name: str, *, rolling_size: int | None = None) -> None: ...
    async def append(
        self,
        name: str,
        data: bytes,
        *,
        writer_id: bytes | None = None,
        event_number: int | None = None,
        previous_event_number: int | None = None,
        expected_offset: int | None = None,
    ) -> int | None: ...
    async def append_each(self, appends: Sequence[BatchItem]) -> list[Outcome]: ...
    async def seal_segment(self, name: str) -> int: ...
    async def truncate_segment(self, name: str, offset: int) -> None: ...
    async def delete_segment(self, name: str) -> None: ...
    async def merge_segments(self, target: str, sources: Sequence[str], *, attribute_updates: Sequence[AttributeUpdate] = ()) -> int: ...
    async def update_attributes(self, name: str, updates: Sequence[AttributeUpdate]) -> dict[str, int]: ...
    async def expire_writers(self, name: str, writer_ids: Iterable[bytes]) -> int: ...
    async def read(self, name: str, offset: int, size: int) -> bytes: ...
    def tail(self, name: str, offset: int = 0, *, block_size: int = 1 << 20) -> AsyncGenerator[bytes, None]: ...
    async def segment_info(self, name: str) -> SegmentInfo: ...
    async def list_segments(self, prefix: str = "") -> list[str]: ...
    async def last_event_number(self, name: str, writer_id: bytes) -> int | None: ...
    async def flush(self) -> None: ...
    def statistics(self) -> Any: ...
    def container_of(self, name: str) -> int: ...


@attrs.frozen
class ServerLimits:
    """What one server takes at most. Above each there is a clear answer, never a queue."""

    json_bytes: int = 1 << 20
    """Of a JSON body: 413."""
    batch_bytes: int = 32 << 20
    """Of the body of a batch: 413."""
    batch_items: int = ITEMS_MAX
    in_flight_bytes: int = 256 << 20
    """Of all bodies in memory: 429."""
    requests: int = 4096
    """In flight beside the tails: 429."""
    tails: int = 20_000
    """Parked long polls and streams: 429."""
    block_bytes: int = 1 << 20
    """Of one read of a stream: a reader that is slow costs about two of them."""
    body_timeout: float = 30.0
    """Seconds without a byte of a body that is not complete, or behind ``body_rate``: 408."""
    body_rate: int = 16 << 10
    """Bytes a second that a body comes with at least."""
    wait_default: float = 30.0
    wait_max: float = 60.0
    """Seconds that a long poll waits."""


class Gateway:
    def __init__(
        self,
        store: Store,
        world: World,
        limits: ServerLimits,
        container_map: Callable[[], ContainerMap] | None,
        owner_of: Callable[[int], str | None] | None,
        tracing: Tracing | None = None,
    ) -> None:
        self.store = store
        self.world = world
        self.limits = limits
        self.traffic = Traffic()
        self.tracing = tracing
        self.container_map = container_map or self._own_map
        self._owner_of = owner_of
        self.draining = False
        self._server_id = world.new_id()[:12]
        self._request_ids = itertools.count(1)
        self._in_flight_bytes = 0
        self._requests = 0
        self._parked: dict[int, anyio.CancelScope] = {}

    def __repr__(self) -> str:
        return f"<Gateway {self._requests} requests, {len(self._parked)} tails{', draining' if self.draining else ''}>"

    def new_request_id(self) -> str:
        """This server's own id and a number: a fresh id of the world would be a system call for each request, which costs a turn of the
        interpreter's lock beside busy threads."""
        return f"{self._server_id}-{next(self._request_ids)}"

    # --- admission --------------------------------------------------------------------------------------------

    @contextmanager
    def request(self) -> Iterator[None]:
        """One request that is no tail, while it is in flight."""
        if self._requests >= self.limits.requests:
            raise Throttled(f"{self._requests} requests are in flight: slow down and try again")

        self._requests += 1
        try:
            yield
        finally:
            self._requests -= 1

    def reserve(self, size: int) -> None:
        """Room for ``size`` more bytes of bodies. A body that alone is too large for all of it is let in alone."""
        if self._in_flight_bytes and self._in_flight_bytes + size > self.limits.in_flight_bytes:
            raise Throttled(f"{self._in_flight_bytes} bytes are in flight: slow down and try again")

        self._in_flight_bytes += size

    def release(self, size: int) -> None:
        self._in_flight_bytes -= size

    # --- tails ------------------------------------------------------------------------------------------------

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
        """The end is near: parked tails end now, and no new ones are taken; ``/ready`` says so. Everything else goes on."""
        self.draining = True
        for scope in list(self._parked.values()):
            scope.cancel()

    # --- containers -------------------------------------------------------------------------------------------

    def told(self, error: BaseException, name: str | None) -> BaseException:
        """``error``, with the owner's URL if another host owns the segment and this one knows which."""
        if type(error) is NotOwner and name is not None and self._owner_of is not None:
            owner = self._owner_of(self.store.container_of(name))
            if owner is not None:
                return OwnedElsewhere(str(error), owner=owner)

        return error

    def status(self) -> HostStatus:
        """Whether all that is served here answers."""
        containers = tuple(ContainerStatus(host.container, host.state) for host in self.store.statistics().containers)
        ready = not self.draining and all(container.state == "active" for container in containers)
        return HostStatus(ready, self.draining, containers)

    def _own_map(self) -> ContainerMap:
        """For a process that serves all containers: its clients know its URL better than it does."""
        hosts = self.store.statistics().containers
        return ContainerMap(0, tuple(ContainerPlace(host.container, None, host.current and host.current.epoch) for host in hosts))
