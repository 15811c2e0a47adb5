"""The assignment of one container to a host, and the table of its phases."""

from __future__ import annotations

from enum import Enum

import attrs

from ...storage_backends.base.state_table import StateTable


class AssignmentPhase(Enum):
    UNASSIGNED = "unassigned"
    """No host serves it. It is assigned as soon as a host accepts it."""
    OPENING = "opening"
    SERVING = "serving"
    CLOSING = "closing"
    """Its host was ordered to close it; then it is opened elsewhere."""
    FENCED = "fenced"
    """An owner outside the fleet opened it. It stays closed until an operator releases it."""
    QUARANTINED = "quarantined"
    """It is damaged, or its hosts crash. It stays closed until an operator releases it."""


class AssignmentEvent(Enum):
    ORDERED = "ordered"
    ADOPTED = "adopted"
    """A host reported that it serves it, by an earlier order."""
    OPENED = "opened"
    FAILED = "failed"
    DAMAGED = "damaged"
    CLOSE_ORDERED = "close ordered"
    CLOSED = "closed"
    HOST_LOST = "host lost"
    CRASHED_HOSTS = "crashed hosts"
    FENCED = "fenced"
    RELEASED = "released"
    """An operator's order."""


ASSIGNMENT_PHASES: StateTable[AssignmentPhase, AssignmentEvent] = StateTable(
    {
        (AssignmentPhase.UNASSIGNED, AssignmentEvent.ORDERED): AssignmentPhase.OPENING,
        (AssignmentPhase.UNASSIGNED, AssignmentEvent.ADOPTED): AssignmentPhase.SERVING,
        (AssignmentPhase.UNASSIGNED, AssignmentEvent.CRASHED_HOSTS): AssignmentPhase.QUARANTINED,
        (AssignmentPhase.OPENING, AssignmentEvent.OPENED): AssignmentPhase.SERVING,
        # Its host connected again; an order or its answer was lost with the old connection.
        (AssignmentPhase.OPENING, AssignmentEvent.ADOPTED): AssignmentPhase.SERVING,
        (AssignmentPhase.CLOSING, AssignmentEvent.ADOPTED): AssignmentPhase.SERVING,
        (AssignmentPhase.OPENING, AssignmentEvent.FAILED): AssignmentPhase.UNASSIGNED,
        (AssignmentPhase.OPENING, AssignmentEvent.DAMAGED): AssignmentPhase.QUARANTINED,
        (AssignmentPhase.OPENING, AssignmentEvent.HOST_LOST): AssignmentPhase.UNASSIGNED,
        (AssignmentPhase.SERVING, AssignmentEvent.ADOPTED): AssignmentPhase.SERVING,
        (AssignmentPhase.SERVING, AssignmentEvent.FAILED): AssignmentPhase.UNASSIGNED,
        (AssignmentPhase.SERVING, AssignmentEvent.DAMAGED): AssignmentPhase.QUARANTINED,
        (AssignmentPhase.SERVING, AssignmentEvent.FENCED): AssignmentPhase.FENCED,
        (AssignmentPhase.SERVING, AssignmentEvent.HOST_LOST): AssignmentPhase.UNASSIGNED,
        (AssignmentPhase.SERVING, AssignmentEvent.CLOSE_ORDERED): AssignmentPhase.CLOSING,
        (AssignmentPhase.CLOSING, AssignmentEvent.CLOSED): AssignmentPhase.UNASSIGNED,
        (AssignmentPhase.CLOSING, AssignmentEvent.HOST_LOST): AssignmentPhase.UNASSIGNED,
        # It was fenced by an outdated order of this supervisor and not by an owner outside.
        (AssignmentPhase.FENCED, AssignmentEvent.ADOPTED): AssignmentPhase.SERVING,
        (AssignmentPhase.FENCED, AssignmentEvent.RELEASED): AssignmentPhase.UNASSIGNED,
        (AssignmentPhase.QUARANTINED, AssignmentEvent.RELEASED): AssignmentPhase.UNASSIGNED,
    }
)


@attrs.define
class Assignment:
    """Which host should serve a container, and how far that is."""

    index: int
    phase: AssignmentPhase = AssignmentPhase.UNASSIGNED
    host: str = ""
    epoch: int = 0
    newest_epoch: int = 0
    """The highest epoch that a host of the fleet reported. An owner fenced below it was fenced by the
    fleet."""
    request: int = 0
    """The number of the newest order about it; answers to older ones are ignored."""
    since: float = 0
    due: float = 0
    """It is not opened before this time."""
    pinned_to: str = ""
    """The host that an operator chose; balancing leaves it there."""
    reason: str = ""
    failures: int = 0
    """Openings in a row that failed."""
    failed_on: str = ""
    """The host on which it failed last."""
    avoided_until: float = 0
    """Until this time it is not opened on that host if another one accepts it."""
    crashes: int = 0
    """Hosts in a row that exited while they opened it."""
    failovers: list[float] = attrs.field(factory=list)
    """When it lost its host, recently."""

    def awaits(self, host_id: str, request: int) -> bool:
        """Whether ``host_id``'s answer to the order ``request`` is the expected one."""
        return self.phase is AssignmentPhase.OPENING and (self.host, self.request) == (host_id, request)

    @property
    def has_host(self) -> bool:
        """Whether a host was ordered to serve it."""
        return self.phase in (AssignmentPhase.OPENING, AssignmentPhase.SERVING, AssignmentPhase.CLOSING)

    @property
    def is_withheld(self) -> bool:
        """Whether it stays closed until an operator releases it."""
        return self.phase in (AssignmentPhase.FENCED, AssignmentPhase.QUARANTINED)

    @property
    def absence(self) -> str:
        """Why no host serves it, and what to do about it; empty if one does."""
        if self.phase is AssignmentPhase.SERVING:
            return ""

        reason = f": {self.reason}" if self.reason else ""
        remedy = f"; once the cause is removed, `tierlog container open {self.index}` opens it again"
        return f"container {self.index} is {self.phase.value}{reason}{remedy if self.is_withheld else ''}"

    def is_served_by(self, host_id: str) -> bool:
        return self.phase is AssignmentPhase.SERVING and self.host == host_id

    def step(self, event: AssignmentEvent, now: float) -> bool:
        """Note an event; returns whether it is legal in the phase. If not, it is late or repeated, and
        changes nothing."""
        after = ASSIGNMENT_PHASES.find(self.phase, event)
        if after is None:
            return False

        self.phase, self.since = after, now
        return True
