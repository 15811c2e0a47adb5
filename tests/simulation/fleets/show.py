"""``scripts/simulate --fleet``: days of fleets, one for each seed, with what each event took."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable

import attrs

from tierlog.actors.cli import output

from .hosts import Violation
from .scenario import Report, run_fleet
from .world import Episode, Size

FOUND_NOTHING, FOUND = 0, 1
_COLUMNS = ("event", "owned", "balanced", "moves", "least", "longest step", "to hosts", "from hosts")


def show_fleets(seeds: Iterable[int], size: Size, *, quiet: bool, as_json: bool) -> int:
    """Run them, and print what happened. Returns the exit code."""
    # What supervisors say of all that befalls them.
    logging.getLogger("tierlog").addHandler(logging.NullHandler())
    failed = 0
    for seed in seeds:
        try:
            report = run_fleet(seed, size)
        except Violation as violation:
            failed += 1
            command = f"scripts/simulate --fleet {size.hosts}:{size.containers} --seed {seed}"
            record = {"seed": seed, "violation": str(violation), "replay": command}
            lines = (
                [json.dumps(record)] if as_json else [f"seed {seed}: {violation}", f"  replay it: {command}"]
            )
            output.print_lines(lines)
            continue
        if as_json:
            output.print_lines([json.dumps(attrs.asdict(report))])
        elif not quiet:
            _show(report)
    return FOUND if failed else FOUND_NOTHING


def _show(report: Report) -> None:
    size = report.size
    output.print_lines([f"seed {report.seed}: {size.hosts} hosts, {size.containers:,} containers"])
    output.print_table(_COLUMNS, [_row(episode) for episode in report.episodes])


def _row(episode: Episode) -> tuple[object, ...]:
    return (
        episode.name,
        f"{episode.owned:.1f} s",
        f"{episode.balanced:.1f} s",
        f"{episode.moves:,}",
        f"{episode.least:,}",
        f"{episode.worst_step * 1000:.1f} ms",
        output.show_bytes(episode.sent),
        output.show_bytes(episode.received),
    )
