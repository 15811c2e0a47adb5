"""Worlds with graceful ends: the simulator finds nothing, and finds what is planted."""

from __future__ import annotations

import pytest
from simulation.mutants.catalogue import CATALOGUE
from simulation.run import run_seed

LISTED, MANY, LATE = 53, 216, 247
"""A seed whose ends leave something, one with many, and one in which calls are accepted during an end."""


@pytest.mark.parametrize(
    "seed", [177, *(pytest.param(seed, marks=pytest.mark.extended) for seed in (MANY, LATE))]
)
def test_worlds_with_graceful_ends_find_nothing(seed: int) -> None:
    verdict = run_seed(seed)

    assert verdict.violation is None
    assert verdict.counts["graceful ends"] > 1


def test_an_end_that_does_not_say_what_it_leaves_is_caught() -> None:
    with CATALOGUE["end-says-that-everything-was-flushed"].planted():
        assert run_seed(LISTED).violation
