"""One seed: it ends with a verdict, the same one every time, and what is broken on purpose is found."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from functools import cache
from random import Random
from unittest import mock

import attrs
import pytest
import trio
from simulation.clients import WrongAnswer
from simulation.compound_faults import CompoundFaults
from simulation.configuration import TooManyConfigurations
from simulation.linearize import Checker
from simulation.plan import COMPOUND, FaultKind, Plan, PlannedFault
from simulation.planner import make_plan
from simulation.run import run_plan, run_seed
from simulation.settings import WalKind
from simulation.verdict import Verdict

SEEDS = range(3)


@cache
def verdict_of(seed: int) -> Verdict:
    return run_seed(seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_seed_finds_nothing_wrong(seed: int) -> None:
    verdict = verdict_of(seed)
    assert verdict.violation is None, verdict.violation
    assert verdict.counts["answered"] > 20
    assert verdict.simulated_seconds > 600


def test_runs_print_nothing() -> None:
    """Not even of what killed processes left half-run, when it is collected."""
    program = (
        "import gc, logging; logging.getLogger('tierlog').addHandler(logging.NullHandler())\n"
        "from simulation.run import run_seed\n"
        f"assert not any(run_seed(seed).violation for seed in {(SEEDS[0], 20793)})\n"
        "gc.collect()\n"
    )
    environment = {**os.environ, "PYTHONDEVMODE": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert ran.stdout + ran.stderr == ""


@pytest.mark.parametrize("seeds", [range(1), pytest.param(range(1, 9), marks=pytest.mark.extended)], ids=str)
@pytest.mark.parametrize(
    "kind",
    [
        *COMPOUND[::3],
        *(pytest.param(kind, marks=pytest.mark.extended) for kind in COMPOUND if kind not in COMPOUND[::3]),
    ],
)
def test_a_compound_fault_happens_and_finds_nothing(kind: FaultKind, seeds: range) -> None:
    happened = 0
    for seed in seeds:
        counts = counts_with(kind, make_plan(seed, 140))
        happened += counts["faults"] + counts.get("zombies", 0)
    assert happened > 0


def counts_with(kind: FaultKind, plan: Plan) -> Mapping[str, int]:
    """The counts of a run with faults of this kind only, which finds nothing."""
    numbers = [action.number for action in plan.actions[10::15]]
    faults = [PlannedFault(number, kind, 1, 1.0, number) for number in numbers]
    verdict = run_plan(attrs.evolve(plan, faults=tuple(faults)))
    assert verdict.violation is None, verdict.violation
    assert verdict.counts[kind.value] > 5
    return verdict.counts


@pytest.mark.parametrize(
    "wal",
    [wal if wal is WalKind.DISK else pytest.param(wal, marks=pytest.mark.extended) for wal in WalKind],
)
def test_a_container_whose_raise_of_the_epoch_fails_has_a_successor(wal: WalKind) -> None:
    plan = next(plan for seed in range(20) if (plan := make_plan(seed, 140)).site.wal is wal)
    assert counts_with(FaultKind.FAILED_RAISE, plan)["zombies"] > 0


def test_a_first_opening_fails_and_power_is_lost_when_that_is_long_past() -> None:
    for seed in range(12):
        plan = make_plan(seed, 160)
        birth = PlannedFault(1, FaultKind.FIRST_OPENING, 1, 1.0, seed)
        verdict = run_plan(attrs.evolve(plan, actions=plan.actions[1:], faults=(birth,)))
        assert verdict.violation is None, verdict.violation
        births = verdict.counts.get("failed births", 0)
        assert verdict.counts.get("power_losses", 0) >= births
        if births:
            return
    pytest.fail("no first opening failed")


def test_transactions_are_committed_and_end_by_themselves() -> None:
    counts: Counter[str] = Counter()
    for seed in range(8):
        counts.update(verdict_of(seed).counts)
        if counts["transactions committed"] > 20 and counts["transactions expired"] > 5:
            return
    pytest.fail(f"too few transactions ended: {counts}")


def test_a_violation_beside_a_frozen_process_ends_the_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that stand still in a frozen process do not let go when they are cancelled; only its death ends
    them."""
    plan = make_plan(4)
    frozen = [
        PlannedFault(action.number, FaultKind.FREEZE_AT_WRITE, 1, 1e6, action.number)
        for action in plan.actions[10::15]
    ]
    real = CompoundFaults._freeze_at_a_write
    calls: list[float] = []

    async def fail(self: CompoundFaults, fault: PlannedFault, random: Random) -> None:
        await real(self, fault, random)
        if any(process.frozen for process in self._site.processes):
            calls.append(trio.current_time())
            raise WrongAnswer("on purpose")

    monkeypatch.setattr(CompoundFaults, "_freeze_at_a_write", fail)
    verdict = run_plan(attrs.evolve(plan, faults=tuple(frozen)))
    assert verdict.violation == "WrongAnswer: on purpose"
    assert len(calls) == 1
    assert verdict.simulated_seconds < 1000


def test_a_run_can_leave_steps_out() -> None:
    whole = verdict_of(0)
    part = run_seed(0, keep=whole.steps[::2])
    assert part.violation is None
    assert part.steps == whole.steps[::2]


def test_a_run_that_exceeds_the_checkers_budget_is_counted_and_no_violation() -> None:
    def give_up(checker: object, configurations: object) -> None:
        raise TooManyConfigurations("too many orders")

    with mock.patch.object(Checker, "_keep", give_up):
        verdict = run_seed(1, operations=20)
    assert verdict.violation is None
    assert verdict.counts["undecided"] == 1
    assert "undecided" not in run_seed(1, operations=20).counts
