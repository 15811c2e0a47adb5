"""The upper bound: a log that does the minimum of every log with group commit in Python, and nothing else.
And what an app would use without tierlog: SQLite with the same queue in front.

Per append: a frame with a CRC32C and one event. Per group: one pwritev and one fdatasync in a worker thread.
No validation, no offsets per segment, no idempotence, no fencing, no cache, no flush. The file's blocks are
allocated before the clock starts.
"""

from __future__ import annotations

import os
import sqlite3
import struct
import tempfile
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.to_thread
from crc32c import crc32c

from benchmarks.harness import BenchmarkError, event_class

_HEAD = struct.Struct(">IQI")
_BUFFERS_MAX = 1000
"""Below the system's limit of buffers in one call; a larger group is joined into one buffer."""


class GroupCommit(ABC):
    """Appends wait for the group that they are in; while it is written, the next one is collected."""

    def __init__(self) -> None:
        self._event = event_class()
        self._limiter = anyio.CapacityLimiter(1)
        self._building: list[Any] = []
        self._events: list[Any] = []
        self._work: Any = self._event()
        self._closing = False

    async def run(self) -> None:
        while True:
            await self._work.wait()
            if self._closing:
                return

            self._work = self._event()
            group, self._building = self._building, []
            events, self._events = self._events, []
            await anyio.to_thread.run_sync(self._write, group, limiter=self._limiter)
            for event in events:
                event.set()

    @abstractmethod
    async def append(self, data: bytes) -> int:
        """Has the shape of the store's, so that one workload drives both."""

    @abstractmethod
    def _write(self, group: list[Any]) -> None:
        """Make a group durable, in a worker thread."""

    @abstractmethod
    def check(self, appends: int, size: int, offset: int, data: bytes) -> None:
        """Check that everything was written."""

    def stop(self) -> None:
        self._closing = True
        self._work.set()

    @abstractmethod
    def close(self) -> None: ...


class BareLog(GroupCommit):
    def __init__(self, path: str, size: int) -> None:
        super().__init__()
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        os.posix_fallocate(self._fd, 0, size)
        self._tail = 0
        self._end = 0

    async def append(self, data: bytes) -> int:
        offset = self._tail
        size = len(data)
        self._tail = offset + _HEAD.size + size
        self._building += (_HEAD.pack(size, offset, crc32c(data)), data)
        event = self._event()
        self._events.append(event)
        self._work.set()
        await event.wait()
        return offset

    def _write(self, group: list[bytes]) -> None:
        buffers = group if len(group) <= _BUFFERS_MAX else [b"".join(group)]
        size = sum(map(len, buffers))
        if os.pwritev(self._fd, buffers, self._end) != size:
            raise BenchmarkError("the reference's write was cut short")
        os.fdatasync(self._fd)
        self._end += size

    def check(self, appends: int, size: int, offset: int, data: bytes) -> None:
        if self._end != self._tail or self._end != appends * (_HEAD.size + size):
            raise BenchmarkError(f"the reference wrote {self._end} bytes for {appends} appends of {size}")

        if os.pread(self._fd, len(data), offset + _HEAD.size) != data:
            raise BenchmarkError(f"the reference does not hold at {offset} what was acked there")

    def close(self) -> None:
        os.close(self._fd)


class SqliteQueue(GroupCommit):
    """A table of SQLite, durable at each commit, with a queue in front: a group is a transaction."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        for statement in (
            "PRAGMA journal_mode = WAL",
            "PRAGMA synchronous = FULL",
            "CREATE TABLE events (id INTEGER PRIMARY KEY, event BLOB NOT NULL)",
        ):
            self._connection.execute(statement).fetchall()
        self._count = 0

    async def append(self, data: bytes) -> int:
        self._count += 1
        number = self._count
        self._building.append((number, data))
        event = self._event()
        self._events.append(event)
        self._work.set()
        await event.wait()
        return number

    def _write(self, group: list[tuple[int, bytes]]) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany("INSERT INTO events VALUES (?, ?)", group)
        self._connection.execute("COMMIT")

    def check(self, appends: int, size: int, offset: int, data: bytes) -> None:
        total = "SELECT count(*), sum(length(event)) FROM events"
        if self._connection.execute(total).fetchone() != (appends, appends * size):
            raise BenchmarkError(f"SQLite does not have {appends} events of {size} bytes")

        found = self._connection.execute("SELECT event FROM events WHERE id = ?", (offset,)).fetchone()
        if found != (data,):
            raise BenchmarkError(f"SQLite's event {offset} is not the one that was acked")

    def close(self) -> None:
        self._connection.close()


@asynccontextmanager
async def bare_log(folder: str, appends: int, size: int) -> AsyncIterator[GroupCommit]:
    """A log with room for ``appends`` appends of ``size`` bytes; its file is removed afterwards."""
    path = f"{folder}/bare.log"
    try:
        async with _running(BareLog(path, appends * (_HEAD.size + size))) as log:
            yield log
    finally:
        os.unlink(path)


@asynccontextmanager
async def sqlite_queue(folder: str) -> AsyncIterator[GroupCommit]:
    """An empty table in a database of its own."""
    with tempfile.TemporaryDirectory(dir=folder) as own:
        async with _running(SqliteQueue(f"{own}/events.sqlite")) as queue:
            yield queue


@asynccontextmanager
async def _running(log: GroupCommit) -> AsyncIterator[GroupCommit]:
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(log.run)
            yield log
            log.stop()
    finally:
        log.close()
