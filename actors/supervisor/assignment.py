"""The assignment of one container to a host, the table of its phases, and all assignments of a store, found
by host and phase.

A supervisor of many containers looks for few of them at each event, so no event may cost a scan of all.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from enum import Enum
from heapq import heappop, heappush
from typing import overload

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
        (AssignmentPhase.SERVING, AssignmentEvent.ORDERED): AssignmentPhase.OPENING,
        (AssignmentPhase.SERVING, AssignmentEvent.CLOSE_ORDERED): AssignmentPhase.CLOSING,
        (AssignmentPhase.CLOSING, AssignmentEvent.CLOSED): AssignmentPhase.UNASSIGNED,
        (AssignmentPhase.CLOSING, AssignmentEvent.HOST_LOST): AssignmentPhase.UNASSIGNED,
        # It was fenced by an outdated order of this supervisor and not by an owner outside.
        (AssignmentPhase.FENCED, AssignmentEvent.ADOPTED): AssignmentPhase.SERVING,
        (AssignmentPhase.FENCED, AssignmentEvent.RELEASED): AssignmentPhase.UNASSIGNED,
        (AssignmentPhase.QUARANTINED, AssignmentEvent.RELEASED): AssignmentPhase.UNASSIGNED,
    }
)


_NONE: AbstractSet[int] = frozenset()
HAS_HOST = (AssignmentPhase.OPENING, AssignmentPhase.SERVING, AssignmentPhase.CLOSING)
"""A host was ordered to serve it."""
WITHHELD = (AssignmentPhase.FENCED, AssignmentPhase.QUARANTINED)
"""It stays closed until an operator releases it."""


@attrs.define(eq=False)
class Assignment:
    """Which host should serve a container, and how far that is. Phase and host change in ``step`` only."""

    index: int
    _note: Callable[[Assignment, AssignmentPhase, str], None] = attrs.field(repr=False)
    """Called after each step, with the phase and the host before."""
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
    crashed: set[tuple[str, int, str]] = attrs.field(factory=set)
    """The processes in a row that exited while they opened it: each a host, its number, its instance."""
    failovers: list[float] = attrs.field(factory=list)
    """When it lost its host, recently."""

    def awaits(self, host_id: str, request: int) -> bool:
        """Whether ``host_id``'s answer to the order ``request`` is the expected one."""
        return self.phase is AssignmentPhase.OPENING and (self.host, self.request) == (host_id, request)

    @property
    def crashes(self) -> int:
        """How many processes in a row exited while they opened it."""
        return len(self.crashed)

    @property
    def has_host(self) -> bool:
        """Whether a host was ordered to serve it."""
        return self.phase in HAS_HOST

    @property
    def is_withheld(self) -> bool:
        """Whether it stays closed until an operator releases it."""
        return self.phase in WITHHELD

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

    def step(self, event: AssignmentEvent, now: float, host: str | None = None) -> bool:
        """Note an event; returns whether it is legal in the phase. If not, it is late or repeated, and
        changes nothing. ``host``: the one that has it from now on; None if that stays."""
        after = ASSIGNMENT_PHASES.find(self.phase, event)
        if after is None:
            return False

        phase, before = self.phase, self.host
        self.phase, self.since = after, now
        if host is not None:
            self.host = host
        self._note(self, phase, before)
        return True


class Assignments(Sequence[Assignment]):
    """Those of all containers, by index."""

    def __init__(self, count: int, now: float) -> None:
        self._all = [Assignment(index, self._note, since=now) for index in range(count)]
        self._found: defaultdict[tuple[AssignmentPhase, str], set[int]] = defaultdict(set)
        self._counts = dict.fromkeys(AssignmentPhase, 0)
        self._loads: Counter[str] = Counter()
        self._pauses: list[tuple[float, int]] = []
        """A heap: when the pauses of those without a host end."""
        self.changed: set[int] = set()
        """Those that took a step. Who reads it empties it."""
        self.steps = 0
        """How many steps were taken."""
        for assignment in self._all:
            self._add(assignment)

    def __len__(self) -> int:
        return len(self._all)

    @overload
    def __getitem__(self, index: int) -> Assignment: ...

    @overload
    def __getitem__(self, index: slice) -> list[Assignment]: ...

    def __getitem__(self, index: int | slice) -> Assignment | list[Assignment]:
        return self._all[index]

    def count(self, phase: AssignmentPhase) -> int:
        """How many are in the phase."""
        return self._counts[phase]

    @property
    def withheld(self) -> int:
        """How many stay closed until an operator releases them."""
        return sum(self._counts[phase] for phase in WITHHELD)

    @property
    def unserved(self) -> int:
        """How many have no owner but should have one."""
        return len(self._all) - self._counts[AssignmentPhase.SERVING] - self.withheld

    def of(self, host: str, phase: AssignmentPhase) -> AbstractSet[int]:
        """The indexes of those of the host that are in the phase."""
        return self._found.get((phase, host), _NONE)

    def load(self, host: str) -> int:
        """How many the host was ordered to serve."""
        return self._loads[host]

    def held(self, host: str) -> list[Assignment]:
        """Those that the host was ordered to serve."""
        indexes = sorted(index for phase in HAS_HOST for index in self.of(host, phase))
        return [self._all[index] for index in indexes]

    def wait(self, assignment: Assignment) -> None:
        """``due`` of one without a host has changed."""
        heappush(self._pauses, (assignment.due, assignment.index))

    def take_due(self, now: float) -> list[int]:
        """Those without a host whose pause has ended, each at least once."""
        found = []
        while self._pauses and self._pauses[0][0] <= now:
            _, index = heappop(self._pauses)
            if self._all[index].phase is AssignmentPhase.UNASSIGNED and self._all[index].due <= now:
                found.append(index)
        return found

    @property
    def next_due(self) -> float | None:
        """When the next pause ends, of one that may have a host by now."""
        return self._pauses[0][0] if self._pauses else None

    def _note(self, assignment: Assignment, phase: AssignmentPhase, host: str) -> None:
        found = self._found[phase, host]
        found.discard(assignment.index)
        # Joined hosts have ever new ids.
        if not found:
            del self._found[phase, host]
        self._counts[phase] -= 1
        if phase in HAS_HOST:
            self._loads[host] -= 1
            if not self._loads[host]:
                del self._loads[host]
        self._add(assignment)
        self.changed.add(assignment.index)
        self.steps += 1

    def _add(self, assignment: Assignment) -> None:
        self._found[assignment.phase, assignment.host].add(assignment.index)
        self._counts[assignment.phase] += 1
        if assignment.has_host:
            self._loads[assignment.host] += 1
        if assignment.phase is AssignmentPhase.UNASSIGNED:
            self.wait(assignment)
