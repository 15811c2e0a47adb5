"""Worlds in which folders share long-term storage: the simulator finds nothing, and finds what is planted."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from simulation.copied_backups import FIRST_COPIED
from simulation.copies import FIRST, FIRST_LATER
from simulation.mutants.catalogue import CATALOGUE
from simulation.pinned import FIRST_PINNED
from simulation.recovered import FIRST_RECOVERED
from simulation.reopened import FIRST_REOPENED
from simulation.run import run_seed

SHOWN_FROM = {
    "foreign-element-is-adopted": 1,
    "versions-of-another-history-are-used-again": 1,
    "unconfirmed-container-collects": 3,
    "late-puts-are-not-looked-for": 15,
    "copies-of-two-histories-mix": 4,
    "recovery-forgets-the-logs-before": 6,
}
"""The worlds before take long and show nothing of the bug."""
WORLDS = (FIRST, FIRST_LATER, FIRST_REOPENED, FIRST_RECOVERED, FIRST_PINNED, FIRST_COPIED)
"""The first seeds of the worlds here. Bugs that show elsewhere are planted in the tests of those worlds."""


@pytest.mark.parametrize(
    "worlds",
    [(4, 5, 9, 10, 12, 13, 15), pytest.param(range(16), marks=pytest.mark.extended)],
    ids=["one of each kind", "more"],
)
def test_worlds_of_copied_folders_find_nothing(worlds: Sequence[int]) -> None:
    verdicts = [run_seed(FIRST + number) for number in worlds]

    assert [verdict.violation for verdict in verdicts if verdict.violation] == []
    assert len({story for verdict in verdicts for story in verdict.counts}) == 7


@pytest.mark.parametrize(
    "worlds",
    [(0, 3, 5), pytest.param(range(10), marks=pytest.mark.extended)],
    ids=["one of each kind", "more"],
)
def test_worlds_of_twins_of_adoptions_and_of_nested_merges_find_nothing(worlds: Sequence[int]) -> None:
    verdicts = [run_seed(FIRST_LATER + number) for number in worlds]

    assert [verdict.violation for verdict in verdicts if verdict.violation] == []
    assert len({story for verdict in verdicts for story in verdict.counts}) == 3


@pytest.mark.parametrize(
    "worlds",
    [(0, 1, 3, 4), pytest.param(range(14), marks=pytest.mark.extended)],
    ids=["one of each kind", "more"],
)
def test_worlds_of_hard_openings_find_nothing(worlds: Sequence[int]) -> None:
    verdicts = [run_seed(FIRST_REOPENED + number) for number in worlds]

    assert [verdict.violation for verdict in verdicts if verdict.violation] == []
    assert len({story for verdict in verdicts for story in verdict.counts}) == 4


@pytest.mark.parametrize("worlds", [range(8), pytest.param(range(40), marks=pytest.mark.extended)])
def test_worlds_that_lose_all_but_long_term_storage_find_nothing(worlds: Sequence[int]) -> None:
    verdicts = [run_seed(FIRST_RECOVERED + number) for number in worlds]

    assert [verdict.violation for verdict in verdicts if verdict.violation] == []


@pytest.mark.parametrize("worlds", [range(8), pytest.param(range(60), marks=pytest.mark.extended)])
def test_worlds_of_backups_that_are_made_removed_and_restored_find_nothing(worlds: Sequence[int]) -> None:
    verdicts = [run_seed(FIRST_PINNED + number) for number in worlds]

    assert [verdict.violation for verdict in verdicts if verdict.violation] == []


@pytest.mark.parametrize(
    "worlds",
    [(1, 3, 4, 5, 7, 12), pytest.param(range(60), marks=pytest.mark.extended)],
    ids=["short ones", "more"],
)
def test_worlds_of_backups_that_are_copied_elsewhere_find_nothing(worlds: Sequence[int]) -> None:
    verdicts = [run_seed(FIRST_COPIED + number) for number in worlds]

    assert [verdict.violation for verdict in verdicts if verdict.violation] == []


def test_a_world_of_copied_folders_is_the_same_again() -> None:
    assert run_seed(FIRST + 3).digest == run_seed(FIRST + 3).digest


BUGS = [mutant.name for mutant in CATALOGUE.values() if mutant.worlds_from in WORLDS]


@pytest.mark.parametrize(
    "name", [*BUGS[::2], *(pytest.param(name, marks=pytest.mark.extended) for name in BUGS[1::2])]
)
def test_a_bug_that_only_copied_folders_show_is_caught(name: str) -> None:
    mutant = CATALOGUE[name]
    with mutant.planted():
        numbers = range(SHOWN_FROM.get(name, 0), 60)
        assert any(run_seed(mutant.worlds_from + number).violation for number in numbers)
