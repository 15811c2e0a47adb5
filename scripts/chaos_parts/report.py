"""The report of a run: what was checked, what was measured, one line, and the exit status."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import islice
from typing import Any

import attrs
from rich.console import Console
from rich.table import Table

from chaos_parts.processes import counted

TAKEOVER_GOAL = 0.3
_SHARES = (("p50", 0.5), ("p99", 0.99), ("max", 1.0))


@attrs.define
class Samples:
    """Seconds of one kind, and their goal."""

    name: str
    limit: float | None = None
    """The 99th percentile must stay below it."""
    values: list[float] = attrs.field(factory=list)

    def percentile(self, share: float) -> float:
        """By nearest rank: a value that occurred."""
        ordered = sorted(self.values)
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)]

    @property
    def holds(self) -> bool:
        return self.limit is None or not self.values or self.percentile(0.99) < self.limit


@attrs.define
class Report:
    script: str
    seed: int
    rounds: int = 0
    actions: dict[str, int] = attrs.field(factory=dict)
    """Faults, and how often each was injected."""
    events: int = 0
    bytes: int = 0
    unknown: int = 0
    """Events with an unknown outcome that were there."""
    seconds: float = 0.0
    acked: int = 0
    samples: list[Samples] = attrs.field(factory=list)
    counts: dict[str, int] = attrs.field(factory=dict)
    """Further figures."""
    violations: list[str] = attrs.field(factory=list)
    strict: bool = False
    """Whether a missed goal is a violation."""

    def count_fault(self, fault: str) -> None:
        self.actions[fault] = self.actions.get(fault, 0) + 1

    def count(self, name: str, number: int = 1) -> None:
        self.counts[name] = self.counts.get(name, 0) + number

    def samples_of(self, name: str, limit: float | None = None) -> Samples:
        for samples in self.samples:
            if samples.name == name:
                return samples
        self.samples.append(Samples(name, limit))
        return self.samples[-1]

    @property
    def slow(self) -> list[str]:
        return [
            f"{each.name}: p99 is {each.percentile(0.99):.3f} s, not under {each.limit:g} s"
            for each in self.samples
            if not each.holds
        ]

    @property
    def holds(self) -> bool:
        return not self.violations and not (self.strict and self.slow)

    @property
    def line(self) -> str:
        if self.holds:
            return f"HOLDS  {self.facts}, 0 lost, 0 doubled, 0 torn"
        violations = counted(len(self.violations) + len(self.slow) * self.strict, "violation")
        return f"BROKEN {self.facts}, {violations}"

    @property
    def facts(self) -> str:
        did = ", ".join(f"{count} {what}" for what, count in sorted(self.actions.items())) or "no faults"
        rounds = counted(self.rounds, "round")
        return f"{rounds}, seed {self.seed}: {did}; {self.acked} acked, {self.unknown} unknown"

    def document(self) -> dict[str, object]:
        figures = {
            each.name: {"count": len(each.values), "limit": each.limit, "holds": each.holds}
            | ({name: round(each.percentile(share), 4) for name, share in _SHARES} if each.values else {})
            for each in self.samples
        }
        plain = attrs.asdict(self, filter=attrs.filters.exclude("samples", "strict"))
        computed = {"events_per_second": round(self._rate), "slow": self.slow, "holds": self.holds}
        return {**plain, "figures": figures, **computed}

    @property
    def _rate(self) -> float:
        return self.acked / self.seconds if self.seconds else 0.0

    def show(self, console: Console, *, as_json: bool) -> None:
        if as_json:
            print(json.dumps(self.document()))
            return

        console.print(self._table())
        if self.counts:
            counts = (f"{name} {number}" for name, number in self.counts.items())
            console.print(", ".join(counts), highlight=False)
        rate = f"{self._rate:.0f} events/s acked over {self.seconds:.1f} s, {self.bytes} bytes read back"
        console.print(rate, highlight=False)
        for text in [*self.violations, *self.slow]:
            console.print(f"- {text}", highlight=False, markup=False)
        console.print(self.line, highlight=False, markup=False, soft_wrap=True)

    def show_interrupted(self, console: Console, wanted: int) -> None:
        """The violations of the finished rounds; the rest was not checked."""
        if self.rounds:
            for text in self.violations:
                console.print(f"- {text}", highlight=False, markup=False)
            done = f"interrupted after {self.rounds} of {counted(wanted, 'round')}, seed {self.seed}"
            line = f"{done}: until then {counted(len(self.violations), 'violation')}"
            console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _table(self) -> Table:
        table = Table("seconds", "count", "p50", "p99", "max", "goal (p99)", "")
        for column in table.columns[1:6]:
            column.justify = "right"
        for each in filter(lambda samples: samples.values, self.samples):
            row = [
                each.name,
                str(len(each.values)),
                *(f"{each.percentile(share):.3f}" for _, share in _SHARES),
            ]
            if each.limit is not None:
                row += [f"< {each.limit:g}", "holds" if each.holds else "missed"]
            table.add_row(*row)
        return table


# --- takeovers ----------------------------------------------------------------------------------

Window = tuple[float, float]
"""Begin and end, in seconds of the wall clock, like the log's timestamps."""


def count_takeovers(
    report: Report,
    log: Iterable[str],
    skipped: int,
    windows: Iterable[Window],
    goal: float = TAKEOVER_GOAL,
) -> None:
    """Add the takeovers in a service's log after its first ``skipped`` lines, those ordered within one of the
    windows apart, and how many operations the new owners replayed."""
    lines = [json.loads(text) for text in islice(log, skipped, None) if text.startswith("{")]
    inside = report.samples_of("takeover: order to open until opened", goal)
    outside = report.samples_of("opened after other faults")
    spans = list(windows)
    for ordered, seconds in takeovers_in(lines):
        is_inside = any(begin <= ordered <= end for begin, end in spans)
        (inside if is_inside else outside).values.append(seconds)
    if replayed := sorted(int(line["operations"]) for line in lines if line.get("event") == "recovered"):
        median = replayed[len(replayed) // 2]
        report.counts |= {
            "recoveries": len(replayed),
            "operations replayed (median)": median,
            "(most)": replayed[-1],
        }


def takeovers_in(lines: Iterable[dict[str, Any]]) -> Iterator[tuple[float, float]]:
    """When each takeover was ordered, by the wall clock, and how many seconds it took until the new owner had
    opened the container.

    A move by an operator or for balance is no takeover: there the order follows a close. The time to detect a
    loss is not included.
    """
    ordered: dict[int, datetime] = {}
    closed: set[int] = set()
    for line in lines:
        event, kind = line.get("event"), line.get("kind")
        if event == "command_issued" and kind == "CloseContainer":
            closed.add(line["index"])
        elif event == "command_issued" and kind == "OpenContainer":
            if line["index"] not in closed:
                ordered[line["index"]] = datetime.fromisoformat(line["timestamp"])
            closed.discard(line["index"])
        elif event == "order_answered" and kind == "opened" and line["container"] in ordered:
            begin = ordered.pop(line["container"])
            yield begin.timestamp(), (datetime.fromisoformat(line["timestamp"]) - begin).total_seconds()
