"""Events made cheaply, for one event loop.

Owns: remembering which event class the running loop uses. ``anyio.Event()`` asks for the loop each time, which costs more than the event.
Does not own: the events.

One source belongs to one event loop: an actor's mailbox has one, and its replies share it. It learns the loop at first use.
"""

from __future__ import annotations

from collections.abc import Callable

import anyio


class EventSource:
    """Makes events for one event loop; the first ``new`` must happen inside it."""

    __slots__ = ("new",)

    def __init__(self) -> None:
        self.new: Callable[[], anyio.Event] = self._first

    def __repr__(self) -> str:
        return f"<EventSource {getattr(self.new, '__module__', 'unused')}>"

    def _first(self) -> anyio.Event:
        event = anyio.Event()
        self.new = type(event)
        return event
