"""One run of a chaos script: a service, writers, rounds of faults, and the checks.

1. The service starts (or is found), the segments are created, and the open files of its processes are
   counted.
2. The writers start. Each round injects a fault and ends it; every container must ack again within a limit.
3. The writers finish. The service settles, is counted again, and every segment is read back and checked.
4. The service stops. No process and no socket may be left, and `tierlog doctor` examines the folder.
"""

from __future__ import annotations

import argparse
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import Random

import anyio
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import tierlog
from chaos_parts.events import SegmentCheck
from chaos_parts.http_store import HttpStore
from chaos_parts.ledger import Ledger, Outcome
from chaos_parts.processes import RunError, Usage, compare_usage, processes_of, usage_of
from chaos_parts.report import Report, Window, count_takeovers
from chaos_parts.service import TIERLOG, OwnService, Service
from chaos_parts.writers import Plan, TailWriters, WriterProcesses, segment_names
from tierlog.actors.kernel.exits import leaves

POOLED = 45.0
"""Seconds. A client keeps idle connections for 30 s, and checks their age when it uses them; a host
keeps those to a bucket for 12 s."""
RECOVERY_LIMIT = 20.0
"""Seconds after which a container that does not ack again counts as lost."""


class Options(argparse.Namespace):
    """The arguments; ``command_line.py`` has the other defaults."""

    rounds: int
    seed: int
    hosts: int
    containers: int
    writers: int
    pace: float
    tail: int = 0
    client: str
    json: bool
    goals: bool = False
    keep: Path | None
    patience: float
    url: str | None = None
    pids_from: Path | None = None
    only: int | None = None


class Run:
    """What a round works with."""

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
        self.progress = Progress(
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
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
        self,
        figure: str,
        goal: float | None = None,
        *,
        since: float | None = None,
        containers: Iterable[int] | None = None,
        limit: float = RECOVERY_LIMIT,
    ) -> Mapping[int, float]:
        """Wait until each container (default: all) has acked an event that was sent after ``since`` (default:
        now), and record the times, which are returned."""
        since = time.monotonic() if since is None else since
        seconds = await self.first(
            Outcome.ACKED, figure, goal, since=since, containers=containers, limit=limit
        )
        if goal is not None:
            self.windows.append((time.time() - (time.monotonic() - since), time.time()))
        return seconds

    async def first(
        self,
        outcome: Outcome,
        figure: str,
        goal: float | None = None,
        *,
        since: float,
        containers: Iterable[int] | None = None,
        limit: float = RECOVERY_LIMIT,
    ) -> Mapping[int, float]:
        """Wait for the first such outcome in each container, and record the times, which are returned. A
        container without one is a violation."""
        containers = range(self.service.containers) if containers is None else containers
        wait = await self.ledger.first(outcome, containers, since, limit)
        self.report.samples_of(figure, goal).values += wait.seconds.values()
        for container in sorted(wait.missing):
            late = f"no event was {outcome.name} within {limit:g} s ({figure})"
            self.violated_in_round(f"container {container}: {late}")
        return wait.seconds

    async def all_ack(self) -> None:
        """Every container acks something that is sent from now on."""
        containers = range(self.service.containers)
        wait = await self.ledger.first(Outcome.ACKED, containers, time.monotonic(), RECOVERY_LIMIT)
        if wait.missing:
            raise RunError(f"containers {sorted(wait.missing)} ack nothing, though there is no fault")


Round = Callable[[Run], Awaitable[None]]
"""Injects a fault, ends it, and waits until every container acks again."""


async def campaign(run: Run, inject: Round, *, plain: bool = True) -> None:
    """The whole run; ``plain``: with writers without event numbers. Violations are in the report; raises
    ``RunError`` if the run could not be made."""
    service = run.service
    async with service.running():
        await service.inspect()
        run.segments = segment_names(f"chaos/{run.options.seed}-{time.time_ns():x}", service.containers)
        async with HttpStore(service.data_url) as store:
            for segment in run.segments:
                await store.create_segment(segment)
        before = await _service_usage(service)
        await _write_through_rounds(run, inject, plain=plain)
        await service.settled()
        await _report_leaks(run, before, lambda: _service_usage(service), POOLED)
        async with HttpStore(service.data_url) as store:
            await _check_segments(run, store)
    if isinstance(service, OwnService):
        check_leftovers(run, service)


