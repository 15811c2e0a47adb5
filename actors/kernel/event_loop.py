"""What a process takes from its event loop because it costs less than anyio's way: events and the clock.

Owns: the choice between the loops. Does not own: anything else that differs between them. ``node.py`` and the
client's door use it; the library below is given what they chose.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from .one_shot import EventSource


class _FutureEvent(asyncio.Future[None]):
    """A bare asyncio future as an event: about a fifth of the cost of an ``asyncio.Event`` in anyio's
    wrapping."""

    __slots__ = ()

    def set(self) -> None:
        if not self.done():
            self.set_result(None)

    def wait(self) -> asyncio.Future[None]:
        return self


class _FutureAnswer(asyncio.Future[Any]):
    """An answer that is the very future its waiter awaits: no object, event and coroutine more for each
    append. One waiter only, because a cancelled one cancels the future."""

    __slots__ = ()

    def resolve(self, value: Any) -> bool:
        if self.done():
            return False

        self.set_result(value)
        return True

    def fail(self, error: BaseException) -> bool:
        if self.done():
            return False

        self.set_exception(error)
        self.exception()  # told to the future, so that it does not complain where nobody waits any more
        return True

    def wait(self) -> asyncio.Future[Any]:
        return self


def event_source() -> EventSource:
    """Events of the loop that is running."""
    trio = running_trio()
    if trio is not None:
        return EventSource(trio.Event)

    loop = asyncio.get_running_loop()
    return EventSource(partial(_FutureEvent, loop=loop), partial(_FutureAnswer, loop=loop))


def loop_clock() -> Callable[[], float]:
    """``anyio.current_time`` of the loop that is running."""
    trio = running_trio()
    if trio is not None:
        clock: Callable[[], float] = trio.current_time
        return clock

    return asyncio.get_running_loop().time


def running_trio() -> Any:
    """The trio module if trio runs this task, else None. Never imports it."""
    trio = sys.modules.get("trio")
    return trio if trio is not None and trio.lowlevel.in_trio_run() else None
