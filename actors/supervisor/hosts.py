"""A host as the supervisor sees it, and the table of its phases."""

from __future__ import annotations

from enum import Enum

import attrs

from ...storage_backends.base.state_table import StateTable


class HostPhase(Enum):
    DOWN = "down"
    """It has no process; one is started after the pause."""
    STARTING = "starting"
    SERVING = "serving"
    SILENT = "silent"
    """Its heartbeats stopped. Its containers are opened elsewhere; it is killed after a grace."""
    DRAINING = "draining"
    """It accepts no containers, hands over those it has, and exits."""
    GIVEN_UP = "given up"
    """It exited too often. An operator must start it again."""


class HostEvent(Enum):
    SPAWNED = "spawned"
    HELLO = "hello"
    """It connected and reported what it serves."""
    HEARTBEAT = "heartbeat"
    SILENCE = "silence"
    EXIT = "exit"
    TOO_MANY_EXITS = "too many exits"
    DRAIN = "drain"
    START = "start"
    """An operator's order."""


HOST_PHASES: StateTable[HostPhase, HostEvent] = StateTable(
    {
        (HostPhase.DOWN, HostEvent.SPAWNED): HostPhase.STARTING,
        # A host of an earlier supervisor.
        (HostPhase.DOWN, HostEvent.HELLO): HostPhase.SERVING,
        (HostPhase.DOWN, HostEvent.TOO_MANY_EXITS): HostPhase.GIVEN_UP,
        (HostPhase.STARTING, HostEvent.HELLO): HostPhase.SERVING,
        (HostPhase.STARTING, HostEvent.SILENCE): HostPhase.SILENT,
        (HostPhase.STARTING, HostEvent.EXIT): HostPhase.DOWN,
        (HostPhase.SERVING, HostEvent.SILENCE): HostPhase.SILENT,
        (HostPhase.SERVING, HostEvent.EXIT): HostPhase.DOWN,
        (HostPhase.SERVING, HostEvent.DRAIN): HostPhase.DRAINING,
        # It runs again. What it served is fenced, but it accepts containers.
        (HostPhase.SILENT, HostEvent.HEARTBEAT): HostPhase.SERVING,
        (HostPhase.SILENT, HostEvent.HELLO): HostPhase.SERVING,
        (HostPhase.SILENT, HostEvent.EXIT): HostPhase.DOWN,
        (HostPhase.DRAINING, HostEvent.EXIT): HostPhase.DOWN,
        (HostPhase.GIVEN_UP, HostEvent.HELLO): HostPhase.SERVING,
        (HostPhase.GIVEN_UP, HostEvent.START): HostPhase.DOWN,
    }
)


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
    """When it exited without an order, recently."""
    start_due: float = 0
    killed: bool = False
    exit_ordered: bool = False
    """It was ordered to exit, and is not ordered again."""
    lag: float = 0

    @property
    def accepts_containers(self) -> bool:
        """Whether containers may be assigned to it."""
        return self.phase is HostPhase.SERVING

    def step(self, event: HostEvent, now: float) -> bool:
        """Note an event; returns whether it changed the phase. An event that is illegal in the phase is late
        or repeated, and changes nothing."""
        after = HOST_PHASES.find(self.phase, event)
        if after is None:
            return False

        self.phase, self.since = after, now
        return True
