"""The supervisor's decisions: who serves what after every kind of loss, with simulated hosts that obey its
commands (rules V2 to V9)."""

from __future__ import annotations

import time
from collections import Counter
from random import Random

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.fleets import OPTIONS, Machine, machine
from support.state_tables import check_table
from tierlog.actors.supervisor.assignment import (
    ASSIGNMENT_PHASES,
    Assignment,
    AssignmentEvent,
    AssignmentPhase,
)
from tierlog.actors.supervisor.commands import (
    CloseContainer,
    KillHost,
    OpenContainer,
    ReportSilence,
    SpawnHost,
)
from tierlog.actors.supervisor.fleet import Fleet
from tierlog.actors.supervisor.hosts import HOST_PHASES, HostEvent, HostPhase
from tierlog.actors.supervisor.placement import Imbalance
from tierlog.actors.supervisor.statistics import container_map


def test_a_fresh_fleet_serves_everything_at_once_and_balanced() -> None:
    world = machine()
    assert (
        sorted(world.owners.items()) == [(0, "host-0"), (1, "host-0"), (2, "host-1"), (3, "host-1")]
        or sorted(world.owners.values()) == ["host-0"] * 2 + ["host-1"] * 2
    )
    assert {assignment.phase for assignment in world.fleet.assignments} == {AssignmentPhase.SERVING}


def test_a_killed_hosts_containers_are_served_elsewhere_in_the_same_instant() -> None:
    world = machine()
    world.kill("host-0")
    assert set(world.owners) == {0, 1, 2, 3}
    world.run(5)
    assert sorted(world.owners.values()) == ["host-0"] * 2 + ["host-1"] * 2, (
        "the host came back and got its share"
    )


def test_a_host_that_loses_its_containers_by_silence_is_reported_before_they_are_opened_elsewhere() -> None:
    world = machine()
    world.frozen.add("host-0")
    held = tuple(index for index, host in sorted(world.owners.items()) if host == "host-0")
    world.commands.clear()
    world.run(OPTIONS.silence + 0.2)
    report, *openings = world.commands
    assert isinstance(report, ReportSilence)
    assert (report.host, report.limit, report.containers) == ("host-0", OPTIONS.silence, held)
    assert OPTIONS.silence <= report.silence < OPTIONS.silence + 0.2
    assert {type(each) for each in openings} == {OpenContainer}
    world.run(1)
    assert world.count(ReportSilence) == 1


def test_a_frozen_host_loses_its_containers_and_is_killed_after_its_grace() -> None:
    world = machine()
    world.frozen.add("host-0")
    world.run(0.7)
    assert "host-0" in world.owners.values()
    world.run(0.2)
    assert set(world.owners.values()) == {"host-1"}
    assert world.host_phase("host-0") is HostPhase.SILENT
    world.run(OPTIONS.silent_grace + 1)
    assert world.count(KillHost) == 1
    assert world.host_phase("host-0") is HostPhase.SERVING, "it was killed and started again"


def test_a_resumed_host_is_fenced_and_accepts_containers_again() -> None:
    world = machine()
    world.frozen.add("host-0")
    world.run(1)
    world.resume("host-0")
    world.run(3)
    assert world.count(KillHost) == 0
    assert sorted(world.owners.values()) == ["host-0"] * 2 + ["host-1"] * 2
    assert not any(assignment.phase is AssignmentPhase.FENCED for assignment in world.fleet.assignments)


def test_a_container_opened_by_an_outsider_stays_closed_until_an_operator_reopens_it() -> None:
    world = machine()
    owner = world.owners[2]
    epoch = world.serves[owner].pop(2)
    world.epochs[2] += 1
    world.do(world.fleet.fenced(owner, 2, epoch, "opened by another owner", world.now))
    world.run(60)
    assert world.phase(2) is AssignmentPhase.FENCED
    assert set(world.owners) == {0, 1, 3}
    fenced_at = world.fleet.assignments[2].since
    found = container_map(world.fleet, 1, 1, fenced_at + 1).containers
    # The host of an outdated order may still report that it opened the container.
    assert not any(each.is_withheld for each in found)
    found = container_map(world.fleet, 1, 1, fenced_at + 2).containers
    assert [each.is_withheld for each in found] == [False, False, True, False]
    reasons = [each.absence for each in found]
    assert [bool(reason) for reason in reasons] == [False, False, True, False]
    assert "container 2 is fenced: opened by another owner; " in reasons[2]
    assert "`tierlog container open 2`" in reasons[2]
    world.do(world.fleet.release(2, world.now))
    assert set(world.owners) == {0, 1, 2, 3}


