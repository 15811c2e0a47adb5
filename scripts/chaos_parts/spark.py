"""Spark's writes, broken everywhere: what ``scripts/chaos_spark.py`` does.

Owns: the order of things in a run and in a round, and the verdict's form. Does not own: what is drawn
(``spark_draws.py``), the trouble (``spark_trouble.py``, ``spark_faults.py``), the processes
(``spark_children.py``), the judgement (``spark_oracle.py``, ``spark_watch.py``).

A round: a reader polls the target; a write meets its trouble; if it failed it is run again, as an application
would, until it succeeds; then what is there is judged. One whose trouble nobody met is judged too, and done
again. Rounds share nothing but the service and the Spark session, so a run goes on after one that broke.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence

import anyio
import attrs
from rich.console import Console
from rich.table import Table

import tierlog
from chaos_parts.campaign import Run, judge_the_rest
from chaos_parts.gate import open_gate
from chaos_parts.options import Options, count, options_of, parser
from chaos_parts.program import carry_out
from chaos_parts.raw import RawStore
from chaos_parts.service import OwnService
from chaos_parts.spark_children import DriverGoneError, Drivers
from chaos_parts.spark_draws import CELLS, Draw, Point, Way, by_master, draw, draw_all, table_of
from chaos_parts.spark_jobs import Order
from chaos_parts.spark_oracle import judge, lengths_allowed
from chaos_parts.spark_session import missing
from chaos_parts.spark_trouble import Trouble
from chaos_parts.spark_watch import Watch, left_staged
from chaos_parts.verdict import Verdict
from spark_java import find_java
from tierlog.spark_bridge import events

_AGAIN_MAX = 4
_SHOWS_MAX = 3
"""How often a round is done until it shows something: on a busy machine Spark may copy a task before it comes
to the point."""
_BROKEN_MAX = 10
"""Rounds that break before a run gives up."""


@attrs.frozen(kw_only=True)
class SparkOptions(Options):
    only: int | None = None

    @property
    def draws(self) -> list[Draw]:
        return draw_all(self.seed, self.rounds) if self.only is None else [draw(self.seed, self.only)]


@attrs.define
class SparkVerdict(Verdict):
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
            for row in table_of(Counter({cell: self.actions.get(action_of(*cell), 0) for cell in CELLS})):
                table.add_row(*row)
            console.print(table)
        super().show(console, as_json=as_json)


def action_of(way: Way, point: Point) -> str:
    return f"{way}, {point}"


class SparkCampaign:
    def __init__(self, run: Run, options: SparkOptions, store: tierlog.Client, drivers: Drivers) -> None:
        self._run = run
        self._options = options
        self._store = store
        self._drivers = drivers
        self.port = 0
        """The gate's."""
        self._prefix = f"chaos/{options.seed}-{time.time_ns():x}"
        self._trouble: Trouble | None = None
        self._targets: dict[str, Draw] = {}
        self._broken: set[int] = set()

    async def cross(self, number: int, what: int) -> None:
        """Somebody is at the gate."""
        if self._trouble is not None:
            await self._trouble.cross(number, what)

    async def rounds(self) -> None:
        for _, draws in by_master(self._options.draws):
            for each in draws:
                await self._round(each)
                if len(self._broken) >= _BROKEN_MAX:
                    self._run.broken(f"{_BROKEN_MAX} rounds broke: the others were not run")
                    return
            await self._leases_end()

    def _tell(self, drawn: Draw, problems: Sequence[str]) -> None:
        if problems:
            self._broken.add(drawn.number)
        for problem in problems:
            where = f"round {drawn.number} ({action_of(*drawn.cell)}{', stream' if drawn.stream else ''})"
            alone = f"scripts/chaos_spark.py --seed {self._options.seed} --only {drawn.number}"
            self._run.broken(f"{where}: {problem}; alone: {alone}")

    async def _round(self, drawn: Draw) -> None:
        self._run.did(action_of(*drawn.cell))
        problems, missed = await self._attempt(drawn, f"{self._prefix}/{drawn.number}")
        for again in range(1, _SHOWS_MAX):
            if problems or not missed:
                break
            self._run.verdict.count(f"rounds done again ({missed})")
            problems, missed = await self._attempt(drawn, f"{self._prefix}/{drawn.number}-{again}")
        self._tell(drawn, [*problems, *([f"{missed}: the round shows nothing"] if missed else [])])
        self._run.advance()

    async def _attempt(self, drawn: Draw, target: str) -> tuple[list[str], str]:
        """(what is wrong, why it shows nothing)."""
        await self._run.service.settled()
        await self._drivers.for_master(drawn.master)
        began = time.monotonic()
        self._targets[target] = drawn
        batches = [drawn.rows, drawn.more_rows] if drawn.stream else [drawn.rows]
        watch = Watch(self._store, target, lengths_allowed(batches))
        async with anyio.create_task_group() as watching:
            watching.start_soon(watch.run)
            async with anyio.create_task_group() as tasks:
                self._trouble = trouble = Trouble(self._run, self._drivers, self._store, drawn, target, tasks)
                problems = await self._writes(drawn, target)
            watching.cancel_scope.cancel()
        problems += [*trouble.problems, *watch.problems]
        problems += await self._judge(target, batches, shuffled=drawn.way is Way.ELSEWHERE)
        self._run.verdict.sample(f"a round on {drawn.master}").values.append(time.monotonic() - began)
        self._run.verdict.count("polls of readers", watch.polls)
        self._run.verdict.count("polls without an answer", watch.blind)
        self._run.verdict.acked += sum(batches)
        return problems, trouble.missed

    async def _judge(self, target: str, batches: Sequence[int], *, shuffled: bool) -> list[str]:
        async with RawStore(self._run.service.data_url) as store:
            data = b"".join([block async for block in store.read_blocks(target)])
        self._run.verdict.bytes += len(data)
        return judge(data, batches, shuffled=shuffled)

    async def _leases_end(self) -> None:
        for target, left in (await left_staged(self._store, self._targets)).items():
            self._tell(self._targets[target], [left])
        self._targets.clear()

    # --- writes ----------------------------------------------------------------------------------

    async def _writes(self, drawn: Draw, target: str) -> list[str]:
        """Until all is written; what went wrong on the way."""
        if drawn.stream:
            await self._store.create_segment(f"{target}/in")
            await self._fill(target, 0, range(drawn.rows))
        problems: list[str] = []
        failed = await self._write(drawn, target, problems, trouble=True)
        if failed and drawn.succeeds:
            problems.append(f"the write failed, though it need not: {failed}")
        for _ in range(_AGAIN_MAX):
            if not failed:
                break
            self._run.verdict.count("writes run again")
            failed = await self._write(drawn, target, problems)
        if drawn.stream and not failed:
            await self._fill(target, 1, range(drawn.rows, drawn.rows + drawn.more_rows))
        if (drawn.stream or drawn.again) and not failed:
            failed = await self._write(drawn, target, problems)
        return [*problems, *([f"the write does not succeed any more: {failed}"] if failed else [])]

    async def _write(self, drawn: Draw, target: str, problems: list[str], *, trouble: bool = False) -> str:
        driver = await self._drivers.for_master(drawn.master)
        try:
            return await driver.write(self._order(drawn, target, trouble=trouble))
        except DriverGoneError:
            if not (trouble and drawn.way is Way.DRIVER_KILLED):
                problems.append(f"the driver ended by itself: see {driver.log}")
            failed = "the driver is gone"
        except TimeoutError:
            failed = f"the write did not come back: see {driver.log}"
            problems.append(failed)
        await self._drivers.kill()
        return failed

    def _order(self, drawn: Draw, target: str, *, trouble: bool) -> Order:
        return Order(
            draw=drawn,
            url=self._run.service.data_url,
            target=target,
            source=f"{target}/in",
            checkpoint=str(self._run.folder / f"checkpoint-{target.rpartition('/')[2]}"),
            partitions=drawn.partitions if trouble else drawn.partitions_later,
            port=self.port,
            trouble=trouble,
        )

    async def _fill(self, target: str, number: int, rows: range) -> None:
        """The segment that a stream copies, in its n-th append."""
        data = events.encode([b"%d" % row for row in rows])
        await self._store.append(f"{target}/in", data, writer_id="chaos", event_number=number)


