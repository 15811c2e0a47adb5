"""Events and a clock for the event loop that runs, cheaper than anyio's.

``store/opening.py`` and the clients choose them; the library below is given what they chose.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from .event_source import EventSource


class _FutureEvent(asyncio.Future[None]):
    """A bare asyncio future as an event, at about a fifth of the cost of anyio's event."""

    __slots__ = ()

    def set(self) -> None:
        if not self.done():
            self.set_result(None)

    def wait(self) -> asyncio.Future[None]:
        return self


class _FutureAnswer(asyncio.Future[Any]):
    """An answer that is itself the future that its waiter awaits, which saves an object, an event and a
    coroutine for each append. It has one waiter only, because a cancelled waiter cancels the future."""

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
        self.exception()  # marks it as retrieved: asyncio logs errors that are never retrieved
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
