"""Names whose deletion failed too often: rounds ever farther apart, until one delete works (rule G2)."""

from __future__ import annotations

import math

from tierlog.actors.gc.retry_later import RetryLater
from tierlog.actors.gc.rules import Garbage


def garbage(number: int) -> Garbage:
    return Garbage(f"name-{number}", 0.0, 0)


def test_what_was_set_aside_comes_back_together_when_its_round_is_due() -> None:
    aside = RetryLater(300.0, 3600.0, 10)
    assert aside.due == math.inf
    assert aside.add(garbage(1), 1000.0)
    assert aside.add(garbage(2), 1200.0)

    assert aside.due == 1300.0
    assert aside.take(1299.0) == []
    assert aside.take(1300.0) == [garbage(1), garbage(2)]
    assert (len(aside), aside.due) == (0, math.inf)


def test_the_pause_doubles_up_to_its_most_while_nothing_goes() -> None:
    aside = RetryLater(300.0, 3600.0, 10)
    pauses, now = [], 0.0
    for _ in range(6):
        aside.add(garbage(1), now)
        pauses.append(aside.due - now)
        now = aside.due
        aside.take(now)

    assert pauses == [300.0, 600.0, 1200.0, 2400.0, 3600.0, 3600.0]


def test_a_delete_that_works_brings_the_next_round_near() -> None:
    aside = RetryLater(300.0, 3600.0, 10)
    for _ in range(5):
        aside.add(garbage(1), 0.0)
        aside.take(aside.due)
    aside.add(garbage(1), 0.0)
    assert aside.due == 3600.0

    aside.storage_is_well(100.0)
    assert aside.due == 400.0
    aside.storage_is_well(200.0)
    assert aside.due == 400.0, "more of them do not put it off"


def test_no_more_names_are_kept_than_there_is_room_for() -> None:
    aside = RetryLater(300.0, 3600.0, 2)

    assert [aside.add(garbage(number), 0.0) for number in range(4)] == [True, True, False, False]
    assert len(aside) == 2
