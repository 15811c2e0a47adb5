"""The simulator finds nothing: in the seeds of bugs that it once found, in standing ones, and in fresh ones.

Fresh seeds are others every time, and so for ``--long`` only: a run of continuous integration is about a
change. A failure names the seed and the command that replays it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from simulation.campaign import CampaignOptions, Tally, fresh_base, run_campaign
from simulation.report import COMMAND_VARIABLE, OPERATIONS, replay_command
from simulation.run import run_seed
from simulation.shrink import parse_steps
from simulation.verdict import Verdict
from simulation.workers import Job, WorkerPool

from support.patience import scaled

SEEDS = tomllib.loads((Path(__file__).parent / "seeds.toml").read_text(encoding="utf-8"))
FOUND: list[dict[str, Any]] = SEEDS.get("found", [])
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "simulation.md"
PARTS = 8
"""Tests run in parallel, so the fresh seeds are several tests."""
PAIRS = range(SEEDS["standing"]["count"] // 2)
"""Pairs of standing seeds; the default set runs the first pair."""
FRESH_SECONDS = 150.0
SEED_SECONDS_MAX = 40.0


@pytest.fixture(autouse=True)
def script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(COMMAND_VARIABLE, "scripts/simulate")


def run(first: int, *, count: int | None = None, seconds: float | None = None) -> None:
    tally = run_campaign(
        CampaignOptions(first, count, seconds, jobs=1, seed_seconds_max=scaled(SEED_SECONDS_MAX)),
        run_seed,
        nobody,
    )

    assert tally.seeds > 0
    if tally.failures:
        pytest.fail("\n\n".join(report(verdict) for verdict in tally.failures), pytrace=False)


def nobody(verdict: Verdict, tally: Tally) -> None:
    pass


def report(verdict: Verdict, operations: int = OPERATIONS) -> str:
    return (
        f"seed {verdict.seed} fails: {verdict.violation}\nreplay it: "
        f"{replay_command(verdict.seed, operations)}"
    )


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    """A run that hangs ends in a process of its own."""
    with WorkerPool(run_seed, 1, scaled(SEED_SECONDS_MAX)) as pool:
        yield pool


@pytest.mark.parametrize("entry", FOUND, ids=[str(entry["seed"]) for entry in FOUND])
def test_a_seed_that_once_found_a_bug_finds_nothing(entry: dict[str, Any], pool: WorkerPool) -> None:
    operations = entry.get("operations", OPERATIONS)
    keep = parse_steps(entry["keep"]) if "keep" in entry else None
    verdict = pool.run_one(Job(entry["seed"], operations, keep))

    if verdict.violation is not None:
        pytest.fail(f"{report(verdict, operations)}\nit once was: {entry['story']}", pytrace=False)


@pytest.mark.parametrize(
    "pair", [pytest.param(pair, marks=pytest.mark.extended if pair else ()) for pair in PAIRS]
)
def test_standing_seeds_find_nothing(pair: int) -> None:
    run(SEEDS["standing"]["first"] + 2 * pair, count=2)


@pytest.mark.long
@pytest.mark.timeout(FRESH_SECONDS + 2 * SEED_SECONDS_MAX)
@pytest.mark.parametrize("part", range(PARTS))
def test_fresh_seeds_find_nothing(part: int) -> None:
    run(fresh_base(), seconds=FRESH_SECONDS)


def test_every_found_seed_has_its_story_in_the_document() -> None:
    document = DOCUMENT.read_text(encoding="utf-8")

    assert [entry["seed"] for entry in FOUND if f"| {entry['seed']} " not in document] == []
