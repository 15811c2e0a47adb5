"""Injects faults into Spark's exactly-once writes at every point, and proves that each row is there once.

It starts `tierlog serve` on a temporary folder, and Spark for one master after another: `local[2,4]`,
`local-cluster[2,1,1024]`, and a standalone master with two workers on two loopback addresses. In each round a
batch or a stream is written with tierlog's data source, with a fault before any append, mid-way, after the
last append, before the commit, or after it, when its answer is lost. The faults: tasks fail and are retried,
after a shuffle on another executor; executors, drivers and tierlog's hosts are killed; a host is frozen; slow
tasks get copies; a stream restarts with other partitions. A failed write is repeated.

Then every row must be there exactly once, partition by partition as one attempt wrote it. A reader polls
meanwhile and must never see a part of a write. Nothing staged may be left after the lease, and no
process.

  scripts/chaos_spark.py --rounds 5
  scripts/chaos_spark.py --rounds 200 --seed 7         # every 40 rounds cover each combination once
  scripts/chaos_spark.py --seed 7 --only 23            # repeat one round

It needs PySpark and Java 17. Rounds run master by master, because a session takes long to start.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Sequence
from itertools import groupby

import anyio
import anyio.abc
import attrs
from rich.console import Console
from rich.table import Table

import tierlog
from chaos_parts.campaign import Run, check_leftovers
from chaos_parts.command_line import carry_out, make_parser, parse_options
from chaos_parts.http_store import HttpStore
from chaos_parts.numbers import count
from chaos_parts.processes import (
    RunError,
    WorkerGoneError,
    command_of,
    counted,
    kill_process,
    processes_of_session,
)
from chaos_parts.report import Report
from chaos_parts.service import OwnService
from chaos_parts.spark_checker import Poller, check_writes, left_staged, lengths_allowed
from chaos_parts.spark_drivers import Drivers, Request
from chaos_parts.spark_scenarios import (
    CELLS,
    COPY_DONE,
    EXECUTOR,
    FaultKind,
    Point,
    Scenario,
    scenario,
    scenarios,
)
from chaos_parts.spark_session import missing
from chaos_parts.sync_point import open_sync_point
from tierlog.spark_bridge import events

_WRITES_MAX = 4
_REPEATS_MAX = 3
"""How often a round is run until it is conclusive: on a busy machine Spark may copy a task before it reaches
the point."""
_VIOLATED_MAX = 10
"""Rounds with violations before a run gives up."""
_COPY = 50.0
"""Seconds within which Spark must copy a slow task."""


@attrs.define
class SparkReport(Report):
    @property
    def facts(self) -> str:
        met = f"{len(self.actions)} of {len(CELLS)} cells"
        pace = f"{self.acked} events, {self.rounds_per_minute:.1f} rounds per minute"
        return f"{counted(self.rounds, 'round')}, seed {self.seed}: {met}; {pace}"

    @property
    def rounds_per_minute(self) -> float:
        return 60 * self.rounds / self.seconds if self.seconds else 0.0

    def document(self) -> dict[str, object]:
        return {**super().document(), "rounds_per_minute": round(self.rounds_per_minute, 2)}

    def show(self, console: Console, *, as_json: bool) -> None:
        if not as_json:
            table = Table("rounds", *Point)
            for column in table.columns[1:]:
                column.justify = "right"
            for kind in FaultKind:
                table.add_row(kind, *(str(self.actions.get(fault_name(kind, point), 0)) for point in Point))
            console.print(table)
        super().show(console, as_json=as_json)


def fault_name(kind: FaultKind, point: Point) -> str:
    return f"{kind}, {point}"


class SparkCampaign:
    """Rounds share only the service and the Spark session, so a run goes on after a violation."""

    def __init__(self, run: Run, store: tierlog.Client, drivers: Drivers) -> None:
        self.run = run
        self.store = store
        self.drivers = drivers
        self.port = 0
        """The port of the sync point."""
        self._prefix = f"chaos/{run.options.seed}-{time.time_ns():x}"
        self._current: Attempt | None = None
        self._targets: dict[str, Scenario] = {}
        self._violated: set[int] = set()

    async def run_all(self) -> None:
        async def reached(number: int, what: int) -> None:
            if self._current is not None:
                await self._current.on_sync_point(number, what)

        async with open_sync_point(reached) as self.port:
            try:
                await self._rounds()
                await self.drivers.close()
            finally:
                await self.drivers.kill()

    async def _rounds(self) -> None:
        seed, only = self.run.options.seed, self.run.options.only
        wanted = scenarios(seed, self.run.options.rounds) if only is None else [scenario(seed, only)]
        for _, group in groupby(wanted, key=lambda each: each.master):
            for each in group:
                await self._round(each)
                if len(self._violated) >= _VIOLATED_MAX:
                    self.run.violated(f"{_VIOLATED_MAX} rounds had violations: the others were not run")
                    return
            for target, left in (await left_staged(self.store, self._targets)).items():
                self._report(self._targets[target], [left])
            self._targets.clear()

    def _report(self, drawn: Scenario, problems: Sequence[str]) -> None:
        if problems:
            self._violated.add(drawn.number)
        for problem in problems:
            where = f"round {drawn.number} ({fault_name(*drawn.cell)}{', stream' if drawn.stream else ''})"
            alone = f"scripts/chaos_spark.py --seed {self.run.options.seed} --only {drawn.number}"
            self.run.violated(f"{where}: {problem}; alone: {alone}")

    async def _round(self, drawn: Scenario) -> None:
        """A round whose fault did not happen is checked too, and repeated."""
        self.run.begin_fault(fault_name(*drawn.cell))
        problems, inconclusive = list[str](), ""
        for number in range(_REPEATS_MAX):
            if inconclusive:
                self.run.report.count(f"rounds repeated ({inconclusive})")
            await self.run.service.settled()
            await self.drivers.for_master(drawn.master)
            target = f"{self._prefix}/{drawn.number}-{number}"
            self._targets[target] = drawn
            self._current = attempt = Attempt(self, drawn, target)
            await attempt.run()
            problems, inconclusive = attempt.problems, attempt.inconclusive
            if problems or not inconclusive:
                break
        if inconclusive:
            problems.append(f"{inconclusive}: the round proves nothing")
        self._report(drawn, problems)
        self.run.advance()


class Attempt:
    """One attempt of a round: a reader polls the target; a write meets its fault; if it failed it is
    repeated, as an application would, until it succeeds; then the segment is checked.

    Faults around Spark's tasks happen here, while a task or a commit waits at its sync point: kills of
    executors, drivers and hosts, freezes, and slow tasks. How a task itself fails is in
    ``spark_failing_writer.py``."""

    def __init__(self, campaign: SparkCampaign, drawn: Scenario, target: str) -> None:
        self.problems: list[str] = []
        """Violations."""
        self._campaign = campaign
        self._run = campaign.run
        self._drivers = campaign.drivers
        self._store = campaign.store
        self._drawn = drawn
        self._target = target
        self._tasks = anyio.create_task_group()
        self._copied = anyio.Event()
        self._reached = 0
        """How often the point was reached."""
        self._staged = 0
        """Bytes that were staged at the point."""

    @property
    def inconclusive(self) -> str:
        """Why the attempt proves nothing; empty if it had its fault."""
        if not self._reached:
            return "nothing reached the point"

        return "nothing was staged mid-way" if self._drawn.point is Point.MIDWAY and not self._staged else ""

    async def run(self) -> None:
        drawn, report = self._drawn, self._run.report
        began = time.monotonic()
        batches = [drawn.rows, drawn.more_rows] if drawn.stream else [drawn.rows]
        poller = Poller(self._store, self._target, lengths_allowed(batches))
        async with anyio.create_task_group() as polling:
            polling.start_soon(poller.run)
            async with self._tasks:
                await self._writes()
            polling.cancel_scope.cancel()
        async with HttpStore(self._run.service.data_url) as reader:
            data = b"".join([block async for block in reader.read_blocks(self._target)])
        self.problems += poller.problems
        self.problems += check_writes(data, batches, shuffled=drawn.kind is FaultKind.ELSEWHERE)
        report.samples_of(f"a round on {drawn.master}").values.append(time.monotonic() - began)
        report.count("polls of readers", poller.polls)
        report.count("polls without an answer", poller.unanswered)
        report.acked += sum(batches)
        report.bytes += len(data)

    # --- writes ----------------------------------------------------------------------------------

    async def _writes(self) -> None:
        """Write until everything is there."""
        drawn = self._drawn
        if drawn.stream:
            await self._store.create_segment(f"{self._target}/in")
            await self._fill(0, range(drawn.rows))
        failed = await self._write(faulty=True)
        if failed and drawn.succeeds:
            self.problems.append(f"the write failed, though Spark or the client could recover: {failed}")
        repeats = 0
        while failed and repeats < _WRITES_MAX:
            repeats += 1
            self._run.report.count("writes repeated")
            failed = await self._write()
        if drawn.stream and not failed:
            await self._fill(1, range(drawn.rows, drawn.rows + drawn.more_rows))
        if (drawn.stream or drawn.again) and not failed:
            failed = await self._write()
        if failed:
            self.problems.append(f"the repeated write failed: {failed}")

    async def _write(self, *, faulty: bool = False) -> str:
        """Why a write failed; empty if it did not."""
        drawn = self._drawn
        request = Request(
            scenario=drawn,
            url=self._run.service.data_url,
            target=self._target,
            source=f"{self._target}/in",
            checkpoint=str(self._run.folder / f"checkpoint-{self._target.rpartition('/')[2]}"),
            partitions=drawn.partitions if faulty else drawn.partitions_later,
            port=self._campaign.port,
            faulty=faulty,
        )
        try:
            return await self._drivers.write(drawn.master, request)
        except WorkerGoneError as gone:
            if not (faulty and drawn.kind is FaultKind.DRIVER_KILLED):
                self.problems.append(str(gone))
            failed = "the driver is gone"
        except TimeoutError:
            failed = "the write did not return: see Spark's log"
            self.problems.append(failed)
        await self._drivers.kill()
        return failed

    async def _fill(self, number: int, rows: range) -> None:
        """The n-th append to the segment that a stream copies."""
        data = events.encode([b"%d" % row for row in rows])
        await self._store.append(f"{self._target}/in", data, writer_id="chaos", event_number=number)

    # --- faults ----------------------------------------------------------------------------------

    async def on_sync_point(self, number: int, what: int) -> None:
        if number != self._drawn.number:
            return  # a late task of an earlier round

        if what == COPY_DONE:
            self._copied.set()
            return
        try:
            await self._inject()
        except (RunError, tierlog.TierlogError) as error:
            self.problems.append(f"the fault could not be injected: {error}")

    async def _inject(self) -> None:
        self._reached += 1
        if self._drawn.point is Point.MIDWAY and self._reached == 1:
            names = await self._store.list_segments(f"{self._target}#txn.")
            self._staged = sum([(await self._store.segment_info(name)).length for name in names])
        match self._drawn.kind:
            case FaultKind.SPECULATION:
                await self._hold()
            case FaultKind.EXECUTOR_KILLED if self._drawn.point.in_commit:
                self._kill_an_executor()
            case FaultKind.DRIVER_KILLED:
                await self._drivers.kill()
            case FaultKind.HOST_KILLED if self._reached == 1:
                await self._signal_owner((self._drawn.delay, signal.SIGKILL))
            case FaultKind.HOST_FROZEN if self._reached == 1:
                await self._signal_owner((0.0, signal.SIGSTOP), (self._drawn.frozen, signal.SIGCONT))

    async def _hold(self) -> None:
        """Hold the task until its copy has written. A commit is let through: the copy is done by then."""
        with anyio.move_on_after(_COPY):
            await self._copied.wait()
            return
        self.problems.append(f"Spark made no copy of the slow task within {_COPY:g} s")

    def _kill_an_executor(self) -> None:
        assert self._drivers.worker is not None
        session = processes_of_session(self._drivers.worker.session)
        executors = [pid for pid in session if EXECUTOR in command_of(pid)]
        if not executors:
            self.problems.append("there is no executor to kill")
        for pid in executors[:1]:
            kill_process(pid)

    async def _signal_owner(self, *signals: tuple[float, signal.Signals]) -> None:
        """Send the host that serves the target each signal after so many seconds."""
        service = self._run.service
        victim = await service.owner(self._target)

        async def send(delay: float, number: signal.Signals) -> None:
            try:
                await anyio.sleep(delay)
            finally:
                service.send_signal(victim, number)  # a frozen host resumes after a cancellation too

        for delay, number in signals:
            if delay:
                self._tasks.start_soon(send, delay, number)
            else:
                service.send_signal(victim, number)


async def campaign(run: Run) -> None:
    service = run.service
    assert isinstance(service, OwnService)
    starts = run.report.samples_of("start of a Spark session")
    drivers = Drivers(run.folder, started=starts.values.append, leaked=run.violated)
    async with service.running():
        await service.inspect()
        async with tierlog.connect(service.data_url) as store:
            began = time.monotonic()
            await SparkCampaign(run, store, drivers).run_all()
            run.report.seconds = time.monotonic() - began
    run.report.events = run.report.acked
    check_leftovers(run, service)


def main(arguments: Sequence[str]) -> int:
    parser = make_parser("spark", __doc__, rounds=len(CELLS), writers=False)
    only = "only the round of that number, such as one with a violation"
    parser.add_argument("--only", type=count(1, 100_000), metavar="N", help=only)
    options = parse_options(parser, arguments)
    if reason := missing():
        print(f"chaos_spark: {reason}", file=sys.stderr)
        return 1

    if options.only is not None:
        options.rounds = 1
    return carry_out(options, SparkReport("spark", options.seed), campaign)
