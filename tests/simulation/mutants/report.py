"""What people and programs see of a mutation score: progress, the table, the share, and what follows from it.

Owns: wording, the table, the JSON lines and the exit code. Does not own: anything that is counted
(``score.py``). The table and the JSON lines go to stdout, progress to stderr: a bar on a terminal, elsewhere
a line for each mutant when its fate is known.

Exit codes: 0 the goal is reached, 1 it is not, or the original fails, 130 Ctrl-C.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from tierlog.actors.cli import output

from ..report import program
from .child import Finding
from .score import GOAL, Fate, Result, Score, Terms, run_score

REACHED, NOT_REACHED, INTERRUPTED = 0, 1, 130
_VIOLATION_CHARACTERS = 90
_STYLES = {Fate.CAUGHT: "green", Fate.SURVIVED: "red", Fate.BROKEN: "yellow", Fate.WAITING: "dim"}


def show_score(terms: Terms, *, quiet: bool = False, as_json: bool = False) -> int:
    """Run and show it; returns the exit code."""
    progress = _Progress(terms, as_json=as_json, quiet=quiet)
    with progress.shown():
        score = run_score(terms, progress.heard)
    if as_json:
        output.print_lines([json.dumps(_summary(score), ensure_ascii=False)])
    else:
        _print_table(score, quiet=quiet)
        _print_end(score)
    if score.interrupted:
        return INTERRUPTED
    return REACHED if score.is_reached else NOT_REACHED


class _Progress:
    """Told of everything; a bar over all mutants, or JSON lines."""

    def __init__(self, terms: Terms, *, as_json: bool, quiet: bool) -> None:
        self._terms = terms
        self._as_json = as_json
        self._quiet = quiet
        self._bar: Progress | None = None
        self._task = TaskID(0)

    @contextmanager
    def shown(self) -> Iterator[None]:
        if self._quiet or not sys.stderr.isatty():
            yield
            return
        columns = (
            BarColumn(bar_width=20),
            TimeElapsedColumn(),
            TextColumn("{task.fields[told]}", markup=False),
        )
        with Progress(*columns, console=Console(stderr=True), transient=True) as self._bar:
            self._task = self._bar.add_task(
                "", total=len(self._terms.mutants), told=f"the original, {self._terms.original_seeds} seeds"
            )
            yield
        self._bar = None

    def heard(self, score: Score, result: Result | None) -> None:
        if self._as_json and result is not None and result.fate is not Fate.WAITING:
            output.print_lines([json.dumps(_record(result), ensure_ascii=False)])
        if self._bar is not None:
            open_ = score.count(Fate.WAITING)
            told = f"{score.count(Fate.CAUGHT)} of {len(score.results)} caught, {open_} go on"
            self._bar.update(self._task, completed=len(score.results) - open_, told=told)
        elif not self._as_json and not self._quiet and result is not None and result.fate is not Fate.WAITING:
            known = len(score.results) - score.count(Fate.WAITING)
            sys.stderr.write(
                f"{known} of {len(score.results)}: {result.mutant.name} {result.fate}, {result.seeds:,} "
                f"seeds\n"
            )


def _record(result: Result) -> dict[str, Any]:
    return {
        "mutant": result.mutant.name,
        "rule": result.mutant.rule,
        "story": result.mutant.story,
        "fate": result.fate.value,
        "seeds": result.seeds,
        "seed": result.seed,
        "violation": result.text or None,
        "seconds": round(result.seconds, 1),
    }


def _summary(score: Score) -> dict[str, Any]:
    return {
        "score": round(score.share, 4),
        "goal": GOAL,
        **{fate.value: score.count(fate) for fate in Fate},
        "original_passes": score.is_meaningful,
        "original_says": None if score.original is None or score.is_meaningful else score.original.text,
        "original_fails": {str(seed): line for seed, line in sorted(score.original_fails.items())},
        "interrupted": score.interrupted,
    }


def _print_table(score: Score, *, quiet: bool) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("mutant", "rule", "fate"):
        table.add_column(name, no_wrap=True)
    for name in ("seeds", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("found by", no_wrap=True)
    for result in score.results:
        if not (quiet and result.fate is Fate.CAUGHT):
            table.add_row(*_row(result), style=_STYLES[result.fate])
    output.console().print(table, crop=False)


def _row(result: Result) -> tuple[str, ...]:
    told = result.mutant.story if result.fate is Fate.SURVIVED else result.first_line
    return (
        result.mutant.name,
        result.mutant.rule,
        result.fate.value,
        f"{result.seeds:,}",
        f"{result.seconds:,.0f}",
        told[:_VIOLATION_CHARACTERS],
    )


def _print_end(score: Score) -> None:
    lines = [
        f"seed {seed} fails without a bug: {line}\n  replay it: {program()} --seed {seed}"
        for seed, line in sorted(score.original_fails.items())
    ]
    if score.interrupted:
        lines.append("interrupted; until then:")
    if score.original is not None and not score.is_meaningful:
        lines.append(_original_failed(score))
    else:
        caught, total = score.count(Fate.CAUGHT), len(score.results)
        lines.append(f"{caught} of {total} planted bugs caught: {score.share:.1%} (the goal is {GOAL:.0%})")
    output.print_lines(lines)


def _original_failed(score: Score) -> str:
    original = score.original
    assert original is not None
    if original.finding is Finding.VIOLATION:
        found = original.text.split("\n", 1)[0]
        return (
            f"no score: seed {original.seed} fails without a bug ({found}); first find out why: "
            f"{program()} --seed {original.seed}"
        )
    return f"no score: the simulator does not run on a copy of this package: {original.text}"
