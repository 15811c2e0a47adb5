"""Requests over httpx: one exchange, and what is known of one that failed. A transport never retries.

A request counts as sent when the first byte of its body is handed over: a server does nothing before it has
the whole body, and every request that changes something has one, except a raw append of no bytes, which
counts as sent from the start.

Cancellation closes the connection of the request; the pool stays usable. For that no pool has a bound: a
request that waits in a bounded pool and is cancelled can lose its slot forever. The client bounds what it
sends itself."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Self

import anyio
import anyio.lowlevel
import httpx

from ....storage_backends.base.connection_reason import connection_reason
from ...kernel.connection_pools import ConnectionPools
from ...kernel.lost_sockets import lost_sockets
from ...telemetry.tracing import Tracing
from .attempts import Send
from .container_map import ContainerMapCache
from .requests import POLL_SECONDS, Request, Response, StartsStream, TransportFailure
from .session import SessionCall
from .session_flight import Landed, SessionFlight
from .session_stream import Cancellable, Flights, SessionStream
from .sessions import CONNECT_SECONDS, AsyncSession, Sessions
from .spans import LINKS, around_exchange

LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=30.0)
"""Idle connections are closed before servers close them, so that a request never meets a closing one."""
POLLS_MAX = 8
"""Polls of tails in flight that share a pool."""
_NO_TLS = ("WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")
_TLS = ("illegal request line", "disconnected without sending a response")
"""Messages of the libraries below, which have no classes for these errors."""
_NOT_SENT = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.UnsupportedProtocol,
    httpx.ProxyError,
)


class _Body(httpx.AsyncByteStream):
    """A request's body, which records whether sending began. Not a generator: that would have to be closed
    when the request is dropped half-way."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.is_begun = not data

    def __aiter__(self) -> AsyncIterator[bytes]:
        self.is_begun = True
        return _Piece(self._data)


class _Piece:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if not self._data:
            raise StopAsyncIteration

        data, self._data = self._data, b""
        return data


def _request(send: Send) -> tuple[httpx.Request, _Body]:
    request, body, url = send.request, _Body(send.request.body), httpx.URL(send.url + send.request.path)
    # A request with a stream of its own gets no Host and no Content-Length from httpx. A compressed body
    # would have other offsets.
    headers = [("Host", url.netloc.decode("ascii")), ("Accept-Encoding", "identity"), *request.headers]
    if request.method == "POST":
        headers.append(("Content-Length", str(len(request.body))))
    connect = _connect_seconds(send)
    # The caller's scope bounds the exchange. httpx restarts its own limits with each piece that arrives.
    timeout = {"connect": connect, "read": None, "write": None, "pool": None}
    extensions = {"timeout": timeout, LINKS: send.links} if send.links else {"timeout": timeout}
    return httpx.Request(request.method, url, headers=headers, stream=body, extensions=extensions), body


def _connect_seconds(send: Send) -> float:
    # 0 would make the socket non-blocking.
    return min(CONNECT_SECONDS, max(send.seconds, 0.001))


def _broken(send: Send, body: _Body, error: httpx.HTTPError) -> TransportFailure:
    return TransportFailure(
        body.is_begun and not isinstance(error, _NOT_SENT),
        send.described(describe(send.url, error, _connect_seconds(send))),
    )


def describe(url: str, error: Exception, connect: float = CONNECT_SECONDS) -> str:
    """Why there was no answer from ``url``, and what to do if the scheme is wrong. ``connect``: the seconds
    that there were for connecting."""
    if isinstance(error, httpx.ConnectTimeout):
        return _late(connect)
    return f"{connection_reason(error)}{_scheme_advice(url, error)}"


def _late(seconds: float) -> str:
    return f"no connection within {seconds:.3g} s"


def _scheme_advice(url: str, error: Exception) -> str:
    """What to do if ``error`` looks like HTTP on a port with TLS, or like TLS on one without; else empty."""
    scheme, _, rest = url.partition("://")
    text = str(error)
    if scheme == "https" and any(sign in text for sign in _NO_TLS):
        return f"; it does not speak TLS: use http://{rest}"
    if scheme == "http" and any(sign in text for sign in _TLS):
        return f"; if it speaks TLS, use https://{rest}"
    return ""


