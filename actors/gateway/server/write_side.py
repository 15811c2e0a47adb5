"""The half of a connection that writes: whether its client reads, and how long it may leave bytes unread
(rules H10, H12)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import anyio

WRITE_DELAY = 30.0
"""Seconds that a client may be behind with reading its answer, and as many more as ``WRITE_RATE`` bytes a
second take."""
WRITE_RATE = 16 << 10


class WriteSide:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.transport: Any = None
        self._write_timer: asyncio.TimerHandle | None = None
        self.is_writable = True
        """The client has read what it was sent."""
        self._writable = asyncio.Event()
        self._writable.set()

    def begin_writing(self, transport: Any) -> None:
        self.transport = transport
        # H12: a transport keeps all of a block for its last unsent byte, so that byte counts.
        transport.set_write_buffer_limits(high=0)

    # --- what the transport calls ------------------------------------------------------------------

    def pause_writing(self) -> None:
        self.is_writable = False
        self._writable.clear()
        self._limit_writing()

    def resume_writing(self) -> None:
        self._end_waits()
        if not self.transport.is_closing():
            self._stop_write_timer()

    # --- what answers wait for ---------------------------------------------------------------------

    async def wait_writable(self) -> None:
        await self._writable.wait()

    async def wait_read(self, seconds: float, is_wanted: Callable[[], bool]) -> None:
        """Wait until the client has read what it was sent, but for a little. If the memory is wanted and less
        than ``WRITE_RATE`` was read for ``seconds``, the connection ends (rule H12)."""
        while not self.is_writable:
            unread = self.transport.get_write_buffer_size()
            with anyio.move_on_after(seconds):
                await self.wait_writable()
                return

            read = unread - self.transport.get_write_buffer_size()
            if read < WRITE_RATE * seconds and is_wanted():
                self.transport.abort()
                await self.wait_writable()

    def close(self) -> None:
        """End it once the client has read what was sent; a transport would wait for that forever."""
        self.transport.close()
        if self.transport.get_write_buffer_size():
            self._limit_writing()

    # --- inside ------------------------------------------------------------------------------------

    def _end_waits(self) -> None:
        self.is_writable = True
        self._writable.set()

    def _limit_writing(self) -> None:
        """H10: a client that does not read must not keep the connection and what it was sent."""
        if self._write_timer is None:
            seconds = WRITE_DELAY + self.transport.get_write_buffer_size() / WRITE_RATE
            self._write_timer = self._loop.call_later(seconds, self.transport.abort)

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
