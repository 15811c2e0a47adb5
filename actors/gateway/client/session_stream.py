"""A stream of a tail in a session. Where it waits it is a small record: a client may have thousands of them.

A stream that is cancelled, or that has nothing for ``POLL_SECONDS``, ends: then the tail asks the server."""

from __future__ import annotations

from collections.abc import Awaitable, MutableMapping
from typing import TYPE_CHECKING, Protocol, Self

import anyio

from ...kernel.event_source import EventSource
from ...telemetry.tracing import Tracing
from .attempts import Send
from .requests import POLL_SECONDS, Request, StartsStream
from .session import SessionCall
from .spans import around_exchange

if TYPE_CHECKING:
    from .sessions import AsyncSession


class Cancellable(Protocol):
    def cancel(self) -> None: ...


Flights = MutableMapping[Cancellable, Send]
"""What waits for an answer; cancelled if the answer is known not to come."""


class SessionStream:
    __slots__ = ("_call", "_flights", "_has_started", "_is_over", "_send", "_session", "deadline", "is_idle")

    def __init__(self, session: AsyncSession, send: Send, flights: Flights) -> None:
        self._session = session
        self._send = send
        self._flights = flights
        self._call: SessionCall | None = None
        self._has_started = self._is_over = False
        self.is_idle = False
        """It ended because it had no bytes."""
        self.deadline = 0.0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._call is not None:
            self._session.end(self._call)

    async def open(self, starts: StartsStream, tracing: Tracing | None) -> None:
        if tracing is None:
            await self._open(self._send.request, starts)
            return

        with around_exchange(tracing, self._send) as (request, span):
            call = await self._open(request, starts)
            if call.status:
                span.answered(call.status)

    async def _open(self, request: Request, starts: StartsStream) -> SessionCall:
        call = self._call = self._session.begin(request, is_stream=True)
        self._begin_wait()
        try:
            while not (call.is_ended or self._is_over or call.status):
                await self._changed(call)
        finally:
            self._end_wait()
        self._has_started = bool(call.status) and starts(call.status, call.headers)
        call.headers = {}
        return call

    async def next(self) -> bytes:
        """The next bytes; empty when it has ended."""
        call = self._call
        if call is None or not self._has_started:
            return b""
        if not call.pieces:
            self._begin_wait()
            try:
                while not (call.is_ended or self._is_over or call.pieces):
                    await self._changed(call)
            finally:
                self._end_wait()
        return self._session.core.take(call)

    def _changed(self, call: SessionCall) -> Awaitable[object]:
        event = self._session.events.new()
        call.wake = event.set
        return event.wait()

    def _begin_wait(self) -> None:
        self.deadline = anyio.current_time() + POLL_SECONDS
        self._flights[self] = self._send
        self._session.streams.add(self)

    def _end_wait(self) -> None:
        self._session.streams.remove(self)
        del self._flights[self]

    def cancel(self) -> None:
        self._is_over = True
        if self._call is not None:
            self._call.wake()

    def end_idle(self) -> None:
        self.is_idle = True
        self.cancel()


class WaitingStreams:
    """Those of a session that wait, in the order of their deadlines, which is that of their waits. One task
    watches all: a timer for each would cost more than the rest of a stream."""

    def __init__(self, events: EventSource) -> None:
        self._events = events
        self._waiting: dict[SessionStream, None] = {}
        self._due = events.new()

    def add(self, stream: SessionStream) -> None:
        self._waiting[stream] = None
        if len(self._waiting) == 1:
            self._due.set()

    def remove(self, stream: SessionStream) -> None:
        self._waiting.pop(stream, None)

    async def watch(self) -> None:
        while True:
            await self._due.wait()
            while self._waiting:
                first = next(iter(self._waiting))
                left = first.deadline - anyio.current_time()
                if left > 0:
                    await anyio.sleep(left)
                else:
                    self.remove(first)
                    first.end_idle()
            self._due = self._events.new()
