"""Records in long-term storage which flush cycle is complete, alongside the cycles (rule J5).

The creation of an element takes as long as long-term storage does; nothing that is flushed waits for it (rule
F7). The callers of a flush do: they are answered once an element counts whose cut is at or after their call.
Of several cycles that complete meanwhile only the newest gets an element.

Cancellation: the callers are left to ``fail``. Crash: the next owner creates an element that was recorded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

from ...storage_backends.base.errors import CLAIM_REFUSED, TierlogError
from ..kernel.reply import Reply


class CyclePublisher:
    def __init__(
        self, publish: Callable[[int], Awaitable[None]], retry_in: Callable[[], float], error_pause: float
    ) -> None:
        """``publish(cut)`` returns once an element counts that records a complete cycle with this cut.
        ``retry_in()``: for how many seconds long-term storage refuses every change; ``error_pause``: seconds
        between two attempts, at least."""
        self._publish = publish
        self._retry_in = retry_in
        self._error_pause = error_pause
        self.completed = -1
        """The cut of the newest complete cycle."""
        self._published = -1
        self._is_wanted = False
        """Whether an element is due although no later cycle is complete."""
        self._waiting: list[tuple[int, Reply[None]]] = []
        self._wake = anyio.Event()

    @property
    def is_due(self) -> bool:
        """Whether a complete cycle, or rows that something waits for, are not published yet."""
        return self._is_wanted or self.completed > self._published

    def complete(self, cut: int) -> None:
        """A full cycle with this cut is complete in the log. Cuts never decrease."""
        self.completed = cut
        self._wake.set()

    def publish_rows(self, cut: int) -> None:
        """The rows in memory are wanted in an element. ``cut``: of the newest full cycle."""
        self.completed = max(self.completed, cut)
        self._is_wanted = True
        self._wake.set()

    def answer(self, reply: Reply[None]) -> None:
        """Answer ``reply`` once everything that is complete now is published."""
        if self.is_due:
            self._waiting.append((self.completed, reply))
        else:
            reply.resolve(None)

    def fail(self, error: TierlogError) -> None:
        """Answer everybody who waits with ``error``."""
        waiting, self._waiting = self._waiting, []
        for _, reply in waiting:
            reply.fail(error)

    async def run(self) -> None:
        """Publish what is complete until cancelled. Raises ``CLAIM_REFUSED``."""
        while True:
            self._wake = anyio.Event()
            if not self.is_due:
                await self._wake.wait()
                continue

            # Only the newest: each element replaces the one before it, so one for every cycle would cost more
            # creations and promise nothing more (J5).
            cut, asked = self.completed, len(self._waiting)
            was_wanted, self._is_wanted = self._is_wanted, False
            try:
                await self._publish(cut)
            except CLAIM_REFUSED:
                raise
            except TierlogError as error:
                # The outage may last for hours: who asked before the attempt gets its error. The element is
                # tried again for later callers.
                self._is_wanted |= was_wanted
                failed, self._waiting = self._waiting[:asked], self._waiting[asked:]
                for _, reply in failed:
                    reply.fail(error)
                await anyio.sleep(max(self._error_pause, self._retry_in()))
                continue

            self._published = cut
            waiting, self._waiting = self._waiting, []
            for needed, reply in waiting:
                if needed > cut:
                    self._waiting.append((needed, reply))
                else:
                    reply.resolve(None)
