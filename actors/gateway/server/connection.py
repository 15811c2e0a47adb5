"""One HTTP/1.1 connection: a protocol of our own over httptools.

It bounds a request's head in bytes and in time, refuses what is not a request, ignores upgrades, and ends a
connection so that its last answer arrives (rule H9). Requests of one connection are answered one after the
other, and those that are complete get their answers whatever follows them. What comes behind the one that is
being answered waits, and reading pauses, unless the request watches its client (a parked tail does): a paused
connection cannot notice that the client left. A client that sends more than a head's worth behind such a
request loses its connection (rule H11).

Large bodies of known size bypass the parser (``large_body.py``).

On a crash or a cancellation: a lost connection ends every request of it with ``http.disconnect``. A handler
that leaves a large body before it is complete ends the connection with its answer."""

from __future__ import annotations

import asyncio
import contextvars
import re
import select
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import httptools

from ....storage_backends.base.errors import InvalidArgument, Throttled, TierlogError, TooLarge, Unavailable
from ...telemetry.logging import get_logger
from ..wire.errors import RequestTimeout, to_problem
from ..wire.session import HEADERS_MAX, PROTOCOL
from .exchange import Exchange, Headers, connection_tokens, encode_head
from .large_body import LargeBody
from .session import SessionConnection
from .write_side import WriteSide

if TYPE_CHECKING:
    from .connections import Connections

_log = get_logger("gateway")

HEAD_BYTES_MAX = 64 << 10
PIPELINE_MAX = 64
"""Requests of one connection that are answered or wait."""
HEAD_TIMEOUT = 30.0
"""Seconds that a connection may take for the head of a request, from its first byte, or from the connection's
begin; also for what is left of a body whose request is answered."""
HEAD_DELAY = 2.0
"""Seconds of it after which the connection makes room for another one."""
KEEP_ALIVE = 75.0
"""Seconds that an idle connection stays: longer than clients keep theirs, so that they do not meet a closing
one."""
LINGER_SECONDS = 2.0
LINGER_BYTES = 64 << 20
"""What is still read and dropped behind the last answer: closing a socket with unread bytes would reset the
connection and lose the answer."""
READ_BYTES = 256 << 10
BODY_BYTES_MAX = 64 << 10
"""Bytes of a body that wait for the handler before reading pauses."""

# Texts and not errors: one that is raised again keeps the frames of all the times before.
_NOT_HTTP = "this is no HTTP/1.1 request: see RFC 9112"
_FRAMING = "Transfer-Encoding is chunked, once, in a request of HTTP/1.1: nothing else is decoded"
_HEAD_TOO_LARGE = f"the head of a request has at most {HEAD_BYTES_MAX} bytes and {HEADERS_MAX} headers"
_PIPELINE_FULL = f"at most {PIPELINE_MAX} requests of one connection wait: read their answers first"
_NO_ROOM = "this server has as many connections as it takes: close some, or try again later"
_HEAD_LATE = "the head of the request was not complete in time: nothing was done, send it again"
_FRAMING_TOO_LARGE = "the chunk extensions or trailers of a body are too large, and ignored: leave them out"
_VERSIONS = ("1.1", "1.0")
_AUTHORITY_END = re.compile(rb"[/?#]")
_UPGRADE_HEADERS = (b"upgrade", b"http2-settings", b"connection")


