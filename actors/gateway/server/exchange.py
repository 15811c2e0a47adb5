"""One request of a connection and its answer, as an ASGI application sees them.

``run`` calls the application once. A lost connection ends ``receive`` with ``http.disconnect`` and ``send``
with ``BrokenPipeError``. If the application ends without a complete answer, by an error or a cancellation,
the client gets 500, or its connection is closed if the answer has begun."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Awaitable, Callable, Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import anyio

from ...telemetry.logging import get_logger
from .fan_out import Chunk, chunk_head, encode_chunk
from .large_body import LargeBody

if TYPE_CHECKING:
    from .connection import HttpConnection

_log = get_logger("gateway")

_FORBIDDEN_IN_HEADER = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}
COPIED_MAX = 64 << 10
"""Bytes of a chunk that are copied behind its head, to be written as one. uvloop keeps larger ones as they
are: a copy would be held, too, while the client does not read."""
Headers = list[tuple[bytes, bytes]]


class Signal:
    """An event with one waiter at a time. ``asyncio.Event`` takes 0.8 KiB for all that it could have."""

    __slots__ = ("_waiter", "is_set")

    def __init__(self) -> None:
        self.is_set = False
        self._waiter: asyncio.Future[None] | None = None

    def set(self) -> None:
        self.is_set = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self) -> None:
        if not self.is_set:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None


App = Callable[[Any, Any, Any], Awaitable[object]]


class Exchange:
    """One request and its answer, as an ASGI application sees them."""

    __slots__ = (
        "_bytes_left",
        "_connection",
        "_is_chunked",
        "begins_session",
        "body",
        "event",
        "expects_continue",
        "is_answer_started",
        "is_answered",
        "is_disconnected",
        "is_receiving",
        "keep_alive",
        "more_body",
        "scope",
    )

    def __init__(self, connection: HttpConnection, keep_alive: bool, expects_continue: bool) -> None:
        self._connection = connection
        self.keep_alive = keep_alive
        self.expects_continue = expects_continue
        """The client waits for `100 Continue` before it sends the body."""
        self.scope: dict[str, Any] = {}
        self.body = bytearray()
        self.more_body = True
        self.event = Signal()
        """Set when something changed for ``receive``."""
        self.is_receiving = self.is_disconnected = False
        self.is_answer_started = self.is_answered = False
        self.begins_session = False
        """Its answer is 101: what follows on the connection is a session."""
        self._is_chunked = False
        self._bytes_left = 0
        """Bytes of the answer's Content-Length that are still to be sent."""

    @property
    def is_parked(self) -> bool:
        """Its answer goes on without the application."""
        return False

    @property
    def is_watching(self) -> bool:
        """The handler waits for the client to leave."""
        return self.is_receiving and not self.more_body

    async def wait_left(self, seconds: float) -> None:
        """Wait until the connection is lost, or its client has closed its half for ``seconds``: the end of
        one that has left looks the same. Reading may pause meanwhile, and then neither shows."""
        while not (self.is_disconnected or self.is_answered):
            with anyio.move_on_after(seconds if self._connection.is_input_ended else math.inf):
                await self.event.wait()
                self.event.is_set = False
                continue
            self._leave()

    def _leave(self) -> None:
        """The client seems to have left."""
        self.disconnect()
        self._connection.close()

    def disconnect(self) -> None:
        self.is_disconnected = True
        self.event.set()

    async def run(self, app: App) -> None:
        try:
            await app(self.scope, self.receive, self.send)
        except Exception as error:  # noqa: BLE001 - the connection survives every bug of an application
            _log.error("unexpected_error", exc_info=error)
        finally:
            if not (self.is_answered or self.is_disconnected or self.is_parked):
                self._break()
            # It refers to methods of this exchange: only the garbage collector would free both.
            self.scope = {}

    def _break(self) -> None:
        """The application ended without a complete answer."""
        if self.is_answer_started:
            # H10: without the end of the body, so that half an answer does not pass for a whole one.
            self._connection.close()
            return

        self.keep_alive = False
        self._start(500, [(b"content-length", b"0")])
        self._add(b"", more=False)

    # --- in -----------------------------------------------------------------------------------------

    async def receive(self) -> dict[str, Any]:
        self._allow_body()
        if self._connection.is_input_ended and not self.event.is_set:
            # Nothing comes any more, and a reader that waits at a tail must not outlast its client.
            self._leave()
        if not self.is_disconnected and not self.is_answered:
            self.is_receiving = True
            self._connection.update_reading()
            try:
                await self.event.wait()
            finally:
                self.is_receiving = False
            self.event.is_set = False
        if self.is_disconnected or self.is_answered:
            return {"type": "http.disconnect"}

        body, self.body = bytes(self.body), bytearray()
        return {"type": "http.request", "body": body, "more_body": self.more_body}

    def large_body(self, size: int, admit: Callable[[int], None]) -> LargeBody | None:
        """The rest of this request's body, past the parser; None if it is complete, or will never come.
        ``admit(received)`` raises ``Throttled`` if the server has no room for so much of it."""
        if not self.more_body or self.is_disconnected or self._connection.transport.is_closing():
            return None

        self._allow_body()
        begun, self.body = self.body, bytearray()
        self.event.is_set = False
        return LargeBody(self._connection, begun, size, admit)

    def _allow_body(self) -> None:
        if self.expects_continue and not self.is_disconnected and not self._connection.transport.is_closing():
            self._connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self.expects_continue = False

    # --- out ----------------------------------------------------------------------------------------

    async def send(self, message: dict[str, Any]) -> None:
        """Raises ``OSError`` if the client has disconnected: a stream without a reader must end."""
        # Before the check: the client may leave while this waits.
        await self._connection.wait_writable()
        if self.is_disconnected:
            raise BrokenPipeError

        if message["type"] == "http.response.start":
            self._start(message["status"], message["headers"])
        else:
            self._add(message["body"], more=message["more_body"])

    def _start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self.is_answer_started = True
        if self.expects_continue and self.more_body:
            self.keep_alive = False  # the client may send the body all the same, or not
        self.expects_continue = False
        headers = list(headers)
        size = next((int(value) for name, value in headers if name == b"content-length"), None)
        if b"close" in connection_tokens(headers):
            self.keep_alive = False
        elif not self.keep_alive or self._connection.is_last(self):
            self.keep_alive = False
            headers.append((b"connection", b"close"))
        self.begins_session = status == 101
        if size is None and self.scope["method"] != "HEAD" and status not in (101, 204, 304):
            self._is_chunked = True
            headers.append((b"transfer-encoding", b"chunked"))
        self._bytes_left = size or 0
        self._connection.transport.write(encode_head(status, headers))

    async def wait_read(self, seconds: float, is_wanted: Callable[[], bool]) -> None:
        await self._connection.wait_read(seconds, is_wanted)

    def write_chunk(self, chunk: Chunk) -> bool:
        """Sends a chunk of an answer without a length. Returns False if the client has left or reads too
        slowly: then ``send`` comes next, which waits or raises."""
        if self.is_disconnected or self._connection.transport.is_closing():
            return False

        self._connection.transport.write(chunk.encoded)
        return self._connection.is_writable

    def _add(self, data: Any, *, more: bool) -> None:
        write = self._connection.transport.write
        if self.scope["method"] == "HEAD":
            # HEAD has the length of a body that is not sent (RFC 9110, 9.3.2).
            self._bytes_left = 0
        elif self._is_chunked:
            if len(data) > COPIED_MAX:
                self._connection.transport.writelines((chunk_head(len(data)), data, b"\r\n"))
            elif data:
                write(encode_chunk(data))
            if not more:
                write(b"0\r\n\r\n")
        else:
            self._bytes_left -= len(data)
            # The client would read the next answer as the rest of this one, or the rest of this one as the
            # next.
            if self._bytes_left < 0 or (self._bytes_left and not more):
                raise RuntimeError("the answer's length is not its Content-Length")

            write(data)
        if not more:
            self.is_answered = True
            self.event.set()
            self._connection.request_answered(self)


def encode_head(status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    lines = [b"%s: %s\r\n" % header for header in check_headers(headers)]
    return b"".join([_STATUS_LINES[status], *lines, b"\r\n"])


def check_headers(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """``headers`` of an answer, with names in lower case."""
    search, found = _FORBIDDEN_IN_HEADER.search, []
    for name, value in headers:
        # A line feed would begin another header, or another answer (RFC 9110, 5.5).
        if search(value):
            raise RuntimeError(f"a header's value with a control character: {name!r}")
        found.append((name.lower(), value))
    return found


def connection_tokens(headers: Headers) -> set[bytes]:
    return {
        token.strip().lower()
        for name, value in headers
        if name == b"connection"
        for token in value.split(b",")
    }
