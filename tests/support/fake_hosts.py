"""A supervisor without processes: its hosts exist only in the fleet and carry out commands at once, in order.

Everything else is the real supervisor. Nothing here opens a socket or starts a process.
"""

from __future__ import annotations

import time
from collections import deque
from random import Random
from typing import Any, cast

import anyio

from tierlog.actors.supervisor.commands import (
    CloseContainer,
    Command,
    DrainHost,
    KillHost,
    OpenContainer,
    SpawnHost,
)
from tierlog.actors.supervisor.control.channel import Connection
from tierlog.actors.supervisor.control.messages import VERSION, Heartbeat, Leave, Order
from tierlog.actors.supervisor.fleet import FleetOptions
from tierlog.actors.supervisor.hosts import HostPhase
from tierlog.actors.supervisor.options import SupervisorOptions
from tierlog.actors.supervisor.supervisor import Supervisor
from tierlog.actors.supervisor.term import Term


class FakeConnection:
    """Of a host that confirms at once that it leaves."""

    version = VERSION

    def __init__(self, supervisor: FakeHostsSupervisor, host: str) -> None:
        self._supervisor = supervisor
        self._host = host

    def send(self, order: Order) -> None:
        if isinstance(order, Leave) and self._host not in self._supervisor.silent:
            self._supervisor._handle(self._host, Heartbeat(0, 0.0, {}, leaving=True))


class FakeHostsSupervisor(Supervisor):
    """All hosts report ``url`` as their address. ``silent`` hosts ignore commands."""

    def __init__(
        self,
        containers: int,
        hosts: int,
        *,
        url: str = "http://127.0.0.1:9",
        options: FleetOptions | None = None,
        term: Term | None = None,
    ) -> None:
        class FirstTerm:
            number = 1

            def is_held(self) -> bool:
                return True

        super().__init__(
            containers,
            [f"host-{index}" for index in range(hosts)],
            command=lambda host: [],
            term=term or cast(Term, FirstTerm()),
            orphans={},
            options=SupervisorOptions(fleet=options or FleetOptions(adoption=0), control=""),
            random=Random(1),
        )
        self.url = url
        self.silent: set[str] = set()
        self.spawn_seconds = 0.0
        """How long the loop stands still while a host is started."""
        self._orders: deque[Command] = deque()
        self._is_busy = False
        self._pids = 0
        self._epochs: dict[int, int] = {}
        self._execute(self.fleet.start_at_once(anyio.current_time()))

    def beat(self) -> None:
        """A heartbeat of every host that is not silent."""
        for host in self.fleet.hosts.values():
            if host.id not in self.silent and host.phase is not HostPhase.DOWN:
                self._handle(host.id, Heartbeat(0, 0.0, {}))

    async def tick(self) -> None:
        """Do what is due until cancelled, as a supervisor that runs does."""
        await self._run_timers()

    async def check_term(self) -> None:
        """Check the term at its interval, until that raises."""
        await self._check_term()

    def lose(self, host: str) -> None:
        """Its connection breaks."""
        self._execute(self.fleet.disconnected(host, self._now()))

    def end(self, host: str) -> None:
        """Its process ends."""
        self._execute(self.fleet.exited(host, self._now()))

    def _execute_one(self, command: Command) -> None:
        """One after the other, also those that follow from carrying them out."""
        self._orders.append(command)
        if self._is_busy:
            return

        self._is_busy = True
        try:
            while self._orders:
                self._obey(self._orders.popleft(), anyio.current_time())
        finally:
            self._is_busy = False

    def _obey(self, command: Any, now: float) -> None:
        match command:
            case SpawnHost(host):
                time.sleep(self.spawn_seconds)
                self.silent.discard(host)
                self._pids += 1
                self._connections[host] = cast(Connection, FakeConnection(self, host))
                self._execute(self.fleet.hello(host, self._pids, self.url, {}, now))
            case KillHost(host) | DrainHost(host):
                self._execute(self.fleet.exited(host, now))
            case OpenContainer(host, index, request) if host not in self.silent:
                self._epochs[index] = epoch = self._epochs.get(index, 0) + 1
                self._execute(self.fleet.opened(host, index, request, epoch, now))
            case CloseContainer(host, index) if host not in self.silent:
                self._execute(self.fleet.closed(host, index, now))
