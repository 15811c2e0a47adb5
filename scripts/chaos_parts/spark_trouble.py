"""What happens while a task or a commit waits at the gate: the trouble of one round, and whether it came at
all.

Owns: kills of executors, drivers and tierlog's hosts, freezes and their ends, and the holding of a task until
a copy of it has written. Does not own: how a task fails (``spark_faults.py``).

A round whose point nobody reaches shows nothing; ``missed`` says so, and the round is done again.
"""

from __future__ import annotations

import signal

import anyio
import anyio.abc

import tierlog
from chaos_parts.campaign import Run
from chaos_parts.service import ChaosError, Victim, command_of, kill_process, processes_of_session
from chaos_parts.spark_children import Drivers
from chaos_parts.spark_draws import COPY_DONE, EXECUTOR, Draw, Point, Way
from tierlog.storage_backends.base.names import container_of

_COPY = 50.0
"""Seconds after which there is no copy of a slow task."""


class Trouble:
    def __init__(
        self,
        run: Run,
        drivers: Drivers,
        store: tierlog.Client,
        draw: Draw,
        target: str,
        tasks: anyio.abc.TaskGroup,
    ) -> None:
        self._run = run
        self._drivers = drivers
        self._store = store
        self._draw = draw
        self._target = target
        self._tasks = tasks
        self._copied = anyio.Event()
        self.met = 0
        """How often someone was at the point."""
        self.staged = 0
        """Bytes that were staged then."""
        self.problems: list[str] = []

    async def cross(self, number: int, what: int) -> None:
        if number != self._draw.number:
            return  # a task of an earlier round, which nobody waits for

        if what == COPY_DONE:
            self._copied.set()
            return
        try:
            await self._at_the_point()
        except (ChaosError, tierlog.TierlogError) as error:
            self.problems.append(f"the trouble could not be made: {error}")

    async def _at_the_point(self) -> None:
        self.met += 1
        if self._draw.point is Point.MIDWAY and self.met == 1:
            self.staged = await self._staged_bytes()
        match self._draw.way:
            case Way.SPECULATION:
                await self._hold()
            case Way.EXECUTOR_KILLED if self._draw.point.in_commit:
                self._kill_an_executor()
            case Way.DRIVER_KILLED:
                await self._drivers.kill()
            case Way.HOST_KILLED if self.met == 1:
                await self._hit_later(signal.SIGKILL, self._draw.delay)
            case Way.HOST_FROZEN if self.met == 1:
                await self._freeze()

    async def _staged_bytes(self) -> int:
        names = await self._store.list_segments(f"{self._target}#txn.")
        return sum([(await self._store.segment_info(name)).length for name in names])

    async def _hold(self) -> None:
        """A commit comes through: the copy is done by then."""
        with anyio.move_on_after(_COPY):
            await self._copied.wait()
            return
        self.problems.append(f"Spark made no copy of the slow task within {_COPY:g} s")

    def _kill_an_executor(self) -> None:
        assert self._drivers.driver is not None
        session = processes_of_session(self._drivers.driver.session)
        executors = [pid for pid in session if EXECUTOR in command_of(pid)]
        if not executors:
            self.problems.append("there is no executor to kill")
        for pid in executors[:1]:
            kill_process(pid)

    async def _hit_later(self, number: signal.Signals, delay: float) -> None:
        """The host that has the target."""
        victim = await self._owner()

        async def hit() -> None:
            await anyio.sleep(delay)
            self._run.service.hit(victim, number)

        if delay:
            self._tasks.start_soon(hit)
        else:
            self._run.service.hit(victim, number)

    async def _freeze(self) -> None:
        victim = await self._owner()
        self._run.service.hit(victim, signal.SIGSTOP)
        self._tasks.start_soon(self._thaw, victim)

    async def _thaw(self, victim: Victim) -> None:
        try:
            await anyio.sleep(self._draw.frozen)
        finally:
            self._run.service.hit(victim, signal.SIGCONT)

    async def _owner(self) -> Victim:
        container = container_of(self._target, self._run.service.containers)
        for host in await self._run.service.hosts():
            if container in host.containers:
                return host
        raise ChaosError(f"no host has container {container}")

    @property
    def missed(self) -> str:
        """Why the round shows nothing; empty if it shows what it was drawn for."""
        if not self.met:
            return "nobody came to the point"

        return "nothing was staged mid-way" if self._draw.point is Point.MIDWAY and not self.staged else ""
