"""Refuses the use of a store or a client where it cannot work.

In a forked child its sockets, descriptors and tasks belong to the parent. In another thread than its event
loop's, a call would change state while the loop runs, and wake nobody. That holds for verbs, for the steps of
a generator, and for closing.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from threading import get_ident
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from ...storage_backends.base.errors import ClosedError

T = TypeVar("T")


class UseGuard:
    """Remembers where a store or a client was opened. ``any_thread``: it belongs to no event loop."""

    __slots__ = ("__weakref__", "_any_thread", "_what", "thread")

    def __init__(self, what: str, *, any_thread: bool = False) -> None:
        self._what = what
        self._any_thread = any_thread
        self.thread = get_ident()
        """The thread of the event loop; 0, which is no thread, in a forked child. Compared for each append,
        so it is an attribute."""
        _guards.add(self)

    def check(self) -> None:
        """Raises ``ClosedError`` if this is a forked child, or another thread."""
        if self.thread == 0:
            raise ClosedError(
                f"this {self._what} was opened by the parent of this forked process: open one here, after "
                f"the fork"
            )

        if not self._any_thread and self.thread != get_ident():
            raise ClosedError(
                f"this {self._what} belongs to the event loop of another thread: call it there "
                f"(asyncio.run_coroutine_threadsafe, trio.from_thread.run), or use tierlog.connect_sync"
            )


class GuardedGenerator(AsyncGenerator[T, None], Generic[T]):
    """``generator``, refused elsewhere: it could not even clean up there."""

    __slots__ = ("_generator", "_guard")

    def __init__(self, guard: UseGuard, generator: AsyncGenerator[T, None]) -> None:
        self._guard = guard
        self._generator = generator

    async def __anext__(self) -> T:
        # A coroutine less than by way of ``asend``: a reader at a tail keeps what it waits in.
        self._guard.check()
        return await self._generator.__anext__()

    async def asend(self, value: None) -> T:
        self._guard.check()
        return await self._generator.asend(value)

    async def athrow(self, *error: Any) -> T:
        self._guard.check()
        return await self._generator.athrow(*error)

    async def aclose(self) -> None:
        self._guard.check()
        await self._generator.aclose()


_guards: WeakSet[UseGuard] = WeakSet()


def _forked() -> None:
    # No lock is needed: a forked child has only the thread that forked.
    for guard in _guards:
        guard.thread = 0


os.register_at_fork(after_in_child=_forked)
