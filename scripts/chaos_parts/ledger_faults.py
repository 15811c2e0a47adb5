"""The faults of what is between a service on several machines and its ledgers: bookies and sidecars. An
engine without them has none."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from random import Random

import attrs

from chaos_parts.fault import Fault, nothing, start
from chaos_parts.machine_service import MachineService
from chaos_parts.processes import signal_process
from chaos_parts.units import Unit

_CHANGE_GOAL = 1.0
"""Seconds without acks when a bookie is lost that the client sees end: those of one ensemble change."""
_SILENT_GOAL = 7.0
"""Seconds without acks when a bookie answers no more: those after which the client gives an entry up, which
it looks for once a second, and of one ensemble change."""
_RESTART_GOAL = 5.0
"""Seconds without acks when a sidecar is lost: those of the start of a JVM, and of an opening."""
_OUTAGE = 8.0
_LONG_OUTAGES = 0.1

Kind = tuple[int, Callable[[Random], Awaitable[Fault]]]


class LedgerFaults:
    def __init__(self, service: MachineService) -> None:
        self._service = service

    def kinds(self) -> Sequence[Kind]:
        """Those of this engine, with weights."""
        if not self._service.engine.bookies:
            return []
        kinds = [
            (10, self._kill_bookie),
            (8, self._stop_bookie),
            (5, self._part_host_from_bookie),
            (8, self._kill_sidecar),
            (5, self._stop_sidecar),
            (4, self._kill_sidecar_of_supervisor),
        ]
        return [(weight, partial(self._draw, make)) for weight, make in kinds]

    async def _draw(self, make: Callable[[Random], Awaitable[Fault]], random: Random) -> Fault:
        self._service.expect_failed_openings()
        return attrs.evolve(await make(random), is_takeover=False)

    # --- bookies ---------------------------------------------------------------------------------

    async def _kill_bookie(self, random: Random) -> Fault:
        bookie = random.choice(self._service.engine.bookies)

        async def begin() -> None:
            bookie.signal(signal.SIGKILL)

        return Fault(
            name="SIGKILL of a bookie",
            begin=begin,
            heal=partial(start, [bookie]),
            seconds=random.uniform(0, _OUTAGE),
            is_felt_by_all=True,
            figure="SIGKILL of a bookie, until the first ack",
            goal=_CHANGE_GOAL,
        )

    async def _stop_bookie(self, random: Random) -> Fault:
        bookie = random.choice(self._service.engine.bookies)

        async def begin() -> None:
            bookie.signal(signal.SIGSTOP)

        async def heal() -> None:
            bookie.signal(signal.SIGCONT)

        seconds = random.choice([random.uniform(0.1, 1), random.uniform(1, 2 * _OUTAGE)])
        is_long = seconds > _SILENT_GOAL
        return Fault(
            name="SIGSTOP of a bookie",
            begin=begin,
            heal=heal,
            seconds=seconds,
            is_felt_by_all=is_long,
            figure="SIGSTOP of a bookie, until the first ack" if is_long else "",
            goal=_SILENT_GOAL,
        )

    async def _part_host_from_bookie(self, random: Random) -> Fault:
        """To others the bookie is there, and ZooKeeper lists it."""
        host = random.choice(self._service.hosts_that_join)
        bookie = random.choice(self._service.engine.bookies)
        seconds = random.choice([random.uniform(0.5, 3), _OUTAGE])
        is_long = seconds >= _OUTAGE

        async def begin() -> None:
            self._service.network.part(host.machine, [bookie.machine])

        return Fault(
            name="host/bookie",
            begin=begin,
            heal=nothing,
            seconds=seconds,
            lost=[host] if is_long else [],
            figure="host parted from a bookie, until the first ack" if is_long else "",
            goal=_SILENT_GOAL,
        )

    # --- sidecars --------------------------------------------------------------------------------

    async def _kill_sidecar(self, random: Random) -> Fault:
        host = random.choice(self._service.hosts_that_join)
        return Fault(
            name="SIGKILL of a sidecar",
            begin=_to_sidecar(host, signal.SIGKILL),
            heal=nothing,
            lost=[host],
            figure="SIGKILL of a sidecar, until the first ack",
            goal=_RESTART_GOAL,
        )

    async def _stop_sidecar(self, random: Random) -> Fault:
        """A host takes one for dead after 40 seconds."""
        host = random.choice(self._service.hosts_that_join)
        is_long = random.random() < _LONG_OUTAGES
        return Fault(
            name="SIGSTOP of a sidecar for long" if is_long else "SIGSTOP of a sidecar",
            begin=_to_sidecar(host, signal.SIGSTOP),
            heal=_to_sidecar(host, signal.SIGCONT),
            seconds=random.uniform(0.1, _OUTAGE),
            lost=[host] if is_long else [],
            figure="SIGSTOP of a sidecar for long, until the first ack" if is_long else "",
        )

    async def _kill_sidecar_of_supervisor(self, random: Random) -> Fault:
        unit = await self._service.active()
        return Fault(
            name="SIGKILL of the supervisor's sidecar",
            begin=_to_sidecar(unit, signal.SIGKILL),
            heal=nothing,
            seconds=random.uniform(0, _OUTAGE),
        )


def _to_sidecar(unit: Unit, number: signal.Signals) -> Callable[[], Awaitable[None]]:
    """Nothing happens if there is none now: it is being started again."""

    async def send() -> None:
        if pid := unit.sidecar:
            signal_process(pid, number)

    return send
