"""Events made cheaply, for one event loop.

Owns: remembering which event class the running loop uses. ``anyio.Event()`` asks for the loop each time, which costs more than the event.
Does not own: the events.

``RoundEvents`` goes a step further: who comes in one round waits on one event, because one batch answers the round.

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

    def for_reply(self) -> anyio.Event:
        """The event that a reply waits on first."""
        return self.new()

    def _first(self) -> anyio.Event:
        event = anyio.Event()
        self.new = type(event)
        return event


class RoundEvents(EventSource):
    """Gives one shared event to everybody of a round; a consumer that took a batch ends the round.

    Who is woken before its own answer came (the batch was cut) waits again on an event of its own; ``Reply.wait`` does so.
    """

    __slots__ = ("_shared",)

    def __init__(self) -> None:
        super().__init__()
        self._shared: anyio.Event | None = None

    def for_reply(self) -> anyio.Event:
        event = self._shared
        if event is None:
            event = self._shared = self.new()
        return event

    def end_round(self) -> None:
        self._shared = None
