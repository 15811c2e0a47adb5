"""One connection: bytes in, requests out, and everything that a client can do to it that is no request.

Owns: the bounds of a request's head in bytes and in time, what happens to bytes behind a request that is
being answered, wishes to change the protocol (they are passed over), answers to nonsense, and the end after a
last answer. It extends uvicorn's protocol over httptools, which owns the parsing, the keep-alive and the
answers' form. Does not own: bodies' limits (``call.py``), nor how a large one comes in (``large_body.py``).

Order: requests of one connection are answered one after the other. What comes behind the one that is being
answered waits, and reading pauses, unless somebody looks whether its client is still there (a parked tail
does): a paused connection cannot tell. Then reading goes on, and a client that sends more than a head's worth
behind such a request loses its connection (rule H11).

Crash and cancellation: a connection that is lost tells every request of it, not only the last one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from ....storage_backends.base.errors import InvalidArgument, TierlogError
from ..wire.errors import RequestTimeout, TooLarge, to_problem
from .large_body import LargeBody

HEAD_BYTES_MAX = 64 << 10
HEAD_TIMEOUT = 30.0
"""Seconds that a connection may take for the head of a request, from its first byte, or from the connection's
begin."""
LINGER_SECONDS = 2.0
LINGER_BYTES = 64 << 20
"""What is still read, and thrown away, behind the last answer: a socket that is closed with unread bytes
takes its answer back."""


class Connection(HttpToolsProtocol):
    """uvicorn's protocol, with bounds."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._cycles: deque[_Cycle] = deque()
        """The requests that are not answered yet, the oldest first."""
        self._in_head = self._in_body = False
        self._heads = 0
        """Heads that were complete in this chunk of data."""
        self._chunk_bytes = 0
        self._head_bytes = 0
        self._behind = 0
        """Bytes that came after the end of the request that is being answered."""
        self._head_timer: Any = None
        self._linger_timer: Any = None
        self._lingered = 0
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_head_timer()
        if self._linger_timer is not None:
            self._linger_timer.cancel()
        for cycle in self._cycles:
            cycle.disconnected = True
            cycle.message_event.set()
        self.pipeline.clear()
        super().connection_lost(exc)

    # --- bytes in --------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._linger_timer is not None:
            self._lingered += len(data)
            if self._lingered > LINGER_BYTES:
                self.transport.close()
            return

        is_behind = bool(self._cycles) and not self._cycles[0].more_body
        was_between = not self._in_body
        self._heads, self._chunk_bytes = 0, len(data)
        self._unset_keepalive_if_required()
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self._refuse(_NONSENSE if self._head_bytes <= HEAD_BYTES_MAX else _HEAD_TOO_LARGE)
            return

        if self._in_head and was_between and not self._heads:
            self._head_bytes += len(data)
        if is_behind:
            self._behind += len(data)
        if not self.transport.is_closing() and self._linger_timer is None:
            self._check_bounds()

    def _feed(self, data: bytes) -> None:
        while True:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                # A wish to speak another protocol may be passed over; some clients that know HTTP/2 have it
                # with every first request. The parser stops there and would skip the body. A new one gets the
                # same head without the wish.
                data = self._head_without_upgrade() + data[upgrade.args[0] :]
                self._new_parser()

    def _new_parser(self) -> None:
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)

    def _head_without_upgrade(self) -> bytes:
        gone = (b"upgrade", b"http2-settings", b"connection")
        lines = [b"%s %s HTTP/1.1\r\n" % (self.parser.get_method(), self.url)]
        lines += [b"%s: %s\r\n" % header for header in self.headers if header[0] not in gone]
        tokens = [
            token.strip().lower()
            for name, value in self.headers
            if name == b"connection"
            for token in value.split(b",")
        ]
        lines += [b"connection: close\r\n"] if b"close" in tokens else []
        return b"".join([*lines, b"\r\n"])

    def _check_bounds(self) -> None:
        if self._in_head and self._head_timer is None:
            self._wait_for_head()
        if not self._cycles:
            if self._head_bytes > HEAD_BYTES_MAX:
                self._refuse(_HEAD_TOO_LARGE)
        elif not self._cycles[0].is_watched:
            if self._head_bytes > HEAD_BYTES_MAX:
                self.flow.pause_reading()
        elif self._behind > HEAD_BYTES_MAX:
            self.transport.close()
        else:
            self.flow.resume_reading()

    # --- heads -----------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._head_bytes = 0

    def on_headers_complete(self) -> None:
        self._in_head, self._in_body = False, True
        self._heads += 1
        self._end_head_timer()
        if self.parser.get_method() == b"CONNECT":
            raise _NONSENSE  # a tunnel would be an upgrade without an end

        if self.parser.should_upgrade():
            return

        if self._head_bytes + self._chunk_bytes > HEAD_BYTES_MAX:
            self._head_bytes = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            if self._head_bytes > HEAD_BYTES_MAX:
                raise _HEAD_TOO_LARGE

        super().on_headers_complete()
        # The base class makes the cycle and its task in one step; nothing of it has run yet.
        self.cycle.__class__ = _Cycle
        cycle: Any = self.cycle
        cycle.is_watched, cycle.linger = False, self.linger
        self.scope["tierlog.large_body"] = self._large_body  # type: ignore[typeddict-unknown-key]
        self._cycles.append(cycle)

    def on_message_complete(self) -> None:
        self._in_body = False
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def _large_body(self, size: int) -> LargeBody | None:
        """The rest of a body of ``size`` bytes, for the request that is answered now, which takes it out of
        the socket itself.

        None if it is there already, or never comes.
        """
        cycle = self._cycles[0]
        if not cycle.more_body or cycle.disconnected or self.transport.is_closing():
            return None

        cycle.allow_body()
        begun, cycle.body = cycle.body, bytearray()
        cycle.message_event.clear()
        return LargeBody(self, begun, size, self.loop.time)

    def body_is_whole(self) -> None:
        self._in_body = False
        self._new_parser()
        self._cycles[0].more_body = False

    def on_response_complete(self) -> None:
        self._cycles.popleft()
        self._behind = 0
        super().on_response_complete()

    def _wait_for_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT, self._head_is_late)

    def _end_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        if self._cycles:
            self._wait_for_head()  # it waits behind another request, which is no fault of it
        elif self._in_head:
            self._refuse(_HEAD_LATE)
        else:
            self.transport.close()

    # --- refusals --------------------------------------------------------------------------------

    def _refuse(self, error: TierlogError) -> None:
        """The last answer of a connection, unless another one has begun."""
        if len(self._cycles) <= 1 and all(
            cycle.more_body and not cycle.response_started for cycle in self._cycles
        ):
            problem = to_problem(error)
            body = problem.body()
            headers = {**problem.headers, "Content-Length": str(len(body)), "Connection": "close"}
            head = "".join(f"{name.lower()}: {value}\r\n" for name, value in headers.items())
            self.transport.write(STATUS_LINE[problem.status] + head.encode() + b"\r\n" + body)
        for cycle in self._cycles:
            cycle.disconnected = True
            cycle.message_event.set()
        self.linger()

    def linger(self) -> None:
        """Say that there will be no more answers, and wait a little for the client to go."""
        if not self.transport.is_closing():
            self._unset_keepalive_if_required()
            self._end_head_timer()
            self.transport.write_eof()
            self.flow.resume_reading()
            self._linger_timer = self.loop.call_later(LINGER_SECONDS, self.transport.close)


