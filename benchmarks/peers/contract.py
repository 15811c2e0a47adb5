"""What is measured of every peer: a log with streams of events, driven through its Python client from this
process. ``Kind`` is a row of the table, ``Peer`` a running one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import anyio
import attrs

if TYPE_CHECKING:
    from benchmarks.peers.applications import SparkPeer

STREAMS = 100
HISTORY = STREAMS
"""One more stream, which is filled once and then only read."""
EVENT_BYTES = 1024
BATCH = 200
ONLY_APPENDS = "it only appends"
"""Why a reference has no figure for another workload."""


class Peer(Protocol):
    """An append returns once the event is acked. The streams are numbered."""

    async def append(self, stream: int, event: bytes) -> object: ...
    async def append_many(self, stream: int, events: Sequence[bytes]) -> object: ...

    async def count(self) -> int:
        """The events of all streams, as the peer counts them."""
        ...

    async def settle(self) -> object:
        """Does the deferred work of what was appended, off the clock."""
        ...

    def follow(self, stream: int) -> AbstractAsyncContextManager[AsyncGenerator[bytes]]:
        """The events that are appended from now on, each as it comes."""
        ...

    def read(self, stream: int, count: int) -> AsyncIterator[Sequence[bytes]]:
        """The first ``count`` events of a stream."""
        ...


class Restarts(Protocol):
    """A peer whose processes are killed and started again."""

    async def load(self, count: int) -> None:
        """Append ``count`` events to a new one, and kill it."""
        ...

    async def first_ack(self) -> float:
        """Seconds from the start of the process until an append is acked. It is killed afterwards."""
        ...


def _everything() -> Mapping[str, str]:
    return {}


@attrs.frozen
class Kind:
    name: str
    """On the command line."""
    title: str
    place: Literal["embedded", "service"]
    """In the process of its user, or behind a socket."""
    promise: str
    """What is durable at an ack."""
    is_synced: bool
    """Whether an acked event survives a power failure."""
    open: Callable[[Path], AbstractAsyncContextManager[Peer]] | None
    """Runs one that is empty; its data is in the folder. Nothing of it runs afterwards. None: only Spark
    reaches it."""
    version: Callable[[], str]
    restarts: Callable[[Path], AbstractAsyncContextManager[Restarts]] | None = None
    spark: Callable[[Path], AbstractAsyncContextManager[SparkPeer]] | None = None
    """The same for Spark. None: it has no connector."""
    prepare: Callable[[], str] = str
    """Fetches what can be fetched. Returns what is missing to run it here and how to get that; empty if
    nothing is."""
    leaves_out: Mapping[str, str] = attrs.field(factory=_everything)
    """Workloads that it has no figure for, and why."""

    @property
    def is_tierlog(self) -> bool:
        return self.name.startswith("tierlog")

    @property
    def is_peer(self) -> bool:
        """What a user would take in place of tierlog."""
        return not (self.is_tierlog or self.name.startswith("bare"))


async def fill(peer: Peer, stream: int, count: int, items: Sequence[bytes]) -> None:
    """Append ``count`` events, in batches with four in flight."""
    starts = iter(range(0, count, BATCH))

    async def append() -> None:
        for start in starts:
            size = min(BATCH, count - start)
            await peer.append_many(stream, [items[(start + each) % len(items)] for each in range(size)])

    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(append)
