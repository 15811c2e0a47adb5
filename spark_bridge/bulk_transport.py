"""An httpx transport for large bodies.

httpx reads a body 64 KiB at a time, through a parser in Python. A Spark task reads bodies of megabytes, one
after the other, and shares its cores with Spark. Here a body is read from the socket in large pieces, which
takes less than half of the processor time.

Any error within an exchange closes its connection. Connections are kept between requests, but not reused
after a long idle time or when the server has closed them. Safe for many threads, each exchange with a
connection of its own; their number is not limited, so no exchange waits for another."""

from __future__ import annotations

import http.client
import selectors
import ssl
import threading
from collections.abc import Callable, Iterator

import httpx

PIECE_BYTES = 8 << 20
"""Bytes of a body that are read from the socket at once: a read of the default ``readBytes`` is one piece."""
IDLE_SECONDS = 30.0
"""Servers keep idle connections longer."""


class BulkTransport(httpx.BaseTransport):
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
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
            raise _as_httpx_error(error) from error
        # The answer would be taken for that of the next request on this connection.
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
                url.host, url.port, timeout=seconds, context=ssl.create_default_context()
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
        """The most recently used idle connection that is still open."""
        while True:
            with self._lock:
                known = self._idle.get(origin)
                if not known:
                    return None
                # The newest is the one that the server is least likely to have closed.
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
            # What is chunked may be a stream, whose bytes must not wait for more.
            read = self._answer.read1 if self._answer.chunked else self._answer.read
            while piece := read(PIECE_BYTES):
                yield piece
        except (OSError, http.client.HTTPException) as error:
            raise _as_httpx_error(error) from error

        # `http.client` ends a body that was cut off like a whole one.
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
    # Both headers are among those that httpx has made.
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
    """Whether something arrived on an idle connection: then it was closed, or is out of step."""
    with selectors.DefaultSelector() as selector:
        selector.register(connection.sock, selectors.EVENT_READ)
        return bool(selector.select(0))


def _as_httpx_error(error: OSError | http.client.HTTPException) -> httpx.TransportError:
    """The error that httpx would raise."""
    text = str(error) or type(error).__name__
    if isinstance(error, TimeoutError):
        return httpx.ReadTimeout(text)

    return httpx.ReadError(text) if isinstance(error, OSError) else httpx.RemoteProtocolError(text)
