"""Worlds whose log is in ledgers: the simulator finds nothing, and finds what is planted."""

from __future__ import annotations

import attrs
import pytest
from simulation.mutants.catalogue import CATALOGUE
from simulation.plan import FaultKind, PlannedFault
from simulation.planner import make_plan
from simulation.run import run_plan, run_seed
from simulation.settings import WalKind
from simulation.special_seeds import FIRST_ON_LEDGERS


def test_some_seeds_and_all_from_one_on_have_their_log_in_ledgers() -> None:
    sites = [make_plan(seed, 20).site for seed in range(400)]
    assert 10 < sum(site.wal is WalKind.LEDGERS for site in sites) < 40
    assert {make_plan(FIRST_ON_LEDGERS + seed, 20).site.wal for seed in range(20)} == {WalKind.LEDGERS}


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.extended) for seed in (0, 2, 3, 4, 5))]
)
def test_worlds_in_ledgers_find_nothing(seed: int) -> None:
    verdict = run_seed(FIRST_ON_LEDGERS + seed, operations=120)

    assert verdict.violation is None
    assert verdict.counts["faults"]


def test_a_first_opening_in_ledgers_is_met_by_the_next_one() -> None:
    for seed in (1, 3):
        plan = make_plan(FIRST_ON_LEDGERS + seed, 20)
        birth = PlannedFault(1, FaultKind.FIRST_OPENING, 1, 1.0, seed)
        verdict = run_plan(attrs.evolve(plan, actions=plan.actions[1:], faults=(birth,), beside=()))
        assert verdict.violation is None, verdict.violation


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        ("ledgers-are-opened-without-recovery", 0),
        pytest.param("ledgers-are-deleted-before-the-record-is-put", 1, marks=pytest.mark.extended),
        pytest.param("next-ledger-is-not-listed", 1, marks=pytest.mark.extended),
        pytest.param("orphans-are-not-looked-for", 1, marks=pytest.mark.extended),
        pytest.param("confirmation-asks-nobody", 0, marks=pytest.mark.extended),
        pytest.param("record-without-a-verdict-counts-as-put", 24, marks=pytest.mark.extended),
    ],
)
def test_a_bug_of_the_log_in_ledgers_is_caught(name: str, seed: int) -> None:
    with CATALOGUE[name].planted():
        assert run_seed(FIRST_ON_LEDGERS + seed).violation