def _joined(pieces: list[bytes]) -> bytes:
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class AsyncTransport:
    def __init__(
        self,
        map: ContainerMapCache,
        make: Callable[[], httpx.AsyncBaseTransport],
        tracing: Tracing | None = None,
    ) -> None:
        self._map = map
        self._make = make
        self.sessions: Sessions | None = None
        """Used where servers take them; None: everything goes over plain HTTP."""
        self._tracing = tracing
        self._pool = make()
        self._parking = ConnectionPools(make, POLLS_MAX)
        """When a container moves, all of its tails poll at once: some hundred in one pool would take each
        other's time, on a busy machine until their deadline."""
        self._streams: set[httpx.AsyncBaseTransport] = set()
        """Pools of one connection each, for streams of tails, which cost the other requests nothing."""
        self._flights: dict[Cancellable, Send] = {}
        self.requests = 0

    @property
    def in_flight(self) -> int:
        return len(self._flights)

    async def send(self, send: Send) -> Response | TransportFailure:
        """One exchange. Raises nothing, except when it is cancelled."""
        self.requests += 1
        attempt = _Attempt(anyio.current_time() + send.seconds)
        with anyio.move_on_after(send.seconds) as scope:
            self._flights[scope] = send
            try:
                session = None if self.sessions is None else await self._session(self.sessions, send.url)
                attempt.is_connecting = False
                if session is None:
                    return await self._over_http(send, attempt)
                return await self._in_session(session, send, attempt)
            except TimeoutError:
                return TransportFailure(False, send.described(_late(CONNECT_SECONDS)))
            finally:
                del self._flights[scope]

        if attempt.is_connecting and self.sessions is not None:
            return TransportFailure(False, send.described(_late(_connect_seconds(send))))
        return TransportFailure(attempt.is_sent, send.described("no answer in time"))

    def session_with(self, url: str) -> AsyncSession | None:
        """The open session with a server, for ``begin``; None if exchanges with it need a task."""
        # A span around an exchange belongs to a task.
        return None if self.sessions is None or self._tracing is not None else self.sessions.open_at(url)

    def begin(self, session: AsyncSession, send: Send, deadline: float, landed: Landed) -> SessionFlight:
        """Begin an exchange at once, without a task that waits for it: ``landed`` is called with its
        result."""
        self.requests += 1
        return SessionFlight(session, send, self._flights, deadline, landed)

    @staticmethod
    async def _session(sessions: Sessions, url: str) -> AsyncSession | None:
        return sessions.open_at(url) or await sessions.find(url)

    async def _in_session(
        self, session: AsyncSession, send: Send, attempt: _Attempt
    ) -> Response | TransportFailure:
        if self._tracing is None:
            return await self._call(session, send.request, send, attempt)

        with around_exchange(self._tracing, send) as (request, span):
            answer = await self._call(session, request, send, attempt)
            if isinstance(answer, Response):
                span.answered(answer.status)
            return answer

    async def _call(
        self, session: AsyncSession, request: Request, send: Send, attempt: _Attempt
    ) -> Response | TransportFailure:
        # N6: what is cancelled already is not sent. The session's task could send it before this one ends.
        await anyio.lowlevel.checkpoint_if_cancelled()
        call = attempt.call = session.begin(request)
        received = session.core.received
        try:
            await session.wait(call, lambda: False)
        finally:
            if not call.is_ended:
                session.end(call)
                # It may be gone without a trace, as only time shows: the next call connects anew (rule N6).
                if anyio.current_time() >= attempt.deadline and session.core.received == received:
                    session.retire()
        if call.failure:
            return TransportFailure(call.is_sent, send.described(call.failure))
        return call.response

    async def _over_http(self, send: Send, attempt: _Attempt) -> Response | TransportFailure:
        if not send.parks:
            return await self._exchange(self._pool, send, attempt)

        async with self._parking.one() as pool:
            return await self._exchange(pool, send, attempt)

    @staticmethod
    async def _exchange(
        pool: httpx.AsyncBaseTransport, send: Send, attempt: _Attempt
    ) -> Response | TransportFailure:
        request, body = _request(send)
        attempt.body = body
        try:
            with lost_sockets():
                response = await pool.handle_async_request(request)
            try:
                # Raw: answers come without an encoding, so httpx need not look for one.
                pieces = [piece async for piece in response.aiter_raw()]
            finally:
                await response.aclose()
            return Response(response.status_code, response.headers, _joined(pieces))
        except httpx.HTTPError as error:
            return _broken(send, body, error)
        except OSError as error:
            return TransportFailure(body.is_begun, send.described(f"the connection broke: {error}"))

    def stream(self, send: Send) -> AsyncStream | SessionStream:
        """A tail's bytes as they come, once it is entered and open."""
        self.requests += 1
        session = None if self.sessions is None else self.sessions.open_at(send.url)
        if session is not None:
            return SessionStream(session, send, self._flights)
        return AsyncStream(send, self._flights, self._make(), self._streams)

    @property
    def may_be_pointless(self) -> bool:
        """Whether a request is in flight to a container that may have moved."""
        return self._map.has_choice and any(send.containers for send in self._flights.values())

    def end_pointless(self) -> None:
        """End the attempts whose containers are all known to have moved: a frozen host would never answer
        them."""
        for scope, send in list(self._flights.items()):
            if send.containers and self._map.has_moved(send.containers, send.url):
                scope.cancel()

    async def aclose(self) -> None:
        """End all attempts, and close the connections."""
        for scope in list(self._flights):
            scope.cancel()
        with anyio.CancelScope(shield=True):
            await self._parking.aclose()
            for pool in (self._pool, *self._streams):
                await pool.aclose()


