"""An exchange in a session for which no task waits, such as a batch of appends: its result is a call of
``landed``, in the step in which it arrives. A task would take two turns of the event loop more.

It ends by its answer, with the session, by ``cancel`` (its answer is known not to come) or by ``expire`` (its
time is over)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .attempts import Send
from .requests import Response, TransportFailure
from .session_stream import Flights

if TYPE_CHECKING:
    from .sessions import AsyncSession

Landed = Callable[["SessionFlight", Response | TransportFailure], None]


class SessionFlight:
    __slots__ = ("_call", "_flights", "_landed", "_received", "_send", "_session", "deadline")

    def __init__(
        self,
        session: AsyncSession,
        send: Send,
        flights: Flights,
        deadline: float,
        landed: Landed,
    ) -> None:
        self._session = session
        self._send = send
        self._flights = flights
        self._landed: Landed | None = landed
        self.deadline = deadline
        self._received = session.core.received
        self._call = session.begin_now(send.request)
        self._call.wake = self._wake
        flights[self] = send

    def _wake(self) -> None:
        call = self._call
        if call.is_ended:
            failure = call.failure
            self._land(
                TransportFailure(call.is_sent, self._send.described(failure)) if failure else call.response
            )

    def cancel(self) -> None:
        """Give it up."""
        if self._landed is not None:
            self._session.end(self._call)
            self._land(TransportFailure(self._call.is_sent, self._send.described("no answer in time")))

    def expire(self) -> None:
        """Its time is over."""
        is_silent = self._session.core.received == self._received
        self.cancel()
        if is_silent:
            # It may be gone without a trace, as only time shows: the next call connects anew (rule N6).
            self._session.retire()

    def _land(self, result: Response | TransportFailure) -> None:
        landed, self._landed = self._landed, None
        assert landed is not None
        del self._flights[self]
        # Nothing keeps what has landed: the call refers to it, and it to the batch.
        self._call.wake = _nobody
        landed(self, result)


def _nobody() -> None:
    """Nobody waits any more."""
