"""Worlds with readers of long-term storage itself: the simulator finds nothing, and finds what is planted."""

from __future__ import annotations

import pytest
from simulation.mutants.catalogue import CATALOGUE
from simulation.run import run_seed

HELD = 1
"""A seed whose readers meet truncations and deletions."""


@pytest.mark.parametrize(
    "seed", [HELD, *(pytest.param(seed, marks=pytest.mark.extended) for seed in (4, 78, 81, 116, 130))]
)
def test_worlds_with_readers_find_nothing(seed: int) -> None:
    verdict = run_seed(seed)

    assert verdict.violation is None
    assert verdict.counts["layouts that were valid"] > 5
    if seed == HELD:
        assert verdict.counts["layouts whose chunks were gone"]
        assert verdict.counts["views that were held"]


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        ("garbage-does-not-wait", HELD),
        ("view-keeps-its-snapshot", HELD),
        pytest.param("layout-lacks-what-was-truncated-meanwhile", 78, marks=pytest.mark.extended),
    ],
)
def test_a_bug_that_readers_meet_is_caught(name: str, seed: int) -> None:
    with CATALOGUE[name].planted():
        assert run_seed(seed).violation
