"""Half of the storage-backend actor, reads or writes: a bounded queue and a limit of what runs at the same
time.

Rule A14: reads and writes have separate queues and limits, so that waiting writes never delay a read. A
cancelled ``take`` has taken nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio

from ..kernel.mailbox import Mailbox, MailboxOptions
from .calls import PendingCall

if TYPE_CHECKING:
    from .statistics import PoolStatistics

_ANY_BYTES = 1 << 62
"""A batch is bounded by the free slots; its bytes are in memory already."""


class Pool:
    __slots__ = (
        "_dropped",
        "_freed",
        "_late",
        "_went_late",
        "bytes",
        "done",
        "failed",
        "limit",
        "mailbox",
        "running",
    )

    def __init__(self, limit: int, queue: MailboxOptions) -> None:
        self.mailbox: Mailbox[PendingCall[Any]] = Mailbox(queue)
        self.limit = limit
        self.running = 0
        self.done = 0
        self.failed = 0
        self.bytes = 0
        self._late = 0
        self._went_late = 0
        self._dropped = 0
        self._freed: anyio.Event | None = None

    def __repr__(self) -> str:
        return f"<Pool {self.running}/{self.limit} running, {self._late} late, {len(self.mailbox)} queued>"

    async def take(self) -> list[PendingCall[Any]]:
        """Wait for a free slot and a call. What is returned counts as running until ``finished``."""
        while True:
            # A late call keeps its slot (A13): the backend still works on it, and is never sent more than the
            # limit.
            while self.running >= self.limit:
                await self._wait_freed()

            batch = await self.mailbox.drain(self.limit - self.running, _ANY_BYTES)
            # Cancelled or expired in the queue: it was answered as never begun, so it must not begin now.
            wanted = [pending for pending in batch if not pending.done]
            self._dropped += len(batch) - len(wanted)
            # In the step that takes them: a deadline from here on leaves the outcome unknown (A6).
            for pending in wanted:
                pending.is_started = True
            self.running += len(wanted)
            if wanted:
                return wanted
            self._notify()

    def became_late(self, pending: PendingCall[Any]) -> None:
        pending.is_late = True
        self._late += 1
        self._went_late += 1

    def finished(self, pending: PendingCall[Any]) -> None:
        self.running -= 1
        self._late -= pending.is_late
        self._notify()

    @property
    def late(self) -> int:
        return self._late

    @property
    def is_idle(self) -> bool:
        return not self.running and not len(self.mailbox)

    async def wait_idle(self) -> None:
        while not self.is_idle:
            await self._wait_freed()

    async def _wait_freed(self) -> None:
        if self._freed is None:
            self._freed = anyio.Event()
        await self._freed.wait()

    def _notify(self) -> None:
        freed, self._freed = self._freed, None
        if freed is not None:
            freed.set()

    def statistics(self) -> PoolStatistics:
        from .statistics import PoolStatistics

        return PoolStatistics(
            queue=self.mailbox.statistics(),
            limit=self.limit,
            running=self.running,
            late=self._late,
            went_late=self._went_late,
            done=self.done,
            failed=self.failed,
            dropped=self._dropped,
            bytes=self.bytes,
        )
