"""The hosts of a world with sessions, and who orders them to open containers.

A host is a process of the simulator that serves what hosts of the product serve: a runtime with some of the
store's containers, their locations, the application, and the server's connections. Its logs are in a service
and its chunks in another, so that any host may open any container. The supervisor here is the world: it
orders openings, also of containers that are open elsewhere, and says late where the owners are.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import Any, cast

import anyio
import anyio.abc
import attrs
import trio

from tierlog.actors.gateway.server.app import context_of, make_app
from tierlog.actors.gateway.server.connection import HttpConnection
from tierlog.actors.gateway.server.connections import Connections
from tierlog.actors.gateway.server.context import ServerContext, ServerLimits
from tierlog.actors.gateway.server.session import SessionConnection
from tierlog.actors.host.main import ContainerLocations
from tierlog.actors.host.orders import Orders
from tierlog.actors.kernel.connection_pools import ConnectionPools
from tierlog.actors.kernel.task_groups import body_group
from tierlog.actors.store.runtime import ContainerRuntime, RuntimeParts
from tierlog.actors.store.store import SegmentStore
from tierlog.actors.supervisor.control.messages import (
    Close,
    Closed,
    Ended,
    Failed,
    Fenced,
    Open,
    Opened,
    Owners,
)
from tierlog.storage_backends.base.world import World

from ..gates import GatedFiles
from ..process import Process
from ..settings import ChunksKind, Latency, Limits, SiteKind, WalKind
from ..trace import Trace
from ..world import BEGIN, ServiceFolder, Site, ids_of
from .event_loop import HostLoop
from .network import Door, Network
from .plain_http import PlainTransport

CONTAINERS = 3
APPEND_BYTES_MAX = 24 << 10
STOP_SECONDS = 3.0
FEW = 2
"""Exchanges with an owner of one client at a time, and of a pool: others wait."""
_LIMITS = Limits(
    flush_bytes=20_000,
    rolling_size=40_000,
    cache_bytes=400_000,
    soft_bytes=200_000,
    hard_bytes=400_000,
    segment_bytes=200_000,
    segments=100,
    active_segments=40,
    idle_segments=20,
    append_bytes_max=APPEND_BYTES_MAX,
    group_bytes=30_000,
    checkpoint_bytes=60_000,
    pinned_bytes=120_000,
    unavailable_wait=1.0,
)
_SERVER = ServerLimits(
    connections=12,
    batch_bytes=64 << 10,
    block_bytes=1500,
    in_flight_bytes=96 << 10,
    unread_bytes=12_000,
    tails=12,
    body_timeout=5.0,
)
_CHECK_SECONDS = 1.0


class InOrder(dict[Any, None]):
    """A set whose order is the same in every run."""

    def add(self, item: Any) -> None:
        self[item] = None

    def discard(self, item: Any) -> None:
        self.pop(item, None)


class _NoListener:
    """Connections come from the network."""

    def __init__(self, loop: HostLoop) -> None:
        self._loop = loop

    def accept(self) -> Any:
        raise BlockingIOError

    def close(self) -> None:
        self._loop.is_closed = True


@attrs.frozen(eq=False)
class Server:
    """What one process serves."""

    context: ServerContext
    connections: Connections
    runtime: ContainerRuntime
    locations: ContainerLocations
    orders: Orders

    @property
    def is_changing(self) -> bool:
        """Whether several requests are in flight, besides tails."""
        return self.context._in_flight > 1

    def left_over(self) -> list[str]:
        """Requests, and calls of sessions, that have not ended."""
        found = [
            "a call of a session"
            for each in self.connections._all
            if isinstance(each, SessionConnection)
            for _ in each._calls
        ]
        found += ["a task" for _ in self.connections.tasks]
        found += ["a request in flight"] * self.context._in_flight
        found += ["a tail"] * self.context.tails
        if self.context._in_flight_bytes:
            found.append(f"{self.context._in_flight_bytes} bytes of bodies")
        if self.context._unread_count:
            found.append(f"{self.context._unread_count} blocks of answers")
        return found


@attrs.define(eq=False)
class Host:
    """A place at a URL where one process after another serves."""

    url: str
    process: Process | None = None
    server: Server | None = None
    """Of the process, once it serves."""

    @property
    def serving(self) -> bool:
        return self.process is not None and self.process.serving and self.server is not None

    def serves(self, index: int) -> bool:
        return self.serving and self.server is not None and self.server.runtime.serves(index)


class HostSite(Site):
    """``reported``: called with a host and what it reports. ``forwards``: hosts pass requests on to the
    owners (rule H22)."""

    def __init__(
        self,
        count: int,
        random: Random,
        trace: Trace,
        network: Network,
        agenda: Any,
        reported: Any,
        *,
        forwards: bool,
    ) -> None:
        latency = Latency(log=random.choice((0.001, 0.01, 0.05)), chunks=0.01, share=0.5)
        kind = SiteKind(
            wal=WalKind.SERVICE,
            chunks=random.choice((ChunksKind.APPEND, ChunksKind.OBJECTS)),
            containers=CONTAINERS,
            limits=_LIMITS,
            latency=latency,
        )
        super().__init__(kind, random, trace)
        self.hosts = [Host(f"http://h{number}:8470") for number in range(count)]
        self._network = network
        self._agenda = agenda
        self._reported: Callable[[Host, object], None] = reported
        self._host_of: dict[int, Host] = {}
        self._forwards = forwards

    def start_host(self, host: Host, tasks: anyio.abc.TaskGroup) -> None:
        number = len(self.processes) + 1
        self._host_of[number] = host
        host.server = None
        host.process = self.begin(tasks, attrs.evolve(self._folder, runs=f"/runs-{number}"))

    @asynccontextmanager
    async def _opened(
        self, process: Process, files: GatedFiles, folder: ServiceFolder
    ) -> AsyncIterator[SegmentStore]:
        """What a host process does, with simulated parts."""
        host = self._host_of[process.number]
        world = World(
            lambda: BEGIN + trio.current_time(), self._random(f"process {process.number}"), ids_of(process)
        )
        objects = cast(Any, None)  # there is no bucket
        identity = await self._identity(files, objects, world, folder)
        owner_id = world.new_id()
        parts = RuntimeParts(
            identity=identity,
            owner_id=owner_id,
            chunks=self._chunks(process, files, world),
            make_disk=self._disk_maker(process, files, objects, identity, owner_id, folder, world),
            options=self.kind.limits.serving(),
            world=world,
            folder=folder.fingerprint,
        )
        async with ContainerRuntime(parts).running() as runtime, self._served(process, host, runtime, world):
            yield runtime.store

    @asynccontextmanager
    async def _served(
        self, process: Process, host: Host, runtime: ContainerRuntime, world: World
    ) -> AsyncIterator[None]:
        locations = ContainerLocations(runtime, host.url)
        app = make_app(
            runtime.store,
            world,
            limits=_SERVER,
            container_map=locations.map,
            owner_of=locations.url_of,
            absence_of=locations.absence_of,
            names=[each.url.removeprefix("http://").partition(":")[0] for each in self.hosts],
            serves=runtime.serves if self._forwards else None,
        )
        context = context_of(app)
        if (forwarder := context.forwarder) is not None:
            forwarder.client_exchanges = FEW
            for pools in ("_pools", "_parking"):
                made = ConnectionPools(lambda: PlainTransport(self._network.dial), FEW)
                setattr(forwarder, pools, made)
            forwarder._flights = cast(Any, InOrder())
        async with body_group() as tasks:
            loop = HostLoop(self._agenda, process.gate, tasks)
            loop.enter()
            connections = Connections(app, lambda: _SERVER.connections, lambda: context.draining)
            connections._all = cast(Any, InOrder())
            orders = Orders(runtime, report=partial(self._reported, host), drain=_never, tasks=tasks)
            host.server = Server(context, connections, runtime, locations, orders)
            tasks.start_soon(context.run)
            tasks.start_soon(self._check_fenced, process, orders)
            self._network.doors[host.url] = Door(loop, lambda: HttpConnection(connections))
            try:
                yield
            finally:
                try:
                    await self._end(process, host, context, connections, loop)
                finally:
                    if host.process is process:
                        host.server = None
                    tasks.cancel_scope.cancel()

    async def _end(
        self,
        process: Process,
        host: Host,
        context: ServerContext,
        connections: Connections,
        loop: HostLoop,
    ) -> None:
        """As ``serve_http`` ends."""
        if process.alive:
            self._network.doors.pop(host.url, None)
            with anyio.CancelScope(shield=True):
                context.drain()
                end = connections.end(cast(Any, _NoListener(loop)), STOP_SECONDS, context.drop_bodies)
                await process.gate.guard(end)
                await context.aclose()

    @staticmethod
    async def _check_fenced(process: Process, orders: Orders) -> None:
        while True:
            await trio.sleep(_CHECK_SECONDS)
            await process.gate.stay()
            orders.check_fenced()


def _never(reason: str) -> None:
    raise AssertionError(f"a host of this world is not drained: {reason}")


class Placement:
    """Who shall serve which container, as the supervisor of a world knows it."""

    def __init__(self, random: Random, trace: Trace) -> None:
        self._random = random
        self._trace = trace
        self.hosts: list[Host] = []
        self.owners: dict[int, Host | None] = dict.fromkeys(range(CONTAINERS))
        self._asked: dict[int, float] = {}
        """Until when an opening is waited for."""
        self._requests = 0

    def reported(self, host: Host, report: object) -> None:
        match report:
            case Opened():
                self._trace.note("supervisor", f"{report.index} is open at {host.url} as {report.epoch}")
                self.owners[report.index] = host
                self._asked.pop(report.index, None)
            case Failed() | Fenced() | Ended() | Closed():
                self._trace.note("supervisor", f"{host.url}: {type(report).__name__} {report.index}")
                if self.owners[report.index] is host:
                    self.owners[report.index] = None
                if isinstance(report, Failed):
                    self._asked.pop(report.index, None)

    def move(self, index: int, *, closes: bool) -> None:
        """To another host, or to any if nobody serves it."""
        others = [
            host
            for host in self.hosts
            if host.serving
            and host.process is not None
            and not host.process.frozen
            and host is not self.owners[index]
        ]
        if not others:
            return
        before, target = self.owners[index], self._random.choice(others)
        self._requests += 1
        if closes and before is not None and before.serving:
            assert before.server is not None
            before.server.orders.obey(Close(1, index, self._requests))
        assert target.server is not None
        self._trace.note("supervisor", f"opens {index} at {target.url}")
        target.server.orders.obey(Open(1, index, self._requests))
        self._asked[index] = trio.current_time() + 3.0

    async def keep_open(self) -> None:
        """Whatever nobody serves is opened somewhere."""
        while True:
            for index, owner in self.owners.items():
                is_gone = owner is None or not owner.serves(index)
                if is_gone and self._asked.get(index, 0.0) <= trio.current_time():
                    self.owners[index] = None
                    self.move(index, closes=False)
            await trio.sleep(self._random.choice((0.05, 0.3)))

    async def tell(self) -> None:
        """Hosts hear late where the others are."""
        while True:
            await trio.sleep(self._random.choice((0.05, 0.5, 1.5)))
            serving = [host for host in self.hosts if host.serving]
            if serving:
                self.tell_one(self._random.choice(serving))

    def tell_one(self, host: Host) -> None:
        urls = {index: owner.url if owner is not None else "" for index, owner in self.owners.items()}
        if host.serving and host.server is not None:
            host.server.locations.update(Owners(urls))
