"""Streams in SQLite and in a store: what benchmarks and the program that is restarted drive. It imports
little, because a restart is measured with its imports."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

import tierlog
from benchmarks.harness import BenchmarkError, event_class
from benchmarks.peers.contract import EVENT_BYTES, HISTORY, Peer

if TYPE_CHECKING:
    from tierlog.storage_backends.base.verbs import SegmentVerbs


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
