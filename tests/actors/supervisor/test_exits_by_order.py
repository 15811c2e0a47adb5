"""Exits by order, of a supervisor's own hosts and of those that joined: no crashes of containers, and no
failovers (rules V8 and V10)."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.fleets import OPTIONS, joined, machine
from tierlog.actors.kernel.backoff import Backoff
from tierlog.actors.supervisor.assignment import AssignmentPhase
from tierlog.actors.supervisor.commands import DrainHost


@pytest.mark.parametrize("is_joined", [True, False])
def test_v10_containers_that_wait_for_a_host_after_a_drain_of_all_are_no_failovers(is_joined: bool) -> None:
    """The last host keeps them until it exits, because no other one accepts them."""
    world = joined(4, "a", "b") if is_joined else machine(4, 2)
    for host in list(world.alive):
        world.do(world.fleet.drain(host, world.now))
    world.run(1)
    if is_joined:
        assert not world.alive
        world.join("c")
    world.run(3)
    assert set(world.owners) == set(range(4))
    assert world.fleet.failovers == 0
    assert not any(assignment.failovers for assignment in world.fleet.assignments)


def test_v8_a_container_whose_host_is_killed_while_it_exits_by_order_is_a_failover() -> None:
    """By the system, for its memory, while it flushes: it closed nothing."""
    world = machine(2, 1)
    world.dying.add("host-0")
    world.do(world.fleet.drain("host-0", world.now))
    assert (world.count(DrainHost), world.fleet.failovers) == (1, 2)
    assert world.fleet.hosts["host-0"].exits == [world.now], "a sign of a fault"


@pytest.mark.parametrize("code", [0, None])
def test_v8_an_exit_by_order_is_no_failover_nor_a_sign_of_a_fault(code: int | None) -> None:
    """None: it is a process of an earlier supervisor, of which only the end is known."""
    world = machine(2, 1)
    world.frozen.add("host-0")
    world.do(world.fleet.drain("host-0", world.now))
    world.fleet.exited("host-0", world.now, code)
    assert (world.fleet.failovers, world.fleet.hosts["host-0"].exits) == (0, [])


@pytest.mark.parametrize(("code", "failovers"), [(0, 0), (1, 1), (None, 1)])
def test_v8_a_host_that_drains_and_exits_with_0_before_it_is_ordered_to_has_closed_its_containers(
    code: int | None, failovers: int
) -> None:
    """A second signal ended it."""
    world = machine(2, 2)
    world.frozen.add("host-0")
    world.do(world.fleet.drain("host-0", world.now))
    assert world.count(DrainHost) == 0
    world.fleet.exited("host-0", world.now, code)
    assert (world.fleet.failovers, len(world.fleet.hosts["host-0"].exits)) == (failovers, failovers)


@pytest.mark.parametrize("hosts", [1, 2])
def test_v8_a_container_that_loses_its_host_by_order_waits_for_no_pause_from_before_it_was_served(
    hosts: int,
) -> None:
    """Its opening failed, then an outdated order to open it was carried out, and its host drains: it keeps
    it until it exits, or closes it for another host."""
    world = machine(1, hosts, attrs.evolve(OPTIONS, retry=Backoff(first=60, maximum=60)))
    assignment = world.fleet.assignments[0]
    host = assignment.host
    world.do(world.fleet.ended(host, 0, "failed", "no answer in time", world.now))
    world.open(host, 0, assignment.request)
    assert world.owners == {0: host}
    world.do(world.fleet.drain(host, world.now))
    world.run(1)
    assert (set(world.owners), world.fleet.failovers) == ({0}, 0)


@pytest.mark.parametrize("is_joined", [True, False])
def test_v8_drained_hosts_that_exit_while_a_container_opens_get_it_not_quarantined(is_joined: bool) -> None:
    """Its opening hangs, so each is ordered to exit with it after half of the limit."""
    world = joined(2, "a", "b") if is_joined else machine(2, 2)
    world.hanging.add(0)
    world.kill(world.owners[0])
    for number in range(OPTIONS.crashes_max + 1):
        if is_joined:
            world.join(f"more-{number}")
        world.run(1)
        opening = world.fleet.assignments[0].host
        assert world.phase(0) is AssignmentPhase.OPENING
        world.do(world.fleet.drain(opening, world.now))
        world.run(OPTIONS.drain_limit / 2 + 1)
        assert world.phase(0) is AssignmentPhase.OPENING
    world.hanging.clear()
    if is_joined:
        world.join("last")
    world.do(world.fleet.drain(world.fleet.assignments[0].host, world.now))
    world.run(OPTIONS.drain_limit / 2 + 1)
    assert set(world.owners) == {0, 1}


@pytest.mark.parametrize("is_joined", [True, False])
def test_v8_a_host_that_ends_before_the_order_of_its_drain_is_no_crash(is_joined: bool) -> None:
    """A second signal ends it at once."""
    world = joined(1, "a", "b", "c") if is_joined else machine(1, 3)
    world.hanging.add(0)
    world.kill(world.owners[0])
    opening = world.fleet.assignments[0].host
    world.do(world.fleet.drain(opening, world.now))
    assert (world.phase(0), world.count(DrainHost)) == (AssignmentPhase.OPENING, 0)
    world.kill(opening)
    assert (world.phase(0), world.fleet.assignments[0].crashes) == (AssignmentPhase.OPENING, 0)


@settings(max_examples=4 * settings().max_examples, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["drain", "hang", "die", "roll", "run"]), st.integers(0, 2)), max_size=40
    )
)
def test_v8_no_exits_of_hosts_that_drain_quarantine_a_container(steps: list[tuple[str, int]]) -> None:
    """However many there are, whatever opens meanwhile, and however they end."""
    world = machine(3, 2, attrs.evolve(OPTIONS, drain_limit=1, exits_max=1000, failovers_max=1000))
    world.join("joined-0")
    for number, (step, which) in enumerate(steps):
        host = sorted(world.alive)[which] if which < len(world.alive) else ""
        if step == "drain" and host:
            world.do(world.fleet.drain(host, world.now))
        elif step == "die" and host:
            world.dying.add(host)
        elif step == "hang":
            world.hanging ^= {which}
        elif step == "roll":
            world.do(world.fleet.roll(world.now))
        else:
            world.run(0.3 * (which + 1))
        if not world.joined & world.alive.keys():
            world.join(f"joined-{number + 1}")
        assert not world.fleet.assignments.count(AssignmentPhase.QUARANTINED), world.fleet.assignments[:]
    hung, world.hanging = world.hanging, set()
    # Whoever is asked to open one again does so now: all restart.
    if hung:
        for host in list(world.alive):
            world.do(world.fleet.drain(host, world.now))
    world.run(3)
    world.join("last")
    world.run(10)
    assert set(world.owners) == set(range(3))
