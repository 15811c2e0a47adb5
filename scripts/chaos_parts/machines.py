"""Breaks a service on several machines, again and again, and proves that nothing acked is lost.

Each machine is a network namespace with an address, a host name and a folder of its own: two for supervisors
(one is active, the other one stands by), three or more for hosts that join, one for the writers, which record
every ack, and those of the engine that the store is on. In each round processes are killed or stopped (for
less and for more than the lease and the graces), machines are cut off from each other or from all, links and
the engine are slow, hosts join, are drained, and are restarted one after the other; in a quarter of the
rounds two things happen at once. Then every container must ack again, all machines must do their part, and
every acked event must be readable, once, in order and whole. At the end all is read again, by the service
and, once every process has ended, by an app that has nothing but the engine.

  scripts/chaos_machines.py --rounds 5
  scripts/chaos_machines.py --rounds 200 --request-delay 20ms --goals

Times are from the fault until the answer to an event that was sent after it: they include the 0.75 s after
which a host is silent.

It needs Linux with network namespaces: as root, or where users may have namespaces of their own. No machine
and no process outlives the script.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from random import Random

import anyio
import attrs

import tierlog
from chaos_parts.campaign import Options, Run, campaign
from chaos_parts.command_line import carry_out, make_parser, parse_options
from chaos_parts.engines import BookKeeperEngine, Engine, S3Engine
from chaos_parts.events import SegmentCheck
from chaos_parts.http_store import HttpStore
from chaos_parts.ledger import Outcome
from chaos_parts.machine_service import LEASE, ORPHAN_GRACE, SILENT_GRACE, MachineService, Unit
from chaos_parts.namespaces import Machine, enter_router, is_router
from chaos_parts.processes import RunError
from chaos_parts.report import Report
from tierlog.actors.settings.environment import read_config
from tierlog.actors.settings.units import duration
from tierlog.actors.supervisor.placement import AVOIDED_SECONDS
from tierlog.actors.telemetry.utc import show_utc

_SILENCE = 0.75
"""Seconds for which a host that is not heard might be there: they are no part of the goal."""
_LEASES = 1.25 * LEASE
_MEAN_DELAY = 0.3
_THIN_KILOBITS = 400
_TWO_FAULTS = 0.25
_LONG_PARTS = 0.1
_READ_BYTES = 4 << 20
_CLOCK = "%Y-%m-%dT%H:%M:%SZ"
"""As in the logs of the processes."""
_LIMIT = 60.0
"""Seconds after which a container that does not ack counts as lost: a supervisor's successor waits for the
lease, and for hosts that are gone, and a log asks for half of it for a verdict on its requests."""


@attrs.frozen(kw_only=True)
class Fault:
    name: str
    begin: Callable[[], Awaitable[None]]
    heal: Callable[[], Awaitable[None]]
    """After the links have been healed."""
    seconds: float = 0.0
    """How long it lasts, unless a failover takes longer."""
    lost: Sequence[Unit] = ()
    """The hosts whose containers others must take over meanwhile."""
    figure: str = ""
    goal: float | None = None


class MachineRun:
    """What a round works with, besides the campaign's own."""

    def __init__(self, run: Run, service: MachineService) -> None:
        self.run = run
        self.service = service
        self._checks: dict[str, SegmentCheck] = {}

    # --- rounds ----------------------------------------------------------------------------------

    async def round(self, run: Run) -> None:
        service = self.service
        random = Random(f"machines/{run.options.seed}/{run.report.rounds}")
        # Faults must not stay in step with checkpoints, flushes and heartbeats.
        await anyio.sleep(random.uniform(0, 0.3))
        faults = [await self._draw(random)]
        if random.random() < _TWO_FAULTS:
            faults.append(await self._draw(random))
        for fault in faults:
            run.begin_fault(fault.name)
        with (run.folder / "rounds.log").open("a") as log:
            names = " and ".join(fault.name for fault in faults)
            log.write(f"{show_utc(time.time(), _CLOCK)} round {run.report.rounds + 1}: {names}\n")
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
        await run.first(Outcome.ACKED, "healed, until all containers ack", since=since, limit=_LIMIT)
        await service.complete()
        await self._read_on()

    async def _inject(self, faults: Sequence[Fault], pause: float) -> None:
        run, [first, *more] = self.run, faults
        lost = await self.service.containers_of([*first.lost])
        since = time.monotonic()
        await first.begin()
        for fault in more:
            await anyio.sleep(pause)
            await fault.begin()
        if lost and not more:
            await run.acks_again(first.figure, first.goal, since=since, containers=lost, limit=_LIMIT)
        rest = since + max(fault.seconds for fault in faults) - time.monotonic()
        await anyio.sleep(max(0.0, rest))

    async def _draw(self, random: Random) -> Fault:
        kinds = [
            (20, self._kill_host),
            (12, self._stop_host),
            (12, self._cut_host),
            (8, self._part_host_from_supervisors),
            (8, self._part_host_from_engine),
            (5, self._part_host_from_clients),
            (3, self._part_all_from_engine),
            (6, self._kill_supervisor),
            (6, self._stop_supervisor),
            (5, self._cut_supervisor),
            (5, self._part_supervisor_from_engine),
            (6, self._kill_both),
            (4, self._slow_engine),
            (4, self._slow_link),
            (4, self._join_and_leave),
            (4, self._drain),
            (3, self._restart_all),
        ]
        [make] = random.choices([make for _, make in kinds], [weight for weight, _ in kinds])
        return await make(random)

    # --- hosts -----------------------------------------------------------------------------------

    async def _kill_host(self, random: Random) -> Fault:
        host = random.choice(self.service.hosts_that_join)

        async def begin() -> None:
            host.signal(signal.SIGKILL)

        figure = "SIGKILL of a host, until the first ack"
        return Fault(
            name="SIGKILL of a host",
            begin=begin,
            heal=partial(_start, [host]),
            lost=[host],
            figure=figure,
            goal=self.service.engine.goal,
        )

    async def _stop_host(self, random: Random) -> Fault:
        host = random.choice(self.service.hosts_that_join)
        seconds, figure = self._outage(random, "SIGSTOP of a host")
        return self._stopped(host, "SIGSTOP of a host", seconds, figure)

    def _stopped(self, unit: Unit, name: str, seconds: float, figure: str) -> Fault:
        async def begin() -> None:
            unit.signal(signal.SIGSTOP)

        async def heal() -> None:
            unit.signal(signal.SIGCONT)

        lost = [unit] if figure else []
        return Fault(
            name=name,
            begin=begin,
            heal=heal,
            seconds=seconds,
            lost=lost,
            figure=figure,
            goal=self._silent_goal,
        )

    async def _cut_host(self, random: Random) -> Fault:
        host = random.choice(self.service.hosts_that_join)
        seconds, figure = self._outage(random, "a host's machine cut off")
        return self._cut(host, "a host's machine cut off", seconds, figure, random)

    def _cut(self, unit: Unit, name: str, seconds: float, figure: str, random: Random) -> Fault:
        network = self.service.network
        others = [machine for machine in network.machines if machine is not unit.machine]
        is_silent = random.random() < 0.5

        async def begin() -> None:
            if is_silent:
                network.part(unit.machine, others)
            else:
                network.cut(unit.machine)

        lost = [unit] if figure else []
        return Fault(
            name=name,
            begin=begin,
            heal=_nothing,
            seconds=seconds,
            lost=lost,
            figure=figure,
            goal=self._silent_goal,
        )

    async def _part_host_from_supervisors(self, random: Random) -> Fault:
        host = random.choice(self.service.hosts_that_join)
        seconds, figure = self._outage(random, "host parted from supervisors")
        others = [unit.machine for unit in self.service.supervisors]
        return self._parted(host, others, "host/supervisor", seconds, figure)

    async def _part_host_from_engine(self, random: Random) -> Fault:
        host = random.choice(self.service.hosts_that_join)
        engine, seconds = self.service.engine.machines, random.uniform(0.5, 5)
        self._expect_failed_openings()
        if random.random() < _LONG_PARTS:
            figure = "host parted from the engine for long, until the first ack"
            fault = self._parted(host, engine, "host/engine for long", 0, figure)
            return attrs.evolve(fault, goal=None)
        return self._parted(host, engine, "host/engine", seconds)

    async def _part_host_from_clients(self, random: Random) -> Fault:
        host = random.choice(self.service.hosts_that_join)
        return self._parted(host, [self.service.clients], "host/clients", random.uniform(0.5, 4))

    async def _part_all_from_engine(self, random: Random) -> Fault:
        network, engine = self.service.network, self.service.engine.machines
        seconds = random.uniform(0.5, 4)
        self._expect_failed_openings()

        async def begin() -> None:
            for machine in network.machines:
                if machine not in engine:
                    network.part(machine, engine)

        return Fault(name="all/engine", begin=begin, heal=_nothing, seconds=seconds)

    def _expect_failed_openings(self) -> None:
        """What fails on a host is not opened there for a while, if others accept it (V8)."""
        self.service.uneven_until = time.monotonic() + AVOIDED_SECONDS + _LIMIT

    def _parted(
        self, unit: Unit, others: Iterable[Machine], name: str, seconds: float, figure: str = ""
    ) -> Fault:
        async def begin() -> None:
            self.service.network.part(unit.machine, others)

        lost = [unit] if figure else []
        return Fault(
            name=name,
            begin=begin,
            heal=_nothing,
            seconds=seconds,
            lost=lost,
            figure=figure,
            goal=self._silent_goal,
        )

    @property
    def _silent_goal(self) -> float:
        return self.service.engine.goal + _SILENCE

    def _outage(self, random: Random, name: str) -> tuple[float, str]:
        """Seconds, and the figure of the failover that it causes: none if it may be too short for one."""
        seconds = random.choice(
            [random.uniform(0.1, 1), SILENT_GRACE * random.uniform(0.9, 1.6), ORPHAN_GRACE + 1.5]
        )
        return seconds, f"{name}, until the first ack" if seconds > 1 else ""

    # --- supervisors -----------------------------------------------------------------------------

    async def _kill_supervisor(self, random: Random) -> Fault:
        unit = await self.service.active()

        async def begin() -> None:
            unit.signal(signal.SIGKILL)

        seconds = random.choice([random.uniform(0, 1), 2 * _LEASES])
        return Fault(
            name="SIGKILL of the supervisor", begin=begin, heal=partial(_start, [unit]), seconds=seconds
        )

    async def _stop_supervisor(self, random: Random) -> Fault:
        unit = await self.service.active()
        seconds = random.choice([random.uniform(0.1, 1), _LEASES * random.uniform(0.8, 2)])
        return self._stopped(unit, "SIGSTOP of the supervisor", seconds, "")

    async def _cut_supervisor(self, random: Random) -> Fault:
        unit = await self.service.active()
        seconds = random.choice([random.uniform(0.1, 1), _LEASES * random.uniform(0.8, 2)])
        return self._cut(unit, "the supervisor's machine cut off", seconds, "", random)

    async def _part_supervisor_from_engine(self, random: Random) -> Fault:
        unit = await self.service.active()
        seconds = random.choice([random.uniform(0.1, 1), _LEASES * random.uniform(0.8, 2.5)])
        return self._parted(unit, self.service.engine.machines, "supervisor/engine", seconds)

    async def _kill_both(self, random: Random) -> Fault:
        units = [await self.service.active(), random.choice(self.service.hosts_that_join)]

        async def begin() -> None:
            for unit in units:
                unit.signal(signal.SIGKILL)

        return Fault(
            name="SIGKILL of supervisor and host",
            begin=begin,
            heal=partial(_start, units),
            lost=[units[1]],
            figure="supervisor and host killed, until the first ack",
        )

    # --- slow, and what operators do -------------------------------------------------------------

    async def _slow_engine(self, random: Random) -> Fault:
        seconds = random.uniform(1, 4)

        async def begin() -> None:
            self.service.engine.delay(random.uniform(0.5, 2) * _MEAN_DELAY)

        return Fault(name="slow engine", begin=begin, heal=_nothing, seconds=seconds)

    async def _slow_link(self, random: Random) -> Fault:
        unit = random.choice([*self.service.hosts_that_join, *self.service.supervisors])

        async def begin() -> None:
            self.service.network.slow(unit.machine, _THIN_KILOBITS)

        return Fault(name="slow link", begin=begin, heal=_nothing, seconds=random.uniform(1, 4))

    async def _join_and_leave(self, random: Random) -> Fault:
        spare = self.service.spare

        async def begin() -> None:
            spare.start()

        async def heal() -> None:
            if spare.is_alive:
                await _end(spare)

        return Fault(name="a host joins", begin=begin, heal=heal, seconds=random.uniform(2, 5))

    async def _drain(self, random: Random) -> Fault:
        host = random.choice(self.service.hosts_that_join)
        return Fault(
            name="a host drained", begin=partial(_end, host), heal=partial(_start, [host]), seconds=0.5
        )

    async def _restart_all(self, random: Random) -> Fault:
        async def begin() -> None:
            for host in self.service.hosts_that_join:
                await _end(host)
                host.start()

        return Fault(name="rolling restart", begin=begin, heal=_nothing)

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


async def _nothing() -> None:
    await anyio.lowlevel.checkpoint()


async def _start(units: Sequence[Unit]) -> None:
    for unit in units:
        if not unit.is_wanted:
            await unit.ended()
            unit.start()


async def _end(host: Unit) -> None:
    """A hand-over, as a service manager asks for it. Raises ``RunError`` if it fails."""
    has_joined = host.has_joined
    host.signal(signal.SIGTERM)
    code = await host.ended()
    if code and has_joined:
        raise RunError(f"{host.name} was to leave, and ended with exit status {code}: see {host.log}")


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
