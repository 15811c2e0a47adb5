"""Hosts that joined from other machines: the supervisor can neither start nor watch nor kill them (rules V4,
V5, V6, V9 and V11)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.fleets import OPTIONS, Machine, joined, machine
from tierlog.actors.supervisor.assignment import AssignmentPhase
from tierlog.actors.supervisor.commands import (
    CloseContainer,
    CutHost,
    DrainHost,
    ForgetHost,
    OpenContainer,
    SpawnHost,
)
from tierlog.actors.supervisor.fleet import Fleet
from tierlog.actors.supervisor.hosts import HostPhase, default_id, joined_id_refusal
from tierlog.actors.supervisor.placement import AVOIDED_SECONDS, Imbalance
from tierlog.actors.supervisor.supervisor import log_command


def loads(world: Machine) -> list[int]:
    return sorted(list(world.owners.values()).count(host) for host in world.alive)


def test_v11_the_first_hosts_to_join_share_the_containers_without_a_move() -> None:
    world = joined(4, "a", "b")
    assert loads(world) == [2, 2]
    assert (world.count(OpenContainer), world.count(CloseContainer), world.count(SpawnHost)) == (4, 0, 0)


def test_v9_a_host_that_joins_takes_its_share_one_container_after_the_other() -> None:
    world = machine(containers=6, hosts=2)
    world.commands.clear()
    world.join("a")
    for _ in range(20):
        world.run(0.1)
        assert set(world.owners) == set(range(6)), "no stop"
    assert Counter(world.owners.values()) == {"host-0": 2, "host-1": 2, "a": 2}
    kinds = [type(each) for each in world.commands]
    assert kinds == [CloseContainer, OpenContainer] * 2, "no more moves than needed, one at a time"


def test_v9_the_status_says_why_containers_still_are_where_they_are_too_many() -> None:
    world = machine(containers=6, hosts=1)
    assert world.fleet.imbalance(world.now) == Imbalance()
    world.frozen.add("host-0")
    world.join("a")
    reason = "1 at a time may be without an owner for it; now without one: 1 closing"
    assert world.fleet.imbalance(world.now) == Imbalance(3, reason)
    world.fleet.doubt()
    assert "lease" in world.fleet.imbalance(world.now).reason
    world.fleet.drain("host-0", world.now)
    assert world.fleet.imbalance(world.now).containers == 6
    world.fleet.stop(world.now)
    assert world.fleet.imbalance(world.now).containers == 0


def test_v9_after_a_cold_start_the_status_says_that_the_first_hosts_containers_still_open() -> None:
    world = machine(containers=48, hosts=0)
    world.hanging = set(range(48))
    world.join("a")
    world.run(OPTIONS.adoption)
    world.join("b")
    reason = "1 at a time may be without an owner for it; now without one: 48 opening"
    assert world.fleet.imbalance(world.now) == Imbalance(24, reason)


def test_v6_a_killed_joined_hosts_containers_are_served_elsewhere_in_the_same_instant() -> None:
    world = joined(4, "a", "b")
    world.kill("a")
    assert set(world.owners.items()) == {(index, "b") for index in range(4)}
    assert world.host_phase("a") is HostPhase.SILENT
    world.run(OPTIONS.silent_grace + 1)
    assert (world.forgotten, list(world.fleet.hosts)) == (["a"], ["b"])


def test_v2_a_silent_joined_hosts_connection_is_reset_and_with_it_what_waits_on_its_way() -> None:
    world = joined(4, "a", "b")
    world.frozen.add("a")
    world.commands.clear()
    world.run(OPTIONS.silence + 0.2)
    assert world.commands[0] == CutHost("a"), "before its containers are opened elsewhere"
    assert world.count(CutHost) == 1


def test_v5_a_frozen_joined_host_loses_its_containers_and_is_forgotten_but_never_killed() -> None:
    world = joined(4, "a", "b")
    world.frozen.add("a")
    world.run(OPTIONS.silence + 0.2)
    assert set(world.owners.values()) == {"b"}
    world.run(OPTIONS.silent_grace + 1)
    assert world.forgotten == ["a"]
    world.run(600)
    world.resume("a")
    world.run(5)
    assert loads(world) == [2, 2]


def test_v5_a_joined_host_that_is_heard_again_within_its_grace_gets_containers_again() -> None:
    world = joined(4, "a", "b")
    world.frozen.add("a")
    world.run(2)
    world.resume("a")
    world.run(5)
    assert (loads(world), world.forgotten) == ([2, 2], [])
    assert not any(assignment.is_withheld for assignment in world.fleet.assignments)


def test_v11_a_second_process_with_the_id_of_a_living_host_is_refused() -> None:
    world = joined(4, "a", "b")
    pid = world.alive["a"]
    refusal = world.fleet.refusal("a", "another", joined=True)
    assert refusal.startswith(f"process {pid} on machine-of-a is a now, and alive: choose another --id")
    assert world.fleet.refusal("a", str(pid), joined=True) == "", "it connects again"
    world.frozen.add("a")
    world.run(2)
    assert world.fleet.refusal("a", "another", joined=True) == "", "it was started again"
    world.frozen.clear()
    world.join("a")
    refusal = world.fleet.refusal("a", str(pid), joined=True)
    assert f"process {world.alive['a']} on machine-of-a is a now" in refusal, "and so is the one before"


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        ("host-7", "host-7 is an id of a supervisor's own hosts: choose another one with --id"),
        ("", "a host's id has 1 to 32 letters"),
        ("a/b", "a host's id has 1 to 32 letters"),
        ("x" * 33, "a host's id has 1 to 32 letters"),
    ],
)
def test_v11_ids_that_no_joined_host_can_have(host: str, reason: str) -> None:
    assert machine(hosts=1).fleet.refusal(host, "1", joined=True).startswith(reason)


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        ("node-a.example.org", "node-a.example.org-00000"),
        ("Büro 7", "B-ro-7-00000"),
        ("..", "machine-00000"),
        ("n" * 60, f"{'n' * 26}-00000"),
        ("host", "host-a0000"),
    ],
)
def test_v11_a_host_without_an_id_gets_one_of_its_machines_name(machine: str, expected: str) -> None:
    drawn = iter(["0" * 32, "a" + "0" * 31])
    found = default_id(machine, lambda: next(drawn))
    assert (found, joined_id_refusal(found)) == (expected, "")


def test_v11_only_the_supervisors_own_hosts_connect_at_its_socket() -> None:
    world = machine(hosts=1)
    world.join("a")
    assert world.fleet.refusal("host-0", "", joined=False) == ""
    for other in ("a", "host-1"):
        refusal = world.fleet.refusal(other, "", joined=False)
        assert refusal == f"no host {other!r}: the hosts are host-0"


def test_a_drained_joined_host_hands_its_containers_over_exits_and_is_forgotten_at_once() -> None:
    world = joined(4, "a", "b")
    world.do(world.fleet.drain("a", world.now))
    for _ in range(20):
        world.run(0.1)
        assert set(world.owners) == set(range(4))
    assert (world.forgotten, list(world.alive), world.count(DrainHost)) == (["a"], ["b"], 1)
    assert world.fleet.failovers == 0, "nothing was lost"


def test_v10_a_container_whose_host_dies_while_it_drains_is_a_failover() -> None:
    world = draining(deaf=True)
    world.kill("a")
    assert (set(world.owners.values()), world.fleet.failovers) == ({"b"}, 1)


def test_v9_a_container_that_was_closed_for_a_move_is_no_failover_if_the_answer_was_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = joined(2, "a", "b")
    with monkeypatch.context() as lost:
        lost.setattr(Fleet, "closed", lambda *_: [])
        world.do(world.fleet.drain("a", world.now))
    assert world.phase(0) is AssignmentPhase.CLOSING
    world.say_hello("a", leaving=True)
    world.run(1)
    assert (world.owners, world.fleet.failovers) == ({0: "b", 1: "b"}, 0)


def awaited() -> Machine:
    return Machine(Fleet(2, [], OPTIONS, Random(0), 0, ["a"]))


def draining(*, deaf: bool = False) -> Machine:
    world = joined(2, "a", "b")
    if deaf:
        world.frozen.add("a")
    world.do(world.fleet.drain("a", world.now))
    return world


def cut(world: Machine) -> None:
    world.do(world.fleet.disconnected("a", world.now))


def vanish(world: Machine) -> None:
    """Its connection breaks, and it is not heard again."""
    cut(world)
    world.frozen.add("a")
    world.run(OPTIONS.silent_grace + 0.2)


def lives_on(world: Machine) -> None:
    """It obeys no order, and its heartbeats go on."""
    end = world.now + OPTIONS.drain_limit + 1
    while world.now < end:
        if "a" in world.fleet.hosts:
            world.do(world.fleet.heartbeat("a", 0, world.now))
        world.run(0.1)


@pytest.mark.parametrize(
    ("world", "event", "reason", "containers"),
    [
        (lambda: draining(deaf=True), cut, "its connection ended before it was ordered to exit", (0,)),
        (
            lambda: draining(deaf=True),
            lambda world: world.run(OPTIONS.silence + 0.2),
            "nothing was heard of it for 0.80 s",
            (0,),
        ),
        (lambda: draining(deaf=True), lives_on, "it has not ended 30 s after the order to drain", (0,)),
        (lambda: joined(2, "a", "b"), vanish, "nothing was heard of it for 5.", ()),
        (
            lambda: joined(2, "a", "b", options=attrs.evolve(OPTIONS, silence=2 * OPTIONS.silent_grace)),
            vanish,
            "nothing was heard of it for 5.",
            (),
        ),
        (awaited, lambda world: world.run(5), "it had joined an earlier supervisor, and not this one", ()),
        (draining, lambda world: world.run(1), "", ()),
    ],
)
def test_v11_a_host_that_is_forgotten_without_a_finished_drain_is_a_warning_with_the_reason(
    world: Callable[[], Machine],
    event: Callable[[Machine], None],
    reason: str,
    containers: tuple[int, ...],
    caplog: pytest.LogCaptureFixture,
) -> None:
    found = world()
    event(found)
    [command] = [each for each in found.commands if isinstance(each, ForgetHost)]
    assert (command.host, command.containers) == ("a", containers)
    assert command.reason.startswith(reason)

    log_command(command)
    warnings = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert len(warnings) == (reason != "")
    assert all("host_forgotten" in text and reason in text for text in warnings)


def test_v5_a_joined_host_that_dies_while_it_drains_loses_its_containers_at_once() -> None:
    world = joined(6, "a", "b")
    # It does not carry out the order to close.
    world.frozen.add("a")
    world.do(world.fleet.drain("a", world.now))
    world.run(OPTIONS.silence + 0.2)
    assert (world.forgotten, set(world.owners.values())) == (["a"], {"b"})


@pytest.mark.parametrize("is_joined", [True, False])
def test_v9_a_draining_host_whose_connection_was_replaced_hands_over_one_by_one_all_the_same(
    is_joined: bool,
) -> None:
    first, second = ("a", "b") if is_joined else ("host-0", "host-1")
    world = joined(10, "a", "b") if is_joined else machine(10, 2)
    world.frozen.add(second)
    world.do(world.fleet.drain(first, world.now))
    served = dict(world.serves[first])
    assert len(served) == 4
    world.say_hello(first, leaving=is_joined)
    assert world.serves[first] == served
    world.resume(second)
    world.run(2)
    assert set(world.owners.values()) == ({second} if is_joined else {"host-0", "host-1"})
    assert world.fleet.failovers == 1, "the order that the frozen one did not get"


def test_v10_the_next_supervisor_goes_on_with_a_drain() -> None:
    """The host names it in its hello, and is ordered to close what it serves, and to exit."""
    world = joined(4, "a", "b")
    follow(world, "a", "b")
    world.say_hello("a", leaving=True)
    assert world.host_phase("a") is HostPhase.DRAINING
    world.run(0.2)
    assert world.count(DrainHost) == 0, "others may take its containers"
    world.say_hello("b")
    world.run(1)
    assert set(world.owners.values()) == {"b"}
    assert (world.forgotten, world.count(DrainHost), world.fleet.failovers) == (["a"], 1, 0)


@pytest.mark.parametrize("seconds", [0.2, OPTIONS.drain_limit + 1])
def test_v11_a_joined_host_that_is_forgotten_while_it_drains_goes_on_with_it(
    seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection broke, or it did not exit in time."""
    world = joined(4, "a", "b")
    with monkeypatch.context() as slow:
        slow.setattr(Machine, "obeys", lambda *host: False)
        world.do(world.fleet.drain("a", world.now))
        world.run(seconds)
        if "a" in world.fleet.hosts:
            world.do(world.fleet.disconnected("a", world.now))
    assert world.forgotten == ["a"]
    world.say_hello("a", leaving=True)
    assert list(world.alive) == ["b"]

    world.join("a")
    assert world.host_phase("a") is HostPhase.SERVING, "another process is another host"


