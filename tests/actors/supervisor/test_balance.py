"""Assignment: balanced, nothing moves without need, the same answer for the same question."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tierlog.actors.supervisor.balance import balance

HOSTS = [f"host-{index}" for index in range(6)]
hosts = st.sets(st.sampled_from(HOSTS), min_size=1)
assignments = st.dictionaries(st.integers(0, 30), st.sampled_from([*HOSTS, "gone"]))


@given(st.sets(st.integers(0, 30)), hosts, assignments)
def test_every_container_has_a_live_host_and_loads_differ_by_at_most_one(
    containers: set[int], live: set[str], current: dict[int, str]
) -> None:
    assigned = balance(containers, live, current)
    loads = Counter(dict.fromkeys(live, 0)) + Counter(assigned.values())
    counts = [loads[host] for host in live]
    assert set(assigned) == containers
    assert set(assigned.values()) <= live
    assert max(counts) - min(counts) <= 1


@given(st.sets(st.integers(0, 30), min_size=1), hosts, assignments)
def test_no_balanced_assignment_moves_fewer(
    containers: set[int], live: set[str], current: dict[int, str]
) -> None:
    assigned = balance(containers, live, current)
    moved = sum(1 for index in containers if assigned[index] != current.get(index))
    held = sorted(
        (sum(1 for index in containers if current.get(index) == host) for host in live), reverse=True
    )
    least, odd = divmod(len(containers), len(live))
    stay = sum(min(count, least + (assignment < odd)) for assignment, count in enumerate(held))
    assert moved == len(containers) - stay


@given(st.sets(st.integers(0, 30)), hosts, assignments)
def test_an_assignment_is_its_own_best_successor(
    containers: set[int], live: set[str], current: dict[int, str]
) -> None:
    assigned = balance(containers, live, current)
    assert balance(containers, live, assigned) == assigned


def test_a_lost_hosts_containers_spread_over_the_others() -> None:
    before = {index: HOSTS[index % 3] for index in range(9)}
    after = balance(range(9), ["host-0", "host-1"], before)
    assert {index for index in range(9) if after[index] != before[index]} == {2, 5, 8}
    assert Counter(after.values()) in ({"host-0": 5, "host-1": 4}, {"host-0": 4, "host-1": 5})


def test_a_returning_host_gets_its_share() -> None:
    before = dict.fromkeys(range(4), "host-0")
    after = balance(range(4), ["host-0", "host-1"], before)
    assert Counter(after.values()) == {"host-0": 2, "host-1": 2}


def test_without_hosts_nothing_is_assigned() -> None:
    assert balance(range(3), [], {0: "host-0"}) == {}
