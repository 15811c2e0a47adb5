"""Events and answers made cheaply, for one event loop.

Owns: what a waiter of the kernel waits on. ``anyio.Event()`` asks for the loop each time and wraps the loop's
own event, which costs more than all else that an ask does; so a source remembers the class, or is given the
loop's cheapest way by whoever knows the loop (``node.py``). Does not own: the events.

One source belongs to one event loop: an actor's mailbox has one, and its replies share it. An event of a
source has one waiter.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import anyio


class OneShot(Protocol):
    """Set once, awaited by one task. Setting it again, or when its waiter was cancelled, is fine."""

    def set(self) -> None: ...
    def wait(self) -> Awaitable[object]: ...


class Answer(Protocol):
    """The slot of one answer, for one waiter. The first of ``resolve`` and ``fail`` counts; a later one is
    ignored and returns False, and so is one whose waiter was cancelled."""

    def resolve(self, value: Any) -> bool: ...
    def fail(self, error: BaseException) -> bool: ...
    def wait(self) -> Awaitable[Any]: ...


class EventSource:
    """Makes events for one event loop; the first ``new`` must happen inside it."""

    __slots__ = ("make_answer", "new")

    def __init__(
        self, make: Callable[[], OneShot] | None = None, make_answer: Callable[[], Answer] | None = None
    ) -> None:
        """``make``: the loop's own way; without it anyio's events are used on whichever loop is running.
        ``make_answer``: the loop's cheapest slot for an answer, where it has one; a ``Reply`` does
        everywhere."""
        self.new: Callable[[], OneShot] = self._first if make is None else make
        self.make_answer = make_answer

    def __repr__(self) -> str:
        return f"<EventSource {getattr(self.new, '__module__', 'unused')}>"

    def _first(self) -> OneShot:
        event = anyio.Event()
        self.new = type(event)
        return event