_NONSENSE = InvalidArgument("this is no HTTP/1.1 request: see RFC 9112")
_HEAD_TOO_LARGE = TooLarge(f"the head of a request has at most {HEAD_BYTES_MAX} bytes")
_HEAD_LATE = RequestTimeout("the head of the request did not come in time: nothing was done, send it again")


class _Cycle(RequestResponseCycle):
    """A request, and whether its client is still there."""

    is_watched: bool
    """Whether somebody waits for the client to go away."""
    linger: Callable[[], None]

    def allow_body(self) -> None:
        """Answer a client that asked whether it may send one."""
        if self.waiting_for_100_continue and not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.waiting_for_100_continue = False

    async def receive(self) -> Any:
        self.is_watched = not self.more_body
        try:
            return await super().receive()
        finally:
            self.is_watched = False

    async def send(self, message: Any) -> None:
        """Raises ``OSError`` if the client is gone: a stream that goes nowhere must not run on to its end."""
        if self.disconnected:
            raise BrokenPipeError

        is_last = self.response_started and not message.get("more_body", False)
        if not is_last or self.keep_alive or not self.more_body:
            await super().send(message)
            return

        # The connection ends before its request did, and the base class would close it at once.
        self.keep_alive = True
        await super().send(message)
        self.linger()
