"""The container map that a supervisor publishes: its version, which rises when an owner changes, and the
event that wakes those who wait for that. Nothing here decides who owns a container (``fleet.py``)."""

from __future__ import annotations

from collections.abc import Iterable

import anyio

from ..gateway.wire.bodies import ContainerMap
from .assignment import Assignment, AssignmentPhase
from .fleet import Fleet
from .options import SupervisorOptions
from .statistics import container_map, map_end


class PublishedMap:
    def __init__(self, fleet: Fleet, options: SupervisorOptions) -> None:
        self.version = 1
        self.changed = anyio.Event()
        """Set, and replaced, when the version rises."""
        self._fleet = fleet
        self._options = options
        self._owners: dict[int, tuple[str, int] | str] = {}
        """Each owner and its epoch, or why the container stays closed."""
        self._map: ContainerMap | None = None
        self._made_of: tuple[int, int] = (0, 0)
        self._until = 0.0

    def note(self, stepped: Iterable[Assignment]) -> set[int]:
        """Returns those of ``stepped`` that have another owner now, or another reason to have none."""
        moved = set()
        for assignment in stepped:
            index, is_served = assignment.index, assignment.phase is AssignmentPhase.SERVING
            closed = assignment.absence if assignment.is_withheld else ""
            owner = (assignment.host, assignment.epoch) if is_served else closed
            if owner != self._owners.pop(index, ""):
                moved.add(index)
            if owner:
                self._owners[index] = owner
        if moved:
            self.version += 1
            # Replaced before it is set: whoever wakes and waits again must find the next one.
            changed, self.changed = self.changed, anyio.Event()
            changed.set()
        return moved

    def map(self) -> ContainerMap:
        """As of now. Each refused request of a client asks for it, so it is made once for each change."""
        now, options = anyio.current_time(), self._options
        made_of = (self._fleet.assignments.steps, self.version)
        if self._map is None or self._made_of != made_of or now >= self._until:
            self._map = container_map(self._fleet, self.version, options.append_bytes_max, now, options.store)
            self._made_of, self._until = made_of, map_end(self._fleet, now)
        return self._map
