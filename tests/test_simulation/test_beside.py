"""Worlds with an operator's defrag and calls that hang beside the writer: the simulator finds nothing, and
finds what is planted. None of the first standing seeds has either."""

from __future__ import annotations

import pytest
from simulation.mutants.catalogue import CATALOGUE
from simulation.plan import FaultKind
from simulation.run import run_seed

DEFRAGS, HANGS = 51, 97
"""Seeds without other faults; the second has both."""


@pytest.mark.parametrize(
    "seed", [DEFRAGS, HANGS, *(pytest.param(seed, marks=pytest.mark.extended) for seed in (39, 53, 68, 91))]
)
def test_worlds_beside_the_writer_find_nothing(seed: int) -> None:
    verdict = run_seed(seed)

    assert verdict.violation is None
    met = FaultKind.HANGING_CHUNK_CALL if seed == HANGS else FaultKind.DEFRAG
    assert verdict.counts[met.value] > 3


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        ("second-transaction-on-a-segment-is-refused", DEFRAGS),
        ("cycle-waits-for-a-call-that-hangs", HANGS),
    ],
)
def test_a_bug_that_shows_beside_the_writer_is_caught(name: str, seed: int) -> None:
    with CATALOGUE[name].planted():
        assert run_seed(seed).violation
