"""Ask and reply: one answer for each message, whatever happens.

Owns: the one-shot answer slot, the ask with a limit in time, and the answer to everybody at an actor's end.
Does not own: the channel (``mailbox.py``).

Rules upheld: A5 (each ask is answered once: a value, an error, or the error of the actor's exit), A6 (a
cancelled or timed-out ask leaves the actor sound, and tells the truth: outcome unknown once the message was
in the mailbox).

Cancellation: a cancelled waiter goes; the slot stays valid, answering it later is no error. The actor is
never cancelled through an ask. Hot path: a slot is four fields. An event is made only by a waiter who came
before the answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

import anyio

from ...storage_backends.base.errors import OutcomeUnknown, Throttled
from .mailbox import Lane, Mailbox
from .one_shot import Answer, EventSource, OneShot

T = TypeVar("T")
M = TypeVar("M")


class Reply(Generic[T]):
    """A slot for one answer. The first answer counts; a later one is ignored and returns False.

    ``events``: the actor's own source (``mailbox.events``) makes waiting cheaper; without it any event loop
    will do.
    """

    __slots__ = ("_done", "_error", "_event", "_events", "_others", "_value")

    def __init__(self, events: EventSource | None = None) -> None:
        self._events = events
        self._done = False
        self._value: T | None = None
        self._error: BaseException | None = None
        self._event: OneShot | None = None
        self._others: tuple[OneShot, ...] | None = None
        """Of the second waiter and all later ones: an event has one waiter."""

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
        """The answer. Does not suspend when it is there; several waiters are fine."""
        if not self._done:
            event: OneShot = anyio.Event() if self._events is None else self._events.new()
            if self._event is None:
                self._event = event
            else:
                self._others = (*(self._others or ()), event)
            await event.wait()

        if self._error is not None:
            raise self._error.with_traceback(None)
        return self._value  # type: ignore[return-value]  # a cast is one call more, on the hot path


async def ask(
    mailbox: Mailbox[M],
    message: M,
    reply: Reply[T],
    *,
    size: int = 0,
    lane: Lane = Lane.NORMAL,
    timeout: float | None = None,
) -> T:
    """Put ``message`` and wait for ``reply``, which the message carries.

    ``timeout`` (seconds) covers both. Past it, ``Throttled`` is raised if the message never got in, else
    ``OutcomeUnknown``: the actor may still do it. A cancellation passes through. Raises the mailbox's close
    reason.
    """
    if timeout is None:
        await mailbox.put(message, size, lane)
        return await reply.wait()

    inside = False
    with anyio.move_on_after(timeout):
        await mailbox.put(message, size, lane)
        inside = True
        return await reply.wait()

    if not inside:
        raise Throttled(f"no room in the mailbox within {timeout:g} s: nothing was done, try again later")

    # From here on the actor can see that nobody waits. If its answer came in the same instant, that is the
    # truth to tell.
    reply.fail(OutcomeUnknown(f"no answer within {timeout:g} s: the operation may still be carried out"))
    return await reply.wait()


def fail_all(replies: Iterable[Answer], error: BaseException) -> int:
    """Fail every reply that has no answer yet; returns how many there were."""
    return sum(reply.fail(error) for reply in replies)
