"""A fleet whose hosts carry out its commands at once, in virtual time."""

from __future__ import annotations

from random import Random

import attrs

from tierlog.actors.kernel.backoff import Backoff
from tierlog.actors.supervisor.assignment import AssignmentPhase
from tierlog.actors.supervisor.commands import (
    CloseContainer,
    Command,
    DrainHost,
    ForgetHost,
    KillHost,
    OpenContainer,
    SpawnHost,
)
from tierlog.actors.supervisor.fleet import Fleet, FleetOptions
from tierlog.actors.supervisor.hosts import HostPhase

OPTIONS = FleetOptions(
    restart=Backoff(first=0.05, maximum=1, jitter=0), retry=Backoff(first=0.1, maximum=1, jitter=0)
)

KILLED = -9
"""The exit code of a process that was ended by SIGKILL."""


@attrs.define
class Machine:
    """Hosts that carry out every order, and a clock. What each serves, and the one epoch counter that
    fences."""

    fleet: Fleet
    now: float = 0
    alive: dict[str, int] = attrs.field(factory=dict)
    """Process ids by host."""
    frozen: set[str] = attrs.field(factory=set)
    serves: dict[str, dict[int, int]] = attrs.field(factory=dict)
    epochs: dict[int, int] = attrs.field(factory=dict)
    bad: set[int] = attrs.field(factory=set)
    """Containers whose opening kills the host."""
    hanging: set[int] = attrs.field(factory=set)
    """Containers whose opening is never answered."""
    dying: set[str] = attrs.field(factory=set)
    """Hosts that are killed while they carry out the order to exit."""
    commands: list[Command] = attrs.field(factory=list)
    """Everything that was ever ordered."""
    pids: int = 0
    joined: set[str] = attrs.field(factory=set)
    """Hosts that joined: nobody sees their processes."""
    forgotten: list[str] = attrs.field(factory=list)
    waiting: list[Command] = attrs.field(factory=list)
    busy: bool = False

    def do(self, commands: list[Command]) -> None:
        """Carry commands out one after the other, also those that follow from carrying them out."""
        self.waiting.extend(commands)
        if self.busy:
            return

        self.busy = True
        while self.waiting:
            self.commands.append(self.waiting.pop(0))
            self._do(self.commands[-1])
        self.busy = False

    def _do(self, command: Command) -> None:
        match command:
            case SpawnHost(host):
                self.pids += 1
                self.alive[host], self.serves[host] = self.pids, {}
                self.do(self.fleet.hello(host, self.pids, f"http://{host}", {}, self.now))
            case ForgetHost(host=host):
                self.forgotten.append(host)
            case KillHost(host, pid):
                assert host not in self.joined
                if self.alive.get(host) == pid:
                    self.kill(host)
            case OpenContainer(host, index, request) if self.obeys(host):
                self.open(host, index, request)
            case CloseContainer(host, index) if self.obeys(host):
                self.serves[host].pop(index, None)
                self.do(self.fleet.closed(host, index, self.now))
            case DrainHost(host) if self.obeys(host):
                self._end(host, KILLED if host in self.dying else 0)

    def obeys(self, host: str) -> bool:
        return host in self.alive and host not in self.frozen

    def open(self, host: str, index: int, request: int) -> None:
        if index in self.bad:
            self.kill(host)
            return
        if index in self.hanging:
            return

        self.epochs[index] = epoch = self.epochs.get(index, 0) + 1
        self.serves[host][index] = epoch
        self.do(self.fleet.opened(host, index, request, epoch, self.now))

    def kill(self, host: str) -> None:
        self._end(host, KILLED)

    def _end(self, host: str, code: int) -> None:
        del self.alive[host], self.serves[host]
        self.frozen.discard(host)
        self.dying.discard(host)
        if host not in self.joined:
            self.do(self.fleet.exited(host, self.now, code))
        # The system closes its connection, unless the supervisor had given it up before.
        elif host in self.fleet.hosts:
            self.do(self.fleet.disconnected(host, self.now))

    def join(self, host: str) -> None:
        """A new process on another machine."""
        self.pids += 1
        self.joined.add(host)
        self.alive[host], self.serves[host] = self.pids, {}
        self.say_hello(host)

    def resume(self, host: str) -> None:
        """It finds itself fenced from containers that others opened, reports it, and continues."""
        self.frozen.discard(host)
        for index, epoch in list(self.serves[host].items()):
            if self.epochs[index] != epoch:
                del self.serves[host][index]
                self.do(self.fleet.fenced(host, index, epoch, "fenced", self.now))
        self.say_hello(host)

    def say_hello(self, host: str, *, leaving: bool = False) -> None:
        """With what it serves by its logs' word, not by its own belief."""
        owned = {index: epoch for index, epoch in self.serves[host].items() if self.epochs[index] == epoch}
        self.serves[host] = owned
        joined, pid = host in self.joined, self.alive[host]
        assert self.fleet.refusal(host, str(pid), joined=joined) == ""
        more = {"instance": str(pid), "machine": f"machine-of-{host}"} if joined else {}
        url = f"http://{host}"
        self.do(self.fleet.hello(host, pid, url, owned, self.now, joined=joined, leaving=leaving, **more))

    def run(self, seconds: float, step: float = 0.1) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += step
            for host in sorted(set(self.alive) - self.frozen):
                if host in self.alive and host in self.fleet.hosts:
                    self.do(self.fleet.heartbeat(host, 0, self.now))
            if self.now >= self.fleet.next_due(self.now):
                self.do(self.fleet.tick(self.now))

    def phase(self, index: int) -> AssignmentPhase:
        return self.fleet.assignments[index].phase

    def host_phase(self, host: str) -> HostPhase:
        return self.fleet.hosts[host].phase

    @property
    def owners(self) -> dict[int, str]:
        """Who really serves each container: the holder of its newest epoch."""
        held = {(index, epoch): host for host in self.alive for index, epoch in self.serves[host].items()}
        return {index: held[index, epoch] for index, epoch in self.epochs.items() if (index, epoch) in held}

    def count(self, kind: type[Command]) -> int:
        return sum(isinstance(command, kind) for command in self.commands)


def machine(containers: int = 4, hosts: int = 2, options: FleetOptions = OPTIONS) -> Machine:
    world = Machine(Fleet(containers, [f"host-{index}" for index in range(hosts)], options, Random(0), 0))
    world.do(world.fleet.start_at_once(0))
    return world


def joined(containers: int = 4, *hosts: str, options: FleetOptions = OPTIONS) -> Machine:
    """A supervisor without hosts of its own, and those that joined it."""
    world = machine(containers, 0, options)
    for host in hosts:
        world.join(host)
    world.run(10)
    assert set(world.owners) == set(range(containers))
    return world
