"""Days of fleets in virtual time: real supervisors, simulated hosts, every loss (rules V1 to V14)."""

from __future__ import annotations

import attrs
import pytest
from simulation.fleets.hosts import Violation
from simulation.fleets.mutants import FLEET_MUTANTS
from simulation.fleets.scenario import RACK_LOST, Report, run_fleet
from simulation.fleets.world import FULL, SMALL, Episode

from support.patience import scaled


def untimed(report: Report) -> list[Episode]:
    return [attrs.evolve(episode, worst_step=0.0, cpu=0.0) for episode in report.episodes]


@pytest.mark.parametrize("seed", range(2))
def test_after_every_event_of_a_day_each_container_has_one_owner_again(seed: int) -> None:
    report = run_fleet(seed, SMALL, rolled=1)
    assert len(report.episodes) == 9
    assert report.refused > 0, "no fenced owner has tried to append"


@pytest.mark.extended
@pytest.mark.parametrize("seed", range(2, 10))
def test_after_every_event_of_other_days_too(seed: int) -> None:
    run_fleet(seed, SMALL, rolled=6)


@pytest.mark.extended
def test_two_hundred_hosts_with_twenty_thousand_containers_have_such_a_day() -> None:
    report = run_fleet(1, FULL, rolled=20)
    worst = max(report.episodes, key=lambda episode: episode.worst_step)
    # Longer, and the supervisor would find its hosts silent, if it did not know that it was late (V7).
    assert worst.worst_step < scaled(2.0), worst


@pytest.mark.extended
def test_a_seed_decides_everything() -> None:
    first, second = (untimed(run_fleet(7, SMALL, only=[RACK_LOST])) for _ in range(2))
    assert first == second
    assert first != untimed(run_fleet(8, SMALL, only=[RACK_LOST]))


@pytest.mark.parametrize("name", FLEET_MUTANTS)
def test_planted_bugs_are_caught(name: str) -> None:
    mutant, event = FLEET_MUTANTS[name]
    with mutant.planted(), pytest.raises(Violation):
        run_fleet(1, SMALL, only=[event])
