"""What people and programs see of a campaign or a replay: progress, violations, the verdict.

Verdicts go to stdout, progress to stderr; a bar is drawn only on a terminal. A failing seed is printed, and
written to the file of failures, when it is found: nothing that happens to the campaign later loses it.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from tierlog.actors.cli import output

from .campaign import CampaignOptions, Tally
from .shrink import format_steps
from .verdict import Verdict

OPERATIONS = 200
COMMAND_VARIABLE = "TIERLOG_SIMULATE"
"""Set by a script that stands before this program: how the user called it."""

_COUNTS = {
    "acked": "acked appends",
    "kills": "kills",
    "power_losses": "power losses",
    "zombies": "zombies",
    "faults": "faults met",
    "cycles": "flush cycles",
    "collected": "collected chunks",
    "joined": "joined chunks",
    "relocated": "relocated chunks",
    "deferred steps": "steps of deferred work",
    "imported": "imported segments of the legacy layout",
    "undecided": "seeds left early, too many orders",
}
"""What of a run's counts stands in the table; JSON has them all."""


def program() -> str:
    """How the user called this program, to be used again."""
    return shlex.quote(os.environ.get(COMMAND_VARIABLE, "scripts/simulate"))


def replay_command(seed: int, operations: int = OPERATIONS, keep: Collection[int] | None = None) -> str:
    sized = "" if operations == OPERATIONS else f" --operations {operations}"
    cut = "" if keep is None else f" --keep {format_steps(keep) or shlex.quote('')}"
    return f"{program()} --seed {seed}{sized}{cut}"


def first_line(violation: str | None) -> str:
    return (violation or "").split("\n", 1)[0]


class CampaignReport:
    """Prints each verdict (``on_verdict``) and the end (``ended``); a context in which the bar is drawn."""

    def __init__(
        self, options: CampaignOptions, *, quiet: bool, as_json: bool, failures_file: Path | None
    ) -> None:
        self._options = options
        self._quiet = quiet
        self._as_json = as_json
        self._failures_file = failures_file
        self._failures: IO[str] | None = None
        self._bar: Progress | None = None
        self._task = TaskID(0)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """``OSError`` if the file of failing seeds cannot be written."""
        with _appended(self._failures_file) as self._failures:
            self._print(f"seeds from {self._options.first} on, {self._options.jobs} at a time")
            if self._quiet or not sys.stderr.isatty():
                yield
                return
            with _bar() as self._bar:
                self._task = self._bar.add_task(
                    "", total=self._options.count or self._options.seconds, status="starting"
                )
                yield
            self._bar = None

    def on_verdict(self, verdict: Verdict, tally: Tally) -> None:
        if verdict.violation is not None:
            self._note_failure(verdict, tally)
        if self._bar is not None:
            status = (
                f"{tally.seeds:,} seeds, {tally.seeds_a_minute:,.0f}/min, "
                f"{_duration(tally.simulated_seconds)} simulated"
                f" ({tally.times_real_time:,.0f} x real), {len(tally.failures)} violations"
            )
            done = tally.seeds if self._options.count is not None else tally.real_seconds
            self._bar.update(self._task, completed=done, status=status)

    def _note_failure(self, verdict: Verdict, tally: Tally) -> None:
        line = json.dumps(self._as_record(verdict, tally), ensure_ascii=False)
        if self._failures is not None:
            self._failures.write(f"{line}\n")
            self._failures.flush()
        if self._as_json:
            output.print_lines([line])
        self._print(f"seed {verdict.seed} fails: {first_line(verdict.violation)}")

    def _as_record(self, verdict: Verdict, tally: Tally) -> dict[str, Any]:
        return {
            "seed": verdict.seed,
            "seeds_run": tally.seeds,
            "violation": verdict.violation,
            "replay": replay_command(verdict.seed, self._options.operations),
        }

    def _print(self, text: str) -> None:
        if self._quiet:
            return
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            sys.stderr.write(f"{text}\n")

    def ended(self, tally: Tally) -> None:
        if self._as_json:
            output.print_lines([json.dumps(_summary(tally, self._options), ensure_ascii=False)])
            return
        if not self._quiet:
            print_tally(tally)
        for verdict in tally.failures:
            output.print_lines(
                [
                    f"seed {verdict.seed}: {first_line(verdict.violation)}",
                    f"  replay it: {replay_command(verdict.seed, self._options.operations)}",
                ]
            )
        if not self._quiet:
            end = "interrupted, until then " if tally.interrupted else ""
            count = len(tally.failures)
            output.console().print(
                f"{end}{count} violation{'s' * (count != 1)}", style="red" if count else "green"
            )


def print_tally(tally: Tally) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    for name, value in _rows(tally):
        table.add_row(name, value)
    output.console().print(table)


def _rows(tally: Tally) -> Iterator[tuple[str, str]]:
    yield "seeds", f"{tally.seeds:,}"
    yield "operations", f"{tally.operations:,}"
    for key, name in _COUNTS.items():
        yield name, f"{tally.counts[key]:,}"
    yield "simulated hours", f"{tally.simulated_seconds / 3600:,.1f}"
    yield "real seconds", f"{tally.real_seconds:,.1f}"
    yield "simulated time : real time", f"{tally.times_real_time:,.0f}"
    yield "seeds per minute and core", f"{tally.seeds_a_minute / tally.jobs:,.0f}"


def _summary(tally: Tally, options: CampaignOptions) -> dict[str, Any]:
    first = tally.failures[0] if tally.failures else None
    return {
        "seed": None if first is None else first.seed,
        "seeds_run": tally.seeds,
        "violation": None if first is None else first.violation,
        "first_seed": options.first,
        "failing_seeds": [verdict.seed for verdict in tally.failures],
        "operations": tally.operations,
        "simulated_seconds": round(tally.simulated_seconds, 3),
        "real_seconds": round(tally.real_seconds, 3),
        "seeds_per_minute_and_core": round(tally.seeds_a_minute / tally.jobs, 1),
        "counts": dict(sorted(tally.counts.items())),
        "interrupted": tally.interrupted,
    }


def _duration(seconds: float) -> str:
    return f"{seconds / 3600:,.1f} h" if seconds >= 3600 else f"{seconds:,.0f} s"


@contextmanager
def _appended(file: Path | None) -> Iterator[IO[str] | None]:
    if file is None:
        yield None
    else:
        with open(file, "a", encoding="utf-8") as stream:
            yield stream


def _bar() -> Progress:
    from rich.console import Console

    columns = (
        BarColumn(bar_width=10),
        TimeElapsedColumn(),
        TextColumn("{task.fields[status]}", markup=False),
    )
    return Progress(*columns, console=Console(stderr=True), transient=True)
