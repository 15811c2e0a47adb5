"""What runs in the process of its user: the bare loop, which is the reference, SQLite with a queue in front,
and the embedded store."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import attrs
from anyio.abc import TaskGroup

import tierlog
from benchmarks.ceiling import BareLog
from benchmarks.harness import BenchmarkError, event_class
from benchmarks.peers.contract import EVENT_BYTES, HISTORY, Kind, Peer, Restarts
from benchmarks.peers.servers import Loaded
from benchmarks.service import line_of
from benchmarks.starting import environment
from tierlog.storage_backends.base.verbs import SegmentVerbs

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


# --- SQLite -------------------------------------------------------------------------------------


class Sqlite:
    """A table for each stream. Appends that wait while a transaction is committed go together into the next
    one; a worker thread runs them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        for pragma in ("journal_mode = WAL", "synchronous = FULL"):
            self._connection.execute(f"PRAGMA {pragma}").fetchall()
        self._event = event_class()
        self._limiter = anyio.CapacityLimiter(1)
        self._waiting: defaultdict[int, list[tuple[bytes]]] = defaultdict(list)
        self._work: Any = self._event()
        self._acked: Any = self._event()

    def create(self) -> None:
        self._connection.execute("BEGIN")
        for stream in range(HISTORY + 1):
            self._connection.execute(f"CREATE TABLE s{stream} (id INTEGER PRIMARY KEY, event BLOB NOT NULL)")
        self._connection.execute("COMMIT")

    async def append(self, stream: int, event: bytes) -> None:
        self._waiting[stream].append((event,))
        self._work.set()
        await self._acked.wait()

    async def append_many(self, stream: int, events: Sequence[bytes]) -> None:
        self._waiting[stream].extend((event,) for event in events)
        self._work.set()
        await self._acked.wait()

    async def run(self) -> None:
        while True:
            await self._work.wait()
            self._work = self._event()
            acked, self._acked = self._acked, self._event()
            group, self._waiting = self._waiting, defaultdict(list)
            await anyio.to_thread.run_sync(self._commit, group, limiter=self._limiter)
            acked.set()

    def _commit(self, group: dict[int, list[tuple[bytes]]]) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        for stream, rows in group.items():
            self._connection.executemany(f"INSERT INTO s{stream} (event) VALUES (?)", rows)
        self._connection.execute("COMMIT")

    async def count(self) -> int:
        tables = [f"SELECT count(*) AS events FROM s{stream}" for stream in range(HISTORY + 1)]
        wanted = f"SELECT sum(events) FROM ({' UNION ALL '.join(tables)})"
        [found] = self._connection.execute(wanted).fetchone()
        return int(found)

    async def settle(self) -> None:
        """It checkpoints by itself, in commits."""

    def follow(self, stream: int) -> AbstractAsyncContextManager[AsyncGenerator[bytes]]:
        raise NotImplementedError

    async def read(self, stream: int, count: int) -> AsyncIterator[Sequence[bytes]]:
        reader = sqlite3.connect(self._path, check_same_thread=False)
        try:
            rows = reader.execute(f"SELECT event FROM s{stream} ORDER BY id LIMIT {count}")
            while block := await anyio.to_thread.run_sync(rows.fetchmany, 4096):
                yield [event for (event,) in block]
        finally:
            reader.close()

    def close(self) -> None:
        self._connection.close()


@asynccontextmanager
async def running_sqlite(path: Path, *, create: bool) -> AsyncIterator[Peer]:
    peer = Sqlite(path)
    try:
        if create:
            peer.create()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(peer.run)
            yield peer
            tasks.cancel_scope.cancel()
    finally:
        peer.close()


def open_sqlite(folder: Path) -> AbstractAsyncContextManager[Peer]:
    return running_sqlite(folder / "events.db", create=True)


# --- tierlog ------------------------------------------------------------------------------------


class Segments:
    """A segment for each stream, of a store in this process or of a service. Events are framed, as by Spark's
    bridge."""

    _BLOCK = 4 << 20

    def __init__(self, store: SegmentVerbs) -> None:
        self._store = store
        self._names = [f"bench/{stream:03d}" for stream in range(HISTORY + 1)]

    async def create(self) -> None:
        async with anyio.create_task_group() as tasks:
            for name in self._names:
                tasks.start_soon(self._store.create_segment, name)

    async def append(self, stream: int, event: bytes) -> None:
        await self._store.append(self._names[stream], tierlog.events.encode((event,)))

    async def append_many(self, stream: int, events: Sequence[bytes]) -> None:
        await self._store.append(self._names[stream], tierlog.events.encode(events))

    async def count(self) -> int:
        """All events have the same length."""
        lengths = [(await self._store.segment_info(name)).length for name in self._names]
        return sum(lengths) // (tierlog.events.HEADER_BYTES + EVENT_BYTES)

    async def settle(self) -> None:
        await self._store.flush()

    @asynccontextmanager
    async def follow(self, stream: int) -> AsyncIterator[AsyncGenerator[bytes]]:
        end = (await self._store.segment_info(self._names[stream])).length
        yield self._follow(self._names[stream], end)

    async def _follow(self, name: str, offset: int) -> AsyncGenerator[bytes]:
        rest = b""
        async for block in self._store.tail(name, offset):
            data = rest + block
            end = 0
            for event in tierlog.events.iterate(data):
                end = event.end
                yield event.data
            rest = data[end:]

    async def read(self, stream: int, count: int) -> AsyncIterator[Sequence[bytes]]:
        position, rest = 0, b""
        while count:
            block = await self._store.read(self._names[stream], position, self._BLOCK)
            if not block:
                raise BenchmarkError(f"{count} events are missing at {position}")
            position += len(block)
            data = rest + block
            end = tierlog.events.boundaries(data)[-1]
            events = tierlog.events.decode(memoryview(data)[:end])
            rest = data[end:]
            yield events
            count -= len(events)


@asynccontextmanager
async def running_store(folder: Path, *, create: bool) -> AsyncIterator[Peer]:
    async with tierlog.open_store(folder / "store") as store:
        peer = Segments(store)
        if create:
            await peer.create()
        yield peer


def open_store(folder: Path) -> AbstractAsyncContextManager[Peer]:
    return running_store(folder, create=True)


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


_ONLY_APPENDS = "it only appends"
KINDS = (
    Kind(
        "bare",
        "bare loop",
        "embedded",
        "a checksum, one write and one sync for each group: no offsets, no reads, no recovery",
        is_synced=True,
        open=open_bare,
        version=lambda: "",
        leaves_out=dict.fromkeys(("delivery", "history", "restart"), _ONLY_APPENDS),
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
