"""What the peers' figures look like: a table in the terminal, and the part of docs/performance.md between two
markers, with a plot beside it."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Iterator
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from textwrap import fill

from rich.console import Console
from rich.table import Table

from benchmarks.peers.contract import Kind
from benchmarks.peers.run import Figures, Plan
from benchmarks.peers.workloads import Workload
from benchmarks.report import number

BEGIN, END = "<!-- peers: begin -->", "<!-- peers: end -->"
_NOISE = 1.05
"""Two medians that differ by less are equal."""

_OF_EACH = (
    "Each append is checked, and has an offset and an answer of its own; SQLite's queue wakes all that wait "
    "for a transaction at once."
)
_BOTH_ENDS = (
    "The time is CPU time: client and host are Python, and need several times that of a compiled server and "
    "its client. The bare loop behind a socket takes what a Python service takes at least."
)
REASONS = {
    ("tierlog", "one"): "Between the event loop and the log's thread an append takes more CPU time than a "
    "transaction of SQLite's does.",
    ("tierlog", "many"): _OF_EACH,
    ("tierlog", "streams"): _OF_EACH,
    ("tierlog", "restart"): "It imports and opens more: SQLite is one library in C.",
    ("tierlog-service", "one"): _BOTH_ENDS,
    ("tierlog-service", "many"): _BOTH_ENDS,
    ("tierlog-service", "delivery"): _BOTH_ENDS,
    ("tierlog-service", "restart"): "Two Python processes start one after the other, the supervisor and its "
    "host; a compiled server is one process. NATS was loaded without syncs and stopped in order, the others "
    "were killed.",
    ("tierlog-service", "spark-write"): "It is written exactly once, and rows pass from the JVM as Arrow "
    "batches to a Python worker; Kafka's sink writes at least once, from the JVM.",
    ("tierlog-service", "spark-read"): "Rows pass through a Python worker, and from it as Arrow batches to "
    "the JVM, in which Kafka's connector is.",
    ("tierlog-service", "spark-batch"): "It is written exactly once, for which it waits for three answers of "
    "the service one after the other, through Python workers; Kafka's sink writes at least once, from the "
    "JVM.",
}
"""Why a row of tierlog's is lost, where it is, by its name and the workload's. Measured as CPU time for each
event; a row without one says so."""


def median(figures: Figures, workload: Workload, kind: Kind) -> float | None:
    found = figures.found.get((workload.name, kind.name))
    return statistics.median(found) if found else None


def _cell(figures: Figures, workload: Workload, kind: Kind, *, with_range: bool) -> str:
    middle = median(figures, workload, kind)
    if not workload.is_for(kind):
        return "-"
    if middle is None:
        reason = figures.missing.get((workload.name, kind.name), "")
        return "-" if workload.name in kind.leaves_out else reason.partition(":")[0]
    found = figures.found[workload.name, kind.name]
    return f"{number(middle)} ({number(min(found))}-{number(max(found))})" if with_range else number(middle)


def json_lines(plan: Plan, figures: Figures) -> Iterator[str]:
    """One object for each peer and workload; without figures it has a ``reason``."""
    for workload in plan.workloads:
        for kind in filter(workload.is_for, plan.kinds):
            key = (workload.name, kind.name)
            line: dict[str, object] = {"workload": workload.name, "peer": kind.name, "unit": workload.unit}
            line |= {"synced": kind.is_synced, "lower_is_better": workload.lower_is_better}
            if key in figures.found:
                line |= {"value": median(figures, workload, kind), "rounds": figures.found[key]}
            else:
                line |= {"reason": figures.missing[key]}
            yield json.dumps(line)


def print_table(plan: Plan, figures: Figures, console: Console, title: str) -> None:
    table = Table(title=title, title_justify="left", header_style="bold")
    table.add_column("peer", no_wrap=True)
    for workload in plan.workloads:
        table.add_column(f"{workload.title}, {workload.unit}", justify="right")
    for kind in plan.kinds:
        cells = (_cell(figures, workload, kind, with_range=False) for workload in plan.workloads)
        table.add_row(kind.title + ("" if kind.is_synced else " *"), *cells)
    console.print(table)
    if not all(kind.is_synced for kind in plan.kinds):
        console.print("* not synced at the ack")


# --- the page -----------------------------------------------------------------------------------


def write_page(plan: Plan, figures: Figures, page: Path, file_system: str) -> None:
    """Replaces what is between the markers, and the plot."""
    text = page.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page.name} has no {BEGIN} and {END}")
    section = "\n".join(map(_wrapped, _section(plan, figures, page, file_system)))
    page.write_text(f"{before}{BEGIN}\n{section}\n{END}{after}", encoding="utf-8")
    page.with_suffix(".svg").write_text(plot(plan, figures), encoding="utf-8")


def _section(plan: Plan, figures: Figures, page: Path, file_system: str) -> Iterator[str]:
    versions = dict.fromkeys(kind.version() for kind in plan.kinds if _has_figures(plan, figures, kind))
    yield f"Measured on {datetime.now(UTC):%Y-%m-%d}, {plan.rounds} rounds, on {machine(file_system)}."
    yield f"Versions: {', '.join(filter(None, versions))}."
    yield ""
    yield f"![The medians as bars]({page.with_suffix('.svg').name})"
    for is_synced, heading in ((True, "Synced at the ack"), (False, "Not synced at the ack")):
        for of_spark in (False, True):
            workloads = [workload for workload in plan.workloads if (workload.way == "spark") is of_spark]
            kinds = [
                kind
                for kind in plan.kinds
                if kind.is_synced is is_synced and any(workload.is_for(kind) for workload in workloads)
            ]
            if not kinds:
                continue
            yield from ("", f"### {heading}{', with Spark' * of_spark}", "")
            columns = [f"{workload.title}, {workload.unit}" for workload in workloads]
            yield f"| peer | what is durable at the ack | {' | '.join(columns)} |"
            yield f"| --- | --- |{' ---: |' * len(columns)}"
            for kind in kinds:
                cells = (_cell(figures, workload, kind, with_range=True) for workload in workloads)
                yield f"| {kind.title} | {kind.promise} | {' | '.join(cells)} |"
    absent = dict.fromkeys(
        f"- {workload.title}, {kind.title}: {reason}"
        for kind in plan.kinds
        for workload in plan.workloads
        if (reason := figures.missing.get((workload.name, kind.name)))
    )
    if absent:
        yield from ("", "### Without a figure", "", *absent)
    yield from ("", "### Rows that tierlog loses", "")
    yield from list(_lost(plan, figures)) or ["None, at the same promise and in the same place."]


def _wrapped(line: str) -> str:
    """A table's row is one line."""
    return line if line.startswith("|") else fill(line, 110, subsequent_indent="  " * line.startswith("-"))


