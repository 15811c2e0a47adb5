"""Which host should serve which container, and the orders that lead there.

A container without a host is opened as soon as one accepts it. A move, for balance or because its host
drains, closes the container first and waits until all others are served, so that no container is closed for
balance while another has no host (rule V9). After a crash, a container whose opening may have caused it opens
alone, so that no other is blamed (rule V8).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from .assignment import Assignment, AssignmentEvent, AssignmentPhase
from .balance import balance
from .commands import CloseContainer, OpenContainer
from .hosts import Host

MINUTE = 60.0


class Placement:
    def __init__(
        self, hosts: Mapping[str, Host], assignments: Sequence[Assignment], failovers_max: int
    ) -> None:
        self._hosts = hosts
        self._assignments = assignments
        self._failovers_max = failovers_max
        self._requests = 0
        self._ordered_at = float("-inf")
        self.failovers = 0
        self.not_before = float("-inf")
        """No orders before this time: hosts of an earlier supervisor may still report what they serve."""
        self.stopping = False
        """Whether only hosts that joined accept containers, because the others end (rule V10)."""

    @property
    def accepting(self) -> list[str]:
        """The hosts that containers may be assigned to."""
        return [
            host.id
            for host in self._hosts.values()
            if host.accepts_containers and (host.joined or not self.stopping)
        ]

    def held(self, host_id: str) -> list[Assignment]:
        """The containers that the host was ordered to serve."""
        return [
            assignment
            for assignment in self._assignments
            if assignment.host == host_id and assignment.has_host
        ]

    def lose(self, assignment: Assignment, now: float) -> None:
        """Its host is lost. It is opened elsewhere at once, unless that happened too often lately."""
        assignment.failovers = [*(at for at in assignment.failovers if at > now - MINUTE), now]
        assignment.due = (
            now if len(assignment.failovers) <= self._failovers_max else assignment.failovers[0] + MINUTE
        )
        assignment.host = ""
        assignment.step(AssignmentEvent.HOST_LOST, now)
        self.failovers += 1

    def dues(self) -> Iterator[float]:
        """When the pauses end that had not ended at the last ``orders``."""
        if self.accepting:
            waiting = (
                max(assignment.due, self.not_before)
                for assignment in self._assignments
                if assignment.phase is AssignmentPhase.UNASSIGNED
            )
            avoided = (assignment.avoided_until for assignment in self._assignments)
            # Those that had ended by then would ask for a tick at once, forever.
            yield from (due for due in (*waiting, *avoided) if due > self._ordered_at)

    def orders(self, now: float) -> Iterator[OpenContainer | CloseContainer]:
        self._ordered_at = now
        # A host of an earlier supervisor may serve a container: opening it elsewhere would fence it for
        # nothing.
        if now < self.not_before:
            return

        targets = self._targets(self.accepting, now)
        for assignment in self._assignments:
            if (
                assignment.phase is AssignmentPhase.UNASSIGNED
                and assignment.due <= now
                and assignment.index in targets
                and self._may_open(assignment, targets)
            ):
                yield self._open(assignment, targets[assignment.index], now)
        # One at a time (V9).
        closing = self._next_to_close(targets)
        if closing is not None:
            self._requests += 1
            closing.step(AssignmentEvent.CLOSE_ORDERED, now)
            yield CloseContainer(closing.host, closing.index, self._requests)

    def _targets(self, accepting: list[str], now: float) -> dict[int, str]:
        """The host of each container that should have one; empty if no host accepts any."""
        pinned = {
            assignment.index: assignment.pinned_to
            for assignment in self._assignments
            if assignment.pinned_to in accepting
        }
        for assignment in self._assignments:
            # V8: elsewhere if there is another host, else where it failed.
            others = [host for host in accepting if host != assignment.failed_on]
            if others and assignment.failed_on in accepting and now < assignment.avoided_until:
                pinned[assignment.index] = self._elsewhere(assignment, others)
        current = {
            assignment.index: assignment.host for assignment in self._assignments if assignment.has_host
        }
        free = [
            assignment.index
            for assignment in self._assignments
            if not assignment.is_withheld and assignment.index not in pinned
        ]
        return balance(free, accepting, current) | {
            index: host for index, host in pinned.items() if not self._assignments[index].is_withheld
        }

    def _elsewhere(self, assignment: Assignment, others: list[str]) -> str:
        """Where it is, or the host with the fewest."""
        if assignment.has_host and assignment.host in others:
            return assignment.host
        # The name decides between equals, so that the same state always gives the same orders.
        return min(others, key=lambda host: (len(self.held(host)), host))

    def _may_open(self, assignment: Assignment, targets: Mapping[int, str]) -> bool:
        """A container that crashed hosts opens alone on its host."""
        beside = [
            other for other in self.held(targets[assignment.index]) if other.phase is AssignmentPhase.OPENING
        ]
        # If the host exits again, it is known which container was the cause.
        return not beside or not (assignment.crashes or any(other.crashes for other in beside))

    def _open(self, assignment: Assignment, host_id: str, now: float) -> OpenContainer:
        self._requests += 1
        assignment.host, assignment.request = host_id, self._requests
        assignment.step(AssignmentEvent.ORDERED, now)
        return OpenContainer(host_id, assignment.index, assignment.request)

    def _next_to_close(self, targets: Mapping[int, str]) -> Assignment | None:
        """One container that should be elsewhere; None while another is being opened or closed."""
        # V9: a move interrupts a container, and one that has no host at all goes first.
        if any(
            assignment.phase in (AssignmentPhase.UNASSIGNED, AssignmentPhase.OPENING, AssignmentPhase.CLOSING)
            for assignment in self._assignments
        ):
            return None

        return next(
            (
                assignment
                for assignment in self._assignments
                if assignment.host != targets.get(assignment.index, assignment.host) and assignment.host
            ),
            None,
        )