def test_v3_an_operator_has_the_host_of_an_idle_container_confirm_it() -> None:
    """An owner outside has fenced it, which its host has not noticed yet."""
    world = machine()
    owner, before = world.owners[2], world.fleet.assignments[2].epoch
    world.serves[owner].pop(2)
    world.epochs[2] += 1
    assert world.phase(2) is AssignmentPhase.SERVING
    commands = world.fleet.open_again(2, world.now)
    assert commands == [OpenContainer(owner, 2, world.fleet.assignments[2].request)]
    assert world.phase(2) is AssignmentPhase.OPENING
    world.do(commands)
    world.run(5)
    assert (world.phase(2), world.owners[2]) == (AssignmentPhase.SERVING, owner)
    assert world.fleet.assignments[2].epoch > before + 1


def test_a_container_that_crashes_its_hosts_is_quarantined_and_the_others_continue() -> None:
    world = machine()
    world.bad.add(1)
    world.kill(world.owners[1])
    world.run(30)
    assert world.phase(1) is AssignmentPhase.QUARANTINED
    assert "3 times" in world.fleet.assignments[1].reason
    assert set(world.owners) == {0, 2, 3}


def test_a_damaged_container_is_not_tried_again() -> None:
    world = machine()
    assignment = world.fleet.assignments[3]
    world.do(world.fleet.ended(assignment.host, 3, "corrupt", "wal/0003/... at 512", world.now))
    assert assignment.phase is AssignmentPhase.QUARANTINED
    world.run(60)
    assert world.fleet.assignments[3].reason.startswith("wal/0003")


def test_an_opening_that_fails_for_now_is_retried_later() -> None:
    world = machine()
    assignment = world.fleet.assignments[3]
    world.do(world.fleet.ended(assignment.host, 3, "failed", "no space left", world.now))
    assert world.phase(3) is AssignmentPhase.UNASSIGNED
    world.run(1)
    assert world.phase(3) is AssignmentPhase.SERVING


@pytest.mark.parametrize("pinned", [False, True])
def test_v8_a_container_that_fails_on_a_host_is_opened_on_another_one_for_a_while(pinned: bool) -> None:
    world = machine()
    assignment = world.fleet.assignments[3]
    first = assignment.host
    if pinned:
        world.do(world.fleet.move(3, first, world.now))
    world.do(world.fleet.ended(first, 3, "failed", "too many open files", world.now))
    world.run(1)
    second = assignment.host
    assert (assignment.phase, second != first) == (AssignmentPhase.SERVING, True)
    world.run(200)
    assert assignment.host == second
    world.run(200)
    loads = sorted(list(world.owners.values()).count(host) for host in world.alive)
    assert (loads == [2, 2], assignment.host == first or not pinned) == (True, True)


def test_v8_a_container_that_fails_is_opened_again_on_the_only_host() -> None:
    world = machine(hosts=1)
    world.do(world.fleet.ended("host-0", 3, "failed", "too many open files", world.now))
    world.run(1)
    assert world.phase(3) is AssignmentPhase.SERVING


def test_v9_one_in_fifty_containers_at_most_is_without_an_owner_by_moves() -> None:
    """Of fewer than a hundred that is one, and a host of two drains in fifty rounds at most."""
    for containers, at_once in ((4, 1), (99, 1), (400, 8)):
        world = machine(containers=containers, hosts=2)
        deaf, world.frozen = world.frozen, {"host-0", "host-1"}
        orders = world.fleet.drain("host-0", world.now)
        closes = [(each.host, each.index) for each in orders if isinstance(each, CloseContainer)]
        assert closes == [("host-0", each.index) for each in closing(world)]
        assert len(closes) == len(orders) == at_once
        world.frozen = deaf


def test_v9_a_container_without_an_owner_for_another_reason_takes_a_moves_place() -> None:
    world = machine(containers=100, hosts=2)
    world.frozen.add("host-0")
    lost = next(each for each in world.fleet.assignments if each.host == "host-1")
    world.do(world.fleet.ended("host-1", lost.index, "failed", "no space left", world.now))
    assert len(world.fleet.drain("host-0", world.now)) == 1
    other = next(each for each in world.fleet.assignments if each.is_served_by("host-1"))
    assert world.fleet.ended("host-1", other.index, "failed", "no space left", world.now) == []
    assert len(closing(world)) == 1


