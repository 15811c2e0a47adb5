"""Failover as two tables: which event leads a host, and a container's place, to which phase.

Owns: the phases, the events and the tables. Does not own: when an event happens, or what is done about it
(``fleet.py``). An event that the table does not name for a phase changes nothing: it is late, repeated, or
about something that was overtaken.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class HostPhase(Enum):
    DOWN = "down"
    """No process; one is started when its pause is over."""
    STARTING = "starting"
    SERVING = "serving"
    SILENT = "silent"
    """Its heartbeats stopped: frozen, cut off, or too busy. Its containers are elsewhere; it is killed after
    a grace."""
    DRAINING = "draining"
    """It takes nothing new, gives away what it has, and exits."""
    GIVEN_UP = "given up"
    """It exited too often; an operator starts it again."""


class HostEvent(Enum):
    SPAWNED = "spawned"
    HELLO = "hello"
    """It connected and said what it serves."""
    HEARD = "heard"
    SILENCE = "silence"
    EXIT = "exit"
    TOO_MANY_EXITS = "too many exits"
    DRAIN = "drain"
    START = "start"
    """An operator's order."""


HOST_TABLE: Mapping[tuple[HostPhase, HostEvent], HostPhase] = {
    (HostPhase.DOWN, HostEvent.SPAWNED): HostPhase.STARTING,
    # A host of an earlier supervisor is found again.
    (HostPhase.DOWN, HostEvent.HELLO): HostPhase.SERVING,
    (HostPhase.DOWN, HostEvent.TOO_MANY_EXITS): HostPhase.GIVEN_UP,
    (HostPhase.STARTING, HostEvent.HELLO): HostPhase.SERVING,
    (HostPhase.STARTING, HostEvent.SILENCE): HostPhase.SILENT,
    (HostPhase.STARTING, HostEvent.EXIT): HostPhase.DOWN,
    (HostPhase.SERVING, HostEvent.SILENCE): HostPhase.SILENT,
    (HostPhase.SERVING, HostEvent.EXIT): HostPhase.DOWN,
    (HostPhase.SERVING, HostEvent.DRAIN): HostPhase.DRAINING,
    # It woke up: fenced for what it had, welcome for what comes.
    (HostPhase.SILENT, HostEvent.HEARD): HostPhase.SERVING,
    (HostPhase.SILENT, HostEvent.HELLO): HostPhase.SERVING,
    (HostPhase.SILENT, HostEvent.EXIT): HostPhase.DOWN,
    (HostPhase.DRAINING, HostEvent.EXIT): HostPhase.DOWN,
    (HostPhase.GIVEN_UP, HostEvent.HELLO): HostPhase.SERVING,
    (HostPhase.GIVEN_UP, HostEvent.START): HostPhase.DOWN,
}


class AssignmentPhase(Enum):
    UNASSIGNED = "unassigned"
    """No host serves it; one is ordered to as soon as there is one."""
    OPENING = "opening"
    SERVING = "serving"
    CLOSING = "closing"
    """Its host was told to close it; it is opened elsewhere once it has."""
    FENCED = "fenced"
    """Somebody outside opened it. It stays closed until an operator opens it."""
    QUARANTINED = "quarantined"
    """It is damaged, or takes its hosts down. It stays closed until an operator opens it."""


class AssignmentEvent(Enum):
    ORDERED = "ordered"
    ADOPTED = "adopted"
    """A host says that it serves it, by an earlier supervisor's order."""
    OPENED = "opened"
    FAILED = "failed"
    DAMAGED = "damaged"
    TOLD_TO_CLOSE = "told to close"
    CLOSED = "closed"
    HOST_LOST = "host lost"
    HOST_KILLER = "host killer"
    FENCED = "fenced"
    RELEASED = "released"
    """An operator's order."""


ASSIGNMENT_TABLE: Mapping[tuple[AssignmentPhase, AssignmentEvent], AssignmentPhase] = {
    (AssignmentPhase.UNASSIGNED, AssignmentEvent.ORDERED): AssignmentPhase.OPENING,
    (AssignmentPhase.UNASSIGNED, AssignmentEvent.ADOPTED): AssignmentPhase.SERVING,
    (AssignmentPhase.UNASSIGNED, AssignmentEvent.HOST_KILLER): AssignmentPhase.QUARANTINED,
    (AssignmentPhase.OPENING, AssignmentEvent.OPENED): AssignmentPhase.SERVING,
    # Its host connected again: an order, or the answer to it, was lost with the old connection.
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
    (AssignmentPhase.SERVING, AssignmentEvent.TOLD_TO_CLOSE): AssignmentPhase.CLOSING,
    (AssignmentPhase.CLOSING, AssignmentEvent.CLOSED): AssignmentPhase.UNASSIGNED,
    (AssignmentPhase.CLOSING, AssignmentEvent.HOST_LOST): AssignmentPhase.UNASSIGNED,
    # An order of ours that was overtaken had fenced it, and not somebody outside.
    (AssignmentPhase.FENCED, AssignmentEvent.ADOPTED): AssignmentPhase.SERVING,
    (AssignmentPhase.FENCED, AssignmentEvent.RELEASED): AssignmentPhase.UNASSIGNED,
    (AssignmentPhase.QUARANTINED, AssignmentEvent.RELEASED): AssignmentPhase.UNASSIGNED,
}
