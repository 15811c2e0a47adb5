"""Spark's writes with faults at every point: ``scripts/chaos_spark.py``.

A round: a reader polls the target; a write meets its fault; if it failed it is repeated, as an application
would, until it succeeds; then the segment is checked. A round whose fault did not happen is checked too, and
repeated. Rounds share only the service and the Spark session, so a run goes on after a violation."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from itertools import groupby

import anyio
import attrs
from rich.console import Console
from rich.table import Table

import tierlog
from chaos_parts.campaign import Run, check_leftovers
from chaos_parts.command_line import carry_out, count, make_parser, parse_options
from chaos_parts.http_store import HttpStore
from chaos_parts.processes import WorkerGoneError
from chaos_parts.report import Report
from chaos_parts.service import OwnService
from chaos_parts.spark_checker import Poller, check_writes, left_staged, lengths_allowed
from chaos_parts.spark_drivers import Drivers, Request
from chaos_parts.spark_faults import RoundFault
from chaos_parts.spark_scenarios import CELLS, FaultKind, Point, Scenario, scenario, scenarios
from chaos_parts.spark_session import missing
from chaos_parts.sync_point import open_sync_point
from tierlog.spark_bridge import events

_WRITES_MAX = 4
_REPEATS_MAX = 3
"""How often a round is run until it is conclusive: on a busy machine Spark may copy a task before it reaches
the point."""
_VIOLATED_MAX = 10
"""Rounds with violations before a run gives up."""


@attrs.define
class SparkReport(Report):
    @property
    def facts(self) -> str:
        met = f"{len(self.actions)} of {len(CELLS)} cells"
        return (
            f"{self.rounds} rounds, seed {self.seed}: {met}; {self.acked} events, "
            f"{self.rounds_per_minute:.1f} rounds per minute"
        )

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
    def __init__(self, run: Run, store: tierlog.Client, drivers: Drivers) -> None:
        self._run = run
        self._store = store
        self._drivers = drivers
        self._port = 0
        """Of the sync point."""
        self._prefix = f"chaos/{run.options.seed}-{time.time_ns():x}"
        self._fault: RoundFault | None = None
        self._targets: dict[str, Scenario] = {}
        self._violated: set[int] = set()

    async def run(self) -> None:
        async def reached(number: int, what: int) -> None:
            if self._fault is not None:
                await self._fault.on_sync_point(number, what)

        async with open_sync_point(reached) as self._port:
            try:
                await self._rounds()
                await self._drivers.close()
            finally:
                await self._drivers.kill()

    async def _rounds(self) -> None:
        seed, only = self._run.options.seed, self._run.options.only
        wanted = scenarios(seed, self._run.options.rounds) if only is None else [scenario(seed, only)]
        for _, group in groupby(wanted, key=lambda each: each.master):
            for each in group:
                await self._round(each)
                if len(self._violated) >= _VIOLATED_MAX:
                    self._run.violated(f"{_VIOLATED_MAX} rounds had violations: the others were not run")
                    return
            for target, left in (await left_staged(self._store, self._targets)).items():
                self._report(self._targets[target], [left])
            self._targets.clear()

    def _report(self, drawn: Scenario, problems: Sequence[str]) -> None:
        if problems:
            self._violated.add(drawn.number)
        for problem in problems:
            where = f"round {drawn.number} ({fault_name(*drawn.cell)}{', stream' if drawn.stream else ''})"
            alone = f"scripts/chaos_spark.py --seed {self._run.options.seed} --only {drawn.number}"
            self._run.violated(f"{where}: {problem}; alone: {alone}")

    async def _round(self, drawn: Scenario) -> None:
        self._run.begin_fault(fault_name(*drawn.cell))
        problems, inconclusive = list[str](), ""
        for attempt in range(_REPEATS_MAX):
            problems, inconclusive = await self._attempt(drawn, f"{self._prefix}/{drawn.number}-{attempt}")
            if problems or not inconclusive:
                break
            if attempt < _REPEATS_MAX - 1:
                self._run.report.count(f"rounds repeated ({inconclusive})")
        if inconclusive:
            problems.append(f"{inconclusive}: the round proves nothing")
        self._report(drawn, problems)
        self._run.advance()

    async def _attempt(self, drawn: Scenario, target: str) -> tuple[list[str], str]:
        """Violations, and why the round is inconclusive."""
        await self._run.service.settled()
        await self._drivers.for_master(drawn.master)
        began = time.monotonic()
        self._targets[target] = drawn
        batches = [drawn.rows, drawn.more_rows] if drawn.stream else [drawn.rows]
        poller = Poller(self._store, target, lengths_allowed(batches))
        async with anyio.create_task_group() as polling:
            polling.start_soon(poller.run)
            async with anyio.create_task_group() as tasks:
                self._fault = fault = RoundFault(self._run, self._drivers, self._store, drawn, target, tasks)
                problems = await self._writes(drawn, target)
            polling.cancel_scope.cancel()
        async with HttpStore(self._run.service.data_url) as reader:
            data = b"".join([block async for block in reader.read_blocks(target)])
        problems += [*fault.problems, *poller.problems]
        problems += check_writes(data, batches, shuffled=drawn.kind is FaultKind.ELSEWHERE)
        report = self._run.report
        report.samples_of(f"a round on {drawn.master}").values.append(time.monotonic() - began)
        report.count("polls of readers", poller.polls)
        report.count("polls without an answer", poller.unanswered)
        report.acked += sum(batches)
        report.bytes += len(data)
        return problems, fault.inconclusive

    # --- writes ----------------------------------------------------------------------------------

    async def _writes(self, drawn: Scenario, target: str) -> list[str]:
        """Write until everything is there; returns violations."""
        if drawn.stream:
            await self._store.create_segment(f"{target}/in")
            await self._fill(target, 0, range(drawn.rows))
        problems: list[str] = []
        failed = await self._write(drawn, target, problems, faulty=True)
        if failed and drawn.succeeds:
            problems.append(f"the write failed, though Spark or the client could recover: {failed}")
        repeats = 0
        while failed and repeats < _WRITES_MAX:
            repeats += 1
            self._run.report.count("writes repeated")
            failed = await self._write(drawn, target, problems)
        if drawn.stream and not failed:
            await self._fill(target, 1, range(drawn.rows, drawn.rows + drawn.more_rows))
        if (drawn.stream or drawn.again) and not failed:
            failed = await self._write(drawn, target, problems)
        if failed:
            problems.append(f"the repeated write failed: {failed}")
        return problems

    async def _write(self, drawn: Scenario, target: str, problems: list[str], *, faulty: bool = False) -> str:
        """Why a write failed; empty if it did not."""
        request = Request(
            scenario=drawn,
            url=self._run.service.data_url,
            target=target,
            source=f"{target}/in",
            checkpoint=str(self._run.folder / f"checkpoint-{target.rpartition('/')[2]}"),
            partitions=drawn.partitions if faulty else drawn.partitions_later,
            port=self._port,
            faulty=faulty,
        )
        try:
            return await self._drivers.write(drawn.master, request)
        except WorkerGoneError as gone:
            if not (faulty and drawn.kind is FaultKind.DRIVER_KILLED):
                problems.append(str(gone))
            failed = "the driver is gone"
        except TimeoutError:
            failed = "the write did not return: see Spark's log"
            problems.append(failed)
        await self._drivers.kill()
        return failed

    async def _fill(self, target: str, number: int, rows: range) -> None:
        """The n-th append to the segment that a stream copies."""
        data = events.encode([b"%d" % row for row in rows])
        await self._store.append(f"{target}/in", data, writer_id="chaos", event_number=number)


async def campaign(run: Run) -> None:
    service = run.service
    assert isinstance(service, OwnService)
    starts = run.report.samples_of("start of a Spark session")
    drivers = Drivers(run.folder, started=starts.values.append, leaked=run.violated)
    try:
        async with service.running():
            await service.inspect()
            async with tierlog.connect(service.data_url) as store:
                began = time.monotonic()
                await SparkCampaign(run, store, drivers).run()
                run.report.seconds = time.monotonic() - began
    finally:
        await service.aclose()
    run.report.events = run.report.acked
    check_leftovers(run, service)


def main(text: str, arguments: Sequence[str]) -> int:
    parser = make_parser("spark", text, attach=False, rounds=len(CELLS), writers=False)
    only = "only the round of that number, such as one with a violation"
    parser.add_argument("--only", type=count(1, 100_000), metavar="N", help=only)
    options = parse_options(parser, arguments)
    if reason := missing():
        print(f"chaos_spark: {reason}", file=sys.stderr)
        return 1

    if options.only is not None:
        options.rounds = 1
    return carry_out(options, SparkReport("spark", options.seed), campaign)