def _has_figures(plan: Plan, figures: Figures, kind: Kind) -> bool:
    return any((workload.name, kind.name) in figures.found for workload in plan.workloads)


def _lost(plan: Plan, figures: Figures) -> Iterator[str]:
    """The rows in which another one with the same promise, in the same place, is better."""
    for own in plan.kinds:
        if not own.is_tierlog:
            continue
        for workload in plan.workloads:
            figure = median(figures, workload, own)
            rivals = [
                (other, kind)
                for kind in plan.kinds
                if kind.is_peer and (kind.is_synced, kind.place) == (own.is_synced, own.place)
                if (other := median(figures, workload, kind)) is not None
            ]
            if figure is None or not rivals:
                continue
            best, kind = (min if workload.lower_is_better else max)(rivals, key=lambda rival: rival[0])
            lead = figure / best if workload.lower_is_better else best / figure
            if lead > _NOISE:
                why = REASONS.get((own.name, workload.name), "The reason is not known yet.")
                yield f"- {own.title}, {workload.title}: {kind.title} is {lead:.1f} times as good. {why}"


def machine(file_system: str) -> str:
    model = "an unknown processor"
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.machine()
    cores = len(os.sched_getaffinity(0))
    system = f"{platform.system()} {platform.release()}, {file_system or 'an unknown file system'}"
    return f"{cores} cores of {model}, {system}, Python {platform.python_version()} with uvloop"


# --- the plot -----------------------------------------------------------------------------------

_WIDTH, _LABEL, _BAR, _GAP, _HEAD = 760, 190, 16, 6, 34
_COLORS = {"tierlog": "#1f77b4", "synced": "#7f7f7f", "not synced": "#c7c7c7", "bare": "#444444"}


def plot(plan: Plan, figures: Figures) -> str:
    """A group of bars for each workload; the longest is the greatest figure."""
    lines: list[str] = []
    y = 0
    for workload in plan.workloads:
        bars = [
            (kind, value) for kind in plan.kinds if (value := median(figures, workload, kind)) is not None
        ]
        if not bars:
            continue
        better = "less is better" if workload.lower_is_better else "more is better"
        lines.append(_text(0, y + 20, f"{workload.title}: {workload.unit}, {better}", bold=True))
        y += _HEAD
        room = (_WIDTH - _LABEL - 80) / max(value for _, value in bars)
        for kind, value in bars:
            color = _COLORS[_color(kind)]
            lines.append(_text(0, y + 12, kind.title))
            lines.append(
                f'<rect x="{_LABEL}" y="{y}" width="{value * room:.1f}" height="{_BAR}" fill="{color}"/>'
            )
            lines.append(_text(_LABEL + value * room + 5, y + 12, number(value)))
            y += _BAR + _GAP
        y += _GAP
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y}" width="{_WIDTH}" height="{y}" '
        'font-family="sans-serif" font-size="12">'
    )
    background = f'<rect width="{_WIDTH}" height="{y}" fill="white"/>'
    return "\n".join([head, background, *lines, "</svg>\n"])


def _color(kind: Kind) -> str:
    if kind.is_tierlog:
        return "tierlog"
    if not kind.is_peer:
        return "bare"
    return "synced" if kind.is_synced else "not synced"


def _text(x: float, y: float, text: str, *, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.1f}" y="{y}"{weight}>{escape(text)}</text>'
