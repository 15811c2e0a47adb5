"""Which host should serve which container, and the orders that lead there.

A container without a host is opened as soon as one accepts it. A move, for balance or because its host
drains, closes the container first. One in fifty containers at most, or one, is without an owner by moves, and
none while as many have none for another reason (rule V9). After a crash, a container whose opening may have
caused it opens alone, so that no other is blamed (rule V8).

Nothing here scans all containers: an event costs time for each host, and for what it changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

import attrs

from .assignment import Assignment, AssignmentEvent, AssignmentPhase, Assignments
from .balance import Room, shares
from .commands import CloseContainer, OpenContainer
from .hosts import Host

MINUTE = 60.0
AVOIDED_SECONDS = 300.0
"""How long a container is not opened on the host on which it failed, if there is another one."""
MOVED_AT_ONCE = 50
"""Of so many containers one may be without an owner for a move. A host that drains, of two or more, so hands
over in at most fifty rounds."""


@attrs.frozen
class Imbalance:
    containers: int = 0
    """Those that are still to move, for balance, because their host drains, or to where an operator wants
    them."""
    reason: str = ""


class Placement:
    def __init__(self, hosts: Mapping[str, Host], assignments: Assignments, failovers_max: int) -> None:
        self._hosts = hosts
        self._assignments = assignments
        self._failovers_max = failovers_max
        self._requests = 0
        self._ordered_at = float("-inf")
        self._ready: set[int] = set()
        """Those whose pause has ended and that no host could take."""
        self._pinned: set[int] = set()
        self._distrusted: dict[str, float] = {}
        """Hosts on which an opening failed, and none succeeded since: until when they get no moves."""
        self.failovers = 0
        self.not_before = float("-inf")
        """No orders before this time: hosts of an earlier supervisor may still report what they serve."""
        self.stopping = False
        """Whether only hosts that joined accept containers, because the others end (rule V10)."""
        self.in_doubt = False
        """Whether no container is closed to be moved, because an opening would have to wait (rule V1)."""

    @property
    def accepting(self) -> list[str]:
        """The hosts that containers may be assigned to."""
        return [
            host.id
            for host in self._hosts.values()
            if host.accepts_containers and (host.joined or not self.stopping)
        ]

    def lose(self, assignment: Assignment, now: float, *, by_order: bool = False) -> None:
        """Its host is lost. It is opened elsewhere at once, unless that happened too often lately.

        ``by_order``: the host was ordered to close it, or drained, and has closed it as far as is known: no
        failover (rule V8)."""
        # Also if a pause is left from before another host's opening was adopted.
        assignment.due = now
        if not by_order:
            assignment.failovers = [*(at for at in assignment.failovers if at > now - MINUTE), now]
            self.failovers += 1
            if len(assignment.failovers) > self._failovers_max:
                assignment.due = assignment.failovers[0] + MINUTE
        assignment.step(AssignmentEvent.HOST_LOST, now, "")

    def pin(self, assignment: Assignment, host_id: str) -> None:
        """An operator chose the host; empty: the placement chooses again."""
        assignment.pinned_to = host_id
        (self._pinned.add if host_id else self._pinned.discard)(assignment.index)

    def avoid(self, assignment: Assignment, now: float) -> None:
        """It failed on its host."""
        assignment.failed_on, assignment.avoided_until = assignment.host, now + AVOIDED_SECONDS
        self._distrusted[assignment.host] = assignment.avoided_until

    def trust(self, host_id: str) -> None:
        """It opened a container, or is another process now."""
        self._distrusted.pop(host_id, None)

    def dues(self) -> Iterator[float]:
        """When the pauses end that had not ended at the last ``orders``."""
        if self.accepting:
            waiting, distrusted = self._assignments.next_due, min(self._distrusted.values(), default=None)
            dues = [] if waiting is None else [max(waiting, self.not_before)]
            # Those that had ended by then would ask for a tick at once, forever.
            yield from (due for due in (*dues, distrusted) if due is not None and due > self._ordered_at)

    def orders(self, now: float) -> Iterator[OpenContainer | CloseContainer]:
        self._ordered_at = now
        # A host of an earlier supervisor may serve a container: opening it elsewhere would fence it for
        # nothing.
        if now < self.not_before:
            return

        self._ready = {
            index
            for index in {*self._ready, *self._assignments.take_due(now)}
            if self._assignments[index].phase is AssignmentPhase.UNASSIGNED
            and self._assignments[index].due <= now
        }
        self._distrusted = {host: until for host, until in self._distrusted.items() if until > now}
        moves = self._moved_at_once - self._assignments.unserved
        accepting = self.accepting
        if not accepting or not (self._ready or moves > 0):
            return

        pins, loads, targets = self._targets(accepting, now)
        if self._ready:
            yield from self._openings(accepting, pins, Room(loads, targets), now)
        # V9: a move interrupts a container, and those that have no host at all go first.
        elif moves > 0 and not self.in_doubt:
            for assignment in islice(self._misplaced(pins, loads, targets, now), moves):
                self._requests += 1
                assignment.step(AssignmentEvent.CLOSE_ORDERED, now)
                yield CloseContainer(assignment.host, assignment.index, self._requests)

    def imbalance(self, now: float) -> Imbalance:
        """How many containers are still to move, and why they do not at once."""
        if not (accepting := self.accepting) or self.stopping:
            return Imbalance()

        pins, loads, targets = self._targets(accepting, now)
        leaving = [host for host in self._hosts if host not in loads]
        pinned = [self._assignments[index].host for index, host in pins.items()]
        found = sum(max(0, load - targets[host]) for host, load in loads.items())
        found += sum(self._assignments.load(host) - pinned.count(host) for host in leaving)
        found += sum(before not in ("", after) for before, after in zip(pinned, pins.values(), strict=True))
        return Imbalance(found, self._why_waiting(loads, targets, now)) if found else Imbalance()

    def _why_waiting(self, loads: Mapping[str, int], targets: Mapping[str, int], now: float) -> str:
        unserved, at_once = self._assignments.unserved, self._moved_at_once
        if now < self.not_before:
            return "hosts of the supervisor before may still report what they serve"
        if self.in_doubt:
            return "the supervisor does not know whether it still has its lease"
        if unserved >= at_once:
            phases = (AssignmentPhase.OPENING, AssignmentPhase.CLOSING, AssignmentPhase.UNASSIGNED)
            counts = ((self._assignments.count(phase), phase.value) for phase in phases)
            without = ", ".join(f"{count} {phase}" for count, phase in counts if count)
            return f"{at_once} at a time may be without an owner for it; now without one: {without}"
        failed = sorted(host for host, load in loads.items() if load < targets[host])
        return f"containers failed or ended on {', '.join(failed)}, not longer than {AVOIDED_SECONDS:g} s ago"

    @property
    def _moved_at_once(self) -> int:
        return max(1, len(self._assignments) // MOVED_AT_ONCE)

    def _targets(
        self, accepting: Sequence[str], now: float
    ) -> tuple[dict[int, str], dict[str, int], dict[str, int]]:
        """The containers that an operator placed, how many others each host has, and how many it should."""
        pins = dict(self._pins(accepting, now))
        loads = {host: self._assignments.load(host) for host in accepting}
        for index in pins:
            if self._assignments[index].host in loads:
                loads[self._assignments[index].host] -= 1
        withheld_pins = sum(self._assignments[index].is_withheld for index in pins)
        free = len(self._assignments) - self._assignments.withheld - (len(pins) - withheld_pins)
        return pins, loads, shares(free, loads)

    def _pins(self, accepting: Sequence[str], now: float) -> Iterator[tuple[int, str]]:
        """The hosts that an operator chose, and that can have their containers now."""
        for index in self._pinned:
            pinned_to = self._assignments[index].pinned_to
            avoided = self._avoided(self._assignments[index], accepting, now)
            if pinned_to in accepting and pinned_to != avoided:
                yield index, pinned_to

    def _avoided(self, assignment: Assignment, accepting: Sequence[str], now: float) -> str:
        """The host on which it is not opened now: the one on which it failed, if there is another one
        (V8)."""
        is_avoided = now < assignment.avoided_until and accepting != [assignment.failed_on]
        return assignment.failed_on if is_avoided else ""

    def _openings(
        self, accepting: Sequence[str], pins: Mapping[int, str], room: Room, now: float
    ) -> Iterator[OpenContainer]:
        hopeless = set()
        for index in sorted(self._ready):
            assignment = self._assignments[index]
            avoided = self._avoided(assignment, accepting, now)
            kind = (pins.get(index), avoided, assignment.crashes > 0)
            # What one like it did not find, when fewer were being opened, this one does not find either.
            if kind in hopeless:
                continue
            fits = self._fitting(assignment, avoided)
            target: str | None
            if index in pins:
                target = pins[index] if fits(pins[index]) else None
            elif (target := room.take(fits)) is None and avoided:
                # The host with the fewest, above its share.
                others = (host for host in accepting if fits(host))
                target = min(others, key=lambda host: (self._assignments.load(host), host), default=None)
            if target is None:
                hopeless.add(kind)
            else:
                self._ready.discard(index)
                yield self._open(assignment, target, now)

    def _fitting(self, assignment: Assignment, avoided: str) -> Callable[[str], bool]:
        """Whether it may be opened on a host now. One that crashed hosts opens alone."""

        def fits(host: str) -> bool:
            # If the host exits again, it is known which container was the cause.
            beside = self._assignments.of(host, AssignmentPhase.OPENING)
            return host != avoided and not (
                beside and (assignment.crashes or any(self._assignments[other].crashes for other in beside))
            )

        return fits

    def open_again(self, assignment: Assignment, now: float) -> OpenContainer:
        """On the host that it is served by, which asks its log first whether it is the owner (rule V3)."""
        return self._open(assignment, assignment.host, now)

    def _open(self, assignment: Assignment, host_id: str, now: float) -> OpenContainer:
        self._requests += 1
        assignment.request = self._requests
        assignment.step(AssignmentEvent.ORDERED, now, host_id)
        return OpenContainer(host_id, assignment.index, assignment.request)

    def _misplaced(
        self, pins: Mapping[int, str], loads: Mapping[str, int], targets: Mapping[str, int], now: float
    ) -> Iterator[Assignment]:
        """Those that are served, and should be elsewhere."""
        serving, accepting = AssignmentPhase.SERVING, list(loads)
        for index, host in sorted(pins.items()):
            if self._assignments[index].phase is serving and self._assignments[index].host != host:
                yield self._assignments[index]
        for host in self._hosts:
            if host not in loads:
                for index in sorted(self._assignments.of(host, serving)):
                    if index not in pins:
                        yield self._assignments[index]
        # V8: a host on which openings fail gets no other containers for balance.
        room = {
            host: targets[host] - load
            for host, load in loads.items()
            if load < targets[host] and host not in self._distrusted
        }
        left = sum(room.values()) - self._assignments.count(AssignmentPhase.CLOSING)
        for host, load in loads.items():
            closing = self._assignments.of(host, AssignmentPhase.CLOSING)
            excess = load - targets[host] - sum(index not in pins for index in closing)
            if excess <= 0 or left <= 0:
                continue
            for index in sorted(self._assignments.of(host, serving) - pins.keys(), reverse=True):
                # One that avoids all the room there is would be moved again and again.
                if left > room.get(self._avoided(self._assignments[index], accepting, now), 0):
                    yield self._assignments[index]
                    excess, left = excess - 1, left - 1
                if excess <= 0 or left <= 0:
                    break
