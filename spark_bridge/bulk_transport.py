"""Connections for large bodies: what the bridge's client sends its requests over, in place of httpx's own
pool.

Owns: connections to servers, kept open between requests, and which httpx error each kind of break is. Does
not own: requests, deadlines of calls, retries (``actors/gateway/client``).

httpx takes a body out of a socket 64 KiB at a time, through a parser in Python. A task reads bodies of
megabytes, one behind the other, and shares its cores with Spark: here a body goes from the socket to where it
stays in large pieces, for less than half of the processor's time.

Whatever goes wrong within an exchange ends its connection. One that is idle for long, or that the server has
ended, is not used again. Safe from many threads, each exchange with a connection of its own. There is no
bound, so no exchange waits for another.
"""

from __future__ import annotations

import http.client
import selectors
import ssl
import threading
from collections.abc import Callable, Iterator

import httpx

PIECE_BYTES = 8 << 20
"""Of a body: what is taken out of the socket at once. A read of the size that ``readBytes`` has unless it is
set is one piece."""
IDLE_SECONDS = 30.0
"""Servers keep idle connections for longer."""


class BulkTransport(httpx.BaseTransport):
    def __init__(
        self, clock: Callable[[], float], tls: Callable[[], ssl.SSLContext] = ssl.create_default_context
    ) -> None:
        self._clock = clock
        self._tls = tls
        self._lock = threading.Lock()
        self._idle: dict[str, list[tuple[http.client.HTTPConnection, float]]] = {}

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        limits = request.extensions["timeout"]
        origin = f"{request.url.scheme}://{request.url.netloc.decode('ascii')}"
        connection = self._take(origin) or self._connect(request.url, limits["connect"])
        try:
            connection.sock.settimeout(limits["read"])
            answer = _exchange(connection, request)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise _told(error) from error
        except BaseException:
            connection.close()
            raise

        body = _Body(answer, connection, lambda: self._give(origin, connection))
        return httpx.Response(answer.status, headers=answer.getheaders(), stream=body)

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, {}
        for connections in idle.values():
            for connection, _ in connections:
                connection.close()

    def _connect(self, url: httpx.URL, seconds: float | None) -> http.client.HTTPConnection:
        if url.scheme == "https":
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                url.host, url.port, timeout=seconds, context=self._tls()
            )
        else:
            connection = http.client.HTTPConnection(url.host, url.port, timeout=seconds)
        try:
            connection.connect()
        except TimeoutError as error:
            raise httpx.ConnectTimeout(str(error)) from error
        except OSError as error:
            raise httpx.ConnectError(str(error)) from error

        return connection

    def _take(self, origin: str) -> http.client.HTTPConnection | None:
        """The one that was used last, if there is one that is sound still."""
        while True:
            with self._lock:
                known = self._idle.get(origin)
                if not known:
                    return None
                connection, since = known.pop()
            if self._clock() - since < IDLE_SECONDS and not _is_readable(connection):
                return connection
            connection.close()

    def _give(self, origin: str, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            self._idle.setdefault(origin, []).append((connection, self._clock()))


class _Body(httpx.SyncByteStream):
    def __init__(
        self,
        answer: http.client.HTTPResponse,
        connection: http.client.HTTPConnection,
        keep: Callable[[], None],
    ) -> None:
        self._answer = answer
        self._connection = connection
        self._keep = keep
        self._is_whole = False

    def __iter__(self) -> Iterator[bytes]:
        try:
            while piece := self._answer.read(PIECE_BYTES):
                yield piece
        except (OSError, http.client.HTTPException) as error:
            raise _told(error) from error

        if self._answer.length:
            raise httpx.RemoteProtocolError(
                f"the connection ended {self._answer.length} bytes before the body did"
            )
        self._is_whole = True

    def close(self) -> None:
        if self._is_whole and not self._answer.will_close:
            self._keep()
        else:
            self._connection.close()


def _exchange(connection: http.client.HTTPConnection, request: httpx.Request) -> http.client.HTTPResponse:
    assert isinstance(request.stream, httpx.SyncByteStream)
    connection.putrequest(
        request.method, request.url.raw_path.decode("ascii"), skip_host=True, skip_accept_encoding=True
    )
    for name, value in request.headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    for piece in request.stream:
        connection.send(piece)
    return connection.getresponse()


def _is_readable(connection: http.client.HTTPConnection) -> bool:
    """An idle connection on which something comes: its end, or what nobody asked for."""
    with selectors.DefaultSelector() as selector:
        selector.register(connection.sock, selectors.EVENT_READ)
        return bool(selector.select(0))


def _told(error: OSError | http.client.HTTPException) -> httpx.TransportError:
    """As httpx would say it."""
    text = str(error) or type(error).__name__
    if isinstance(error, TimeoutError):
        return httpx.ReadTimeout(text)

    return httpx.ReadError(text) if isinstance(error, OSError) else httpx.RemoteProtocolError(text)
