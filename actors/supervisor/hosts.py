"""A host as the supervisor sees it, and the table of its phases.

A host that **joined** is a process on any machine, which the supervisor can neither start nor watch nor kill:
it is known from its hello on, and forgotten when it is gone (rule V11).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum

import attrs

from ...storage_backends.base.errors import shown
from ...storage_backends.base.state_table import StateTable


class HostPhase(Enum):
    DOWN = "down"
    """It has no process; one is started after the pause. One that joined an earlier supervisor is awaited."""
    STARTING = "starting"
    SERVING = "serving"
    SILENT = "silent"
    """Its heartbeats stopped. Its containers are opened elsewhere; it is killed after a grace, or
    forgotten if it joined."""
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


_OWN_ID = re.compile(r"host-[0-9]+")
_JOINED_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")
_NAME_MAX, _DIGITS = 26, 5


def own_id(number: int) -> str:
    """The id of a supervisor's own host."""
    return f"host-{number}"


def is_own_id(text: str) -> bool:
    return _OWN_ID.fullmatch(text) is not None


def default_id(machine: str, new_id: Callable[[], str]) -> str:
    """The id of a host that joins from ``machine`` and was given none."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", machine).lstrip("._-")[:_NAME_MAX] or "machine"
    while True:
        found = f"{name}-{new_id()[:_DIGITS]}"
        if not joined_id_refusal(found):
            return found


def joined_id_refusal(text: str) -> str:
    """Why no host may join with this id; empty if one may."""
    if _JOINED_ID.fullmatch(text) is None:
        return (
            f"a host's id has 1 to 32 letters, digits, dots, underscores and hyphens, and begins with a "
            f"letter or a digit: {shown(text)} does not"
        )
    if is_own_id(text):
        return f"{text} is an id of a supervisor's own hosts: choose another one with --id"
    return ""


@attrs.define
class Host:
    id: str
    joined: bool = False
    phase: HostPhase = HostPhase.DOWN
    pid: int = 0
    url: str = ""
    machine: str = ""
    """Where it runs, for people."""
    instance: str = ""
    """Identifies the process of a joined host, whose number means nothing on another machine."""
    last_heard: float = 0
    since: float = 0
    """When it entered its phase."""
    exits: list[float] = attrs.field(factory=list)
    """When it exited, and not by order, recently."""
    start_due: float = 0
    killed: bool = False
    exit_ordered: bool = False
    """It was ordered to exit, and is not ordered again."""
    lag: float = 0

    @property
    def accepts_containers(self) -> bool:
        """Whether containers may be assigned to it."""
        return self.phase is HostPhase.SERVING

    def exits_by_order(self, code: int | None) -> bool:
        """Whether its end now is that of its drain, as far as is known. ``code``: with which its process
        exited; None if that is unknown."""
        if code is None:
            return self.exit_ordered and not self.killed
        # A second signal ends it before it is ordered to exit, and it closes its containers all the same.
        return code == 0 and self.phase is HostPhase.DRAINING

    def step(self, event: HostEvent, now: float) -> bool:
        """Note an event; returns whether it changed the phase. An event that is illegal in the phase is late
        or repeated, and changes nothing."""
        after = HOST_PHASES.find(self.phase, event)
        if after is None:
            return False

        self.phase, self.since = after, now
        return True
