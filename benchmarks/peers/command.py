"""The part of ``scripts/bench`` behind ``--peers``."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import anyio
import attrs
from rich.console import Console

from benchmarks.peers.contract import Kind
from benchmarks.peers.page import json_lines, print_table, write_page
from benchmarks.peers.run import KINDS, Plan, run
from benchmarks.peers.workloads import FULL, QUICK, WORKLOADS, Workload

NAMES = [*(kind.name for kind in KINDS), *(workload.name for workload in WORKLOADS)]
ROUNDS = 5
_PAGE = Path(__file__).resolve().parents[2] / "docs" / "performance.md"


@attrs.frozen
class PeerOptions:
    names: Sequence[str]
    """Of kinds and workloads; all of those of which none is named."""
    rounds: int
    quick: bool
    json: bool
    write: bool


def chosen(names: Sequence[str]) -> tuple[Sequence[Kind], Sequence[Workload]]:
    kinds = [kind for kind in KINDS if kind.name in names]
    workloads = [workload for workload in WORKLOADS if workload.name in names]
    workloads = workloads or list(WORKLOADS)
    return [
        kind for kind in kinds or KINDS if any(workload.is_for(kind) for workload in workloads)
    ], workloads


def print_list(options: PeerOptions, console: Console) -> None:
    kinds, workloads = chosen(options.names)
    for kind in kinds:
        console.print(f"[bold]{kind.name}[/]: {kind.title}; at an ack {kind.promise}", highlight=False)
    for workload in workloads:
        console.print(f"[bold]{workload.name}[/]: {workload.title}, {workload.unit}", highlight=False)


def run_peers(
    options: PeerOptions,
    folder: str,
    file_system: str,
    progress: Callable[[str, str], None],
    console: Console,
) -> int:
    """The exit status: 1 if a peer is not available or failed."""
    # Servers end with this program, and not only on Ctrl-C.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: signal.raise_signal(signal.SIGINT))
    kinds, workloads = chosen(options.names)
    unavailable = {kind.name: reason for kind in kinds if (reason := kind.prepare())}
    for name, reason in unavailable.items():
        print(f"bench: {name} is not available: {reason}", file=sys.stderr)
    plan = Plan(
        kinds,
        workloads,
        QUICK if options.quick else FULL,
        options.rounds,
        not options.quick,
        progress,
        unavailable,
    )
    try:
        figures = anyio.run(run, plan, Path(folder), backend="asyncio", backend_options={"use_uvloop": True})
    finally:
        progress("peers", "")
    if options.json:
        print("\n".join(json_lines(plan, figures)))
    else:
        meaning = ", quick: figures mean nothing" if options.quick else ""
        print_table(plan, figures, console, f"peers, rounds: {options.rounds}{meaning}")
    if options.write:
        write_page(plan, figures, _PAGE, file_system)
        print(f"bench: written to docs/{_PAGE.name}", file=sys.stderr)
    return 1 if figures.failed else 0
