"""One of the two halves of the storage-backend actor, reads or writes: a bounded queue and a limit of what
runs at the same time.

Owns: its mailbox, the number of running operations, and those that are late. Does not own: the operations'
tasks (the actor's).

Rule A14: reads and writes have separate queues as well as limits, so that writes that wait never stand in
front of a read. Cancellation: a cancelled ``take`` has taken nothing.
"""

from __future__ import annotations

import anyio
import attrs

from ...storage_backends.base.statistics import counter, gauge
from ..kernel.mailbox import Mailbox, MailboxOptions, MailboxStatistics
from .messages import Request

_ANY_BYTES = 1 << 62
"""A batch is bounded by the free places; its bytes are in memory already."""


@attrs.frozen
class PoolStatistics:
    queue: MailboxStatistics
    limit: int = attrs.field(metadata=gauge("Calls to long-term storage at the same time, at most."))
    running: int = attrs.field(metadata=gauge("Calls under way."))
    late: int = attrs.field(
        metadata=gauge(
            "Calls that run past their deadline: answered, and in their place until the backend returns."
        )
    )
    went_late: int = attrs.field(metadata=counter("Calls that went past their deadline."))
    done: int = attrs.field(metadata=counter("Calls carried out with success."))
    failed: int = attrs.field(metadata=counter("Calls that failed."))
    dropped: int = attrs.field(metadata=counter("Calls never begun, because their asker had gone."))
    bytes: int = attrs.field(metadata=counter("User bytes read or written with success."))


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
        self.mailbox: Mailbox[Request] = Mailbox(queue)
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

    async def take(self) -> list[Request]:
        """Wait for a free place and a request; what is returned counts as running until ``finished``."""
        while True:
            while self.running >= self.limit:
                await self._wait_freed()

            batch = await self.mailbox.drain(self.limit - self.running, _ANY_BYTES)
            wanted = [request for request in batch if not request.ticket.done]
            self._dropped += len(batch) - len(wanted)
            for request in wanted:
                request.ticket.started = True
            self.running += len(wanted)
            if wanted:
                return wanted
            self._notify()

    def became_late(self, request: Request) -> None:
        request.ticket.late = True
        self._late += 1
        self._went_late += 1

    def finished(self, request: Request) -> None:
        self.running -= 1
        self._late -= request.ticket.late
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
