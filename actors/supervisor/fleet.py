"""What the supervisor knows and decides: hosts, containers, and the next order to each. Sync and pure; clock
and chance are arguments.

Owns: the state of hosts and containers' places, and the commands that follow from what happened. Does not
own: the tables of phases (``phases.py``), who should have what (``placing.py``), processes, sockets and
timers (``supervisor.py`` carries commands out and tells what happened).

A container has one host at a time as far as orders go; whether an earlier host still believes that it serves
it does not matter, because an opening fences it in the log (rule W1). So a silent host's containers are
opened elsewhere at once, and nobody waits for its death. A container that was fenced by somebody whom the
supervisor did not order stays closed until an operator says otherwise: two masters would fence each other for
ever (rule V3). A container that takes its hosts down while it opens is set aside, the others go on
(rule V8).

Nothing here is kept on disk: a supervisor that starts again learns from its hosts what they serve.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from random import Random

import attrs

from ..kernel.backoff import Backoff
from .commands import CloseContainer, Command, DrainHost, KillHost, SpawnHost
from .phases import AssignmentEvent, AssignmentPhase, HostEvent, HostPhase
from .placement import Assignment, Host, Placement

FOR_EVER = frozenset({"corrupt", "mismatch", "poisoned"})
"""Kinds of failure that another try cannot heal."""
HOUR = 3600.0


@attrs.frozen(kw_only=True)
class FleetOptions:
    """Durations in seconds."""

    silence: float = 0.75
    """A host not heard for this long is taken for lost."""
    silent_grace: float = 5
    """A silent host is killed after this long."""
    start_limit: float = 20
    """A host that has not said hello after this long is killed."""
    drain_limit: float = 30
    """A host that has not exited this long after it was told to drain is killed."""
    adoption: float = 1.5
    """How long a supervisor that starts waits for hosts of an earlier one before it starts new ones in their
    place."""
    restart: Backoff = Backoff(first=0.05, maximum=10)
    exits_max: int = 10
    """Exits of a host within ``exits_period`` before it is given up."""
    exits_period: float = 60
    retry: Backoff = Backoff(first=0.1, maximum=5)
    """The pause after an opening that failed."""
    crashes_max: int = 3
    """Hosts in a row that a container may take down while it opens, before it is quarantined."""
    failovers_max: int = 30
    """Failovers of one container within a minute; more of them wait."""


class Fleet:
    """Tell it what happened; carry out what it answers, in order."""

    def __init__(
        self, containers: int, hosts: Collection[str], options: FleetOptions, random: Random, now: float
    ) -> None:
        self.options = options
        self.hosts = {host: Host(host, start_due=now + options.adoption, since=now) for host in sorted(hosts)}
        self.places = [Assignment(index, since=now) for index in range(containers)]
        self.stopping = False
        self._random = random
        self._placing = Placement(self.hosts, self.places, options.failovers_max)
        self._placing.not_before = now + options.adoption
        self._rolling: list[str] = []

    @property
    def failovers(self) -> int:
        """Openings that the loss of a host made necessary."""
        return self._placing.failovers

    # --- hosts -----------------------------------------------------------------------------------

    def start_at_once(self, now: float) -> list[Command]:
        """There is no earlier supervisor whose hosts could be found: start all, and give orders when all are
        there, or most."""
        for host in self.hosts.values():
            host.start_due = now
        return self.tick(now)

    def hello(self, host_id: str, pid: int, url: str, served: Mapping[int, int], now: float) -> list[Command]:
        """A host connected. ``served``: the epochs of the containers that it serves, by an earlier
        supervisor's order or ours, each just checked against its log: what somebody else has opened since is
        not named, and so nobody is taken for an outsider.

        Orders that went out on an earlier connection are void: what it does not name it does not have.
        """
        host = self.hosts.setdefault(host_id, Host(host_id))
        if host.killed:
            return [KillHost(host_id, pid)]

        host.pid, host.url, host.last_heard = pid, url, now
        host.step(HostEvent.HELLO, now)
        for place in self._placing.held(host_id):
            if place.index not in served:
                self._placing.lose(place, now)
        closes = [
            CloseContainer(host_id, index, 0)
            for index, epoch in sorted(served.items())
            if not self._adopt(host, index, epoch, now)
        ]
        if not self._are_others_worth_waiting_for():
            self._placing.not_before = now
        return [*closes, *self.tick(now)]

    def heard(self, host_id: str, lag: float, now: float) -> list[Command]:
        """A heartbeat; ``lag``: how late the host's event loop runs, in seconds."""
        host = self.hosts[host_id]
        host.last_heard, host.lag = now, lag
        return self._spread(now) if host.step(HostEvent.HEARD, now) else []

    def exited(self, host_id: str, now: float) -> list[Command]:
        """Its process ended."""
        host = self.hosts[host_id]
        if host.phase is HostPhase.DOWN:
            return []

        expected = host.phase is HostPhase.DRAINING
        self._blame(host, now)
        host.step(HostEvent.EXIT, now)
        host.pid, host.killed, host.dismissed = 0, False, False
        recent = [at for at in host.exits if at > now - self.options.exits_period]
        host.exits = recent if expected else [*recent, now]
        # The first exit after a quiet time is made good at once.
        host.start_due = (
            now
            if len(host.exits) <= 1
            else now + self.options.restart.delay(len(host.exits) - 2, self._random)
        )
        if len(host.exits) > self.options.exits_max:
            host.step(HostEvent.TOO_MANY_EXITS, now)
        return [*self._lose(host, now), *self.tick(now)]

    def disconnected(self, host_id: str, now: float) -> list[Command]:
        """Its connection broke though its process may live: as if it were silent."""
        return self._silence(self.hosts[host_id], now)

    def drain(self, host_id: str, now: float) -> list[Command]:
        """Let a host finish and exit, its containers moved away first; it is then started again unless the
        fleet stops."""
        self.hosts[host_id].step(HostEvent.DRAIN, now)
        return self._spread(now)

    def roll(self, now: float) -> list[Command]:
        """Drain and start every host again, one after the other, each when the one before serves."""
        self._rolling = list(self.hosts)
        return self.tick(now)

    def start(self, host_id: str, now: float) -> list[Command]:
        """An operator starts a host that was given up."""
        host = self.hosts[host_id]
        host.exits, host.start_due = [], now
        host.step(HostEvent.START, now)
        return self.tick(now)

    def stop(self, now: float) -> list[Command]:
        """Drain everything, and start nothing again."""
        self.stopping = self._placing.stopping = True
        for host in self.hosts.values():
            host.step(HostEvent.DRAIN, now)
        return [
            *self._spread(now),
            *(KillHost(host.id, host.pid) for host in self.hosts.values() if host.phase is HostPhase.SILENT),
        ]

    def forgive(self, seconds: float) -> None:
        """The supervisor itself was late by so much: what hosts said meanwhile waits unread, so it is no
        silence of theirs (rule V7)."""
        for host in self.hosts.values():
            host.last_heard += seconds
            if host.phase is HostPhase.STARTING:
                host.since += seconds

    # --- containers ------------------------------------------------------------------------------

    def opened(self, host_id: str, index: int, request: int, epoch: int, now: float) -> list[Command]:
        place = self.places[index]
        newest, place.newest = place.newest, max(place.newest, epoch)
        if not place.awaits(host_id, request):
            return self._opened_late(host_id, place, epoch, now)
        if epoch < newest:
            # It had it already, and an order of ours that was overtaken has fenced it meanwhile.
            return self._fail(index, "fenced", f"epoch {epoch} was fenced by our own epoch {newest}", now)

        place.epoch, place.failures, place.reason = epoch, 0, ""
        place.step(AssignmentEvent.OPENED, now)
        return self._spread(now)

    def failed(
        self, host_id: str, index: int, request: int, kind: str, reason: str, now: float
    ) -> list[Command]:
        """An opening failed; ``kind`` is one of ``FOR_EVER``, or it is tried again."""
        return self._fail(index, kind, reason, now) if self.places[index].awaits(host_id, request) else []

    def ended(self, host_id: str, index: int, kind: str, reason: str, now: float) -> list[Command]:
        """A container gave up on a host that lives on."""
        return self._fail(index, kind, reason, now) if self.places[index].is_served_by(host_id) else []

    def closed(self, host_id: str, index: int, now: float) -> list[Command]:
        place = self.places[index]
        if place.host == host_id and place.phase is AssignmentPhase.CLOSING:
            place.step(AssignmentEvent.CLOSED, now)
            place.host = ""
        return self._spread(now)

    def fenced(self, host_id: str, index: int, epoch: int, reason: str, now: float) -> list[Command]:
        """A host lost a container to another owner: after a failover that is as it should be, else somebody
        outside has it."""
        place = self.places[index]
        if not place.is_served_by(host_id) or epoch < place.epoch:
            return []
        if epoch < place.newest:
            return self._fail(index, "fenced", reason, now)

        place.host, place.reason = "", reason
        place.step(AssignmentEvent.FENCED, now)
        return []

    def move(self, index: int, host_id: str, now: float) -> list[Command]:
        """An operator's order. ``ValueError`` says why it cannot be."""
        self._check_move(index, host_id)
        self.places[index].wanted = host_id
        return self.release(index, now)

    def release(self, index: int, now: float) -> list[Command]:
        """An operator says that a fenced or quarantined container may be opened again."""
        place = self.places[index]
        place.failures, place.crashes, place.due = 0, 0, now
        place.step(AssignmentEvent.RELEASED, now)
        return self._spread(now)

    def _check_move(self, index: int, host_id: str) -> None:
        if index not in range(len(self.places)):
            raise ValueError(f"there are containers 0 to {len(self.places) - 1}, no {index}")
        if host_id not in self.hosts:
            raise ValueError(f"there is no host {host_id!r}: {', '.join(self.hosts)}")
        if not self.hosts[host_id].takes:
            raise ValueError(f"{host_id} is {self.hosts[host_id].phase.value} and takes no containers now")

    # --- time ------------------------------------------------------------------------------------

    def tick(self, now: float) -> list[Command]:
        """What is due. Call it at ``next_due``, and whenever something seems to have happened."""
        commands: list[Command] = []
        for host in self.hosts.values():
            commands += self._tick(host, now)
        if self._rolling and all(
            host.phase in (HostPhase.SERVING, HostPhase.GIVEN_UP) for host in self.hosts.values()
        ):
            commands += self.drain(self._rolling.pop(0), now)
        return [*commands, *self._spread(now)]

    def _tick(self, host: Host, now: float) -> list[Command]:
        due = self._due(host)
        if due is None or now < due:
            return []

        match host.phase:
            case HostPhase.DOWN:
                host.step(HostEvent.SPAWNED, now)
                return [SpawnHost(host.id)]
            case HostPhase.STARTING | HostPhase.SERVING:
                return self._silence(host, now)
            case _:
                host.killed = True
                return [KillHost(host.id, host.pid)]

    def _due(self, host: Host) -> float | None:
        """When time alone changes this host's phase, or its life."""
        match host.phase:
            case HostPhase.DOWN if not self.stopping:
                return host.start_due
            case HostPhase.STARTING:
                return host.since + self.options.start_limit
            case HostPhase.SERVING:
                return host.last_heard + self.options.silence
            case HostPhase.SILENT if not host.killed:
                return host.since + self.options.silent_grace
            case HostPhase.DRAINING if not host.killed:
                return host.since + self.options.drain_limit
            case _:
                return None

    def next_due(self, now: float) -> float:
        """When ``tick`` may have something to do; an hour from now at the latest."""
        dues = [due for due in map(self._due, self.hosts.values()) if due is not None]
        return min([now + HOUR, *dues, *self._placing.dues()])

    # --- inside ----------------------------------------------------------------------------------

    def _spread(self, now: float) -> list[Command]:
        commands: list[Command] = list(self._placing.orders(now))
        # Without anybody to give them to, a host that drains keeps its containers to the end.
        nobody = self.stopping or not any(host.takes for host in self.hosts.values())
        for host in self.hosts.values():
            if (
                host.phase is HostPhase.DRAINING
                and not host.dismissed
                and (nobody or not self._placing.held(host.id))
            ):
                host.dismissed = True
                commands.append(DrainHost(host.id))
        return commands

    def _are_others_worth_waiting_for(self) -> bool:
        """Hosts that may still say what they serve are. At a fresh start so are all: what the first one got
        would move to the others."""
        fresh = not any(place.host for place in self.places)
        awaited = (HostPhase.DOWN, HostPhase.STARTING) if fresh else (HostPhase.DOWN,)
        return any(host.phase in awaited for host in self.hosts.values())

    def _silence(self, host: Host, now: float) -> list[Command]:
        return self._lose(host, now) if host.step(HostEvent.SILENCE, now) else []

    def _lose(self, host: Host, now: float) -> list[Command]:
        """Its containers need another host, whatever it still believes."""
        for place in self._placing.held(host.id):
            self._placing.lose(place, now)
            if place.crashes >= self.options.crashes_max:
                place.reason = f"took down its host {place.crashes} times in a row while it opened"
                place.step(AssignmentEvent.HOST_KILLER, now)
        return self._spread(now)

    def _blame(self, host: Host, now: float) -> None:
        for place in self._placing.held(host.id):
            place.crashes = place.crashes + 1 if place.phase is AssignmentPhase.OPENING else 0

    def _opened_late(self, host_id: str, place: Assignment, epoch: int, now: float) -> list[Command]:
        """An order that was overtaken (rule V2) was carried out all the same.

        It fenced whoever had the container, so where a place looks served, or lost to somebody outside, this
        host is the owner.
        """
        if place.host == host_id:
            return []
        if (
            place.phase in (AssignmentPhase.SERVING, AssignmentPhase.FENCED)
            and epoch > place.epoch
            and self.hosts[host_id].takes
        ):
            place.host, place.epoch, place.reason = host_id, epoch, ""
            place.step(AssignmentEvent.ADOPTED, now)
            return self._spread(now)
        return [CloseContainer(host_id, place.index, 0)]

    def _adopt(self, host: Host, index: int, epoch: int, now: float) -> bool:
        if index >= len(self.places) or not host.takes:
            return False

        place = self.places[index]
        # Two hosts may say that they serve it; the higher epoch has fenced the other.
        known = place.host in ("", host.id) or (
            place.phase is AssignmentPhase.SERVING and epoch > place.epoch
        )
        if not known or not place.step(AssignmentEvent.ADOPTED, now):
            return place.host == host.id

        place.host, place.epoch, place.newest = host.id, epoch, max(place.newest, epoch)
        return True

    def _fail(self, index: int, kind: str, reason: str, now: float) -> list[Command]:
        place = self.places[index]
        place.host, place.reason = "", reason
        place.due = now + self.options.retry.delay(place.failures, self._random)
        place.failures += 1
        place.step(AssignmentEvent.DAMAGED if kind in FOR_EVER else AssignmentEvent.FAILED, now)
        return self._spread(now)