async def _write_through_rounds(run: Run, inject: Round, *, plain: bool) -> None:
    options, url = run.options, run.service.data_url
    writers = WriterProcesses(run.ledger)
    plans = []
    for number in range(options.writers):
        planned = writers.plan(number, run.segments, plain=plain)
        plans.append(Plan(url, options.client, f"{options.seed}/{number}", options.pace, planned))

    async def usage() -> dict[str, Usage]:
        return usage_of({f"writer {number}": pid for number, pid in enumerate(writers.pids)}, "writer")

    skipped = sum(1 for _ in run.service.log_lines())
    try:
        async with tierlog.connect(url) as store, writers.running(plans, run.service.writer_command):
            tails = TailWriters(store, run.ledger, run.segments)
            await run.all_ack()
            before = await usage()
            began, acked = time.monotonic(), run.ledger.acked
            try:
                await _rounds(run, inject, tails)
            finally:
                tails.end()
            await run.all_ack()
            run.report.seconds, run.report.acked = time.monotonic() - began, run.ledger.acked - acked
            await _report_leaks(run, before, usage, POOLED)
    finally:
        run.report.violations += run.ledger.problems
    service = run.service
    count_takeovers(run.report, service.log_lines(), skipped, run.windows, service.takeover_goal)


async def _rounds(run: Run, inject: Round, tails: TailWriters) -> None:
    for _ in range(run.options.rounds):
        await tails.add(run.options.tail)
        await inject(run)
        run.advance()
        if run.report.violations or run.ledger.problems:
            return


# --- checks -------------------------------------------------------------------------------------


async def _service_usage(service: Service) -> dict[str, Usage]:
    supervisor, hosts = await service.supervisor(), await service.hosts()
    usage = usage_of({supervisor.name: supervisor.pid}, "supervisor")
    return usage | usage_of({host.name: host.pid for host in hosts}, "host")


async def _report_leaks(
    run: Run, before: dict[str, Usage], usage: Callable[[], Awaitable[dict[str, Usage]]], limit: float
) -> None:
    """Closing or pooled connections need a moment: what has grown must shrink within ``limit`` seconds."""
    deadline = time.monotonic() + limit
    while grown := compare_usage(before, await usage()):
        if time.monotonic() >= deadline:
            break
        await anyio.sleep(0.1)
    run.report.violations += grown


async def _check_segments(run: Run, store: HttpStore) -> None:
    """Read every segment back through the service."""
    writers, report = run.ledger.writers, run.report
    for segment in run.segments:
        check = SegmentCheck(segment, writers)
        async for block in store.read_blocks(segment):
            check.feed(block)
        report.violations += check.finish()
        report.events += check.events
        report.unknown += check.unknown
        report.bytes += check.bytes
    report.counts |= {
        "calls sent again": sum(writer.retried for writer in writers),
        "unknown outcomes": sum(len(writer.unknown) for writer in writers),
        "rejected": sum(len(writer.rejected) for writer in writers),
        "rejected as full": sum(writer.full for writer in writers),
    }


def check_leftovers(run: Run, service: OwnService) -> None:
    """What a stopped service left behind."""
    if left := processes_of(service.folder):
        run.violated(f"processes {left} outlived their supervisor")
    for path in service.runtime.rglob("*"):
        if path.is_socket():
            run.violated(f"the socket {path} was left")
    doctor = [*TIERLOG, "doctor", "--data", str(service.folder)]
    done = subprocess.run(doctor, capture_output=True, text=True, check=False)
    if done.returncode:
        run.violated(f"tierlog doctor: {(done.stdout + done.stderr).strip()[-500:]}")
