"""The balance: shares, room, nothing moves without need, the same answer for the same question."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tierlog.actors.supervisor.balance import Room, shares

HOSTS = [f"host-{index}" for index in range(6)]
loads = st.dictionaries(st.sampled_from(HOSTS), st.integers(0, 12), min_size=1)
unassigned = st.integers(0, 30)


@given(loads, unassigned)
def test_shares_differ_by_at_most_one_and_sum_up(held: dict[str, int], more: int) -> None:
    found = shares(sum(held.values()) + more, held)
    assert found.keys() == held.keys()
    assert sum(found.values()) == sum(held.values()) + more
    assert max(found.values()) - min(found.values()) <= 1


@given(loads, unassigned)
def test_no_balanced_assignment_moves_fewer(held: dict[str, int], more: int) -> None:
    total = sum(held.values()) + more
    found = shares(total, held)
    least, odd = divmod(total, len(held))
    fullest = sorted(held.values(), reverse=True)
    stay = sum(min(count, least + (rank < odd)) for rank, count in enumerate(fullest))
    assert sum(min(held[host], share) for host, share in found.items()) == stay


@given(loads)
def test_what_is_balanced_stays(held: dict[str, int]) -> None:
    found = shares(sum(held.values()), held)
    assert shares(sum(found.values()), found) == found


@given(loads, unassigned)
def test_room_fills_every_host_up_to_its_share_the_emptiest_first(held: dict[str, int], more: int) -> None:
    targets = shares(sum(held.values()) + more, held)
    room, now = Room(held, targets), dict(held)
    while (host := room.take(lambda host: True)) is not None:
        behind = [each for each in now if now[each] < targets[each]]
        assert (now[host], host) == min((now[each], each) for each in behind)
        now[host] += 1
    assert all(now[host] == max(held[host], targets[host]) for host in held)


def test_a_host_that_does_not_fit_keeps_its_place() -> None:
    room = Room({"a": 0, "b": 1}, {"a": 2, "b": 2})
    assert room.take(lambda host: host != "a") == "b"
    assert room.take(lambda host: host == "b") is None
    assert [room.take(lambda host: True) for _ in range(3)] == ["a", "a", None]


def test_a_lost_hosts_containers_spread_over_the_others() -> None:
    held = {"host-0": 3, "host-1": 3}
    room = Room(held, shares(9, held))
    taken = Counter(room.take(lambda host: True) for _ in range(3))
    assert taken == {"host-0": 2, "host-1": 1}


def test_a_returning_host_gets_its_share() -> None:
    assert shares(4, {"host-0": 4, "host-1": 0}) == {"host-0": 2, "host-1": 2}
