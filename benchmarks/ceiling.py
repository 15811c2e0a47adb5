"""The upper bound: a log that does the minimum of every log with group commit in Python, and nothing else.

Per append: a frame with a CRC32C and one event. Per group: one pwritev and one fdatasync in a worker thread.
No validation, no offsets per segment, no idempotence, no fencing, no cache, no flush. The file's blocks are
allocated before the clock starts.
"""

from __future__ import annotations

import os
import struct
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


class BareLog:
    """``append`` has the shape of the store's, so that one workload drives both."""

    def __init__(self, path: str, size: int) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        os.posix_fallocate(self._fd, 0, size)
        self._event = event_class()
        self._limiter = anyio.CapacityLimiter(1)
        self._building: list[bytes] = []
        self._events: list[Any] = []
        self._work: Any = self._event()
        self._closing = False
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

    def _write(self, group: list[bytes]) -> None:
        buffers = group if len(group) <= _BUFFERS_MAX else [b"".join(group)]
        size = sum(map(len, buffers))
        if os.pwritev(self._fd, buffers, self._end) != size:
            raise BenchmarkError("the reference's write was cut short")
        os.fdatasync(self._fd)
        self._end += size

    def check(self, appends: int, size: int, offset: int, data: bytes) -> None:
        """Check that the reference wrote everything."""
        if self._end != self._tail or self._end != appends * (_HEAD.size + size):
            raise BenchmarkError(f"the reference wrote {self._end} bytes for {appends} appends of {size}")

        if os.pread(self._fd, len(data), offset + _HEAD.size) != data:
            raise BenchmarkError(f"the reference does not hold at {offset} what was acked there")

    def stop(self) -> None:
        self._closing = True
        self._work.set()

    def close(self) -> None:
        os.close(self._fd)


@asynccontextmanager
async def bare_log(folder: str, appends: int, size: int) -> AsyncIterator[BareLog]:
    """A log with room for ``appends`` appends of ``size`` bytes; its file is removed afterwards."""
    path = f"{folder}/bare.log"
    log = BareLog(path, appends * (_HEAD.size + size))
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(log.run)
            yield log
            log.stop()
    finally:
        log.close()
        os.unlink(path)
