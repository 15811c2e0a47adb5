"""A window: several appends of one attempt under way at once.

Owns: how many there are, the threads that carry them out, and their end. Does not own: what an append is
(``staging.py``).

Appends are begun in the order in which they are given, and each can wait for the one before, with
``before()``. They travel by connections of their own, so one may overtake another: it says so with
``overtaken()``, and the next is begun only when all before it are done. Else the next would overtake the one
that is sent again, and so on for ever.

The first failure in that order is the one that is raised, by the next ``put`` or by ``finish``; what was
begun behind it ends by itself, and nobody asks how.

Cancellation, an exception in the body, the end of the interpreter: what is under way is waited for, what has
not begun never does, and ``is_over`` tells those that would try again not to. No thread is left when the
``with`` body has ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

Act = Callable[[Callable[[], None]], None]
"""``act(before)``: one append. ``before()`` returns when the one before is done, and raises if that
failed."""


class Window:
    def __init__(self, width: int) -> None:
        self._width = width
        self._threads = ThreadPoolExecutor(width, "tierlog-append")
        self._under_way: deque[Future[None]] = deque()
        self._is_mixed_up = False
        self.is_over = False
        """The body failed: what could be tried again need not be."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.is_over = kind is not None
        self._threads.shutdown(cancel_futures=True)

    def put(self, act: Act) -> None:
        """Begin an append when there is room for it."""
        if len(self._under_way) >= self._width:
            self._under_way.popleft().result()
        if self._is_mixed_up:
            self.finish()
            self._is_mixed_up = False
        before = self._under_way[-1].result if self._under_way else _nothing
        self._under_way.append(self._threads.submit(act, before))

    def overtaken(self) -> None:
        """Called by an append that came before the one before."""
        self._is_mixed_up = True

    def finish(self) -> None:
        """Wait for all."""
        while self._under_way:
            self._under_way.popleft().result()


def _nothing() -> None:
    """Before the first."""