def test_a_rolling_restart_leaves_joined_hosts_alone() -> None:
    world = machine(containers=6, hosts=2)
    world.join("a")
    world.run(3)
    pids = dict(world.alive)
    world.do(world.fleet.roll(world.now))
    for _ in range(100):
        world.run(0.1)
        assert set(world.owners) == set(range(6))
    assert {host for host, pid in world.alive.items() if pids[host] != pid} == {"host-0", "host-1"}
    assert "a" in world.alive


def test_v11_a_stop_hands_over_to_joined_hosts_and_leaves_them_to_the_next_supervisor() -> None:
    world = machine(containers=6, hosts=2)
    world.join("a")
    world.run(3)
    world.do(world.fleet.stop(world.now))
    for _ in range(30):
        world.run(0.1)
        assert set(world.owners) == set(range(6)), "no container is out of service"
    assert (list(world.alive), set(world.owners.values())) == (["a"], {"a"})
    assert world.fleet.failovers == 0
    assert world.count(SpawnHost) == 2


def test_v10_a_stop_during_which_the_joined_hosts_are_lost_ends_all_the_same() -> None:
    world = machine(containers=6, hosts=2)
    world.join("a")
    world.run(3)
    world.frozen.add("a")
    world.do(world.fleet.stop(world.now))
    world.run(OPTIONS.silence + 1)
    assert list(world.alive) == ["a"]


