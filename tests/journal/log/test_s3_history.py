"""Which objects of a log in a bucket count (rules L3, L5, L7), as a pure function."""

from __future__ import annotations

import pytest

from tierlog.journal.log.s3_history import Contradiction, Missing, S3History, read_history
from tierlog.journal.log.s3_slot import SlotHeader, SlotKind

ID = bytes(16)


def fence(slot: int, epoch: int, number: int) -> SlotHeader:
    return SlotHeader(SlotKind.FENCE, slot, epoch, ID, slot, slot + 16, number)


def group(slot: int, epoch: int, number: int, settled: int = 0) -> SlotHeader:
    return SlotHeader(SlotKind.GROUP, slot, epoch, ID, settled or slot, slot + 1, number)


def history(*headers: SlotHeader, low: int = 1) -> S3History | Missing | Contradiction:
    return read_history(low, {header.slot: header for header in headers})


def numbers(found: S3History | Missing | Contradiction) -> list[int]:
    assert isinstance(found, S3History)
    return [each.number for each in found.groups]


def test_a_new_log_begins_in_slot_one() -> None:
    found = history()

    assert isinstance(found, S3History)
    assert (numbers(found), found.end, found.next_group, found.epoch) == ([], 1, 1, 0)


def test_l3_an_owner_goes_on_behind_the_slots_that_its_fence_leaves_out() -> None:
    found = history(fence(1, 1, 1), group(17, 1, 1), group(18, 1, 2), fence(19, 2, 3), group(35, 2, 3))

    assert isinstance(found, S3History)
    assert (numbers(found), found.end, found.next_group, found.epoch) == ([1, 2, 3], 36, 4, 2)
    assert found.void == []


def test_l3_what_a_fenced_owner_had_under_way_is_void() -> None:
    under_way = [group(20, 1, 4, settled=18), group(21, 1, 5, settled=18)]
    found = history(
        fence(1, 1, 1), group(17, 1, 1), group(18, 1, 2), *under_way, fence(19, 2, 3), group(35, 2, 3)
    )

    assert numbers(found) == [1, 2, 3]
    assert isinstance(found, S3History)
    assert found.void == [20, 21]


def test_l5_a_gap_in_front_of_what_is_under_way_is_the_end() -> None:
    found = history(fence(1, 1, 1), group(17, 1, 1), group(19, 1, 3, settled=18))

    assert isinstance(found, S3History)
    assert (numbers(found), found.end, found.void) == ([1], 18, [19])


@pytest.mark.parametrize("later", [group(19, 1, 3, settled=19), fence(19, 2, 3), group(40, 3, 9)])
def test_l5_a_gap_in_front_of_what_came_after_it_was_settled_is_a_loss(later: SlotHeader) -> None:
    assert history(fence(1, 1, 1), group(17, 1, 1), later) == Missing(18)


def test_l7_a_truncated_log_begins_at_a_group_with_any_number() -> None:
    found = history(group(40, 3, 9), group(41, 3, 10), fence(42, 4, 11), low=40)

    assert numbers(found) == [9, 10]
    assert isinstance(found, S3History)
    assert (found.end, found.next_group, found.epoch) == (58, 11, 4)


def test_l7_a_truncated_log_without_its_first_group_is_a_loss() -> None:
    assert history(low=40) == Missing(40)
    assert history(group(41, 3, 10), low=40) == Missing(40)
    assert isinstance(history(fence(40, 3, 9), low=40), Contradiction)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (group(18, 1, 3), "number"),
        (group(18, 2, 2), "has no fence"),
        (fence(18, 1, 2), "is not above"),
        (fence(18, 2, 3), "number"),
    ],
)
def test_l3_what_no_owner_can_have_put_there_is_a_contradiction(wrong: SlotHeader, why: str) -> None:
    found = history(fence(1, 1, 1), group(17, 1, 1), wrong)

    assert isinstance(found, Contradiction)
    assert found.slot == 18
    assert why in found.why
