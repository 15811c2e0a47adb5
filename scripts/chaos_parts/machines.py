"""Breaks a service on several machines, again and again, and proves that nothing acked is lost.

Each machine is a network namespace with an address, a host name and a folder of its own: two for supervisors
(one is active, the other one stands by), three or more for hosts that join, one for the writers, which record
every ack, and those of the engine that the store is on. In each round processes are killed or stopped (for
less and for more than the lease and the graces), machines are cut off from each other or from all, links and
the engine are slow, hosts join, are drained, and are restarted one after the other; on BookKeeper bookies and
sidecars are killed and stopped too. In a quarter of the rounds two things happen at once. Then every
container must ack again, all machines must do their part, and every acked event must be readable, once, in
order and whole. At the end all is read again, by the service and, once every process has ended, by an app
that has nothing but the engine.

  scripts/chaos_machines.py --rounds 5
  scripts/chaos_machines.py --rounds 200 --request-delay 20ms --goals

Times are from the fault until the answer to an event that was sent after it: they include the 0.75 s after
which a host is silent.

It needs Linux with network namespaces: as root, or where users may have namespaces of their own. No machine
and no process outlives the script.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from random import Random

import anyio

import tierlog
from chaos_parts.campaign import Options, Run, campaign
from chaos_parts.command_line import carry_out, make_parser, parse_options
from chaos_parts.engines import BookKeeperEngine, Engine, S3Engine
from chaos_parts.events import SegmentCheck
from chaos_parts.fault import LIMIT, Fault
from chaos_parts.http_store import HttpStore
from chaos_parts.ledger import Outcome
from chaos_parts.machine_faults import MachineFaults
from chaos_parts.machine_service import MachineService
from chaos_parts.namespaces import enter_router, is_router
from chaos_parts.processes import RunError
from chaos_parts.report import Report
from tierlog.actors.settings.environment import read_config
from tierlog.actors.settings.units import duration
from tierlog.actors.telemetry.utc import show_utc

_TWO_FAULTS = 0.25
_READ_BYTES = 4 << 20
_CLOCK = "%Y-%m-%dT%H:%M:%S.%fZ"
"""As in the logs of the processes."""


class MachineRun:
    """What a round works with, besides the campaign's own."""

    def __init__(self, run: Run, service: MachineService) -> None:
        self.run = run
        self.service = service
        self._faults = MachineFaults(service)
        self._checks: dict[str, SegmentCheck] = {}

    # --- rounds ----------------------------------------------------------------------------------

    async def round(self, run: Run) -> None:
        service = self.service
        random = Random(f"machines/{run.options.seed}/{run.report.rounds}")
        # Faults must not stay in step with checkpoints, flushes and heartbeats.
        await anyio.sleep(random.uniform(0, 0.3))
        faults = [await self._faults.draw(random)]
        if random.random() < _TWO_FAULTS:
            faults.append(await self._faults.draw(random))
        for fault in faults:
            run.begin_fault(fault.name)
        self._log(" and ".join(fault.name for fault in faults))
        pause = random.uniform(0, 1.5)
        try:
            await self._inject(faults, pause)
        finally:
            with anyio.CancelScope(shield=True):
                service.network.heal()
                service.engine.delay(0)
                for fault in faults:
                    await fault.heal()
        since = time.monotonic()
        await run.first(Outcome.ACKED, "healed, until all containers ack", since=since, limit=LIMIT)
        await service.complete()
        await self._read_on()

    async def _inject(self, faults: Sequence[Fault], pause: float) -> None:
        run, [first, *more] = self.run, faults
        felt = await self.service.containers_of([*first.lost])
        if first.is_felt_by_all:
            felt = [*range(self.service.containers)]
        await first.begin()
        # Now: what is sent while links are cut one after the other may be acked by the lost host.
        since = time.monotonic()
        for fault in more:
            await anyio.sleep(pause)
            await fault.begin()
        if felt and not more:
            acks = run.acks_again if first.is_takeover else partial(run.first, Outcome.ACKED)
            seconds = await acks(first.figure, first.goal, since=since, containers=felt, limit=LIMIT)
            times = ", ".join(f"container {each} {seconds[each]:.2f} s" for each in sorted(seconds))
            self._log(f"{first.figure}: {times}")
        rest = since + max(fault.seconds for fault in faults) - time.monotonic()
        await anyio.sleep(max(0.0, rest))

    def _log(self, what: str) -> None:
        run = self.run
        with (run.folder / "rounds.log").open("a") as log:
            log.write(f"{show_utc(time.time(), _CLOCK)} round {run.report.rounds + 1}: {what}\n")

    # --- checks ----------------------------------------------------------------------------------

    async def _read_on(self) -> None:
        """Read what was appended since the last round: every acked event is there."""
        run = self.run
        async with HttpStore(self.service.data_url) as store:
            for segment in run.segments:
                check = self._checks.get(segment)
                if check is None:
                    check = self._checks[segment] = SegmentCheck(segment, run.ledger.writers, is_live=True)
                # Before its length is read: the events are there, and the writers go on.
                acked = check.acked
                end = await store.length(segment)
                async for block in store.read_blocks(segment, check.bytes, end):
                    check.feed(block)
                for violation in check.finish_round(acked):
                    run.violated_in_round(violation)

    async def read_alone(self) -> None:
        """Read every segment as an app that has nothing but the engine: no process of the service is left."""
        run, service = self.run, self.service
        cache = {"TIERLOG_CHUNK_CACHE_PATH": str(service.folder / "app")}
        config = read_config(str(service.config), cache)
        async with tierlog.open_store(service.engine.place, config=config) as store:
            for segment in run.segments:
                check = SegmentCheck(segment, run.ledger.writers)
                while block := await store.read(segment, check.bytes, _READ_BYTES):
                    check.feed(bytes(block))
                run.report.violations += [f"read alone: {each}" for each in check.finish()]
                run.report.count("events read without the service", check.events)


# --- the command --------------------------------------------------------------------------------


async def work(run: Run) -> None:
    service = run.service
    assert isinstance(service, MachineService)
    machines = MachineRun(run, service)
    async with service.prepared():
        try:
            await campaign(run, machines.round)
            await machines.read_alone()
        finally:
            service.kill_everything()


def _engine(given: argparse.Namespace) -> Engine:
    return BookKeeperEngine() if given.engine == "bookkeeper" else S3Engine(given.request_delay)


def main(arguments: Sequence[str]) -> int:
    made = make_parser("machines", __doc__, rounds=20, hosts=3, pace=0.05, patience=60)
    made.add_argument(
        "--engine", choices=("s3", "bookkeeper"), default="s3", help="what the store is on (default: s3)"
    )
    made.add_argument(
        "--request-delay",
        type=_duration,
        default=0.02,
        metavar="TIME",
        help="how long each request to S3 takes at least (default: 20ms)",
    )
    options = parse_options(made, arguments)
    if not is_router():
        try:
            enter_router()
        except RunError as error:
            print(f"chaos_machines: {error}", file=sys.stderr)
            return 1
    report = Report("machines", options.seed, strict=options.goals)

    def make_service(options: Options, folder: Path) -> MachineService:
        return MachineService(
            folder,
            _engine(options),
            hosts=options.hosts,
            containers=options.containers,
            violated=report.violations.append,
        )

    return carry_out(options, report, work, make_service)


def _duration(text: str) -> float:
    return float(duration(0.02, 0, 10, "").read_text(text))
