"""The mutation score: how many of the planted bugs the simulator finds, in how many seeds.

Each mutant runs the same seeds, in worker processes of its own, until one fails. A failing seed counts only
if the product without a bug passes it; otherwise that is a finding about the product, and the mutant goes on.

Exit codes: 0 the goal is reached, 1 it is not, 130 Ctrl-C; what was known until then is printed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from functools import partial

import attrs

from tierlog.actors.cli import output

from ..report import first_line, replay_command
from ..run import run_seed
from ..verdict import Verdict
from ..workers import Job, Runner, WorkerPool
from .catalogue import CATALOGUE
from .planting import Mutant

GOAL = 0.95
SEED_SECONDS_MAX = 60.0
REACHED, NOT_REACHED, INTERRUPTED = 0, 1, 130
_VIOLATION_CHARACTERS = 90


@attrs.frozen
class ScoreOptions:
    """What a score is about."""

    mutants: Sequence[Mutant]
    first: int
    """The first seed."""
    seeds: int
    """For each mutant, at most."""
    seconds: float | None
    """For all of it; None: no end but that of the seeds."""
    jobs: int
    operations: int = 200
    runner: Runner = run_seed


@attrs.define
class Result:
    """What is known of one mutant."""

    mutant: Mutant
    seeds: int = 0
    """Run so far; of a caught one, those it took."""
    caught_by: Verdict | None = None
    seconds: float = 0.0

    @property
    def violation(self) -> str:
        return "" if self.caught_by is None else first_line(self.caught_by.violation)


@attrs.define
class Score:
    results: list[Result]
    sound_fails: dict[int, str] = attrs.Factory(dict)
    """Seeds that fail without a bug, and how."""
    interrupted: bool = False

    @property
    def caught(self) -> int:
        return sum(result.caught_by is not None for result in self.results)

    @property
    def share(self) -> float:
        return self.caught / len(self.results)

    @property
    def exit_code(self) -> int:
        if self.interrupted:
            return INTERRUPTED
        return REACHED if self.share >= GOAL and not self.sound_fails else NOT_REACHED


def run_planted(runner: Runner, name: str, seed: int, **arguments: object) -> Verdict:
    """One seed, with a bug planted in this process."""
    with CATALOGUE[name].planted():
        return runner(seed, **arguments)


def show_score(options: ScoreOptions, *, quiet: bool = False, as_json: bool = False) -> int:
    """Run all of it and print it; returns the exit code."""
    score = Score([Result(mutant) for mutant in options.mutants])
    end = None if options.seconds is None else time.monotonic() + options.seconds
    try:
        with WorkerPool(options.runner, 1, SEED_SECONDS_MAX) as sound:
            for result in score.results:
                _run(options, score, result, sound, end)
                if as_json:
                    output.print_lines([json.dumps(_record(result), ensure_ascii=False)])
                elif not quiet:
                    output.print_lines([_line(result)])
    except KeyboardInterrupt:
        score.interrupted = True
    _print_end(score, as_json=as_json)
    return score.exit_code


def _run(options: ScoreOptions, score: Score, result: Result, sound: WorkerPool, end: float | None) -> None:
    begin = time.monotonic()
    runner = partial(run_planted, options.runner, result.mutant.name)
    with WorkerPool(runner, options.jobs, SEED_SECONDS_MAX) as pool:
        for verdict in pool.run(_jobs(options, result.mutant, end)):
            result.seeds += 1
            if verdict.violation is not None and _passes(sound, Job(verdict.seed, options.operations), score):
                result.caught_by = verdict
                break
    result.seconds = time.monotonic() - begin


def _jobs(options: ScoreOptions, mutant: Mutant, end: float | None) -> Iterator[Job]:
    first = options.first + mutant.worlds_from
    for seed in range(first, first + options.seeds):
        if end is not None and time.monotonic() >= end:
            return
        yield Job(seed, options.operations)


def _passes(sound: WorkerPool, job: Job, score: Score) -> bool:
    verdict = sound.run_one(job)
    if verdict.violation is not None:
        score.sound_fails[job.seed] = first_line(verdict.violation)
    return verdict.violation is None


# --- what is printed ------------------------------------------------------------------------------


def _record(result: Result) -> dict[str, object]:
    caught = result.caught_by
    return {
        "mutant": result.mutant.name,
        "rule": result.mutant.rule,
        "story": result.mutant.story,
        "caught": caught is not None,
        "seeds": result.seeds,
        "seed": None if caught is None else caught.seed,
        "violation": None if caught is None else caught.violation,
        "seconds": round(result.seconds, 1),
    }


def _line(result: Result) -> str:
    found = result.violation[:_VIOLATION_CHARACTERS] or f"NOT CAUGHT: {result.mutant.story}"
    name, rule = result.mutant.name, result.mutant.rule
    return f"{rule:7} {name:52} {result.seeds:5,} seeds {result.seconds:5,.0f} s  {found}"


def _print_end(score: Score, *, as_json: bool) -> None:
    if as_json:
        summary = {
            "score": round(score.share, 4),
            "goal": GOAL,
            "caught": score.caught,
            "mutants": len(score.results),
            "fails_without_a_bug": {str(seed): line for seed, line in sorted(score.sound_fails.items())},
            "interrupted": score.interrupted,
        }
        output.print_lines([json.dumps(summary, ensure_ascii=False)])
        return

    lines: list[str] = []
    for seed, line in sorted(score.sound_fails.items()):
        lines += [f"seed {seed} fails without a bug: {line}", f"  replay it: {replay_command(seed)}"]
    lines += ["interrupted; until then:"] if score.interrupted else []
    total = len(score.results)
    lines.append(f"{score.caught} of {total} planted bugs caught: {score.share:.1%} (the goal is {GOAL:.0%})")
    output.print_lines(lines)
