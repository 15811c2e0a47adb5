"""The writer processes of a run, and the lanes on which they write.

A writer that ends by itself is a problem of the run. On cancellation all are killed and waited for.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anyio
import anyio.abc

from chaos_parts.ledger import RECORD, Lane, Ledger, decode_records
from chaos_parts.processes import SCRIPTS
from chaos_parts.writers import ENDING, HANG, LanePlan, Plan, plan_json
from tierlog.storage_backends.base.names import container_of

_READ_BYTES = 1 << 16


def segment_names(prefix: str, containers: int) -> list[str]:
    """One name for each container, in the order of the containers."""
    names: dict[int, str] = {}
    number = 0
    while len(names) < containers:
        name = f"{prefix}/{number}"
        names.setdefault(container_of(name, containers), name)
        number += 1
    return [names[index] for index in range(containers)]


class WriterProcesses:
    def __init__(self, ledger: Ledger, *, url: str, client: str, seed: int, pace: float) -> None:
        self._ledger = ledger
        self._url = url
        self._client = client
        self._seed = seed
        self._pace = pace
        self._plans: list[Plan] = []
        self._processes: list[anyio.abc.Process] = []
        self._ending = self._killed = False

    def plan(self, segments: Sequence[str], processes: int, *, plain: bool) -> None:
        """Each process has an identified lane for each segment, and one plain lane."""
        for number in range(processes):
            lanes = [
                self._lane(f"w{number}.{index}", segments, index, identified=True)
                for index in range(len(segments))
            ]
            if plain:
                lanes.append(self._lane(f"p{number}", segments, number % len(segments), identified=False))
            self._plans.append(
                Plan(self._url, self._client, f"{self._seed}/{number}", self._pace, tuple(lanes))
            )

    def _lane(self, writer: str, segments: Sequence[str], container: int, *, identified: bool) -> LanePlan:
        lane = self._ledger.add_lane(Lane(writer, segments[container], container, identified))
        return LanePlan(lane, writer, segments[container], identified)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """They write while the body runs; after it every outcome is in the ledger."""
        async with anyio.create_task_group() as tasks:
            try:
                for plan in self._plans:
                    tasks.start_soon(self._record, await self._start(plan))
                yield
                await self._finish()
            finally:
                with anyio.CancelScope(shield=True):
                    await self._end()

    async def _start(self, plan: Plan) -> anyio.abc.Process:
        command = [sys.executable, "-P", "-m", "chaos_parts.writers", plan_json(plan)]
        environment = {**os.environ, "PYTHONPATH": str(SCRIPTS)}
        process = await anyio.open_process(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None,
            env=environment,
            start_new_session=True,
        )
        self._processes.append(process)
        return process

    async def _record(self, process: anyio.abc.Process) -> None:
        assert process.stdout is not None
        rest = b""
        async for block in process.stdout:
            data = rest + block
            whole = len(data) // RECORD.size * RECORD.size
            self._ledger.add(decode_records(data[:whole]))
            rest = data[whole:]
        status = await process.wait()
        if (status and not self._killed) or not self._ending:
            self._ledger.fail(f"a writer ended by itself with exit status {status}; its error is above")

    async def _finish(self) -> None:
        """Let them finish, and wait."""
        self._ending = True
        with anyio.move_on_after(HANG + ENDING) as waiting:
            for process in self._processes:
                assert process.stdin is not None
                await process.stdin.aclose()
            for process in self._processes:
                await process.wait()
        if waiting.cancelled_caught:
            self._ledger.problems.append(f"a writer did not end within {HANG + ENDING:g} s")

    async def _end(self) -> None:
        self._ending = self._killed = True
        for process in self._processes:
            if process.returncode is None:
                process.kill()
            await process.wait()

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]
