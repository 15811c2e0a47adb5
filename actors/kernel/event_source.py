"""Events and answers made cheaply, for one event loop.

``anyio.Event()`` looks up the loop each time and wraps the loop's own event, which costs more than all else
in a call to an actor. An ``EventSource`` remembers the class, or is given the loop's cheapest way
(``event_loop.py``). A source belongs to one event loop: an actor's mailbox has one, which its replies share.
An event of a source has one waiter.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import anyio


class OneShot(Protocol):
    """Set once, awaited by one task. It may be set again, or after its waiter was cancelled."""

    def set(self) -> None: ...
    def wait(self) -> Awaitable[object]: ...


class Answer(Protocol):
    """The slot of one answer, for one waiter. The first of ``resolve`` and ``fail`` counts. A later call is
    ignored and returns False, and so is a call after the waiter was cancelled."""

    def resolve(self, value: Any) -> bool: ...
    def fail(self, error: BaseException) -> bool: ...
    def wait(self) -> Awaitable[Any]: ...


class EventSource:
    """Makes events for one event loop. The first call of ``new`` must be inside it."""

    __slots__ = ("make_answer", "new")

    def __init__(
        self, make: Callable[[], OneShot] | None = None, make_answer: Callable[[], Answer] | None = None
    ) -> None:
        """``make`` makes the loop's own event; without it anyio's events are used. ``make_answer`` makes the
        loop's cheapest slot for an answer; a ``Reply`` works on every loop."""
        self.new: Callable[[], OneShot] = self._first if make is None else make
        self.make_answer = make_answer

    def __repr__(self) -> str:
        return f"<EventSource {getattr(self.new, '__module__', 'unused')}>"

    def _first(self) -> OneShot:
        event = anyio.Event()
        # The running loop's own class: later events skip the lookup.
        self.new = type(event)
        return event