def test_v10_a_host_whose_containers_nobody_opens_in_time_is_ordered_to_exit_and_then_killed() -> None:
    world = machine(containers=6, hosts=1)
    world.join("a")
    world.run(3)
    world.frozen.add("host-0")  # it obeys no order, and its heartbeats go on
    begin = world.now
    world.do(world.fleet.stop(begin))

    def beat_until(share: float) -> None:
        while world.now < begin + share * OPTIONS.drain_limit:
            world.do(world.fleet.heartbeat("host-0", 0, world.now))
            world.run(0.3)

    beat_until(0.45)
    assert world.count(DrainHost) == 0
    beat_until(0.95)
    assert (world.count(DrainHost), "host-0" in world.alive) == (1, True)
    beat_until(1.05)
    assert list(world.alive) == ["a"]


def test_v8_a_container_that_crashes_joined_hosts_is_quarantined_and_the_others_go_on() -> None:
    world = joined(4, "a", "b")
    world.bad.add(1)
    world.kill(world.owners[1])
    while world.phase(1) is not AssignmentPhase.QUARANTINED:
        for host in ("a", "b"):
            if host not in world.alive:
                world.join(host)
        world.run(0.5)
        assert world.now < 60
    for host in {"a", "b"} - set(world.alive):
        world.join(host)
    world.run(3)
    assert set(world.owners) == {0, 2, 3}


