"""Bugs planted into the supervisor, each of which a day of a fleet must catch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tierlog.actors.supervisor.control.channel import Connection
from tierlog.actors.supervisor.control.messages import OwnersLines
from tierlog.actors.supervisor.fleet import Fleet
from tierlog.actors.supervisor.hosts import Host, HostPhase
from tierlog.actors.supervisor.placement import Placement

from ..mutants.planting import Mutant, Planter
from .scenario import CUT_OFF, DRAINED_WHILE_AN_OPENING_HANGS, RACK_ADDED, RACK_AND_SUPERVISOR_LOST, RACK_LOST

FLEET_MUTANTS: dict[str, tuple[Mutant, str]] = {}
"""By name, with the event at which it shows."""


def _shows(rule: str, event: str) -> Callable[[Callable[[Planter], None]], Callable[[Planter], None]]:
    def note(plant: Callable[[Planter], None]) -> Callable[[Planter], None]:
        name = plant.__name__.replace("_", "-")
        FLEET_MUTANTS[name] = (Mutant(name, rule, plant.__doc__ or "", plant), event)
        return plant

    return note


@_shows("V4", RACK_AND_SUPERVISOR_LOST)
def a_successor_waits_for_no_host(plant: Planter) -> None:
    """A supervisor that starts orders to open what hosts of the one before serve."""

    def may_report(original: Callable[[Fleet], bool], self: Fleet) -> bool:
        return original(self) and all(host.phase is not HostPhase.DOWN for host in self.hosts.values())

    plant(Fleet._more_hosts_may_report, may_report)


@_shows("V4", RACK_AND_SUPERVISOR_LOST)
def a_successor_adopts_nothing(plant: Planter) -> None:
    """A container that a host reports is ordered from a second one."""

    def forget(original: Callable[..., bool], self: Fleet, *arguments: Any) -> bool:
        return True

    plant(Fleet._adopt, forget)


@_shows("V8", DRAINED_WHILE_AN_OPENING_HANGS)
def an_exit_of_a_drained_host_is_a_crash(plant: Planter) -> None:
    """Three hosts that are ordered to exit while they open a container get it quarantined."""

    def count(original: Callable[..., None], self: Fleet, host: Host, now: float) -> None:
        phase, host.phase = host.phase, HostPhase.SERVING
        original(self, host, now)
        host.phase = phase

    plant(Fleet._count_crashes, count)


@_shows("V9", RACK_LOST)
def a_loss_reshuffles_everything(plant: Planter) -> None:
    """When a host is lost, the containers of all others are placed anew."""

    def lose(
        original: Callable[..., list[Any]], self: Fleet, host: Host, now: float, *, by_order: bool = False
    ) -> list[Any]:
        for other in list(self.hosts) if self.assignments.load(host.id) else ():
            for assignment in self.assignments.held(other):
                self._placement.lose(assignment, now)
        return original(self, host, now, by_order=by_order)

    plant(Fleet._lose, lose)


@_shows("V2", CUT_OFF)
def orders_survive_a_partition(plant: Planter) -> None:
    """An order that waited on its way to a host is executed after another one has the container."""
    plant(Connection.abort, lambda original, self: self.close())


@_shows("V13", RACK_ADDED)
def a_new_host_is_sent_only_what_changes(plant: Planter) -> None:
    """It sends clients to owners that it does not know."""

    def of(original: object, self: OwnersLines, version: int, *, is_new: bool) -> Sequence[bytes]:
        return self._news if self._changes else ()

    plant(OwnersLines.of, of)


@_shows("V9", RACK_ADDED)
def what_moves_is_opened_first(plant: Planter) -> None:
    """A container is opened on the next host before the one before has closed it."""

    def orders(original: Callable[..., Any], self: Placement, now: float) -> Any:
        for each in list(original(self, now)):
            assignment = self._assignments[each.index]
            if assignment.phase.value == "closing":
                self.lose(assignment, now)
                yield from original(self, now)
            else:
                yield each

    plant(Placement.orders, orders)