class _Attempt:
    """How far an exchange has come."""

    __slots__ = ("body", "call", "deadline", "is_connecting")

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.is_connecting = True
        self.body: _Body | None = None
        self.call: SessionCall | None = None

    @property
    def is_sent(self) -> bool:
        if self.call is not None:
            return self.call.is_sent
        return self.body is not None and self.body.is_begun


class AsyncStream:
    """A stream of a tail over HTTP, on a connection of its own, which ends with the block. Without bytes for
    ``POLL_SECONDS`` it ends. One that fails or is refused ends, and raises nothing."""

    def __init__(
        self,
        send: Send,
        flights: Flights,
        pool: httpx.AsyncBaseTransport,
        pools: set[httpx.AsyncBaseTransport],
    ) -> None:
        """``pools``: has the stream's own one while it is open."""
        self._send = send
        self._flights = flights
        self._pool = pool
        self._pools = pools
        self._response: httpx.Response | None = None
        self._pieces: AsyncIterator[bytes] = _Piece(b"")
        self.is_idle = False
        """It ended because it had no bytes."""

    async def __aenter__(self) -> Self:
        self._pools.add(self._pool)
        return self

    async def __aexit__(self, *_: object) -> None:
        # Also when cancelled: a connection that stays open counts against the server's tails.
        self._pools.discard(self._pool)
        with anyio.CancelScope(shield=True):
            # Before what it reads from. Trio warns of one that nobody closes.
            if isinstance(self._pieces, AsyncGenerator):
                await self._pieces.aclose()
            if self._response is not None:
                await self._response.aclose()
            await self._pool.aclose()

    async def open(self, starts: StartsStream, tracing: Tracing | None) -> None:
        """``tracing``: the pool's own."""

        async def ask() -> bytes:
            response = self._response = await self._pool.handle_async_request(_request(self._send)[0])
            if starts(response.status_code, response.headers):
                self._pieces = response.aiter_raw()
            return b""

        await self._attempt(ask)

    async def next(self) -> bytes:
        """The next bytes; empty when it has ended."""
        return await self._attempt(lambda: anext(self._pieces, b""))

    async def _attempt(self, act: Callable[[], Awaitable[bytes]]) -> bytes:
        # The caller's ``end_pointless`` cancels it when the container has moved.
        with anyio.move_on_after(POLL_SECONDS) as scope:
            self._flights[scope] = self._send
            try:
                with lost_sockets():
                    return await act()
            # The same errors as in `send`. The poll that follows tells the caller of what lasts.
            except (httpx.HTTPError, OSError):
                return b""
            finally:
                del self._flights[scope]
        self.is_idle = anyio.current_time() >= scope.deadline
        return b""
