"""Refuses the use of a store or a client where it cannot work.

In a forked child its sockets, descriptors and tasks belong to the parent. In another thread than its event
loop's, a call would change state while the loop runs, and wake nobody.
"""

from __future__ import annotations

import os
from threading import get_ident

from ...storage_backends.base.errors import ClosedError


class _Forks:
    count = 0

    def note(self) -> None:
        self.count += 1


# Reading a count is cheaper than a process id, which costs a system call.
_forks = _Forks()
os.register_at_fork(after_in_child=_forks.note)


class UseGuard:
    """Remembers where a store or a client was opened. ``any_thread``: it belongs to no event loop."""

    __slots__ = ("_forks", "_thread", "_what")

    def __init__(self, what: str, *, any_thread: bool = False) -> None:
        self._what = what
        self._forks = _forks.count
        self._thread = None if any_thread else get_ident()

    def is_elsewhere(self) -> bool:
        return self._forks != _forks.count or (self._thread is not None and self._thread != get_ident())

    def check(self) -> None:
        """Raises ``ClosedError`` if this is a forked child, or another thread."""
        if self._forks != _forks.count:
            raise ClosedError(
                f"this {self._what} was opened by the parent of this forked process: open one here, after "
                f"the fork"
            )

        if self.is_elsewhere():
            raise ClosedError(
                f"this {self._what} belongs to the event loop of another thread: call it there "
                f"(asyncio.run_coroutine_threadsafe, trio.from_thread.run), or use a client of a service"
            )