def test_v8_a_host_on_which_openings_fail_gets_no_others_for_balance() -> None:
    """Its share would fail there too, one after the other, each without an owner meanwhile."""
    world = machine(containers=40, hosts=4)
    for assignment in world.fleet.assignments.held("host-0"):
        world.do(world.fleet.ended("host-0", assignment.index, "failed", "too many open files", world.now))
    world.run(2)
    assert "host-0" not in world.owners.values()
    opens = world.count(OpenContainer)
    reason = "containers failed or ended on host-0, not longer than 300 s ago"
    assert world.fleet.imbalance(world.now) == Imbalance(10, reason)
    world.run(200)
    assert world.count(OpenContainer) == opens
    world.run(200)
    assert sorted(Counter(world.owners.values()).values()) == [10] * 4


def test_v8_a_container_that_avoids_the_only_host_with_room_stays() -> None:
    """It would be closed for balance, and opened on a host that has its share: again and again."""
    world = machine(containers=40, hosts=4)
    avoiding = world.fleet.assignments.held("host-0")[-1]
    world.do(world.fleet.ended("host-0", avoiding.index, "failed", "too many open files", world.now))
    world.run(1)
    other = world.fleet.assignments.held("host-0")[0].index
    world.do(world.fleet.move(other, "host-1", world.now))
    world.run(1)
    world.do(world.fleet.move(other, "host-0", world.now))
    world.run(1)
    opens = world.count(OpenContainer)
    world.run(100)
    assert (world.count(OpenContainer), avoiding.host != "host-0") == (opens, True)


def test_a_restarted_supervisor_adopts_its_hosts_and_moves_nothing() -> None:
    world = machine()
    before, opens = world.owners, world.count(OpenContainer)
    world.fleet = Fleet(4, world.alive, OPTIONS, Random(1), world.now)
    for host in world.alive:
        world.say_hello(host)
    world.run(10)
    assert (world.owners, world.count(OpenContainer), world.count(SpawnHost)) == (before, opens, 2)


def test_a_restarted_supervisor_replaces_hosts_that_do_not_connect() -> None:
    world = machine()
    world.frozen.add("host-1")
    world.fleet = Fleet(4, list(world.alive), OPTIONS, Random(1), world.now)
    world.say_hello("host-0")
    world.frozen.clear()
    world.run(3)
    assert set(world.owners) == {0, 1, 2, 3}


def test_a_rolling_restart_replaces_host_by_host_and_serves_everything_meanwhile() -> None:
    world = machine(containers=6, hosts=3)
    pids = dict(world.alive)
    world.do(world.fleet.roll(world.now))
    for _ in range(100):
        world.run(0.1)
        assert set(world.owners) == set(range(6))
    assert all(world.alive[host] != pid for host, pid in pids.items())
    assert {host.phase for host in world.fleet.hosts.values()} == {HostPhase.SERVING}


def test_the_only_host_can_be_rolled_too() -> None:
    world = machine(hosts=1)
    pid = world.alive["host-0"]
    world.do(world.fleet.roll(world.now))
    world.run(3)
    assert world.alive["host-0"] != pid
    assert set(world.owners) == {0, 1, 2, 3}


def test_a_move_is_carried_out_and_stays() -> None:
    world = machine()
    world.do(world.fleet.move(0, "host-1", world.now))
    world.do(world.fleet.move(1, "host-1", world.now))
    world.run(5)
    assert (world.owners[0], world.owners[1]) == ("host-1", "host-1")


def test_an_unpinned_container_goes_where_balance_needs_it() -> None:
    world = machine()
    for index in (0, 1, 2):
        world.do(world.fleet.move(index, "host-1", world.now))
    world.run(5)
    assert [world.owners[index] for index in (0, 1, 2)] == ["host-1"] * 3
    for index in (0, 1, 2):
        world.do(world.fleet.unpin(index, world.now))
    world.run(5)
    assert sorted(Counter(world.owners.values()).values()) == [2, 2]


@pytest.mark.parametrize(
    "index, host, message",
    [
        (9, "host-0", "the containers are 0 to 3"),
        (0, "host-9", "no host 'host-9'"),
        (0, "host-1", "accepts no containers"),
    ],
)
def test_an_impossible_move_is_refused_with_its_reason(index: int, host: str, message: str) -> None:
    world = machine()
    world.frozen.add("host-1")
    world.run(1)
    with pytest.raises(ValueError, match=message):
        world.fleet.move(index, host, world.now)


