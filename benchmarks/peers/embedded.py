"""What runs in the process of its user: the bare loop, which is the reference, SQLite with a queue in front,
and the embedded store."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import attrs
from anyio.abc import TaskGroup

import tierlog
from benchmarks.ceiling import BareLog
from benchmarks.peers.contract import ONLY_APPENDS, Kind, Peer, Restarts
from benchmarks.peers.servers import Loaded
from benchmarks.peers.streams import open_sqlite, open_store
from benchmarks.service import line_of
from benchmarks.starting import environment

_ROOT = Path(__file__).resolve().parents[2]


# --- the bare loop ------------------------------------------------------------------------------


class Bare:
    """It has a new file for every measurement, whose blocks are there when the clock starts."""

    _ROOM = 1 << 30
    """Bytes: more than a measurement appends."""

    def __init__(self, folder: Path, tasks: TaskGroup) -> None:
        self._path = f"{folder}/bare.log"
        self._tasks = tasks
        self._count = 0
        self._log = self._new()

    def _new(self) -> BareLog:
        log = BareLog(self._path, self._ROOM)
        self._tasks.start_soon(log.run)
        return log

    async def append(self, stream: int, event: bytes) -> None:
        await self._log.append(event)
        self._count += 1

    async def append_many(self, stream: int, events: Sequence[bytes]) -> None:
        await self._log.append(b"".join(events))
        self._count += len(events)

    async def count(self) -> int:
        return self._count

    async def settle(self) -> None:
        self.close()
        self._log = self._new()

    def close(self) -> None:
        self._log.stop()
        self._log.close()

    def follow(self, stream: int) -> AbstractAsyncContextManager[AsyncGenerator[bytes]]:
        raise NotImplementedError

    def read(self, stream: int, count: int) -> AsyncIterator[Sequence[bytes]]:
        raise NotImplementedError


@asynccontextmanager
async def open_bare(folder: Path) -> AsyncIterator[Peer]:
    async with anyio.create_task_group() as tasks:
        bare = Bare(folder, tasks)
        yield bare
        bare.close()


# --- restarts -----------------------------------------------------------------------------------


@attrs.frozen(eq=False)
class ProgramRestarts:
    """A program of its own, ``benchmarks.peers.program``, which is what is killed and started again."""

    name: str
    loaded: Loaded

    async def load(self, count: int) -> None:
        self.loaded.data.mkdir()
        await self._run(count)
        self.loaded.keep()

    async def first_ack(self) -> float:
        await anyio.to_thread.run_sync(self.loaded.restore)
        return await self._run(0)

    async def _run(self, count: int) -> float:
        """Seconds until it has acked ``count`` events in a new folder, or one more event if that is 0."""
        folder = str(self.loaded.data)
        command = [sys.executable, "-m", "benchmarks.peers.program", self.name, folder, str(count)]
        begin = time.perf_counter()
        process = subprocess.Popen(
            command,
            cwd=_ROOT,
            env=environment(os.path.dirname(folder)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            await anyio.to_thread.run_sync(line_of, process, abandon_on_cancel=True)
            return time.perf_counter() - begin
        finally:
            process.kill()
            process.communicate()


def _restarts(name: str) -> Callable[[Path], AbstractAsyncContextManager[Restarts]]:
    @asynccontextmanager
    async def restarts(folder: Path) -> AsyncIterator[Restarts]:
        yield ProgramRestarts(name, Loaded(folder))

    return restarts


KINDS = (
    Kind(
        "bare",
        "bare loop",
        "embedded",
        "a checksum, one write and one sync for each group: no offsets, no reads, no recovery",
        is_synced=True,
        open=open_bare,
        version=lambda: "",
        leaves_out=dict.fromkeys(("delivery", "history", "restart"), ONLY_APPENDS),
    ),
    Kind(
        "tierlog",
        "tierlog, embedded",
        "embedded",
        "the event is synced in the log",
        is_synced=True,
        open=open_store,
        version=lambda: f"tierlog {tierlog.__version__}",
        restarts=_restarts("tierlog"),
    ),
    Kind(
        "sqlite",
        "SQLite with a queue",
        "embedded",
        "the transaction is synced in SQLite's WAL (`synchronous=FULL`)",
        is_synced=True,
        open=open_sqlite,
        version=lambda: f"SQLite {sqlite3.sqlite_version}",
        restarts=_restarts("sqlite"),
        leaves_out={"delivery": "nobody can wait for rows"},
    ),
)