async def campaign(run: Run, options: SparkOptions) -> None:
    service = run.service
    assert isinstance(service, OwnService)
    starts = run.verdict.sample("start of a Spark session")
    drivers = Drivers(run.folder, find_java(), started=starts.values.append, leaked=run.broken)
    try:
        async with service.running():
            await service.learn()
            async with tierlog.connect(service.data_url) as store:
                work = SparkCampaign(run, options, store, drivers)
                began = time.monotonic()
                async with open_gate(work.cross) as work.port:
                    try:
                        await work.rounds()
                        await drivers.close()
                    finally:
                        await drivers.kill()
                run.verdict.seconds = time.monotonic() - began
    finally:
        await service.admin.aclose()
    run.verdict.events = run.verdict.acked
    judge_the_rest(run, service)


def main(text: str, arguments: Sequence[str]) -> int:
    made = parser("spark", text, attach=False, rounds=len(CELLS), crew=False)
    made.add_argument(
        "--only",
        type=count(1, 100_000),
        metavar="N",
        help="only the round of that number, such as one that broke",
    )
    options = SparkOptions(**vars(options_of(made, arguments)))
    if reason := missing():
        print(f"chaos_spark: {reason}", file=sys.stderr)
        return 1

    if options.only is not None:
        options = attrs.evolve(options, rounds=1)
    return carry_out(options, SparkVerdict("spark", options.seed), lambda run: campaign(run, options))