def test_a_host_that_exits_too_often_is_given_up_until_an_operator_starts_it() -> None:
    world = machine()
    for _ in range(OPTIONS.exits_max + 1):
        world.run(1.2)
        world.kill("host-0")
    world.run(30)
    assert world.host_phase("host-0") is HostPhase.GIVEN_UP
    assert set(world.owners.values()) == {"host-1"}
    world.do(world.fleet.start("host-0", world.now))
    assert world.host_phase("host-0") is HostPhase.SERVING


def test_failovers_of_one_container_are_limited_in_a_minute() -> None:
    world = machine(options=attrs.evolve(OPTIONS, failovers_max=3, exits_max=1000))
    for _ in range(4):
        world.kill(world.fleet.assignments[0].host)
        world.run(1.2)
    assert world.phase(0) is AssignmentPhase.UNASSIGNED
    world.run(60)
    assert world.phase(0) is AssignmentPhase.SERVING


def test_a_stop_drains_every_host_and_starts_none_again() -> None:
    world = machine()
    world.do(world.fleet.stop(world.now))
    world.run(10)
    assert not world.alive
    assert world.count(SpawnHost) == 2


def test_v7_the_supervisors_own_lateness_is_no_hosts_silence() -> None:
    world = machine()
    world.now += 10
    world.fleet.extend_deadlines(10)
    world.do(world.fleet.tick(world.now))
    assert {host.phase for host in world.fleet.hosts.values()} == {HostPhase.SERVING}
    world.now += 1
    world.do(world.fleet.tick(world.now))
    assert {host.phase for host in world.fleet.hosts.values()} == {HostPhase.SILENT}, (
        "what is not forgiven counts"
    )


@pytest.mark.parametrize("is_drained", [False, True])
def test_v7_the_supervisors_own_lateness_kills_no_host(is_drained: bool) -> None:
    """A silent host may be back, and a draining one may have finished, and their messages are unread."""
    world = machine()
    fleet, now = world.fleet, world.now
    fleet.drain("host-0", now) if is_drained else fleet.disconnected("host-0", now)
    fleet.extend_deadlines(100)

    assert KillHost("host-0", fleet.hosts["host-0"].pid) not in fleet.tick(now + 100)
    # A draining one is ordered to exit first.
    assert KillHost("host-0", fleet.hosts["host-0"].pid) in [*fleet.tick(now + 200), *fleet.tick(now + 200)]


def test_late_answers_change_nothing() -> None:
    world = machine()
    assignment = world.fleet.assignments[0]
    host, other = assignment.host, next(host for host in world.alive if host != assignment.host)
    assert world.fleet.failed(host, 0, assignment.request - 1, "corrupt", "late", world.now) == []
    assert world.fleet.fenced(other, 0, 99, "late", world.now) == []
    assert world.fleet.opened(other, 0, assignment.request, 0, world.now) == [CloseContainer(other, 0, 0)]
    assert assignment.phase is AssignmentPhase.SERVING


@pytest.mark.parametrize("fenced_first", [False, True])
def test_v2_an_outdated_opening_that_fenced_the_owner_makes_its_host_the_owner(fenced_first: bool) -> None:
    """A host that was silent for a moment opens what it was ordered to, after another one had the same order
    too."""
    world = machine()
    assignment = world.fleet.assignments[0]
    host, epoch = assignment.host, assignment.epoch
    other = next(each for each in world.alive if each != host)
    world.epochs[0] += 1
    world.serves[other][0] = world.epochs[0]
    del world.serves[host][0]
    if fenced_first:
        world.do(world.fleet.fenced(host, 0, epoch, "fenced", world.now))
        assert assignment.phase is AssignmentPhase.FENCED
    world.do(world.fleet.opened(other, 0, assignment.request - 1, world.epochs[0], world.now))
    if not fenced_first:
        world.do(world.fleet.fenced(host, 0, epoch, "fenced", world.now))
    world.run(3)
    assert assignment.phase is AssignmentPhase.SERVING
    assert assignment.host == world.owners[0]
    assert world.count(KillHost) == 0


