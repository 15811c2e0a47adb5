"""Results as a table, or as one JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Sequence

import attrs
from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from benchmarks.harness import Benchmark, Result


def json_line(result: Result) -> str:
    values = attrs.asdict(result)
    return json.dumps(
        {key: float(f"{value:.6g}") if isinstance(value, float) else value for key, value in values.items()}
    )


def number(value: float) -> str:
    """Only significant digits: 61,234 and 0.42, not 61234.5678 and 0.4234."""
    if value >= 1000:
        return f"{value:,.0f}"

    return f"{value:.1f}" if value >= 100 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def goal_text(benchmark: Benchmark | Result) -> str:
    sign = "<=" if benchmark.lower_is_better else ">="
    return f"{sign} {benchmark.goal:,g}" if benchmark.goal_of == "value" else f"{sign} {benchmark.goal:g}x"


def print_table(
    results: Sequence[Result], benchmarks: dict[str, Benchmark], console: Console, title: str
) -> None:
    table = Table(title=title, title_justify="left", header_style="bold", caption_justify="left")
    table.add_column("benchmark", no_wrap=True)
    for heading in ("store", "reference", "unit", "ratio", "goal", "met"):
        table.add_column(heading, justify="left" if heading in {"unit", "met"} else "right", no_wrap=True)
    is_wide = console.width >= 120 or not console.is_terminal
    if is_wide:
        table.add_column("what")
    for result in results:
        table.add_row(
            result.name,
            number(result.value),
            number(result.reference),
            result.unit,
            f"{result.ratio:.2f}",
            goal_text(result),
            "[green]yes[/]" if result.is_met else "[red]no[/]",
            *([benchmarks[result.name].summary] if is_wide else []),
        )
    console.print(table)


def print_list(benchmarks: Sequence[Benchmark], console: Console) -> None:
    for benchmark in benchmarks:
        console.print(
            f"[bold]{benchmark.name}[/]: {benchmark.summary} (goal {goal_text(benchmark)})", highlight=False
        )
        console.print(Padding(benchmark.detail, (0, 0, 0, 4)), highlight=False)
