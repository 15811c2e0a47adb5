"""The faults of a round around Spark's tasks: kills of executors, drivers and hosts, freezes, and slow tasks.

They happen while a task or a commit waits at its sync point. How a task itself fails is in
``spark_failing_writer.py``. A round whose point nothing reaches proves nothing; ``inconclusive`` says so, and
the round is repeated."""

from __future__ import annotations

import signal

import anyio
import anyio.abc

import tierlog
from chaos_parts.campaign import Run
from chaos_parts.processes import RunError, command_of, kill_process, processes_of_session
from chaos_parts.service import Victim
from chaos_parts.spark_drivers import Drivers
from chaos_parts.spark_scenarios import COPY_DONE, EXECUTOR, FaultKind, Point, Scenario
from tierlog.storage_backends.base.names import container_of

_COPY = 50.0
"""Seconds within which Spark must copy a slow task."""


class RoundFault:
    def __init__(
        self,
        run: Run,
        drivers: Drivers,
        store: tierlog.Client,
        scenario: Scenario,
        target: str,
        tasks: anyio.abc.TaskGroup,
    ) -> None:
        self._run = run
        self._drivers = drivers
        self._store = store
        self._scenario = scenario
        self._target = target
        self._tasks = tasks
        self._copied = anyio.Event()
        self.reached = 0
        """How often the point was reached."""
        self.staged = 0
        """Bytes that were staged at the point."""
        self.problems: list[str] = []

    async def on_sync_point(self, number: int, what: int) -> None:
        if number != self._scenario.number:
            return  # a late task of an earlier round

        if what == COPY_DONE:
            self._copied.set()
            return
        try:
            await self._inject()
        except (RunError, tierlog.TierlogError) as error:
            self.problems.append(f"the fault could not be injected: {error}")

    async def _inject(self) -> None:
        self.reached += 1
        if self._scenario.point is Point.MIDWAY and self.reached == 1:
            self.staged = await self._staged_bytes()
        match self._scenario.kind:
            case FaultKind.SPECULATION:
                await self._hold()
            case FaultKind.EXECUTOR_KILLED if self._scenario.point.in_commit:
                self._kill_an_executor()
            case FaultKind.DRIVER_KILLED:
                await self._drivers.kill()
            case FaultKind.HOST_KILLED if self.reached == 1:
                await self._kill_owner(self._scenario.delay)
            case FaultKind.HOST_FROZEN if self.reached == 1:
                await self._freeze()

    async def _staged_bytes(self) -> int:
        names = await self._store.list_segments(f"{self._target}#txn.")
        return sum([(await self._store.segment_info(name)).length for name in names])

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

    async def _kill_owner(self, delay: float) -> None:
        """Kill the host that serves the target."""
        victim = await self._owner()

        async def kill() -> None:
            await anyio.sleep(delay)
            self._run.service.send_signal(victim, signal.SIGKILL)

        if delay:
            self._tasks.start_soon(kill)
        else:
            self._run.service.send_signal(victim, signal.SIGKILL)

    async def _freeze(self) -> None:
        victim = await self._owner()
        self._run.service.send_signal(victim, signal.SIGSTOP)
        self._tasks.start_soon(self._resume, victim)

    async def _resume(self, victim: Victim) -> None:
        try:
            await anyio.sleep(self._scenario.frozen)
        finally:
            self._run.service.send_signal(victim, signal.SIGCONT)

    async def _owner(self) -> Victim:
        return await self._run.service.owner(container_of(self._target, self._run.service.containers))

    @property
    def inconclusive(self) -> str:
        """Why the round proves nothing; empty if it had its fault."""
        if not self.reached:
            return "nothing reached the point"

        return (
            "nothing was staged mid-way" if self._scenario.point is Point.MIDWAY and not self.staged else ""
        )
