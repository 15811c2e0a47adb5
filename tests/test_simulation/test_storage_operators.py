"""Worlds with an operator's orders to garbage collection, and with a file system that is full: the simulator
finds nothing, and finds what is planted."""

from __future__ import annotations

import pytest
from simulation.mutants.catalogue import CATALOGUE
from simulation.plan import FaultKind
from simulation.run import run_seed

PAUSED, PURGED, FULL = 14, 17, 156
"""Seeds whose last owner is paused, or has failed deletions purged, and one in which a full disk is freed."""


@pytest.mark.parametrize(
    ("seed", "met"),
    [
        (PAUSED, FaultKind.GC_ORDER),
        pytest.param(PURGED, FaultKind.GC_ORDER, marks=pytest.mark.extended),
        (FULL, FaultKind.FULL_DISK),
        pytest.param(46, FaultKind.FULL_DISK, marks=pytest.mark.extended),
    ],
)
def test_these_worlds_find_nothing(seed: int, met: FaultKind) -> None:
    verdict = run_seed(seed)

    assert verdict.violation is None
    assert verdict.counts[met.value]
    if seed == FULL:
        assert verdict.counts["segments truncated on a full disk"]


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        ("paused-collector-goes-on", PAUSED),
        ("reserve-is-never-used", FULL),
        pytest.param("purged-garbage-stays", PURGED, marks=pytest.mark.extended),
    ],
)
def test_a_bug_is_caught(name: str, seed: int) -> None:
    with CATALOGUE[name].planted():
        assert run_seed(seed).violation
