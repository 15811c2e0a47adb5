"""The simulator as a command: ``scripts/simulate``, ``tierlog simulate`` and ``python -m simulation`` all
come here.

Owns: what a set of options amounts to (a campaign, a replay, a run over planted bugs), and the exit code.
Does not own: how the options are written on a command line (``actors/cli/simulate.py``).

Exit codes: 0 nothing found, 1 a violation, 130 Ctrl-C, after a verdict over what was done until then and with
all processes ended.
"""

from __future__ import annotations

from pathlib import Path

import attrs

from .campaign import SEED_SECONDS_MAX, Terms, fresh_base, processors, run_campaign
from .mutants.catalogue import CATALOGUE
from .mutants.report import show_score
from .mutants.score import Terms as ScoreTerms
from .replay import ReplayOptions, replay
from .report import OPERATIONS, CampaignReport
from .run import run_seed
from .shrink import Steps
from .workers import Runner, WorkersCannotStart

__all__ = ["SHRINK_SECONDS", "Request", "WorkersCannotStart", "run"]

FOUND_NOTHING, FOUND, INTERRUPTED = 0, 1, 130
SHRINK_SECONDS = 60.0
MUTANT_SEEDS = 2000
"""For each mutant, if no number is given."""
_DEFAULT_MINUTES = 1.0


@attrs.frozen(kw_only=True)
class Request:
    """The options, as they were given."""

    seed: int | None = None
    keep: Steps | None = None
    shrink_seconds: float = SHRINK_SECONDS
    trace: Path | None = None
    seeds: tuple[int, int] | None = None
    """The first seed, and how many."""
    count: int | None = None
    minutes: float | None = None
    failures: Path | None = None
    stop_at_first: bool = False
    mutants: bool = False
    jobs: int | None = None
    operations: int = OPERATIONS
    seed_seconds: float = SEED_SECONDS_MAX
    quiet: bool = False
    json: bool = False


def run(request: Request, runner: Runner = run_seed) -> int:
    """Carry it out; returns the exit code. ``OSError`` if a file that was named cannot be written,
    ``WorkersCannotStart``."""
    if request.mutants:
        return _score(request)
    return _campaign(request, runner) if request.seed is None else _replay(request, request.seed, runner)


def _score(request: Request) -> int:
    """Every mutant runs the same seeds, so that two scores can be compared."""
    first, count = request.seeds or (0, request.count or MUTANT_SEEDS)
    terms = ScoreTerms(
        tuple(CATALOGUE.values()),
        first=first,
        seeds=count,
        seconds=None if request.minutes is None else request.minutes * 60,
        jobs=request.jobs or processors(),
        operations=request.operations,
    )
    return show_score(terms, quiet=request.quiet, as_json=request.json)


def _campaign(request: Request, runner: Runner) -> int:
    terms = _terms(request)
    report = CampaignReport(terms, quiet=request.quiet, as_json=request.json, failures_file=request.failures)
    with report.shown():
        tally = run_campaign(terms, runner, report.heard)
    report.ended(tally)
    if tally.interrupted:
        return INTERRUPTED
    return FOUND if tally.failures else FOUND_NOTHING


def _terms(request: Request) -> Terms:
    first, count = request.seeds or (fresh_base(), request.count)
    minutes = _DEFAULT_MINUTES if count is None and request.minutes is None else request.minutes
    return Terms(
        first=first,
        count=count,
        seconds=None if minutes is None else minutes * 60,
        jobs=request.jobs or processors(),
        operations=request.operations,
        stop_at_first=request.stop_at_first,
        seed_seconds_max=request.seed_seconds,
    )


def _replay(request: Request, seed: int, runner: Runner) -> int:
    terms = ReplayOptions(
        seed=seed,
        operations=request.operations,
        keep=request.keep,
        seed_seconds_max=request.seed_seconds,
        shrink_seconds=request.shrink_seconds,
        trace_file=request.trace,
        quiet=request.quiet,
        as_json=request.json,
    )
    try:
        verdict, shrunk = replay(terms, runner)
    except KeyboardInterrupt:
        return INTERRUPTED
    if shrunk is not None and shrunk.interrupted:
        return INTERRUPTED
    return FOUND_NOTHING if verdict.violation is None else FOUND
