"""Worlds whose store is in a bucket: the simulator finds nothing, and finds what is planted."""

from __future__ import annotations

from collections import Counter

import attrs
import pytest
from simulation.mutants.catalogue import CATALOGUE
from simulation.plan import FaultKind, PlannedFault
from simulation.planner import make_plan
from simulation.run import run_plan, run_seed
from simulation.settings import ChunksKind, WalKind
from simulation.special_seeds import FIRST_IN_BUCKET


def test_about_every_eighth_seed_and_all_from_one_on_have_their_store_in_a_bucket() -> None:
    sites = [make_plan(seed, 20).site for seed in range(400)]
    buckets = [site for site in sites if site.wal is WalKind.BUCKET]
    assert 35 < len(buckets) < 70
    buckets += [make_plan(seed, 20).site for seed in range(FIRST_IN_BUCKET, FIRST_IN_BUCKET + 20)]
    assert {(site.wal, site.chunks) for site in buckets} == {(WalKind.BUCKET, ChunksKind.OBJECTS)}


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.extended) for seed in range(1, 9))]
)
def test_worlds_in_a_bucket_find_nothing(seed: int) -> None:
    verdict = run_seed(FIRST_IN_BUCKET + seed)

    assert verdict.violation is None
    assert verdict.counts["faults"]


def test_a_first_opening_in_a_bucket_is_met_by_the_next_one() -> None:
    counts: Counter[str] = Counter()
    for seed in range(3):
        plan = make_plan(FIRST_IN_BUCKET + seed, 20)
        birth = PlannedFault(1, FaultKind.FIRST_OPENING, 1, 1.0, seed)
        verdict = run_plan(attrs.evolve(plan, actions=plan.actions[1:], faults=(birth,), beside=()))
        assert verdict.violation is None, verdict.violation
        counts.update(verdict.counts)
    assert counts["faults"] >= 2


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        pytest.param("register-is-raised-behind-the-fence", 24, marks=pytest.mark.extended),
        ("lost-slot-is-the-end", 16),
        ("fences-are-swept", 22),
        pytest.param("register-is-not-read-after-the-fence", 24, marks=pytest.mark.extended),
        pytest.param("group-is-acked-before-those-below", 39, marks=pytest.mark.extended),
        pytest.param("unknown-outcome-counts-as-success", 20, marks=pytest.mark.extended),
        ("sweep-deletes-a-live-slot", 0),
        pytest.param("reader-begins-below-the-low", 0, marks=pytest.mark.extended),
        ("what-others-left-is-not-swept", 5),
        ("small-groups-make-no-checkpoint-due", 25),
        pytest.param("put-replaces-what-is-there", 7, marks=pytest.mark.extended),
        pytest.param("fence-leaves-the-next-slot-free", 1, marks=pytest.mark.extended),
        pytest.param("objects-are-deleted-before-the-low-is-raised", 1, marks=pytest.mark.extended),
    ],
)
def test_a_bug_of_the_log_in_a_bucket_is_caught(name: str, seed: int) -> None:
    with CATALOGUE[name].planted():
        assert run_seed(FIRST_IN_BUCKET + seed).violation