def cut_while_it_opens(world: Machine, host: str, *, exits: bool = False) -> None:
    """Its connection breaks before it answers an order to open; then it returns, or its process ends."""
    assert world.fleet.assignments.of(host, AssignmentPhase.OPENING)
    if exits:
        world.kill(host)
    else:
        world.do(world.fleet.disconnected(host, world.now))
        world.say_hello(host)


def test_v8_a_process_whose_connection_breaks_at_each_order_gets_no_container_quarantined(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = machine(containers=4, hosts=0)
    with monkeypatch.context() as deaf:
        deaf.setattr(Machine, "obeys", lambda *host: False)
        world.join("a")
        for _ in range(10):
            world.run(10)
            cut_while_it_opens(world, "a")
        world.run(10)
    cut_while_it_opens(world, "a")
    world.run(90)
    assert set(world.owners) == set(range(4))


def test_v8_a_container_that_opens_elsewhere_is_not_quarantined_for_the_hosts_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = joined(2, "b")
    monkeypatch.setattr(Machine, "obeys", lambda world, host: host == "b")
    for _ in range(OPTIONS.crashes_max + 1):
        world.join("a")
        cut_while_it_opens(world, "a", exits=True)
        assert world.owners == {0: "b", 1: "b"}
        world.run(AVOIDED_SECONDS + 10, step=0.5)


def test_v8_a_host_whose_connection_broke_while_it_opened_gets_no_moves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = joined(4, "b")
    monkeypatch.setattr(Machine, "obeys", lambda world, host: host == "b")
    world.join("a")
    cut_while_it_opens(world, "a")
    world.commands.clear()
    world.run(60)
    assert set(world.owners) == set(range(4))
    assert world.commands == []


# --- another supervisor ---------------------------------------------------------------------------


def follow(world: Machine, *awaited: str) -> None:
    """Another supervisor takes over, without hosts of its own."""
    world.fleet = Fleet(len(world.epochs), [], OPTIONS, Random(1), world.now, awaited)
    world.commands.clear()
    world.forgotten.clear()


def test_v4_the_next_supervisor_waits_for_joined_hosts_and_moves_nothing() -> None:
    world = joined(4, "a", "b")
    before = world.owners
    follow(world, "a", "b")
    world.run(OPTIONS.adoption + 0.3)
    assert world.commands == [], "they have longer than hosts on its machine"
    world.say_hello("a")
    world.run(0.3)
    assert world.commands == []
    world.say_hello("b")
    world.run(10)
    assert (world.owners, world.commands) == (before, [])


def test_v4_what_no_joined_host_reports_in_time_is_opened_and_nothing_else_moves() -> None:
    world = joined(4, "a", "b")
    kept = {index: host for index, host in world.owners.items() if host == "a"}
    world.frozen.add("b")
    follow(world, "a", "b")
    world.say_hello("a")
    world.run(OPTIONS.rejoin - 0.2)
    assert world.commands == []
    world.run(0.5)
    assert set(world.owners.values()) == {"a"}
    assert world.forgotten == ["b"]
    opened = {each.index for each in world.commands if isinstance(each, OpenContainer)}
    assert opened == set(range(4)) - set(kept)


def test_v4_joined_hosts_have_their_time_from_when_they_can_find_the_supervisor() -> None:
    """Its record may be late."""
    world = joined(4, "a", "b")
    before = world.owners
    follow(world, "a", "b")
    world.run(OPTIONS.rejoin - 0.2)
    world.fleet.await_joined(world.now)
    world.say_hello("a")
    world.run(OPTIONS.rejoin - 0.2)
    assert world.commands == []
    world.say_hello("b")
    world.run(10)
    assert (world.owners, world.commands) == (before, [])


def test_v4_no_host_is_waited_for_longer_than_the_last_one_that_is_awaited() -> None:
    world = joined(4, "a", "b")
    world.frozen.add("b")
    lost = {index for index, host in world.owners.items() if host == "b"}
    world.run(OPTIONS.silence + 0.2)
    follow(world, "a")
    began = world.now
    world.say_hello("a")
    assert (set(world.owners), world.now - began) == (set(range(4)), 0), "nobody else can report anything"
    assert lost


@pytest.mark.parametrize("is_fenced_first", [False, True])
def test_v2_an_owner_by_an_earlier_supervisors_order_is_adopted_also_from_the_owner_it_fenced(
    is_fenced_first: bool,
) -> None:
    """Its opening was under way at its hello, which did not name it."""
    world = joined(4, "a", "b")
    index = next(index for index, host in world.owners.items() if host == "a")
    follow(world, "a", "b")
    world.say_hello("a")
    world.say_hello("b")
    epoch = world.serves["a"].pop(index)
    world.epochs[index] = world.serves["b"][index] = epoch + 1
    if is_fenced_first:
        world.do(world.fleet.fenced("a", index, epoch, "another owner opened it", world.now))
        assert world.phase(index) is AssignmentPhase.FENCED
    world.do(world.fleet.opened("b", index, 0, epoch + 1, world.now))
    world.do(world.fleet.fenced("a", index, epoch, "another owner opened it", world.now))
    world.run(10)
    assert world.phase(index) is AssignmentPhase.SERVING
    assert loads(world) == [2, 2]


def test_v2_an_owner_by_an_earlier_supervisors_order_is_adopted_while_others_may_report() -> None:
    world = joined(4, "a", "b")
    follow(world, "a", "b", "c")
    world.say_hello("a")
    index = next(index for index, host in world.owners.items() if host == "b")
    world.epochs[index] += 1
    world.serves["b"].clear()
    world.say_hello("b")
    world.serves["b"][index] = world.epochs[index]
    world.do(world.fleet.opened("b", index, 0, world.epochs[index], world.now))
    assert (world.owners[index], world.phase(index)) == ("b", AssignmentPhase.SERVING)


def test_v7_a_late_supervisor_waits_for_joined_hosts_all_the_same() -> None:
    world = joined(4, "a")
    follow(world, "a")
    world.now += 100
    world.fleet.extend_deadlines(100)
    world.do(world.fleet.tick(world.now))
    assert world.forgotten == []


@pytest.mark.parametrize("own", [0, 1])
def test_v7_a_supervisor_that_was_late_at_its_start_moves_and_starts_nothing_sooner(own: int) -> None:
    """Hosts that connected meanwhile are still unread."""
    fleet = Fleet(2, [f"host-{index}" for index in range(own)], OPTIONS, Random(0), 0.0, ["a"])
    fleet.extend_deadlines(100)
    assert fleet.hello("b", 1, "http://b", {}, 100.1, joined=True, instance="b") == []
    hello = fleet.hello("a", 2, "http://a", {0: 3, 1: 3}, 100.2, joined=True, instance="a")
    assert not any(isinstance(command, SpawnHost | OpenContainer) for command in hello)


@pytest.mark.parametrize("index", [-1, 2])
def test_a_container_that_does_not_exist_is_not_adopted(index: int) -> None:
    fleet = Fleet(2, [], OPTIONS, Random(0), 0.0, ["a"])
    [close, *_] = fleet.hello("a", 1, "http://a", {index: 5}, 1.0, joined=True, instance="a")
    assert close == CloseContainer("a", index, 0)
    assert [assignment.epoch for assignment in fleet.assignments] == [0, 0]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["kill", "freeze", "resume", "run", "cut", "drain", "follow", "join"]),
        st.sampled_from("abc"),
    ),
    max_size=25,
)


