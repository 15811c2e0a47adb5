"""One answer for each message (rule A5): a value, an error, or the error of the actor's exit.

A cancelled waiter leaves the slot valid; answering it later is not an error. An event is made only if the
waiter comes before the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Generic, TypeVar

import anyio

from .event_source import Answer, EventSource, OneShot

T = TypeVar("T")


class Reply(Generic[T]):
    """A slot for one answer. The first answer counts; a later one is ignored and returns False.

    ``events``: the actor's event source (``mailbox.events``), which makes waiting cheaper. Without it the
    slot works on any event loop.
    """

    __slots__ = ("_done", "_error", "_event", "_events", "_others", "_value")

    def __init__(self, events: EventSource | None = None) -> None:
        self._events = events
        self._done = False
        self._value: T | None = None
        self._error: BaseException | None = None
        self._event: OneShot | None = None
        self._others: tuple[OneShot, ...] | None = None
        """The second waiter's event and all later ones: an event has one waiter."""

    def __repr__(self) -> str:
        state = (
            "pending" if not self._done else "answered" if self._error is None else f"failed: {self._error!r}"
        )
        return f"<Reply {state}>"

    @property
    def done(self) -> bool:
        return self._done

    def resolve(self, value: T) -> bool:
        """Answer with ``value``."""
        if self._done:
            return False

        self._done = True
        self._value = value
        if self._event is not None:
            self._event.set()
            if self._others is not None:
                self._wake_others(self._others)
        return True

    def fail(self, error: BaseException) -> bool:
        """Answer with ``error``, which ``wait`` raises. One error may fail many replies."""
        if self._done:
            return False

        self._done = True
        self._error = error
        if self._event is not None:
            self._event.set()
            if self._others is not None:
                self._wake_others(self._others)
        return True

    def _wake_others(self, others: tuple[OneShot, ...]) -> None:
        for other in others:
            other.set()

    async def wait(self) -> T:
        """Return the answer, or raise it. Does not suspend if it is there; there may be several waiters."""
        if not self._done:
            # Made here and not with the slot: most answers come before anybody waits.
            event: OneShot = anyio.Event() if self._events is None else self._events.new()
            if self._event is None:
                self._event = event
            else:
                self._others = (*(self._others or ()), event)
            await event.wait()

        if self._error is not None:
            try:
                # One error may fail many replies: without this its traceback would grow with each waiter.
                raise self._error.with_traceback(None)
            finally:
                # The traceback has this frame: only the garbage collector would free the error.
                del self
        return self._value  # type: ignore[return-value]  # a cast is one call more, on the hot path


def answers_of(events: EventSource) -> Callable[[], Answer]:
    """Makes answers in the loop's cheapest way; each has one waiter."""
    return events.make_answer or partial(Reply, events)


def fail_all(replies: Iterable[Answer], error: BaseException) -> int:
    """Fail every reply that has no answer yet. Returns how many there were."""
    return sum(reply.fail(error) for reply in replies)
