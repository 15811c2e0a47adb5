"""Worlds of clients that reach hosts over sessions (rules N1 to N8), or over plain HTTP.

Seeds from ``FIRST_WITH_SESSIONS`` on are such worlds. The real client and the real connections of the server
exchange bytes over a simulated network, and behind them are whole stores. Connections are reset at any byte,
end in one direction, stand still, are slow, or go nowhere, with or without a sign of it; frames are lost,
doubled, replayed, exchanged and damaged; proxies strip the upgrade, or pass that and nothing more. Hosts are
killed, frozen, lose their power and stop; containers move while their callers wait; callers leave.

At the end nothing fails any more. Then everybody gets sessions again, no call is left on either side, and
all that clients know is true of the segments' bytes (``workloads.py``).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from random import Random
from unittest import mock

import anyio
import anyio.abc
import trio

from tierlog.actors.gateway.client import sessions
from tierlog.actors.gateway.client.async_client import Client, open_client
from tierlog.actors.gateway.client.attempts import ClientContext
from tierlog.actors.gateway.client.container_map import ContainerMapCache
from tierlog.actors.kernel.event_loop import event_source
from tierlog.storage_backends.base.errors import Unavailable

from ..copies import FIRST
from ..fleets.network import Agenda
from ..invariants import Broken
from ..trace import Trace
from .event_loop import simulated_server
from .hosts import CONTAINERS, Host, HostSite, Placement
from .middleboxes import PROXIES
from .network import Network, Swarm
from .plain_http import transport_of
from .streams import loop_connection
from .workloads import (
    Committer,
    Counter,
    Leaver,
    NumberedWriter,
    PlainAppender,
    Reader,
    RowCounter,
    Shared,
    Tail,
    Visitor,
    Workload,
)

FIRST_WITH_SESSIONS = FIRST + (10 << 32)
FIRST_WITH_ONE_PORT = FIRST_WITH_SESSIONS + (1 << 31)
SETTLE_SECONDS = 12.0
"""After that sessions are asked for again, and the server has noticed who left."""
DISTURBANCES = 50
"""At most."""
END_SECONDS = 300.0
"""What is under way ends, once nothing fails any more."""

_WITH_EVENTS = (NumberedWriter, PlainAppender, Committer)
_NO_END = "it does not hold that what is under way ends"


class SessionsRun:
    """One seed's run; ``body`` raises what it finds."""

    def __init__(self, seed: int, trace: Trace) -> None:
        self._random = random = Random(f"sessions {seed}")
        self._has_one_port = seed >= FIRST_WITH_ONE_PORT
        self._trace = trace
        self._agenda = Agenda()
        self._swarm = Swarm.drawn(Random(f"swarm {seed}"))
        self._network = Network(self._agenda, Random(f"network {seed}"), trace, self._swarm)
        self._placement = Placement(Random(f"placement {seed}"), trace)
        self.site = HostSite(
            random.randint(2, 3),
            Random(f"site {seed}"),
            trace,
            self._network,
            self._agenda,
            self._placement.reported,
            forwards=self._has_one_port,
        )
        self._placement.hosts = self.site.hosts
        self._shared = Shared(trace)
        self._deadline = random.choice((1.0, 4.0, 20.0))
        self._is_on_trio = Random(f"clients {seed}").random() < 0.4
        self._workloads: list[Workload] = []
        self._tails: list[Tail] = []
        self._tasks: anyio.abc.TaskGroup

    @property
    def title(self) -> str:
        return "clients and hosts with sessions between them"

    @property
    def operations(self) -> int:
        return self._shared.calls

    async def body(self) -> None:
        with simulated_server(), self._client_connections():
            async with anyio.create_task_group() as self._tasks:
                for task in (self._agenda.run, self._placement.keep_open, self._placement.tell):
                    self._tasks.start_soon(task)
                for host in self.site.hosts:
                    self.site.start_host(host, self._tasks)
                while None in self._placement.owners.values():
                    await trio.sleep(0.1)
                await self._with_clients()
                self.site.kill_all()
                self._tasks.cancel_scope.cancel()

    # --- clients ---------------------------------------------------------------------------------

    def _client_connections(self) -> AbstractContextManager[object]:
        """Those of clients on trio, or on asyncio."""
        if self._is_on_trio:
            return nullcontext()
        return mock.patch.object(sessions, "byte_connection", loop_connection)

    async def _with_clients(self) -> None:
        async with AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(self._connected(number))
                for number in range(self._random.randint(1, 3))
            ]
            await self._use(clients)
            with trio.move_on_after(END_SECONDS) as scope:
                await self._check_end(clients)
            if scope.cancelled_caught:
                raise Broken(_NO_END)
        await trio.sleep(SETTLE_SECONDS)
        self._check_left_over([])

    @asynccontextmanager
    async def _connected(self, number: int) -> AsyncIterator[Client]:
        random = Random(f"{self._random.random()} client")
        uses_sessions = random.random() < 0.85
        urls = [host.url for host in self.site.hosts]
        random.shuffle(urls)
        dial = self._network.dial if uses_sessions else None
        async with AsyncExitStack() as stack:
            client: Client | None = None
            while client is None:
                context = ClientContext(
                    ContainerMapCache(*urls), self._deadline, 0.5, trio.current_time, random
                )
                opening = open_client(context, transport_of(self._network.dial), event_source(), None, dial)
                try:
                    client = await stack.enter_async_context(opening)
                except Unavailable as error:
                    # So many connections to all hosts may break.
                    self._trace.note(f"client {number}", f"is not open: {error}")
            self._trace.note(f"client {number}", "has sessions" if uses_sessions else "uses plain HTTP")
            yield client

    def _make_workloads(self, clients: Sequence[Client]) -> None:
        random, names = self._random, [f"s{number}" for number in range(self._random.randint(3, 6))]

        def made(make: Callable[..., Workload], *arguments: object) -> Workload:
            chance = Random(f"{random.random()} workload")
            workload = make(*arguments, random.choice(clients), self._deadline, chance, self._shared)
            self._workloads.append(workload)
            return workload

        for number, name in enumerate(names):
            if number % 2:
                for part in range(random.choice((1, 2, 4))):
                    made(PlainAppender, name, part, random.randint(5, 20))
            else:
                made(NumberedWriter, name, random.randint(8, 30))
            for tail in range(random.choice((0, 1, 1, 3))):
                found = made(Tail, name, tail)
                assert isinstance(found, Tail)
                self._tails.append(found)
        for _ in clients:
            made(Reader, names, random.randint(5, 20))
        for number in range(random.choice((1, 3))):
            made(Counter, f"counted{number}", random.randint(3, 12))
        for number in range(random.randint(1, 3)):
            made(Leaver, f"empty{number}", random.randint(1, 4))
        if self._has_one_port:
            made(Committer, "committed", random.randint(3, 10))
            made(RowCounter, "rows", random.randint(3, 12))

    async def _use(self, clients: Sequence[Client]) -> None:
        """Everything at once; ends when all but the tails are done, and nothing fails any more."""
        self._make_workloads(clients)
        for tail in self._tails:
            self._tasks.start_soon(self.site.or_all_end, tail.run)
        async with anyio.create_task_group() as nemesis:
            nemesis.start_soon(self.site.or_all_end, self._disturb)
            nemesis.start_soon(self.site.or_all_end, self._heal_in_time)
            async with anyio.create_task_group() as tasks:
                for workload in self._workloads:
                    if not isinstance(workload, Tail):
                        tasks.start_soon(self.site.or_all_end, workload.run)
            nemesis.cancel_scope.cancel()
        self._heal()

    async def _heal_in_time(self) -> None:
        """Before everybody waits for calls that nothing lets through."""
        await trio.sleep(self._random.choice((3.0, 10.0, 25.0)))
        self._heal()
        await trio.sleep(END_SECONDS)
        raise Broken(_NO_END)

    # --- what happens ----------------------------------------------------------------------------

    async def _disturb(self) -> None:
        random = self._random
        acts = (
            self._kill, self._lose_power, self._freeze, self._stop, self._move, self._move, self._reset,
            self._hold, self._reset_one_side, self._place_proxy, self._cut_off,
        )  # fmt: skip
        share = random.choice((0.15, 0.4, 0.8))
        chosen = [act for act in acts if random.random() < share]
        if random.random() < 0.5:
            chosen += [self._stop] * (1 + len(chosen) // 2)
        mean = random.choice((0.02, 0.2, 1.0))
        for _ in range(DISTURBANCES if chosen else 0):
            await trio.sleep(random.expovariate(1 / mean))
            if self._shared.is_healed:
                return
            host = random.choice(self.site.hosts)
            if host.serving:
                act = random.choice(chosen)
                self._trace.note("nemesis", f"{act.__name__.strip('_')} {host.url}")
                act(host)

    def _later(self, act: Callable[[], None]) -> None:
        def unless_healed() -> None:
            if not self._shared.is_healed:
                act()

        self._agenda.after(self._random.choice((0.05, 0.5, 3.0, 8.0)), unless_healed)

    def _kill(self, host: Host) -> None:
        assert host.process is not None
        host.process.kill()
        self._network.leave(host.url)
        self._later(lambda: self._restart(host))

    def _lose_power(self, host: Host) -> None:
        assert host.process is not None
        host.process.kill()
        self._network.doors.pop(host.url, None)
        self._network.dark.add(host.url)
        for connection in self._network.open_to(host.url):
            connection.reset(client=False, server=False)
        self._later(lambda: self._restart(host))

    def _restart(self, host: Host) -> None:
        """A new process, unless one is there. It knows nothing of the connections before."""
        if host.process is not None and host.process.alive:
            return
        self._network.dark.discard(host.url)
        for connection in self._network.open_to(host.url):
            connection.reset()
        self.site.start_host(host, self._tasks)

    def _freeze(self, host: Host) -> None:
        assert host.process is not None
        host.process.freeze()
        self._later(host.process.resume)
        if self._random.random() < 0.5:
            for index, owner in self._placement.owners.items():
                if owner is host:
                    self._placement.move(index, closes=False)

    def _stop(self, host: Host) -> None:
        self._tasks.start_soon(self._stop_and_restart, host)

    async def _stop_and_restart(self, host: Host) -> None:
        process = host.process
        assert process is not None
        # Rather in the middle of something.
        with trio.move_on_after(1.0):
            while host.server is not None and not host.server.is_changing:
                await trio.sleep(0.001)
        if self._random.random() < 0.5:
            # What clients send now comes behind the end of their session.
            for connection in self._network.open_to(host.url):
                connection.up.hold(self._random.choice((0.005, 0.02, 0.05)))
            await trio.sleep(0.003)
        await process.stop()
        if host.process is process:
            self._network.leave(host.url)
            self._restart(host)

    def _move(self, host: Host) -> None:
        self._placement.move(self._random.randrange(CONTAINERS), closes=self._random.random() < 0.5)

    def _reset(self, host: Host) -> None:
        for connection in self._network.open_to(host.url):
            connection.reset()

    def _reset_one_side(self, host: Host) -> None:
        """A middlebox forgets a connection, and tells nobody, or one side."""
        client = self._random.choice((True, False))
        server = not client and self._random.choice((True, False))
        for connection in self._network.open_to(host.url)[-2:]:
            connection.reset(client=client, server=server)

    def _hold(self, host: Host) -> None:
        for connection in self._network.open_to(host.url):
            connection.hold(self._random.choice((0.1, 2.0, 15.0)))

    def _cut_off(self, host: Host) -> None:
        """No packet comes through for a while; then TCP repeats what is missing."""
        seconds = self._random.choice((0.5, 5.0))
        self._network.dark.add(host.url)
        for connection in self._network.open_to(host.url):
            connection.hold(seconds)
        self._agenda.after(seconds, lambda: self._network.dark.discard(host.url))

    def _place_proxy(self, host: Host) -> None:
        self._network.proxies[host.url] = self._random.choice(PROXIES)
        for connection in self._network.open_to(host.url):
            connection.reset()
        self._later(lambda: self._network.remove_proxy(host.url))

    def _heal(self) -> None:
        if self._shared.is_healed:
            return
        self._trace.note("nemesis", "heals")
        self._shared.is_healed = True
        self._network.heal()
        for host in self.site.hosts:
            assert host.process is not None
            host.process.resume()
            self._restart(host)

    # --- the end ---------------------------------------------------------------------------------

    async def _check_end(self, clients: Sequence[Client]) -> None:
        await trio.sleep(SETTLE_SECONDS)
        contents = await self._contents(clients)
        for workload in self._workloads:
            if isinstance(workload, _WITH_EVENTS):
                workload.check(contents[workload.segment])
            elif isinstance(workload, Counter | RowCounter):
                await workload.check_count()
        self._shared.check_reads(contents)
        while not all(tail.is_over for tail in self._tails):
            await trio.sleep(0.5)
        for tail in self._tails:
            tail.check(contents[tail.segment])
        await self._check_sessions(clients)
        await trio.sleep(SETTLE_SECONDS)
        self._check_left_over(clients)
        for process in self.site.processes:
            if process.error is not None:
                raise Broken("it does not hold that hosts end on purpose only") from process.error

    async def _contents(self, clients: Sequence[Client]) -> dict[str, bytes]:
        """The bytes of all segments, which are sealed now."""
        names = [each.segment for each in self._workloads if isinstance(each, _WITH_EVENTS)]
        return {
            name: await self._visitor(self._random.choice(clients)).seal_and_read(name)
            for name in dict.fromkeys(names)
        }

    def _visitor(self, client: Client) -> Visitor:
        return Visitor("visitor", client, self._deadline, self._random, self._shared)

    async def _check_sessions(self, clients: Sequence[Client]) -> None:
        """N7: a server that refused is asked again."""
        for each in clients:
            sessions, map = each._transport.sessions, each._context.map
            if sessions is None:
                continue
            for segment in ("s0", "s1", "s2"):
                await self._visitor(each).ask(segment)
                url = map.url_of(map.container_of(segment))
                if sessions.open_at(url) is None:
                    raise Broken(f"it does not hold that sessions come back\n{url} has none")

    def _check_left_over(self, clients: Sequence[Client]) -> None:
        found: list[str] = []
        streams: list[object] = []
        for client in clients:
            statistics, sessions = client.statistics(), client._transport.sessions
            found += ["a request of a client"] * (statistics.in_flight + statistics.appends_waiting)
            for server in () if sessions is None else sessions._servers.values():
                if server.session is not None and server.session.core.is_open:
                    streams.append(server.session._connection._stream)
                    found += ["a call of a client's session" for _ in server.session.core._calls]
        for connection in self._network.connections:
            if not connection.client.is_closed and connection.client not in streams:
                found.append(f"connection {connection.number}, which nobody uses")
        for host in self.site.hosts:
            if host.server is not None:
                found += host.server.left_over()
        if found:
            raise Broken(f"it does not hold that no call is left over\n{', '.join(found)}")
