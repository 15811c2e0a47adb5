"""A failing plan becomes as small as it can: what is left still fails, and no step of it can be left out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulation.shrink import Steps, format_steps, kind_of, parse_steps, shrink

STEPS = tuple(range(1, 201))


def needing(*steps: int) -> Callable[[Steps], bool]:
    return lambda kept: set(steps) <= set(kept)


def test_only_the_steps_that_are_needed_are_left() -> None:
    assert shrink(STEPS, needing(7, 8, 150)) == (7, 8, 150)


def test_a_failure_that_needs_no_step_is_left_with_none() -> None:
    """Such as a store that cannot even open."""
    assert shrink(STEPS, lambda kept: True) == ()


@given(needed=st.sets(st.integers(1, 60), max_size=8))
def test_it_finds_exactly_what_is_needed_wherever_that_stands(needed: set[int]) -> None:
    assert shrink(range(1, 61), needing(*needed)) == tuple(sorted(needed))


@given(ways=st.lists(st.frozensets(st.integers(1, 30), min_size=1, max_size=5), min_size=1, max_size=4))
def test_none_of_what_is_left_can_be_left_out_even_if_there_are_several_ways_to_fail(
    ways: list[frozenset[int]],
) -> None:
    def fails(kept: Steps) -> bool:
        return any(way <= set(kept) for way in ways)

    left = shrink(range(1, 31), fails)

    assert fails(left)
    assert not any(fails(left[:at] + left[at + 1 :]) for at in range(len(left)))


def test_steps_that_are_only_needed_as_a_pair_are_cut_as_a_pair() -> None:
    """A step may undo another: neither can be cut alone, both can."""
    left = shrink(range(1, 65), lambda kept: 5 in kept and (31 in kept) == (32 in kept))

    assert left == (5,)


def test_no_steps_are_tried_twice() -> None:
    tried: list[Steps] = []

    def fails(kept: Steps) -> bool:
        tried.append(kept)
        return needing(3, 60, 61, 199)(kept)

    shrink(STEPS, fails)

    assert len(tried) == len(set(tried)) < 150


def test_the_search_takes_the_same_way_every_time() -> None:
    def way() -> list[Steps]:
        tried: list[Steps] = []

        def fails(kept: Steps) -> bool:
            tried.append(kept)
            return needing(20, 90)(kept)

        shrink(STEPS, fails)
        return tried

    assert way() == way()


def test_a_search_that_is_given_up_leaves_what_still_fails() -> None:
    runs = 0

    def fails(kept: Steps) -> bool:
        nonlocal runs
        runs += 1
        return needing(7, 150)(kept)

    left = shrink(STEPS, fails, lambda: runs >= 5)

    assert runs == 5
    assert needing(7, 150)(left)
    assert len(left) < len(STEPS)


@given(st.sets(st.integers(0, 300)))
def test_steps_are_read_as_they_are_written(steps: set[int]) -> None:
    assert parse_steps(format_steps(steps)) == tuple(sorted(steps))


def test_neighbours_are_written_as_ranges() -> None:
    assert format_steps((31, 3, 7, 20, 21, 22, 30)) == "3,7,20-22,30-31"
    assert parse_steps(" 3, 7,20-22 ,30-31,") == (3, 7, 20, 21, 22, 30, 31)


@pytest.mark.parametrize("text", ["x", "3-", "-3", "5-4", "3..7", "1-99999999999"])
def test_what_names_no_steps_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="steps"):
        parse_steps(text)


def test_a_violation_is_the_same_kind_at_other_offsets_and_times() -> None:
    first = kind_of("segment 'app/a' lost 12 bytes at offset 400 of deadbeef01\nat 17.25 s")

    assert first == kind_of("segment 'app/b' lost 7 bytes at offset 3 of 0123456789ab\nsomewhere else")
    assert first != kind_of("segment 'app/a' has 12 bytes too many at offset 400 of deadbeef01")
    assert kind_of("#14 to owner 1 (fenced): Create(name='a', size=None)") == kind_of(
        "#2 to owner 3 (fenced): Create(name='b', size=9)"
    )
    assert kind_of("#14 to owner 1 (fenced): Create(name='a', size=None)") != kind_of(
        "#2 to owner 3: Create(name='b', size=9)"
    )
    assert kind_of("") == ""
