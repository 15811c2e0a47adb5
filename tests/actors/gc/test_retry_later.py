"""Names whose deletion failed too often: rounds ever farther apart, until one delete works (rule G2)."""

from __future__ import annotations

import math

from tierlog.actors.gc.retry_later import RetryLater
from tierlog.actors.gc.rules import Garbage


def garbage(number: int) -> Garbage:
    return Garbage(f"name-{number}", 0.0)


def test_names_come_back_together_when_its_round_is_due() -> None:
    later = RetryLater(300.0, 3600.0, 10)
    assert later.due == math.inf
    assert later.add(garbage(1), 1000.0)
    assert later.add(garbage(2), 1200.0)

    assert later.due == 1300.0
    assert [*later.take(1299.0)] == []
    assert [*later.take(1300.0)] == [garbage(1), garbage(2)]
    assert (len(later), later.due) == (0, math.inf)


def test_g2_the_pause_doubles_up_to_its_maximum_while_every_deletion_fails() -> None:
    later = RetryLater(300.0, 3600.0, 10)
    pauses, now = [], 0.0
    for _ in range(6):
        later.add(garbage(1), now)
        pauses.append(later.due - now)
        now = later.due
        later.take(now)

    assert pauses == [300.0, 600.0, 1200.0, 2400.0, 3600.0, 3600.0]


def test_a_delete_that_works_brings_the_next_round_near() -> None:
    later = RetryLater(300.0, 3600.0, 10)
    for _ in range(5):
        later.add(garbage(1), 0.0)
        later.take(later.due)
    later.add(garbage(1), 0.0)
    assert later.due == 3600.0

    later.reset_pause(100.0)
    assert later.due == 400.0
    later.reset_pause(200.0)
    assert later.due == 400.0, "more of them do not put it off"


def test_no_more_names_are_kept_than_there_is_room_for() -> None:
    later = RetryLater(300.0, 3600.0, 2)

    assert [later.add(garbage(number), 0.0) for number in range(4)] == [True, True, False, False]
    assert len(later) == 2
