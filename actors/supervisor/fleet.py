"""What the supervisor knows and decides about hosts and containers. Synchronous and pure: time and randomness
are arguments.

Tell it what happened; it returns the commands that follow, for ``supervisor.py`` to execute.

A container has one host at a time as far as orders go. Whether an earlier host still believes that it serves
the container does not matter, because opening it elsewhere fences that host in the log (rule W1). So a silent
host's containers are opened elsewhere at once. A container fenced by an owner that the supervisor did not
order stays closed until an operator releases it: two supervisors would fence each other forever (rule V3). A
container whose hosts crash while they open it is quarantined (rule V8).

Nothing is kept on disk: a supervisor that starts again learns from its hosts what they serve.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from random import Random

import attrs

from ..kernel.backoff import Backoff
from ..kernel.exits import ExitKind
from .assignment import HAS_HOST, Assignment, AssignmentEvent, AssignmentPhase, Assignments
from .commands import (
    CloseContainer,
    Command,
    CutHost,
    DrainHost,
    ForgetHost,
    KillHost,
    ReportSilence,
    SpawnHost,
)
from .hosts import Host, HostEvent, HostPhase, joined_id_refusal
from .placement import Imbalance, Placement

PERMANENT_FAILURES = frozenset({"corrupt", "mismatch", "poisoned"})
"""Kinds of failure that no other attempt can repair."""
HOUR = 3600.0


@attrs.frozen(kw_only=True)
class FleetOptions:
    """Durations in seconds."""

    silence: float = 0.75
    """A host without a heartbeat for this long is lost."""
    silent_grace: float = 5
    """A silent host is killed after this long, or forgotten if it joined."""
    start_limit: float = 20
    """A host that has not connected after this long is killed."""
    drain_limit: float = 30
    """A host that has not exited this long after the order to drain is killed."""
    adoption: float = 1.5
    """How long a supervisor that starts waits for hosts of an earlier one before it replaces them."""
    rejoin: float = 2.5
    """The same for hosts that joined the earlier one, which have to find the next one in a bucket."""
    restart: Backoff = Backoff(first=0.05, maximum=10)
    exits_max: int = 10
    """Exits of a host within ``exits_period`` before it is given up."""
    exits_period: float = 60
    retry: Backoff = Backoff(first=0.1, maximum=5)
    """The pause after an opening that failed."""
    crashes_max: int = 3
    """Hosts in a row that may exit while they open a container, before it is quarantined."""
    failovers_max: int = 30
    """Failovers of one container within a minute; further ones wait."""


class Fleet:
    def __init__(
        self,
        containers: int,
        hosts: Collection[str],
        options: FleetOptions,
        random: Random,
        now: float,
        awaited: Collection[str] = (),
    ) -> None:
        """``hosts``: those that it starts. ``awaited``: those that had joined an earlier supervisor."""
        self.options = options
        self.hosts = {host: Host(host, start_due=now + options.adoption, since=now) for host in sorted(hosts)}
        self.hosts |= {host: Host(host, joined=True, since=now) for host in sorted(awaited)}
        self.assignments = Assignments(containers, now)
        self.stopping = False
        self._random = random
        self._placement = Placement(self.hosts, self.assignments, options.failovers_max)
        self._placement.not_before = now + options.adoption
        self.await_joined(now)
        self._rolling: list[str] = []

    @property
    def failovers(self) -> int:
        """How many containers lost their host, and not by order."""
        return self._placement.failovers

    def imbalance(self, now: float) -> Imbalance:
        """How many containers are still to move, and why they do not at once (rule V9)."""
        return self._placement.imbalance(now)

    # --- hosts -----------------------------------------------------------------------------------

    def start_at_once(self, now: float) -> list[Command]:
        """There are no hosts of an earlier supervisor on this machine to wait for: start all."""
        for host in self.hosts.values():
            # Nothing of an earlier supervisor can still connect.
            host.start_due = now
        return self.tick(now)

    def await_joined(self, now: float) -> None:
        """From now on those that had joined an earlier supervisor find this one (rule V4)."""
        awaited = [host for host in self.hosts.values() if host.joined and host.phase is HostPhase.DOWN]
        for host in awaited:
            host.since = now
        if awaited:
            self._placement.not_before = max(self._placement.not_before, now + self.options.rejoin)

    def refusal(self, host_id: str, instance: str, *, joined: bool) -> str:
        """Why the host may not connect; empty if it may. ``instance``: which process of a joined host it
        is."""
        host = self.hosts.get(host_id)
        if not joined:
            own = ", ".join(host.id for host in self.hosts.values() if not host.joined)
            return "" if host and not host.joined else f"no host {host_id!r}: the hosts are {own}"

        # V11: a silent one may have been started again, and finds that out when it comes back itself.
        if host and host.phase in (HostPhase.SERVING, HostPhase.DRAINING) and host.instance != instance:
            return (
                f"process {host.pid} on {host.machine} is {host_id} now, and alive: choose another --id, or "
                f"stop that one"
            )
        return joined_id_refusal(host_id)

    def hello(
        self,
        host_id: str,
        pid: int,
        url: str,
        served: Mapping[int, int],
        now: float,
        *,
        joined: bool = False,
        instance: str = "",
        machine: str = "",
        leaving: bool = False,
    ) -> list[Command]:
        """A host connected that ``refusal`` admits. ``served``: the epoch of each container that it serves,
        by whichever supervisor's order, each just checked against its log, so that containers that others
        opened since are not in it. ``leaving``: it asks to be drained.

        Orders sent on an earlier connection are void: the host has only what it names.
        """
        host = self.hosts.setdefault(host_id, Host(host_id, joined))
        # Its containers were ordered elsewhere, and it would serve them again.
        if host.killed:
            return [KillHost(host_id, pid)]

        if (host.pid, host.instance) != (pid, instance):
            self._placement.trust(host_id)
        host.pid, host.url, host.last_heard = pid, url, now
        host.instance, host.machine = instance, machine
        host.step(HostEvent.HELLO, now)
        for assignment in self.assignments.held(host_id):
            if assignment.index in served:
                continue
            # One that it was to close: the answer was lost with the earlier connection.
            by_order = assignment.phase is AssignmentPhase.CLOSING
            self._placement.lose(assignment, now, by_order=by_order)
        closes = [
            CloseContainer(host_id, index, 0)
            for index, epoch in sorted(served.items())
            if not self._adopt(host, index, epoch, now)
        ]
        # V10: it lost its connection or its supervisor, and the order to exit with it. What it serves moves.
        if leaving:
            host.step(HostEvent.DRAIN, now)
        if not self._more_hosts_may_report():
            self._placement.not_before = now
        return [*closes, *self.tick(now)]

    def heartbeat(self, host_id: str, lag: float, now: float) -> list[Command]:
        """``lag``: how late the host's event loop runs, in seconds."""
        host = self.hosts[host_id]
        host.last_heard, host.lag = now, lag
        return self._next_orders(now) if host.step(HostEvent.HEARTBEAT, now) else []

    def exited(self, host_id: str, now: float, code: int | None = None) -> list[Command]:
        """Its process ended. ``code``: its exit code, negative for a signal, None if that is unknown."""
        host = self.hosts[host_id]
        if host.phase is HostPhase.DOWN:
            return []

        # Before ``_lose`` takes the containers away: what the host was opening may have ended it (V8).
        self._count_crashes(host, now)
        by_order = host.exits_by_order(code)
        host.step(HostEvent.EXIT, now)
        host.pid, host.killed, host.exit_ordered = 0, False, False
        # An exit by order is no sign of a fault.
        recent = [at for at in host.exits if at > now - self.options.exits_period]
        host.exits = recent if by_order else [*recent, now]
        # The first exit after a quiet time is replaced at once.
        host.start_due = (
            now
            if len(host.exits) <= 1
            else now + self.options.restart.delay(len(host.exits) - 2, self._random)
        )
        if len(host.exits) > self.options.exits_max:
            host.step(HostEvent.TOO_MANY_EXITS, now)
        return [*self._lose(host, now, by_order=by_order), *self.tick(now)]

    def disconnected(self, host_id: str, now: float) -> list[Command]:
        """Its connection broke, though its process may live: it counts as silent."""
        host = self.hosts[host_id]
        if not host.joined:
            return self._silence(host, now)

        # V6: nothing else shows that its process ended, for which what it was opening may be the cause (V8).
        self._count_crashes(host, now)
        if host.phase is not HostPhase.DRAINING:
            return self._silence(host, now)
        # After a drain there is nothing to wait for.
        return self._forget(
            host, now, "" if host.exit_ordered else "its connection ended before it was ordered to exit"
        )

    def drain(self, host_id: str, now: float) -> list[Command]:
        """Move a host's containers away, then let it finish and exit. It is started again unless the fleet
        stops or it joined."""
        self.hosts[host_id].step(HostEvent.DRAIN, now)
        return self._next_orders(now)

    def roll(self, now: float) -> list[Command]:
        """Drain and restart every host that it can start, each when the one before serves again."""
        self._rolling = [host.id for host in self.hosts.values() if not host.joined]
        return self.tick(now)

    def start(self, host_id: str, now: float) -> list[Command]:
        """An operator starts a host that was given up."""
        host = self.hosts[host_id]
        host.exits, host.start_due = [], now
        host.step(HostEvent.START, now)
        return self.tick(now)

    def stop(self, now: float) -> list[Command]:
        """Drain all hosts, and start none again. Those that joined go on, for the next supervisor (V11), with
        the containers of the others."""
        self.stopping = self._placement.stopping = True
        own = [host for host in self.hosts.values() if not host.joined]
        for host in own:
            host.step(HostEvent.DRAIN, now)
        return [
            *self._next_orders(now),
            *(KillHost(host.id, host.pid) for host in own if host.phase is HostPhase.SILENT),
        ]

    def doubt(self) -> None:
        """Another supervisor may have followed: nothing moves meanwhile (rule V1)."""
        self._placement.in_doubt = True

    def trust(self, now: float) -> list[Command]:
        """None has."""
        if not self._placement.in_doubt:
            return []

        self._placement.in_doubt = False
        return self._next_orders(now)

    def extend_deadlines(self, seconds: float) -> None:
        """The supervisor itself was late: heartbeats and hellos sent meanwhile are still unread, so no host
        was silent, or missing (rule V7)."""
        self._placement.not_before += seconds
        for host in self.hosts.values():
            host.start_due += seconds
            # Shifted, not reset: a host that was silent before stays nearly due.
            host.last_heard += seconds
            host.since += seconds

    # --- containers ------------------------------------------------------------------------------

    def opened(self, host_id: str, index: int, request: int, epoch: int, now: float) -> list[Command]:
        assignment = self.assignments[index]
        newest, assignment.newest_epoch = assignment.newest_epoch, max(assignment.newest_epoch, epoch)
        # V2: the container may have been ordered elsewhere since.
        if not assignment.awaits(host_id, request):
            return self._opened_late(host_id, assignment, epoch, now)
        if epoch < newest:
            # It was open already, and an outdated order of this supervisor has fenced it since.
            return self._fail(
                index, "fenced", f"epoch {epoch} was fenced by this fleet's epoch {newest}", now
            )

        # What was tried before says nothing about this ownership.
        assignment.epoch, assignment.failures, assignment.reason = epoch, 0, ""
        assignment.crashed.clear()
        assignment.step(AssignmentEvent.OPENED, now)
        self._placement.trust(host_id)
        return self._next_orders(now)

    def failed(
        self, host_id: str, index: int, request: int, kind: str, reason: str, now: float
    ) -> list[Command]:
        """An opening failed. It is repeated unless ``kind`` is one of ``PERMANENT_FAILURES``."""
        return (
            self._fail(index, kind, reason, now) if self.assignments[index].awaits(host_id, request) else []
        )

    def ended(self, host_id: str, index: int, kind: str, reason: str, now: float) -> list[Command]:
        """A container stopped by itself; its host goes on."""
        return self._fail(index, kind, reason, now) if self.assignments[index].is_served_by(host_id) else []

    def closed(self, host_id: str, index: int, now: float) -> list[Command]:
        assignment = self.assignments[index]
        if assignment.host == host_id and assignment.phase is AssignmentPhase.CLOSING:
            assignment.due = now
            assignment.step(AssignmentEvent.CLOSED, now, "")
        return self._next_orders(now)

    def fenced(self, host_id: str, index: int, epoch: int, reason: str, now: float) -> list[Command]:
        """A host lost a container to another owner. After a failover that is expected; otherwise the owner is
        outside the fleet."""
        assignment = self.assignments[index]
        if not assignment.is_served_by(host_id) or epoch < assignment.epoch:
            return []
        # An outdated order of this supervisor fenced it, and not an owner outside: open it again (V2).
        if epoch < assignment.newest_epoch:
            return self._fail(index, "fenced", reason, now)

        assignment.reason = reason
        assignment.step(AssignmentEvent.FENCED, now, "")
        return []

    def move(self, index: int, host_id: str, now: float) -> list[Command]:
        """An operator's order. Raises ``ValueError`` if the host cannot take the container now."""
        self._check_move(index, host_id)
        self._placement.pin(self.assignments[index], host_id)
        return self.release(index, now)

    def unpin(self, index: int, now: float) -> list[Command]:
        """An operator takes the last ``move`` of the container back. It moves again only if balance needs it
        (rule V9)."""
        self._placement.pin(self.assignments[index], "")
        return self._next_orders(now)

    def release(self, index: int, now: float) -> list[Command]:
        """An operator allows a fenced or quarantined container to be opened again."""
        assignment = self.assignments[index]
        assignment.failures, assignment.due = 0, now
        assignment.crashed.clear()
        assignment.avoided_until = now
        assignment.step(AssignmentEvent.RELEASED, now)
        self.assignments.wait(assignment)
        return self._next_orders(now)

    def open_again(self, index: int, now: float) -> list[Command]:
        """An operator's order: ``release``. What counts as served may have been fenced from outside, which an
        idle host has not noticed yet (rule V3): the host looks, and opens it again if it was."""
        assignment = self.assignments[index]
        if assignment.phase is AssignmentPhase.SERVING and self.hosts[assignment.host].accepts_containers:
            return [self._placement.open_again(assignment, now)]
        return self.release(index, now)

    def _check_move(self, index: int, host_id: str) -> None:
        if index not in range(len(self.assignments)):
            raise ValueError(f"no container {index}: the containers are 0 to {len(self.assignments) - 1}")
        if host_id not in self.hosts:
            raise ValueError(f"no host {host_id!r}: the hosts are {', '.join(self.hosts)}")
        if not self.hosts[host_id].accepts_containers:
            raise ValueError(f"{host_id} is {self.hosts[host_id].phase.value} and accepts no containers now")

    # --- time ------------------------------------------------------------------------------------

    def tick(self, now: float) -> list[Command]:
        """Do what is due. Call it at ``next_due``, or earlier."""
        commands: list[Command] = []
        for host in list(self.hosts.values()):
            commands += self._tick(host, now)
        # V9: the next host only when all serve again. A host that was given up holds nothing up.
        if self._rolling and all(
            host.phase in (HostPhase.SERVING, HostPhase.GIVEN_UP) for host in self.hosts.values()
        ):
            commands += self.drain(self._rolling.pop(0), now)
        return [*commands, *self._next_orders(now)]

    def _tick(self, host: Host, now: float) -> list[Command]:
        due = self._due(host)
        if due is None or now < due:
            return []

        match host.phase:
            # Its containers go elsewhere first; it is killed or forgotten if it stays silent.
            case HostPhase.STARTING | HostPhase.SERVING:
                # V2: what waits on its way would fence the next owners.
                cut = [CutHost(host.id)] if host.joined else []
                return [*cut, *self._silence_reported(host, now), *self._silence(host, now)]
            case HostPhase.DRAINING if not (host.exit_ordered or self._is_gone(host, now)):
                return self._order_exit(host)
            case _ if host.joined:
                return self._forget(host, now, self._overdue(host, now))
            case HostPhase.DOWN:
                host.step(HostEvent.SPAWNED, now)
                return [SpawnHost(host.id)]
            case _:
                # Once: the kernel ends it when it can, which may take as long as a disk does not answer.
                host.killed = True
                return [KillHost(host.id, host.pid)]

    def _due(self, host: Host) -> float | None:
        """When time alone changes this host's phase, or it is killed or forgotten."""
        match host.phase:
            case HostPhase.DOWN if host.joined:
                return host.since + self.options.rejoin
            # Nobody sees it exit.
            case HostPhase.DRAINING if host.joined:
                return min(self._drain_due(host), host.last_heard + self.options.silence)
            case HostPhase.DOWN if not self.stopping:
                return host.start_due
            case HostPhase.STARTING:
                return host.since + self.options.start_limit
            case HostPhase.SERVING:
                return host.last_heard + self.options.silence
            case HostPhase.SILENT if not host.killed:
                return host.since + self.options.silent_grace
            case HostPhase.DRAINING if not host.killed:
                return self._drain_due(host)
            case _:
                return None

    def next_due(self, now: float) -> float:
        """When ``tick`` may have something to do; an hour from now at the latest."""
        dues = [due for due in map(self._due, self.hosts.values()) if due is not None]
        return min([now + HOUR, *dues, *self._placement.dues()])

    # --- inside ----------------------------------------------------------------------------------

    def _is_gone(self, host: Host, now: float) -> bool:
        return host.joined and now >= host.last_heard + self.options.silence

    def _drain_due(self, host: Host) -> float:
        # V10: half of the limit is for moving its containers, the rest for closing those that are left.
        return host.since + self.options.drain_limit * (1 if host.exit_ordered else 0.5)

    def _order_exit(self, host: Host) -> list[Command]:
        host.exit_ordered = True
        return [DrainHost(host.id)]

    def _next_orders(self, now: float) -> list[Command]:
        commands: list[Command] = list(self._placement.orders(now))
        # If no host accepts its containers, nor may report yet (V4), a draining host keeps them to the end.
        keeps = not self._placement.accepting and now >= self._placement.not_before
        for host in self.hosts.values():
            if (
                host.phase is HostPhase.DRAINING
                and not host.exit_ordered
                and (keeps or not self.assignments.load(host.id))
            ):
                commands += self._order_exit(host)
        return commands

    def _more_hosts_may_report(self) -> bool:
        """Whether to wait with orders until more hosts have reported what they serve. At a fresh start all
        are awaited, also those that join: containers given to the first would move to the others."""
        fresh = not any(self.assignments.count(phase) for phase in HAS_HOST)
        if fresh and all(host.joined for host in self.hosts.values()):
            return True
        awaited = (HostPhase.DOWN, HostPhase.STARTING) if fresh else (HostPhase.DOWN,)
        return any(host.phase in awaited for host in self.hosts.values())

    def _silence_reported(self, host: Host, now: float) -> list[Command]:
        # One that never connected is late for another limit, and has no containers.
        if host.phase is not HostPhase.SERVING:
            return []
        held = tuple(assignment.index for assignment in self.assignments.held(host.id))
        return [ReportSilence(host.id, round(now - host.last_heard, 3), self.options.silence, held)]

    def _silence(self, host: Host, now: float) -> list[Command]:
        return self._lose(host, now) if host.step(HostEvent.SILENCE, now) else []

    def _overdue(self, host: Host, now: float) -> str:
        """Why a joined host is forgotten when it is due."""
        if host.phase is HostPhase.DOWN:
            return f"it had joined an earlier supervisor, and not this one within {self.options.rejoin:g} s"
        # V6: silent from the end of its connection on, which is before ``silence`` has passed.
        if host.phase is HostPhase.SILENT or self._is_gone(host, now):
            return f"nothing was heard of it for {now - host.last_heard:.2f} s"
        return f"it has not ended {self.options.drain_limit:g} s after the order to drain"

    def _forget(self, host: Host, now: float, reason: str) -> list[Command]:
        """A joined host is gone for good, as far as is known: it may join again."""
        del self.hosts[host.id]
        held = tuple(assignment.index for assignment in self.assignments.held(host.id))
        return [ForgetHost(host.id, reason, held), *self._lose(host, now, by_order=not reason)]

    def _lose(self, host: Host, now: float, *, by_order: bool = False) -> list[Command]:
        """Its containers need another host, whatever it still believes about them. ``by_order``: see
        ``Placement.lose``."""
        for assignment in self.assignments.held(host.id):
            self._placement.lose(assignment, now, by_order=by_order)
            if assignment.crashes >= self.options.crashes_max:
                assignment.reason = f"its host exited {assignment.crashes} times in a row while it opened"
                assignment.step(AssignmentEvent.CRASHED_HOSTS, now)
        return self._next_orders(now)

    def _count_crashes(self, host: Host, now: float) -> None:
        for assignment in self.assignments.held(host.id):
            if assignment.phase is not AssignmentPhase.OPENING:
                assignment.crashed.clear()
                continue
            # V8: the end of one that drains is expected, and it may hold an opening that hangs (V10).
            if host.phase is HostPhase.DRAINING:
                continue
            # A process that comes back did not exit, however often its connection breaks.
            assignment.crashed.add((host.id, host.pid, host.instance))
            if host.joined:
                self._placement.avoid(assignment, now)

    def _opened_late(self, host_id: str, assignment: Assignment, epoch: int, now: float) -> list[Command]:
        """An outdated order (rule V2) was executed all the same.

        It fenced the earlier owner. So if the container counts as served, or as lost to an outside owner,
        this host is the owner.
        """
        if assignment.host == host_id:
            return []
        if (
            assignment.phase in (AssignmentPhase.SERVING, AssignmentPhase.FENCED, AssignmentPhase.UNASSIGNED)
            and epoch > assignment.epoch
            and self.hosts[host_id].accepts_containers
        ):
            assignment.epoch, assignment.reason = epoch, ""
            assignment.step(AssignmentEvent.ADOPTED, now, host_id)
            return self._next_orders(now)
        # Nobody waits for it: without this order it would serve a container that is placed elsewhere.
        return [CloseContainer(host_id, assignment.index, 0)]

    def _adopt(self, host: Host, index: int, epoch: int, now: float) -> bool:
        if index not in range(len(self.assignments)):
            return False

        assignment = self.assignments[index]
        # V9: one that drains hands over one after the other, also when its connection was replaced.
        if not host.accepts_containers and assignment.host != host.id:
            return False

        # If two hosts report that they serve it, the higher epoch has fenced the other.
        known = assignment.host in ("", host.id) or (
            assignment.phase is AssignmentPhase.SERVING and epoch > assignment.epoch
        )
        if not known or not assignment.step(AssignmentEvent.ADOPTED, now, host.id):
            return assignment.host == host.id

        assignment.epoch, assignment.newest_epoch = epoch, max(assignment.newest_epoch, epoch)
        return True

    def _fail(self, index: int, kind: str, reason: str, now: float) -> list[Command]:
        assignment = self.assignments[index]
        if kind == ExitKind.FAILED.value:
            # V8: the fault may be the host's own, which may have no descriptors left.
            self._placement.avoid(assignment, now)
        assignment.reason = reason
        assignment.due = now + self.options.retry.delay(assignment.failures, self._random)
        assignment.failures += 1
        event = AssignmentEvent.DAMAGED if kind in PERMANENT_FAILURES else AssignmentEvent.FAILED
        assignment.step(event, now, "")
        return self._next_orders(now)
