"""Who should have which container, and the orders that lead there.

Owns: the records of hosts and places, the choice of the next openings and closings, the limit of failovers.
Does not own: what happened to whom (``fleet.py``), nor the balance itself (``assignment.py``).

An opening is ordered as soon as there is a host for it. A move for balance or for a host that drains first
closes the container where it is, and waits until everything else is in place, so that a container is never
closed for balance while another has no home (rule V9). A container that took a host down while it opened is
opened alone, so that no other is blamed for the next time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import attrs

from .balance import assign
from .commands import CloseContainer, OpenContainer
from .phases import ASSIGNMENT_TABLE, HOST_TABLE, AssignmentEvent, AssignmentPhase, HostEvent, HostPhase

MINUTE = 60.0


@attrs.define
class Host:
    id: str
    phase: HostPhase = HostPhase.DOWN
    pid: int = 0
    url: str = ""
    last_heard: float = 0
    since: float = 0
    """When it entered its phase."""
    exits: list[float] = attrs.field(factory=list)
    """When it exited unasked, lately."""
    start_due: float = 0
    killed: bool = False
    dismissed: bool = False
    """It was told to exit."""
    lag: float = 0

    @property
    def takes(self) -> bool:
        """Whether containers may be given to it."""
        return self.phase is HostPhase.SERVING

    def step(self, event: HostEvent, now: float) -> bool:
        """Whether the event changed the phase."""
        after = HOST_TABLE.get((self.phase, event))
        if after is None:
            return False

        self.phase, self.since = after, now
        return True


@attrs.define
class Assignment:
    """Where a container is."""

    index: int
    phase: AssignmentPhase = AssignmentPhase.UNASSIGNED
    host: str = ""
    epoch: int = 0
    newest: int = 0
    """The highest epoch that a host of ours told: whoever was fenced below it was fenced by us."""
    request: int = 0
    """The number of the newest order about it; answers to older ones are ignored."""
    since: float = 0
    due: float = 0
    """Not to be opened before."""
    wanted: str = ""
    """The host that an operator asked for; balance leaves it there."""
    reason: str = ""
    failures: int = 0
    """Openings in a row that failed."""
    crashes: int = 0
    """Hosts in a row that went down while it opened."""
    failovers: list[float] = attrs.field(factory=list)
    """When it lost its host, lately."""

    def awaits(self, host_id: str, request: int) -> bool:
        """Whether an answer of ``host_id`` to the order ``request`` is the one that is waited for."""
        return self.phase is AssignmentPhase.OPENING and (self.host, self.request) == (host_id, request)

    def is_served_by(self, host_id: str) -> bool:
        return self.phase is AssignmentPhase.SERVING and self.host == host_id

    def step(self, event: AssignmentEvent, now: float) -> bool:
        """Whether the table has the event for the phase; a place that is adopted once more stays where it
        is."""
        after = ASSIGNMENT_TABLE.get((self.phase, event))
        if after is None:
            return False

        self.phase, self.since = after, now
        return True


HELD = (AssignmentPhase.OPENING, AssignmentPhase.SERVING, AssignmentPhase.CLOSING)
SET_ASIDE = (AssignmentPhase.FENCED, AssignmentPhase.QUARANTINED)


class Placement:
    def __init__(self, hosts: Mapping[str, Host], places: Sequence[Assignment], failovers_max: int) -> None:
        self._hosts = hosts
        self._places = places
        self._failovers_max = failovers_max
        self._requests = 0
        self._looked = float("-inf")
        self.failovers = 0
        self.not_before = float("-inf")
        """No orders before this time: hosts of an earlier supervisor may still say what they serve."""
        self.stopping = False

    def held(self, host_id: str) -> list[Assignment]:
        """What the host has, as far as orders go."""
        return [place for place in self._places if place.host == host_id and place.phase in HELD]

    def lose(self, place: Assignment, now: float) -> None:
        """Its host is gone. It is opened elsewhere at once, unless that happens too often."""
        place.failovers = [*(at for at in place.failovers if at > now - MINUTE), now]
        place.due = now if len(place.failovers) <= self._failovers_max else place.failovers[0] + MINUTE
        place.host = ""
        place.step(AssignmentEvent.HOST_LOST, now)
        self.failovers += 1

    def dues(self) -> Iterator[float]:
        """When pauses end that had not ended when orders were last asked for."""
        if any(host.takes for host in self._hosts.values()):
            waiting = (
                max(place.due, self.not_before)
                for place in self._places
                if place.phase is AssignmentPhase.UNASSIGNED
            )
            yield from (due for due in waiting if due > self._looked)

    def orders(self, now: float) -> Iterator[OpenContainer | CloseContainer]:
        self._looked = now
        if self.stopping or now < self.not_before:
            return

        takers = [host.id for host in self._hosts.values() if host.takes]
        targets = self._targets(takers)
        for place in self._places:
            if (
                place.phase is AssignmentPhase.UNASSIGNED
                and place.due <= now
                and place.index in targets
                and self._may_open(place, targets)
            ):
                yield self._open(place, targets[place.index], now)
        place_to_close = self._next_to_close(targets)
        if place_to_close is not None:
            self._requests += 1
            place_to_close.step(AssignmentEvent.TOLD_TO_CLOSE, now)
            yield CloseContainer(place_to_close.host, place_to_close.index, self._requests)

    def _targets(self, takers: list[str]) -> dict[int, str]:
        """The host of each container that should have one; none if nobody takes any."""
        pinned = {place.index: place.wanted for place in self._places if place.wanted in takers}
        current = {place.index: place.host for place in self._places if place.phase in HELD}
        free = [
            place.index
            for place in self._places
            if place.phase not in SET_ASIDE and place.index not in pinned
        ]
        return assign(free, takers, current) | {
            index: host for index, host in pinned.items() if self._places[index].phase not in SET_ASIDE
        }

    def _may_open(self, place: Assignment, targets: Mapping[int, str]) -> bool:
        """A suspect opens alone on its host, and nobody joins it."""
        beside = [
            other for other in self.held(targets[place.index]) if other.phase is AssignmentPhase.OPENING
        ]
        return not beside or not (place.crashes or any(other.crashes for other in beside))

    def _open(self, place: Assignment, host_id: str, now: float) -> OpenContainer:
        self._requests += 1
        place.host, place.request = host_id, self._requests
        place.step(AssignmentEvent.ORDERED, now)
        return OpenContainer(host_id, place.index, place.request)

    def _next_to_close(self, targets: Mapping[int, str]) -> Assignment | None:
        """One container that should be elsewhere; none while another is on its way."""
        if any(
            place.phase in (AssignmentPhase.UNASSIGNED, AssignmentPhase.OPENING, AssignmentPhase.CLOSING)
            for place in self._places
        ):
            return None

        return next(
            (
                place
                for place in self._places
                if place.host != targets.get(place.index, place.host) and place.host
            ),
            None,
        )