class HttpConnection(WriteSide, asyncio.BufferedProtocol):
    def __init__(self, connections: Connections) -> None:
        super().__init__(asyncio.get_running_loop())
        self._connections = connections
        self._context = contextvars.copy_context()
        self._received = connections.received
        self._buffer = memoryview(connections.received)
        self._requests: deque[Exchange] = deque()
        """Requests without a complete answer, the oldest first: it is the one that runs."""
        self._parsed: Exchange | None = None
        """The one whose body is being parsed."""
        self._url = b""
        self._headers: Headers = []
        self._in_head = False
        self._framing_bytes = 0
        """Received inside a body since its last byte: chunk extensions and trailers, which mean nothing
        here."""
        self._head_bytes = 0
        self._chunk_bytes = 0
        self._heads = 0
        """Heads that were completed by the current chunk of data."""
        self._head_begun = b""
        """Earlier chunks of data with the begin of the current head."""
        self._line_end = 0
        """Where the last request line of the current chunk of data ends."""
        self._wishes_session = False
        """The head that is parsed anew had an ``Upgrade`` to a session."""
        self._bytes_behind = 0
        """Bytes received after the end of the request that runs."""
        self._large: LargeBody | None = None
        self._is_lingering = self._is_dropping = self._is_paused = False
        self.is_input_ended = False
        """The client sends no more: it has closed its half, or all of it."""
        self._last_answer = b""
        """What a refusal sends after the answers to the requests that are complete."""
        self._bytes_dropped = 0
        self._timer: asyncio.TimerHandle | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        self._head_since = 0.0
        self._new_parser()

    # --- what the transport and the server call ----------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self.begin_writing(transport)
        self._addresses = {
            "client": _address(transport, "peername"),
            "server": _address(transport, "sockname"),
            "scheme": "https" if transport.get_extra_info("sslcontext") else "http",
        }
        self._start_head_timer()
        if not self._connections.admit(self):
            self._refuse(Unavailable(_NO_ROOM))

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.remove(self)
        self._stop_timers()
        self._stop_write_timer()
        self._lose_large_body()
        for request in self._requests:
            request.disconnect()
        self._requests = deque(list(self._requests)[:1])  # those that wait never start
        # A handler that waits in ``send`` goes on and finds that the client left.
        self._end_waits()

    def eof_received(self) -> bool:
        """Returns whether the connection stays for the answers to what is complete. A reader that waits at a
        tail ends: its client has left (rule H11)."""
        if self._is_lingering:
            return False

        self.is_input_ended = True
        self._drop_incomplete()
        if self._requests and not self._requests[0].more_body:
            self._requests[0].event.set()  # for ``wait_left``
        return bool(self._requests) and not self._requests[0].is_watching

    def shutdown(self) -> None:
        """The server stops: end after the requests that are here."""
        if not self._requests:
            self._end_idle()

    def make_room(self) -> bool:
        """Ends it, unless its request began a moment ago, or may be here already: its client would not know
        the outcome. Returns whether it ends."""
        if self.transport.is_closing():
            self.transport.abort()  # its client does not read its last answer
        elif self._in_head or self._parsed is not None:
            if self._loop.time() - self._head_since < HEAD_DELAY:
                return False

            self._head_is_late()
        elif self._has_unread():
            return False
        elif self._head_timer is not None:
            self._refuse(Unavailable(_NO_ROOM))  # it never sent a request
        else:
            self.transport.abort()
        return True

    def _has_unread(self) -> bool:
        unread = select.poll()
        unread.register(self.transport.get_extra_info("socket").fileno(), select.POLLIN)
        return bool(unread.poll(0))

    def get_buffer(self, sizehint: int) -> memoryview:
        # The buffer is shared by all connections of the server. That is safe because nothing runs between the
        # read into it and ``buffer_updated``, and the parser copies what it passes on.
        return self._buffer if self._large is None else self._large.room

    def buffer_updated(self, nbytes: int) -> None:
        if self._large is not None:
            self._large.add(nbytes)
            return

        if self._is_dropping:
            self._bytes_dropped += nbytes
            is_parked = bool(self._requests) and self._requests[0].is_watching
            if self._bytes_dropped > (HEAD_BYTES_MAX if is_parked else LINGER_BYTES):
                self.close()
            return

        # Before the parser runs, which may complete this request or begin others.
        is_behind = bool(self._requests) and not self._requests[0].more_body
        was_in_body = self._parsed is not None
        self._heads, self._chunk_bytes, self._line_end = 0, nbytes, 0
        self._framing_bytes += nbytes
        try:
            self._feed(self._buffer[:nbytes])
        except httptools.HttpParserError as error:
            cause = error.__context__
            self._refuse(cause if isinstance(cause, TierlogError) else InvalidArgument(_NOT_HTTP))
            return

        if self._parsed is None:
            self._framing_bytes = 0
        elif self._framing_bytes > len(self._buffer) + HEAD_BYTES_MAX:
            self._refuse(TooLarge(_FRAMING_TOO_LARGE))
            return

        if self._in_head:
            self._head_begun += self._buffer[:nbytes]
        if self._in_head and not was_in_body and not self._heads:
            self._head_bytes += nbytes
        if is_behind:
            self._bytes_behind += nbytes
        if not self.transport.is_closing() and not self._is_lingering:
            self._check_bounds()

    def _check_bounds(self) -> None:
        self._update_timers()
        # While a request runs, a head that is too large only pauses reading. It is refused when reading goes
        # on.
        if not self._requests and self._head_bytes > HEAD_BYTES_MAX:
            self._refuse(TooLarge(_HEAD_TOO_LARGE))
        # H11: reading cannot pause here, or the request would not notice that its client left. So the bytes
        # that pile up behind it are bounded by ending the connection.
        elif self._requests and self._requests[0].is_watching and self._bytes_behind > HEAD_BYTES_MAX:
            self.close()
        else:
            self.update_reading()

    def update_reading(self) -> None:
        """Pause or resume, by what the request that runs waits for and by what waits behind it."""
        current = self._requests[0] if self._requests else None
        # Never while the request waits for its body or for its client to leave, and never while the rest is
        # dropped. Otherwise when something waits that has to be kept in memory.
        pauses = (
            current is not None
            and not self._is_dropping
            and not current.is_receiving
            and self._large is None
            and (
                len(self._requests) > 1
                or len(current.body) > BODY_BYTES_MAX
                or self._head_bytes > HEAD_BYTES_MAX
            )
        )
        if pauses is not self._is_paused and not self.is_input_ended and not self.transport.is_closing():
            self._is_paused = pauses
            (self.transport.pause_reading if pauses else self.transport.resume_reading)()

    # --- parsing ------------------------------------------------------------------------------------

    def _new_parser(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        # A pipelined request behind one with `Connection: close` is dropped, and not an error.
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)

    def _feed(self, data: memoryview | bytes) -> None:
        while True:
            try:
                self._parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                # A wish to speak another protocol may be ignored; some clients that know HTTP/2 send it with
                # every first request. The parser stops there and would skip the body. A new one gets the same
                # head without the wish.
                self._wishes_session = (b"upgrade", PROTOCOL.encode()) in self._headers
                data = self._head_without_upgrade() + bytes(data[upgrade.args[0] :])
                self._new_parser()

    def _head_without_upgrade(self) -> bytes:
        version = self._parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (self._parser.get_method(), self._url, version)]
        lines += [b"%s: %s" % header for header in self._headers if header[0] not in _UPGRADE_HEADERS]
        if b"close" in connection_tokens(self._headers):
            lines.append(b"connection: close")
        return b"\r\n".join([*lines, b"", b""])

    def on_message_begin(self) -> None:
        self._url, self._headers = b"", []
        self._in_head = True
        self._head_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # trailers are ignored: the request was decided by its head
            # Blanks around a value are no part of it (RFC 9110, 5.5); the parser drops those before it.
            self._headers.append((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        """Errors raised here come out of the parser as ``HttpParserError``."""
        self._in_head = False
        self._heads += 1
        self._stop_head_timer()
        method, version = self._parser.get_method(), self._parser.get_http_version()
        # A tunnel (CONNECT) would be an upgrade without an end.
        if method == b"CONNECT" or version not in _VERSIONS:
            raise InvalidArgument(_NOT_HTTP)

        if self._parser.should_upgrade():
            return

        self._check_protocol(method)
        if len(self._requests) >= PIPELINE_MAX:
            raise Throttled(_PIPELINE_FULL)

        if len(self._headers) > HEADERS_MAX:
            raise TooLarge(_HEAD_TOO_LARGE)

        if self._head_bytes + self._chunk_bytes > HEAD_BYTES_MAX:
            # The read that completed the head may hold a part of the body too: only the head counts.
            self._head_bytes = len(self._url) + sum(
                len(name) + len(value) + 4 for name, value in self._headers
            )
            if self._head_bytes > HEAD_BYTES_MAX:
                raise TooLarge(_HEAD_TOO_LARGE)

        self._head_bytes = 0
        wishes_session, self._wishes_session = self._wishes_session, False
        expects_continue = self._check_framing(version)
        url = httptools.parse_url(self._url)
        if url.host is not None:
            self._name_server(version)
        raw_path = url.path or b"/"
        path = raw_path.decode("ascii")
        request = Exchange(self, version != "1.0" and self._parser.should_keep_alive(), expects_continue)
        request.scope = {
            **self._addresses,
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": version,
            "method": method.decode("ascii"),
            "root_path": "",
            "path": unquote(path) if "%" in path else path,
            "raw_path": raw_path,
            "query_string": url.query or b"",
            "headers": self._headers,
            "tierlog.large_body": request.large_body,
            "tierlog.write_chunk": request.write_chunk,
            "tierlog.wait_read": request.wait_read,
            "tierlog.wait_left": request.wait_left,
            "tierlog.wishes_session": wishes_session,
        }
        self._parsed = request
        self._requests.append(request)
        if len(self._requests) == 1:
            self._start(request)

    def _check_protocol(self, method: bytes) -> None:
        """The parser takes RTSP and ICE for HTTP, and more than one space. A client that hides the line it
        should have sent elsewhere in its data only deceives itself."""
        line = b"%s %s HTTP/" % (method, self._url)
        if self._head_begun:
            found = (self._head_begun + self._buffer[: self._chunk_bytes]).find(line)
            self._head_begun = b""
        else:
            found = self._received.find(line, self._line_end, self._chunk_bytes)
            self._line_end = found + len(line)
        if found < 0:
            raise InvalidArgument(_NOT_HTTP)

    def _name_server(self, version: str) -> None:
        """The authority of an absolute target stands for ``Host`` (RFC 9112, 3.2.2), which only HTTP/1.0 may
        leave out."""
        authority = _AUTHORITY_END.split(self._url.partition(b"://")[2], maxsplit=1)[0]
        if version == "1.0" and all(name != b"host" for name, _ in self._headers):
            self._headers.append((b"host", b""))
        self._headers = [(name, authority if name == b"host" else value) for name, value in self._headers]

    def _check_framing(self, version: str) -> bool:
        """Refuses a body whose end or coding is in doubt. Returns whether the client waits for a go-ahead."""
        expects_continue, codings = False, 0
        for name, value in self._headers:
            if name == b"transfer-encoding":
                codings += 1
                if codings > 1 or version == "1.0" or value.strip().lower() != b"chunked":
                    raise InvalidArgument(_FRAMING)
            elif name == b"expect":
                expects_continue = version != "1.0" and value.lower() == b"100-continue"
        return expects_continue

    def on_body(self, body: bytes) -> None:
        self._framing_bytes = 0
        if self._parsed is not None and not self._parsed.is_answered:
            self._parsed.body += body
            self._parsed.event.set()

    def on_message_complete(self) -> None:
        if self._parsed is not None and not self._parser.should_upgrade():
            if self._parsed.is_answered:
                self._stop_head_timer()
            if not self._parser.should_keep_alive():
                # The parser drops what follows a message whose trailer has `Connection: close`, too. Only a
                # head ends the connection here.
                self._parser.set_dangerous_leniencies(lenient_keep_alive=self._parsed.keep_alive)
            self._parsed.more_body = False
            self._parsed.event.set()
            self._parsed = None

    # --- large bodies -------------------------------------------------------------------------------

    def divert(self, body: LargeBody) -> None:
        """The rest of the body of the request that runs goes into ``body``."""
        self._large = body
        self.update_reading()

    def end_large_body(self) -> None:
        """It is complete; what comes now is the next request."""
        self._large = self._parsed = None
        self._requests[0].more_body = False
        self._new_parser()
        self.update_reading()

    def abandon_large_body(self) -> None:
        self._large = self._parsed = None
        self._requests[0].keep_alive = False
        self._is_dropping = True

    def _lose_large_body(self) -> None:
        if self._large is not None:
            large, self._large = self._large, None  # no cycle: its memory must not wait for the collector
            large.lose()

    # --- requests -----------------------------------------------------------------------------------

    def _start(self, request: Exchange) -> None:
        self._connections.silent.pop(self, None)
        # In the connection's own context: a pipelined request is started by the end of another one.
        task = self._loop.create_task(request.run(self._connections.app), context=self._context.copy())
        self._connections.tasks.add(task)
        task.add_done_callback(self._connections.task_ended)

    def is_last(self, request: Exchange) -> bool:
        """Whether the answer to ``request``, which runs, is the last one of a stopping server (rule H15): no
        other request has arrived behind it."""
        return self._connections.is_stopping() and (
            request.more_body
            or not (len(self._requests) > 1 or self._last_answer or self._in_head or self._has_unread())
        )

    def request_answered(self, request: Exchange) -> None:
        if self.transport.is_closing() or not self._requests or self._requests[0] is not request:
            return

        self._requests.popleft()
        self._connections.silent[self] = None
        self._bytes_behind = 0
        if request.begins_session:
            self._begin_session(request)
        elif not request.keep_alive:
            # Bytes of this request may still arrive, or one that was sent before its client read that the
            # server stops.
            is_followed = request.more_body or (self._connections.is_stopping() and self._has_unread())
            (self._linger if is_followed else self.close)()
        elif self._requests:
            self.update_reading()
            self._start(self._requests[0])
        elif self._last_answer:
            self._answer_last()
        elif self.is_input_ended:
            self.close()
        elif self._connections.is_stopping():
            self._end_idle()  # H15: the client's next request may be in the socket already
        else:
            self.update_reading()
            self._update_timers()

    def _begin_session(self, request: Exchange) -> None:
        """From here on the transport is the session's (rule N1)."""
        if self._requests or self._in_head or self._is_dropping or not request.keep_alive:
            self.close()  # its client did not wait for the answer
            return

        self._stop_timers()
        session = SessionConnection(self._connections, request.scope, self._context)
        self._connections.replace(self, session)
        session.begin(self.transport)

    def _refuse(self, error: TierlogError) -> None:
        """Answers with the error, after the requests that are complete, and ends the connection. Nothing
        more is parsed."""
        self._is_dropping = True
        half = self._drop_incomplete()
        if half is not None and half.is_answer_started:
            self._linger()
            return

        problem = to_problem(error)
        body = problem.body()
        headers = {**problem.headers, "Content-Length": str(len(body)), "Connection": "close"}
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        self._last_answer = encode_head(problem.status, raw) + body
        if not self._requests:
            self._answer_last()

    def _answer_last(self) -> None:
        self.transport.write(self._last_answer)
        self._linger()

    def _drop_incomplete(self) -> Exchange | None:
        """The request whose body will not come any more, if it is not answered."""
        if not self._requests or not self._requests[-1].more_body:
            return None

        dropped = self._requests.pop()
        self._lose_large_body()
        dropped.disconnect()
        return dropped

    def _linger(self) -> None:
        """Tell the client that no more answers follow, and wait a little for it to close."""
        if not self.transport.is_closing() and not self._is_lingering:
            self._is_lingering = self._is_dropping = True
            self._stop_timers()
            self._connections.silent.pop(self, None)
            self._connections.lingering[self] = None
            # asyncio raises it if the client is gone, and nobody has read so far that this showed.
            with suppress(OSError):
                self.transport.write_eof()
            self.update_reading()
            self._timer = self._loop.call_later(LINGER_SECONDS, self.close)

    # --- time ---------------------------------------------------------------------------------------

    def _update_timers(self) -> None:
        """While nothing is answered, one timer runs: for a head, for what is left of a body, or for an idle
        connection. Blank lines between requests extend none of them."""
        if self._requests:
            self._stop_keep_alive_timer()
        if self._in_head or (self._parsed is not None and not self._requests):
            self._stop_keep_alive_timer()
            if self._head_timer is None:
                self._start_head_timer()
        elif not self._requests and self._timer is None:
            self._timer = self._loop.call_later(KEEP_ALIVE, self._end_idle)

    def _end_idle(self) -> None:
        if self.transport.is_closing():
            return

        if self._has_unread():
            self._stop_keep_alive_timer()
            # A request stops this timer, blank lines do not.
            self._timer = self._loop.call_later(LINGER_SECONDS, self.close)
        else:
            self.close()

    def _start_head_timer(self) -> None:
        self._head_since = self._loop.time()
        self._head_timer = self._loop.call_later(HEAD_TIMEOUT, self._head_is_late)

    def _head_is_late(self) -> None:
        if self._requests:
            self._start_head_timer()  # it waits behind another request
        elif self._in_head:
            self._refuse(RequestTimeout(_HEAD_LATE))
        else:
            self.close()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _stop_keep_alive_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _stop_timers(self) -> None:
        self._stop_head_timer()
        self._stop_keep_alive_timer()


def _address(transport: Any, name: str) -> tuple[str, int] | None:
    found = transport.get_extra_info(name)
    return (str(found[0]), int(found[1])) if isinstance(found, (tuple, list)) else None
