"""Worlds of supervisors: the simulator finds nothing, and finds what is planted."""

from __future__ import annotations

import pytest
from simulation.mutants.catalogue import CATALOGUE
from simulation.run import run_seed
from simulation.supervised import FIRST_SUPERVISED


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(first, marks=pytest.mark.extended) for first in (20, 40, 620))]
)
def test_worlds_of_supervisors_find_nothing(first: int) -> None:
    for seed in range(first, first + (30 if first else 10)):
        verdict = run_seed(FIRST_SUPERVISED + seed)
        assert verdict.violation is None, verdict.violation


def test_supervisors_are_in_buckets_and_in_folders() -> None:
    titles = {title for seed in (0, 2) for title in run_seed(FIRST_SUPERVISED + seed).counts}
    assert titles == {"supervisors of a store in a bucket", "supervisors of a store in a folder"}


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        ("own-record-is-not-recognised", 0),
        ("term-names-no-owner", 15),
        ("observer-waits-for-one-duration-only", 8),
        ("wall-clock-is-not-asked", 1),
        ("monotonic-clock-is-not-asked", 8),
        ("duration-counts-from-the-answer", 1),
        ("host-obeys-a-superseded-supervisor", 2),
        ("opening-does-not-wait-for-the-lease", 0),
        ("higher-term-ends-nobody", 0),
    ],
)
def test_a_bug_of_leases_or_terms_is_caught(name: str, seed: int) -> None:
    with CATALOGUE[name].planted():
        assert run_seed(FIRST_SUPERVISED + seed).violation
