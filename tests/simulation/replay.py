"""One seed again: run it, print the trace and the violation, and find the fewest steps that still fail.

The run is in a worker process, so that one that hangs or dies is reported like any other violation. Ctrl-C
during the search keeps what was found until then.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from tierlog.actors.cli import output

from .campaign import Tally
from .report import print_tally, replay_command
from .shrink import Steps, format_steps, kind_of, shrink
from .verdict import Verdict
from .workers import HUNG, Job, Runner, WorkerPool

_TRACE_LINES = 200
"""Lines of the end of a trace that are printed."""


@attrs.frozen
class ReplayOptions:
    seed: int
    operations: int
    keep: Steps | None
    seed_seconds_max: float
    shrink_seconds: float
    """0: the steps are left as they are."""
    trace_file: Path | None
    quiet: bool
    as_json: bool


@attrs.frozen
class Shrunk:
    steps: Steps
    runs: int
    is_smallest: bool
    """Whether the search came to its end."""
    interrupted: bool


def replay(options: ReplayOptions, runner: Runner) -> tuple[Verdict, Shrunk | None]:
    """Run the seed and print what it came to. ``OSError`` if the trace cannot be written, before anything is
    run."""
    if options.trace_file is not None:
        options.trace_file.write_text("", encoding="utf-8")
    with WorkerPool(runner, 1, options.seed_seconds_max) as pool:
        begin = time.monotonic()
        verdict = pool.run_one(
            Job(options.seed, options.operations, options.keep, full_trace=options.trace_file is not None)
        )
        seconds = time.monotonic() - begin
        if options.trace_file is not None:
            options.trace_file.write_text("".join(f"{line}\n" for line in verdict.trace), encoding="utf-8")
        if not options.as_json:
            _print_run(options, verdict, seconds)
        shrunk = (
            _shrink(options, pool, verdict)
            if verdict.violation is not None and verdict.steps and options.shrink_seconds
            else None
        )
    if options.as_json:
        output.print_lines([json.dumps(_as_record(options, verdict, shrunk), ensure_ascii=False)])
    elif shrunk is not None:
        _print_shrunk(options, verdict, shrunk)
    return verdict, shrunk


def _print_run(options: ReplayOptions, verdict: Verdict, seconds: float) -> None:
    if not options.quiet:
        shown = verdict.trace[-_TRACE_LINES:]
        output.print_lines(
            [
                f"the last {len(shown)} lines of the trace:",
                *shown,
                f"digest of the whole trace: {verdict.digest}",
                "",
            ]
        )
        tally = Tally(jobs=1, real_seconds=seconds)
        tally.add(verdict)
        print_tally(tally)
    if verdict.violation is None:
        output.print_lines([f"seed {options.seed}: 0 violations"])
    else:
        output.print_lines(f"seed {options.seed} fails: {verdict.violation}".split("\n"))


def _shrink(options: ReplayOptions, pool: WorkerPool, verdict: Verdict) -> Shrunk | None:
    """None if there is nothing to gain: a run that hangs would hang for most of the time that shrinking may
    take."""
    assert verdict.violation is not None
    kind = kind_of(verdict.violation)
    if verdict.violation.startswith(HUNG):
        return None
    attempt = _Attempt(options, pool, kind, _progress(options, len(verdict.steps)))
    best = shrink(verdict.steps, attempt, attempt.gives_up)
    return Shrunk(best, attempt.runs, is_smallest=not attempt.gives_up(), interrupted=attempt.interrupted)


class _Attempt:
    """Whether some steps still fail in the same way, and when to give up asking."""

    def __init__(
        self, options: ReplayOptions, pool: WorkerPool, kind: str, progress: Callable[[int, int], None]
    ) -> None:
        self._options = options
        self._pool = pool
        self._kind = kind
        self._progress = progress
        self._end = time.monotonic() + options.shrink_seconds
        self.runs = 0
        self.interrupted = False

    def __call__(self, steps: Steps) -> bool:
        self.runs += 1
        try:
            verdict = self._pool.run_one(Job(self._options.seed, self._options.operations, steps))
        except KeyboardInterrupt:
            self.interrupted = True
            return False
        fails = verdict.violation is not None and kind_of(verdict.violation) == self._kind
        if fails:
            self._progress(self.runs, len(steps))
        return fails

    def gives_up(self) -> bool:
        return self.interrupted or time.monotonic() >= self._end


def _progress(options: ReplayOptions, steps: int) -> Callable[[int, int], None]:
    def tell(runs: int, left: int) -> None:
        if not options.quiet:
            sys.stderr.write(f"shrinking: {left} of {steps} steps still fail, after {runs} runs\n")

    return tell


def _print_shrunk(options: ReplayOptions, verdict: Verdict, shrunk: Shrunk) -> None:
    less = (
        "none of them can be left out" if shrunk.is_smallest else "it may go on with less: --shrink-seconds"
    )
    output.print_lines(
        [
            f"shrunk from {len(verdict.steps)} steps to {len(shrunk.steps)} in {shrunk.runs} runs; {less}",
            f"  replay it: {replay_command(options.seed, options.operations, shrunk.steps)} --no-shrink",
        ]
    )


def _as_record(options: ReplayOptions, verdict: Verdict, shrunk: Shrunk | None) -> dict[str, Any]:
    smallest = options.keep if shrunk is None else shrunk.steps
    return {
        "seed": options.seed,
        "seeds_run": 1,
        "violation": verdict.violation,
        "digest": verdict.digest,
        "keep": None if smallest is None else format_steps(smallest),
        "replay": replay_command(options.seed, options.operations, smallest),
    }
