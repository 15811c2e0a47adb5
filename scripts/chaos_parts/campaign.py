"""One run of a chaos script: a service, writers, rounds of faults, and the checks.

1. The service starts (or is found), the segments are created, and the open files of its processes are
   counted.
2. The writers start. In each round the script's nemesis injects a fault and ends it; every container must ack
   again within a limit.
3. The writers finish. The service settles, is counted again, and every segment is read back and checked.
4. The service stops. No process and no socket may be left, and `tierlog doctor` examines the folder.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Protocol

import anyio
import attrs
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import tierlog
from chaos_parts.http_store import HttpStore
from chaos_parts.ledger import Ledger, Outcome, SegmentCheck
from chaos_parts.processes import PATIENCE, RunError, Usage, compare_usage, processes_of, usage_of
from chaos_parts.report import Report
from chaos_parts.service import OwnService, Service
from chaos_parts.tail import TailWriters
from chaos_parts.takeovers import Takeovers, Window
from chaos_parts.writer_processes import WriterProcesses, segment_names
from tierlog.actors.kernel.exits import leaves

POOLED = 45.0
"""Seconds. A client keeps idle connections for 30 s, and checks their age when it uses them."""
RECOVERY_LIMIT = 20.0
"""Seconds after which a container that does not ack again counts as lost."""
TAKEOVER_GOAL = 0.3


@attrs.frozen(kw_only=True)
class Options:
    rounds: int
    seed: int
    hosts: int
    containers: int
    writers: int = 0
    pace: float = 0.0
    tail: int = 0
    client: str = "tierlog"
    plain: bool = True
    """Whether there are lanes without event numbers."""
    json: bool
    goals: bool = False
    keep: Path | None
    patience: float
    url: str | None = None
    pids_from: Path | None = None


class Run:
    """What a nemesis works with."""

    def __init__(
        self, options: Options, service: Service, report: Report, folder: Path, console: Console
    ) -> None:
        self.options = options
        self.service = service
        self.report = report
        self.folder = folder
        self.random = Random(f"chaos/{options.seed}")
        self.ledger = Ledger()
        self.segments: list[str] = []
        self.windows: list[Window] = []
        """When a container had to be taken over and nothing else was wrong: figures with a goal are of these
        times."""
        columns = (
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
        )
        self.progress = Progress(*columns, console=console, disable=not console.is_terminal)
        self._bar = self.progress.add_task("", total=options.rounds)

    def begin_fault(self, fault: str) -> None:
        self.report.count_fault(fault)
        self.progress.update(self._bar, description=fault)

    def violated(self, what: str) -> None:
        self.report.violations.append(what)

    def violated_in_round(self, what: str) -> None:
        self.violated(f"round {self.report.rounds + 1}: {what}")

    def advance(self) -> None:
        self.report.rounds += 1
        self.progress.advance(self._bar)

    @contextmanager
    def errors_reported(self) -> Iterator[None]:
        """Errors of the run become violations."""
        try:
            yield
        except* (RunError, tierlog.TierlogError) as errors:
            self.report.violations += [str(error) for error in leaves(errors)]

    async def acks_again(
        self, containers: Iterable[int], since: float, figure: str, goal: float | None = None
    ) -> None:
        """Wait until each container has acked an event that was sent after ``since``, and record the
        times."""
        wait = await self.ledger.first(Outcome.ACKED, containers, since, RECOVERY_LIMIT)
        self.report.samples_of(figure, goal).values += wait.seconds.values()
        if goal is not None:
            self.windows.append((time.time() - (time.monotonic() - since), time.time()))
        for container in sorted(wait.missing):
            self.violated_in_round(
                f"container {container} acked nothing within {RECOVERY_LIMIT:g} s ({figure})"
            )

    async def all_ack(self) -> None:
        """Every container acks something that is sent from now on."""
        containers = range(self.service.containers)
        wait = await self.ledger.first(Outcome.ACKED, containers, time.monotonic(), RECOVERY_LIMIT)
        if wait.missing:
            raise RunError(f"containers {sorted(wait.missing)} ack nothing, though there is no fault")


class Nemesis(Protocol):
    """The faults of one script."""

    def prepared(self, run: Run) -> AbstractAsyncContextManager[None]:
        """Entered before the first round, left after the last one."""

    async def round(self, run: Run) -> None:
        """Inject a fault, end it, and wait until every container acks again."""


async def campaign(run: Run, nemesis: Nemesis) -> None:
    """The whole run. Violations are in the report; raises ``RunError`` if the run could not be made."""
    service = run.service
    async with AsyncExitStack() as stack:
        stack.push_async_callback(service.aclose)
        if isinstance(service, OwnService):
            await stack.enter_async_context(service.running())
        await service.inspect()
        run.segments = segment_names(f"chaos/{run.options.seed}-{time.time_ns():x}", service.containers)
        async with HttpStore(service.data_url) as store:
            for segment in run.segments:
                await store.create_segment(segment)
        before = await _service_usage(run)
        await _write_through_rounds(run, nemesis)
        await service.settled()
        run.report.violations += await _leaks(before, partial(_service_usage, run), PATIENCE / 3)
        await _check_segments(run)
    if isinstance(service, OwnService):
        check_leftovers(run, service)


async def _write_through_rounds(run: Run, nemesis: Nemesis) -> None:
    options, service = run.options, run.service
    writers = WriterProcesses(
        run.ledger, url=service.data_url, client=options.client, seed=options.seed, pace=options.pace
    )
    writers.plan(run.segments, options.writers, plain=options.plain)
    tails = TailWriters(service, run.ledger, run.segments)
    takeovers = Takeovers(service)
    try:
        async with writers.running():
            await run.all_ack()
            before = await _writer_usage(writers)
            began, acked = time.monotonic(), run.ledger.acked
            async with nemesis.prepared(run):
                await _rounds(run, nemesis, tails)
            await run.all_ack()
            run.report.seconds, run.report.acked = time.monotonic() - began, run.ledger.acked - acked
            run.report.violations += await _leaks(before, partial(_writer_usage, writers), POOLED)
    finally:
        await tails.aclose()
        run.report.violations += run.ledger.problems
    inside, outside = takeovers.seconds(run.windows)
    run.report.samples_of("takeover: order to open until opened", TAKEOVER_GOAL).values += inside
    run.report.samples_of("opened after other faults").values += outside
    run.report.counts |= takeovers.replayed()


async def _rounds(run: Run, nemesis: Nemesis, tails: TailWriters) -> None:
    for _ in range(run.options.rounds):
        await tails.add(run.options.tail)
        await nemesis.round(run)
        run.advance()
        if run.report.violations or run.ledger.problems:
            return


# --- leaks --------------------------------------------------------------------------------------


async def _service_usage(run: Run) -> dict[str, Usage]:
    supervisor = await run.service.supervisor()
    usages = {supervisor.name: usage_of(supervisor.pid, "supervisor")}
    usages |= {host.name: usage_of(host.pid, "host") for host in await run.service.hosts()}
    return {name: usage for name, usage in usages.items() if usage is not None}


async def _writer_usage(writers: WriterProcesses) -> dict[str, Usage]:
    usages = {f"writer {number}": usage_of(pid, "writer") for number, pid in enumerate(writers.pids)}
    return {name: usage for name, usage in usages.items() if usage is not None}


async def _leaks(
    before: dict[str, Usage], usages: Callable[[], Awaitable[dict[str, Usage]]], limit: float
) -> list[str]:
    """Closing or pooled connections need a moment: what has grown must shrink within ``limit`` seconds."""
    deadline = time.monotonic() + limit
    while grown := compare_usage(before, await usages()):
        if time.monotonic() >= deadline:
            break
        await anyio.sleep(0.1)
    return grown


# --- checks -------------------------------------------------------------------------------------


async def _check_segments(run: Run) -> None:
    """Read every segment back through the service."""
    async with HttpStore(run.service.data_url) as store:
        for segment in run.segments:
            check = SegmentCheck(segment, run.ledger.lanes)
            async for block in store.read_blocks(segment):
                check.feed(block)
            run.report.violations += check.finish()
            run.report.events += check.events
            run.report.unknown += check.unknown
            run.report.bytes += check.bytes
    lanes = run.ledger.lanes
    run.report.counts |= {
        "calls sent again": sum(lane.retried for lane in lanes),
        "unknown outcomes": sum(len(lane.unknown) for lane in lanes),
        "rejected": sum(len(lane.rejected) for lane in lanes),
        "rejected as full": sum(lane.full for lane in lanes),
    }


def check_leftovers(run: Run, service: OwnService) -> None:
    """What a stopped service left behind."""
    left = processes_of(service.folder)
    if left:
        run.violated(f"processes {left} outlived their supervisor")
    for path in service.runtime.rglob("*"):
        if path.is_socket():
            run.violated(f"the socket {path} was left")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "tierlog.actors.cli", "doctor", "--data", str(service.folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        run.violated(f"tierlog doctor: {(done.stdout + done.stderr).strip()[-500:]}")
