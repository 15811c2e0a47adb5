"""The writers' processes: Spark's driver, or clients.

Owns: their start, orders and answers, and their end. Does not own: what they do (``spark_driver``,
``client_writer``).

Each is the first process of a session, so that Ctrl-C in a terminal passes it by, and so that all that
descends from it (Spark's Java, and Java's Python workers) can be found. On the way out, whatever happened,
every process of these sessions is ended and waited for.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Protocol

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from chaos_parts.service import PATIENCE, kill_process, processes_of_session
from quickstart_parts.orders import ANSWER_BYTES_MAX, Answer, Order, reading, writing
from quickstart_parts.shares import Part, QuickstartError, Share

CLIENTS = 2
_SCRIPTS = Path(__file__).resolve().parents[1]
_LOOK = 0.02
_LOG_LINES = 3


class Job(Protocol):
    """What appends the input."""

    async def write(self, shares: list[Share], part: Part, url: str, port: int) -> int:
        """Append one part of every share; how many events were sent twice."""
        ...

    async def read(self, shares: list[Share], url: str) -> Answer | None:
        """What it says of each segment; None if it does not read."""
        ...


class Worker:
    """One process that takes orders."""

    def __init__(self, process: Process, log: Path) -> None:
        assert process.stdout is not None
        self._process = process
        self._log = log
        self._answers = BufferedByteReceiveStream(process.stdout)

    async def ready(self) -> None:
        await self._answer()

    async def do(self, order: Order) -> Answer:
        assert self._process.stdin is not None
        try:
            await self._process.stdin.send(order.line())
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise self._gone() from None
        return await self._answer()

    async def _answer(self) -> Answer:
        try:
            answer: Answer = json.loads(await self._answers.receive_until(b"\n", ANSWER_BYTES_MAX))
        except (anyio.EndOfStream, anyio.IncompleteRead):
            raise self._gone() from None
        if "failed" in answer:
            raise QuickstartError(answer["failed"])
        return answer

    def _gone(self) -> QuickstartError:
        lines = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        return QuickstartError(
            f"a writer's process ended by itself; its log ends: "
            f"{' | '.join(lines[-_LOG_LINES:]) or 'it is empty'}"
        )


class ClientJob:
    """Clients in processes of their own; each has its share of the segments."""

    def __init__(self, workers: list[Worker]) -> None:
        self._workers = workers

    async def write(self, shares: list[Share], part: Part, url: str, port: int) -> int:
        repeated: list[int] = []

        async def one(worker: Worker, mine: list[Share]) -> None:
            repeated.append((await worker.do(writing(mine, part, url, port)))["repeated"])

        async with anyio.create_task_group() as tasks:
            for number, worker in enumerate(self._workers):
                tasks.start_soon(one, worker, shares[number :: len(self._workers)])
        return sum(repeated)

    async def read(self, shares: list[Share], url: str) -> Answer | None:
        return None


class SparkJob:
    """Spark's driver."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    async def write(self, shares: list[Share], part: Part, url: str, port: int) -> int:
        repeated: int = (await self._worker.do(writing(shares, part, url, port)))["repeated"]
        return repeated

    async def read(self, shares: list[Share], url: str) -> Answer | None:
        return await self._worker.do(reading(shares, url))


@asynccontextmanager
async def client_job(workplace: Path, segments: int) -> AsyncIterator[Job]:
    async with AsyncExitStack() as stack:
        workers = [
            await stack.enter_async_context(_worker("client_writer", workplace / f"client-{number}.log"))
            for number in range(min(CLIENTS, segments))
        ]
        yield ClientJob(workers)


@asynccontextmanager
async def spark_job(workplace: Path) -> AsyncIterator[Job]:
    async with _worker("spark_driver", workplace / "spark.log") as worker:
        yield SparkJob(worker)


@asynccontextmanager
async def _worker(module: str, log: Path) -> AsyncIterator[Worker]:
    path = os.pathsep.join(filter(None, (str(_SCRIPTS), os.environ.get("PYTHONPATH"))))
    place = log.parent / "temporary"
    place.mkdir(exist_ok=True)
    with log.open("wb") as errors:
        process = await anyio.open_process(
            [sys.executable, "-m", f"quickstart_parts.{module}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=place,
            env={**os.environ, "PYTHONPATH": path, "TMPDIR": str(place)},
            start_new_session=True,
        )
    try:
        worker = Worker(process, log)
        await worker.ready()
        yield worker
        assert process.stdin is not None
        await process.stdin.aclose()
        with anyio.move_on_after(PATIENCE):
            await process.wait()
    finally:
        with anyio.CancelScope(shield=True):
            await _end(process)


async def _end(process: Process) -> None:
    """Nothing of its session is left."""
    if process.returncode is None:
        process.kill()
    await process.aclose()
    with anyio.move_on_after(PATIENCE):
        while left := processes_of_session(process.pid):
            for pid in left:
                kill_process(pid)
            await anyio.sleep(_LOOK)
