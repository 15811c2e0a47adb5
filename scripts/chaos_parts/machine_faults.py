"""The faults of a service on several machines, and what operators do. Those of the engine's own processes are
in ``ledger_faults.py``."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from functools import partial
from random import Random

import attrs

from chaos_parts.fault import Fault, nothing, start
from chaos_parts.ledger_faults import LedgerFaults
from chaos_parts.machine_service import LEASE, ORPHAN_GRACE, SILENT_GRACE, MachineService
from chaos_parts.namespaces import Machine
from chaos_parts.processes import RunError
from chaos_parts.units import Unit

_SILENCE = 0.75
"""Seconds for which a host that is not heard might be there: they are no part of the goal."""
_LEASES = 1.25 * LEASE
_MEAN_DELAY = 0.3
_THIN_KILOBITS = 400
_LONG_PARTS = 0.1


class MachineFaults:
    def __init__(self, service: MachineService) -> None:
        self._service = service
        self._of_engine = LedgerFaults(service)

    async def draw(self, random: Random) -> Fault:
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
            *self._of_engine.kinds(),
        ]
        [make] = random.choices([make for _, make in kinds], [weight for weight, _ in kinds])
        return await make(random)

    # --- hosts -----------------------------------------------------------------------------------

    async def _kill_host(self, random: Random) -> Fault:
        host = random.choice(self._service.hosts_that_join)

        async def begin() -> None:
            host.signal(signal.SIGKILL)

        figure = "SIGKILL of a host, until the first ack"
        return Fault(
            name="SIGKILL of a host",
            begin=begin,
            heal=partial(start, [host]),
            lost=[host],
            figure=figure,
            goal=self._service.engine.goal,
        )

    async def _stop_host(self, random: Random) -> Fault:
        host = random.choice(self._service.hosts_that_join)
        seconds, figure = self._outage(random, "SIGSTOP of a host")
        return self._stopped(host, "SIGSTOP of a host", seconds, figure)

    def _stopped(self, unit: Unit, name: str, seconds: float, figure: str) -> Fault:
        async def begin() -> None:
            unit.signal(signal.SIGSTOP)

        async def heal() -> None:
            unit.signal(signal.SIGCONT)

        return self._silent(unit, Fault(name=name, begin=begin, heal=heal, seconds=seconds, figure=figure))

    def _silent(self, unit: Unit, fault: Fault) -> Fault:
        """With what is expected of a unit that is not heard meanwhile, if the fault has a figure."""
        return attrs.evolve(fault, lost=[unit] if fault.figure else [], goal=self._silent_goal)

    async def _cut_host(self, random: Random) -> Fault:
        host = random.choice(self._service.hosts_that_join)
        seconds, figure = self._outage(random, "a host's machine cut off")
        return self._cut(host, "a host's machine cut off", seconds, figure, random)

    def _cut(self, unit: Unit, name: str, seconds: float, figure: str, random: Random) -> Fault:
        network = self._service.network
        others = [machine for machine in network.machines if machine is not unit.machine]
        is_silent = random.random() < 0.5

        async def begin() -> None:
            if is_silent:
                network.part(unit.machine, others)
            else:
                network.cut(unit.machine)

        return self._silent(unit, Fault(name=name, begin=begin, heal=nothing, seconds=seconds, figure=figure))

    async def _part_host_from_supervisors(self, random: Random) -> Fault:
        host = random.choice(self._service.hosts_that_join)
        seconds, figure = self._outage(random, "host parted from supervisors")
        others = [unit.machine for unit in self._service.supervisors]
        return self._parted(host, others, "host/supervisor", seconds, figure)

    async def _part_host_from_engine(self, random: Random) -> Fault:
        host = random.choice(self._service.hosts_that_join)
        engine, seconds = self._service.engine.machines, random.uniform(0.5, 5)
        self._service.expect_failed_openings()
        if random.random() < _LONG_PARTS:
            figure = "host parted from the engine for long, until the first ack"
            fault = self._parted(host, engine, "host/engine for long", 0, figure)
            return attrs.evolve(fault, goal=None)
        return self._parted(host, engine, "host/engine", seconds)

    async def _part_host_from_clients(self, random: Random) -> Fault:
        host = random.choice(self._service.hosts_that_join)
        return self._parted(host, [self._service.clients], "host/clients", random.uniform(0.5, 4))

    async def _part_all_from_engine(self, random: Random) -> Fault:
        network, engine = self._service.network, self._service.engine.machines
        seconds = random.uniform(0.5, 4)
        self._service.expect_failed_openings()

        async def begin() -> None:
            for machine in network.machines:
                if machine not in engine:
                    network.part(machine, engine)

        return Fault(name="all/engine", begin=begin, heal=nothing, seconds=seconds)

    def _parted(
        self, unit: Unit, others: Iterable[Machine], name: str, seconds: float, figure: str = ""
    ) -> Fault:
        async def begin() -> None:
            self._service.network.part(unit.machine, others)

        return self._silent(unit, Fault(name=name, begin=begin, heal=nothing, seconds=seconds, figure=figure))

    @property
    def _silent_goal(self) -> float:
        return self._service.engine.goal + _SILENCE

    def _outage(self, random: Random, name: str) -> tuple[float, str]:
        """Seconds, and the figure of the failover that it causes: none if it may be too short for one."""
        seconds = random.choice(
            [random.uniform(0.1, 1), SILENT_GRACE * random.uniform(0.9, 1.6), ORPHAN_GRACE + 1.5]
        )
        return seconds, f"{name}, until the first ack" if seconds > 1 else ""

    # --- supervisors -----------------------------------------------------------------------------

    async def _kill_supervisor(self, random: Random) -> Fault:
        unit = await self._service.active()

        async def begin() -> None:
            unit.signal(signal.SIGKILL)

        seconds = random.choice([random.uniform(0, 1), 2 * _LEASES])
        return Fault(
            name="SIGKILL of the supervisor", begin=begin, heal=partial(start, [unit]), seconds=seconds
        )

    async def _stop_supervisor(self, random: Random) -> Fault:
        unit = await self._service.active()
        seconds = random.choice([random.uniform(0.1, 1), _LEASES * random.uniform(0.8, 2)])
        return self._stopped(unit, "SIGSTOP of the supervisor", seconds, "")

    async def _cut_supervisor(self, random: Random) -> Fault:
        unit = await self._service.active()
        seconds = random.choice([random.uniform(0.1, 1), _LEASES * random.uniform(0.8, 2)])
        return self._cut(unit, "the supervisor's machine cut off", seconds, "", random)

    async def _part_supervisor_from_engine(self, random: Random) -> Fault:
        unit = await self._service.active()
        seconds = random.choice([random.uniform(0.1, 1), _LEASES * random.uniform(0.8, 2.5)])
        return self._parted(unit, self._service.engine.machines, "supervisor/engine", seconds)

    async def _kill_both(self, random: Random) -> Fault:
        units = [await self._service.active(), random.choice(self._service.hosts_that_join)]

        async def begin() -> None:
            for unit in units:
                unit.signal(signal.SIGKILL)

        return Fault(
            name="SIGKILL of supervisor and host",
            begin=begin,
            heal=partial(start, units),
            lost=[units[1]],
            figure="supervisor and host killed, until the first ack",
        )

    # --- slow, and what operators do -------------------------------------------------------------

    async def _slow_engine(self, random: Random) -> Fault:
        seconds = random.uniform(1, 4)

        async def begin() -> None:
            self._service.engine.delay(random.uniform(0.5, 2) * _MEAN_DELAY)

        return Fault(name="slow engine", begin=begin, heal=nothing, seconds=seconds)

    async def _slow_link(self, random: Random) -> Fault:
        unit = random.choice([*self._service.hosts_that_join, *self._service.supervisors])

        async def begin() -> None:
            self._service.network.slow(unit.machine, _THIN_KILOBITS)

        return Fault(name="slow link", begin=begin, heal=nothing, seconds=random.uniform(1, 4))

    async def _join_and_leave(self, random: Random) -> Fault:
        spare = self._service.spare

        async def begin() -> None:
            # It may be drawn twice at once.
            if not spare.is_alive:
                spare.start()

        async def heal() -> None:
            if spare.is_alive:
                await _end(spare)

        return Fault(name="a host joins", begin=begin, heal=heal, seconds=random.uniform(2, 5))

    async def _drain(self, random: Random) -> Fault:
        host = random.choice(self._service.hosts_that_join)
        return Fault(
            name="a host drained", begin=partial(_end, host), heal=partial(start, [host]), seconds=0.5
        )

    async def _restart_all(self, random: Random) -> Fault:
        async def begin() -> None:
            for host in self._service.hosts_that_join:
                await _end(host)
                host.start()

        return Fault(name="rolling restart", begin=begin, heal=nothing)


async def _end(host: Unit) -> None:
    """A hand-over, as a service manager asks for it. Raises ``RunError`` if it fails, unless another fault of
    the round killed the host in the middle of it."""
    has_joined = host.has_joined
    host.signal(signal.SIGTERM)
    code = await host.ended()
    if code and has_joined and not host.was_killed:
        raise RunError(f"{host.name} was to leave, and ended with exit status {code}: see {host.log}")
