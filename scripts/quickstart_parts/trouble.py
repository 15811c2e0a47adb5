"""The trouble: at chosen pieces a host is killed with SIGKILL while the writer waits at the gate.

Owns: when and which, what was written so far as the gate knows, and the judgement of the failovers. Does not
own: the gate, the service.

The victim is the host that serves the segment being written. It is killed when every host serves its share:
otherwise a second kill could hit a service that still recovers from the first, and nobody could tell the
failovers apart.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from random import Random

import anyio

from chaos_parts.service import OwnService, Victim
from quickstart_parts.shares import Part, QuickstartError, Share
from tierlog.storage_backends.base.names import container_of


class Trouble:
    """The gate's ``cross``."""

    def __init__(
        self, service: OwnService, shares: list[Share], points: list[int], on_progress: Callable[[], None]
    ) -> None:
        """``points``: bytes of the input that have passed the gate when a host is killed."""
        self._service = service
        self._shares = shares
        self._points = points
        self._on_progress = on_progress
        self._turn = anyio.Lock()
        self._seen: set[tuple[int, int]] = set()
        self.passed = [0] * len(shares)
        """Bytes of each share that writers have begun to append; what they append a second time counts
        once."""
        self.killed: list[Victim] = []
        self.on_kill: Callable[[Victim], None] = lambda victim: None

    async def cross(self, share: int, piece: int) -> None:
        if (share, piece) in self._seen:
            return

        self._seen.add((share, piece))
        self.passed[share] += self._shares[share].pieces[piece].size
        self._on_progress()
        if self._points and sum(self.passed) >= self._points[0]:
            async with self._turn:
                if self._points and sum(self.passed) >= self._points[0]:
                    self._points.pop(0)
                    await self._kill(container_of(self._shares[share].name, self._service.containers))

    async def _kill(self, container: int) -> None:
        await self._service.settled()
        victim = next(host for host in await self._service.hosts() if container in host.containers)
        if not self._service.hit(victim, signal.SIGKILL):
            raise QuickstartError(
                f"{victim.name}, process {victim.pid}, was gone before it could be killed: see the "
                f"service's log"
            )

        self.killed.append(victim)
        self.on_kill(victim)

    async def judge(self) -> tuple[int, float]:
        """Once the work is done: failovers, and the longest one's seconds. Every container of a killed host
        must have had one."""
        if self._points:
            raise QuickstartError(f"{len(self._points)} hosts were still to be killed when the work was done")

        status = await self._service.settled()
        lost = sum(len(victim.containers) for victim in self.killed)
        failovers: int = status["failovers"]
        if failovers < lost:
            raise QuickstartError(
                f"the killed hosts had {lost} containers, but the supervisor tells of {failovers} failovers"
            )

        return failovers, max(status["failover_seconds"], default=0.0)


def choose_kill_points(shares: list[Share], kills: int, random: Random) -> list[int]:
    """One random point in each of ``kills`` equal slices of what lies between a tenth and nine tenths of the
    bulk."""
    work = sum(share.size_of(Part.BULK) for share in shares)
    return [int(work * (0.1 + 0.8 * (index + random.random()) / kills)) for index in range(kills)]
