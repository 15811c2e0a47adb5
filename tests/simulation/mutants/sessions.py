"""Planted bugs of sessions (docs/protocols/session.md)."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import trio

from tierlog.actors.gateway.client.session import ClientSession, SessionCall
from tierlog.actors.gateway.client.sessions import AsyncSession, Sessions
from tierlog.actors.gateway.client.transport import AsyncTransport
from tierlog.actors.gateway.server import forwarding
from tierlog.actors.gateway.server.fan_out import Chunk, FanOut, Stream
from tierlog.actors.gateway.server.forwarding import Forwarder
from tierlog.actors.gateway.server.session import SessionConnection
from tierlog.actors.gateway.server.session_call import SessionCall as ServerCall
from tierlog.actors.gateway.server.waiting_tails import WaitingTail
from tierlog.actors.gateway.wire.session import Frame, FrameDecoder, Kind

from ..sessions.world import FIRST_WITH_ONE_PORT, FIRST_WITH_SESSIONS
from .planting import Planter, mutant

_planted = partial(mutant, worlds_from=FIRST_WITH_SESSIONS)


@_planted("N1")
def frame_numbers_are_not_checked(plant: Planter) -> None:
    """A frame that came twice is a second call, and what was lost is not missed."""

    def feed(original: Any, self: FrameDecoder, data: Any) -> Any:
        begun, self._begun = bytes(self._begun) + bytes(data), bytearray()
        while len(begun) >= 14:
            size = int.from_bytes(begun[:4], "big")
            if len(begun) < 14 + size:
                break
            numbered = begun[:4] + self._sequence.to_bytes(4, "big") + begun[8 : 14 + size]
            begun = begun[14 + size :]
            yield from original(self, numbered)
        self._begun = bytearray(begun)

    plant(FrameDecoder.feed, feed)


@_planted("N2")
def answers_are_exchanged(plant: Planter) -> None:
    """A call gets the answer to the one before it."""

    def take(original: Any, self: ClientSession, frame: Frame) -> None:
        if frame.call > 1 and frame.call - 1 in self._calls and not self._calls[frame.call - 1].status:
            frame = frame._replace(call=frame.call - 1)
        original(self, frame)

    plant(ClientSession._take, take)


@_planted("N3")
def window_of_an_answer_is_not_opened(plant: Planter) -> None:
    """A large answer never ends, because its client opens the window once only."""

    def grant(original: Any, self: ClientSession, call: SessionCall, size: int) -> None:
        original(self, call, size)
        if call._taken == 0:
            call._taken = -(1 << 40)

    plant(ClientSession._grant, grant)


@_planted("N3")
def window_of_a_body_is_not_opened(plant: Planter) -> None:
    """A large request never ends, because its server opens no window."""

    plant(ServerCall._grant, lambda original, self, size: None)


@_planted("N4")
def slow_call_never_ends(plant: Planter) -> None:
    """Of a block for a window that stays closed, the rest is lost when it opens."""

    def add_credit(original: Any, self: ServerCall, size: int) -> None:
        pending = self._pending
        self._pending = pending[: len(pending) // 2] if not self._is_whole else pending
        original(self, size)

    plant(ServerCall.add_credit, add_credit)


@_planted("N5")
def end_names_no_call(plant: Planter) -> None:
    """What the server did of the calls that its end found in flight counts as not sent, and is done again."""

    def end(original: Any, self: ClientSession, last: int, reason: str) -> None:
        original(self, 0, reason)

    plant(ClientSession._end, end)


@_planted("N5")
def calls_behind_the_end_are_taken(plant: Planter) -> None:
    """A server carries out calls that its end has disclaimed, and their clients send them elsewhere too."""

    def begin(original: Any, self: SessionConnection, frame: Frame) -> int:
        ended, self._has_ended = self._has_ended, False
        try:
            return int(original(self, frame))
        finally:
            self._has_ended = ended

    plant(SessionConnection._begin_call, begin)


@_planted("N6")
def call_that_was_handed_over_is_not_sent(plant: Planter) -> None:
    """A plain append whose connection broke is sent again, though it may have been applied."""

    def fail(original: Any, self: ClientSession, reason: str) -> None:
        for call in self._calls.values():
            call.is_sent = False
        original(self, reason)

    plant(ClientSession.fail, fail)


@_planted("N6")
def cancelled_call_is_sent(plant: Planter) -> None:
    """A call whose deadline passed before it was sent is reported as not done, and done later."""

    def take_output(original: Any, self: ClientSession) -> bytes:
        ended = [call for call, *_ in self._out if call.is_ended and not call.is_sent]
        for call in ended:
            call.is_ended = False
        output: bytes = original(self)
        for call in ended:
            call.is_ended, call.is_sent = True, False
        return output

    plant(ClientSession.take_output, take_output)


@_planted("N6")
def cancelled_calls_are_kept(plant: Planter) -> None:
    """A client whose callers leave keeps a call of each, and so does its server."""

    plant(ClientSession.cancel, lambda original, self, call: None)


@_planted("N6")
def cancel_is_not_heard(plant: Planter) -> None:
    """A server keeps the calls that their clients have left, until they are answered."""

    def take(original: Any, self: SessionConnection, frame: Frame) -> None:
        if frame.kind != Kind.CANCEL:
            original(self, frame)

    plant(SessionConnection._take, take)


@_planted("N6")
def lost_connection_ends_no_call(plant: Planter) -> None:
    """Handlers of a connection that broke go on, and readers at a tail wait for ever."""

    def lost(original: Any, self: SessionConnection, error: Exception | None) -> None:
        self._calls = {}
        original(self, error)

    plant(SessionConnection.connection_lost, lost)


@_planted("N6")
def retired_session_takes_calls(plant: Planter) -> None:
    """Whoever met a server that is gone sends it the next call too."""

    def retire(original: Any, self: AsyncSession) -> None:
        self._end_unused()

    plant(AsyncSession.retire, retire)


@_planted("N6")
def cancelled_scope_sends(plant: Planter) -> None:
    """Who is cancelled before its call has it done."""

    async def call(original: Any, self: AsyncTransport, session: Any, request: Any, *rest: Any) -> Any:
        if trio.current_effective_deadline() == -math.inf:
            session.begin(request)
        return await original(self, session, request, *rest)

    plant(AsyncTransport._call, call)


@_planted("N7")
def refusing_server_is_not_asked_again(plant: Planter) -> None:
    """A client that met a proxy once uses plain HTTP for ever."""

    async def find(original: Any, self: Sessions, url: str) -> Any:
        server = self._servers.get(url)
        if server is not None and server.refused_until:
            server.refused_until = float("inf")
        return await original(self, url)

    plant(Sessions.find, find)


@_planted("N8")
def waiting_tail_forgets_what_it_was_sent(plant: Planter) -> None:
    """A client that reads its tail slowly for a moment gets bytes of it twice."""

    def send(original: Any, self: FanOut, stream: Stream, start: int, chunk: Chunk) -> None:
        before = stream.position
        original(self, stream, start, chunk)
        if isinstance(stream, WaitingTail):
            stream.position = before

    plant(FanOut._send_to, send)


@partial(mutant, worlds_from=FIRST_WITH_ONE_PORT)("H22")
def lost_answer_of_an_owner_counts_as_nothing_done(plant: Planter) -> None:
    """In one-port mode a host says that nothing was done when an owner's answer is lost, and its client
    repeats what was done."""

    def lost(original: Any, flight: Any, reason: str, *, is_sent: bool, changes: bool) -> Any:
        return original(flight, reason, is_sent=False, changes=changes)

    plant(forwarding._lost, lost)


@partial(mutant, worlds_from=FIRST_WITH_ONE_PORT)("H22")
def share_of_a_cancelled_exchange_is_lost(plant: Planter) -> None:
    """A client whose callers leave has fewer and fewer requests passed on, until none is."""

    async def pool(
        original: Any, self: Forwarder, call: Any, url: str, *, parks: bool = False
    ) -> AsyncIterator[Any]:
        try:
            async with asynccontextmanager(original)(self, call, url, parks=parks) as found:
                yield found
        except trio.Cancelled:
            share = anyio.Semaphore(self.client_exchanges, fast_acquire=True)
            share = self._shares.setdefault((call.scope["client"], url, parks), share)
            if share.value:
                share.acquire_nowait()
            raise

    # The generator below the context manager.
    plant(vars(Forwarder._pool)["__wrapped__"], pool)