def test_v2_an_owner_fenced_by_an_outdated_order_is_not_reported_as_fenced_from_outside() -> None:
    """The answer of the one who had it already comes last, and is older than what it says."""
    world = machine()
    assignment = world.fleet.assignments[0]
    host, epoch = assignment.host, assignment.epoch
    other = next(each for each in world.alive if each != host)
    world.frozen.add(host)
    assignment.step(AssignmentEvent.HOST_LOST, world.now, "")
    order = world.fleet._placement._open(assignment, host, world.now)
    world.epochs[0] += 1
    world.serves[other][0] = world.epochs[0]
    world.do(world.fleet.opened(other, 0, order.request - 1, world.epochs[0], world.now))
    assert 0 not in world.serves[other], "it was ordered to close"
    world.frozen.discard(host)
    del world.serves[host][0]
    world.do(world.fleet.opened(host, 0, order.request, epoch, world.now))
    world.do(world.fleet.fenced(host, 0, epoch, "fenced", world.now))
    world.run(3)
    assert assignment.phase is AssignmentPhase.SERVING
    assert assignment.host == world.owners[0]


def test_v3_a_container_fenced_by_the_fleets_own_order_is_reopened_at_once() -> None:
    world = machine()
    assignment = world.fleet.assignments[0]
    assignment.newest_epoch = assignment.epoch + 1
    del world.serves[assignment.host][0]
    world.do(world.fleet.fenced(assignment.host, 0, assignment.epoch, "fenced", world.now))
    world.run(3)
    assert assignment.phase is AssignmentPhase.SERVING
    assert assignment.host == world.owners[0]


def closing(world: Machine) -> list[Assignment]:
    return [each for each in world.fleet.assignments if each.phase is AssignmentPhase.CLOSING]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["kill", "freeze", "resume", "run", "disconnect", "drain", "restart"]),
        st.integers(0, 2),
    ),
    max_size=25,
)


@settings(max_examples=4 * settings().max_examples, deadline=None)
@given(STEPS)
def test_after_any_failure_every_container_is_served_by_one_live_host_again(
    steps: list[tuple[str, int]],
) -> None:
    world = machine(
        containers=5,
        hosts=3,
        options=attrs.evolve(OPTIONS, exits_max=1000, failovers_max=1000, crashes_max=1000),
    )
    for step, number in steps:
        host = f"host-{number}"
        if step == "run" or host not in world.alive:
            world.run(0.3 * (number + 1))
        elif step == "kill":
            world.kill(host)
        elif step == "freeze":
            world.frozen.add(host)
        elif step == "resume":
            world.resume(host)
        elif step == "disconnect":
            world.do(world.fleet.disconnected(host, world.now))
        elif step == "drain":
            world.do(world.fleet.drain(host, world.now))
        else:
            world.fleet = Fleet(5, ["host-0", "host-1", "host-2"], world.fleet.options, Random(1), world.now)
            for other in sorted(set(world.alive) - world.frozen):
                world.say_hello(other)
    for host in sorted(world.frozen):
        world.resume(host)
    world.run(60)
    assert set(world.owners) == set(range(5))
    assert {assignment.index: assignment.host for assignment in world.fleet.assignments} == world.owners
    loads = [list(world.owners.values()).count(host) for host in world.alive]
    assert max(loads) - min(loads) <= 1


@pytest.mark.extended
def test_an_event_costs_no_scan_of_all_containers() -> None:
    """Fifty times as many containers on as many hosts: an answer costs hardly more."""
    few, many = (least_cost(containers) for containers in (400, 20_000))
    assert many < 10 * few, (few, many)


def least_cost(containers: int) -> float:
    """Seconds for ten answers of hosts, the fastest of several times."""
    fleet = Fleet(containers, [f"host-{index}" for index in range(20)], OPTIONS, Random(0), 0)
    fleet.start_at_once(0)
    opens: list[OpenContainer] = []
    for host in list(fleet.hosts):
        commands = fleet.hello(host, 1, f"http://{host}", {}, 0)
        opens += (each for each in commands if isinstance(each, OpenContainer))
    costs = []
    for begin in range(0, 200, 10):
        began = time.thread_time()
        for each in opens[begin : begin + 10]:
            fleet.opened(each.host, each.index, each.request, 1, 0.1)
            fleet.next_due(0.1)
        costs.append(time.thread_time() - began)
    return min(costs)


def test_the_tables() -> None:
    check_table(HOST_PHASES, HostPhase.DOWN, HostEvent)
    check_table(ASSIGNMENT_PHASES, AssignmentPhase.UNASSIGNED, AssignmentEvent)
    assert {phase for phase, _ in HOST_PHASES.steps} == set(HostPhase), "no phase is an end"
    assert {phase for phase, _ in ASSIGNMENT_PHASES.steps} == set(AssignmentPhase)