@settings(max_examples=4 * settings().max_examples, deadline=None)
@given(STEPS)
def test_after_any_failure_every_container_is_served_by_one_live_host_again(
    steps: list[tuple[str, str]],
) -> None:
    world = machine(5, 0, attrs.evolve(OPTIONS, failovers_max=1000, crashes_max=1000))
    for step, host in steps:
        known = host in world.alive and host in world.fleet.hosts
        if step == "join" and host not in world.alive:
            world.join(host)
        elif step == "kill" and host in world.alive:
            world.kill(host)
        elif step == "freeze" and host in world.alive:
            world.frozen.add(host)
        elif step == "resume" and host in world.alive:
            world.resume(host)
        elif step == "cut" and known:
            world.do(world.fleet.disconnected(host, world.now))
        elif step == "drain" and known:
            world.do(world.fleet.drain(host, world.now))
        elif step == "follow":
            awaited = [each.id for each in world.fleet.hosts.values()]
            world.fleet = Fleet(5, [], world.fleet.options, Random(1), world.now, awaited)
            for other in sorted(set(world.alive) - world.frozen):
                world.say_hello(other)
        else:
            world.run(1.5)
    for host in sorted(world.frozen):
        world.resume(host)
    if not world.alive:
        world.join("a")
    # Whoever was forgotten finds its connection closed, and joins again.
    for host in sorted(set(world.alive) - set(world.fleet.hosts)):
        world.say_hello(host)
    # Whoever lost its connection while it opened gets no moves before.
    world.run(AVOIDED_SECONDS + 10, step=0.5)
    if not world.alive:
        world.join("a")
        world.run(60)
    assert set(world.owners) == set(range(5))
    assert {assignment.index: assignment.host for assignment in world.fleet.assignments} == world.owners
    assert max(loads(world)) - min(loads(world)) <= 1
