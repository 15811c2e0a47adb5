"""Publishes full flush cycles in long-term storage, alongside the cycles (rule J5).

The creation of an element takes as long as long-term storage does; nothing that is flushed waits for it (rule
F7). One cycle is published at a time. What cannot be published is tried again after a pause, as it was
captured.

Cancellation: the cycle is not published. Crash: the next owner creates an element that was recorded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

import anyio

from ...storage_backends.base.errors import CLAIM_REFUSED, TierlogError

CutT = TypeVar("CutT")
CutT_contra = TypeVar("CutT_contra", contravariant=True)


class PublicationObserver(Protocol[CutT_contra]):
    def attempt_begins(self) -> None: ...
    def attempt_failed(self, error: TierlogError) -> None:
        """It is tried again, which may take hours in an outage."""

    def published(self, cut: CutT_contra) -> None: ...


class CyclePublisher(Generic[CutT]):
    def __init__(
        self,
        publish: Callable[[CutT], Awaitable[None]],
        observer: PublicationObserver[CutT],
        retry_in: Callable[[], float],
        error_pause: float,
    ) -> None:
        """``publish(cut)`` returns once an element counts that records this cycle. ``retry_in()``: for how
        many seconds long-term storage refuses every change; ``error_pause``: seconds between two attempts, at
        least."""
        self._publish = publish
        self._observer = observer
        self._retry_in = retry_in
        self._error_pause = error_pause
        self._next: CutT | None = None
        self._wake = anyio.Event()
        self._resume = anyio.Event()

    @property
    def is_busy(self) -> bool:
        """Whether a cycle is not published yet."""
        return self._next is not None

    def begin(self, cut: CutT) -> None:
        """Publish a cycle. One at a time."""
        self._next = cut
        self._wake.set()

    def resume(self) -> None:
        """End the pause after an attempt that failed."""
        self._resume.set()

    async def run(self) -> None:
        """Publish what ``begin`` gives until cancelled. Raises ``CLAIM_REFUSED``."""
        while True:
            self._wake = anyio.Event()
            cut = self._next
            if cut is None:
                await self._wake.wait()
                continue

            self._observer.attempt_begins()
            try:
                await self._publish(cut)
            except CLAIM_REFUSED:
                raise
            except TierlogError as error:
                self._observer.attempt_failed(error)
                self._resume = anyio.Event()
                with anyio.move_on_after(max(self._error_pause, self._retry_in())):
                    await self._resume.wait()
                continue

            self._next = None
            self._observer.published(cut)
