"""The sessions of a client without an event loop, one for each server, shared by its threads (rule N1).

There is no thread of its own: of the threads that wait, one reads for all, and hands over to another when its
own answer is there. Sessions over TLS are the asynchronous client's only: two threads must not read and write
one TLS connection at once. Ctrl-C while a frame is sent or taken in ends the session; at any other time it
ends its call alone."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

import httpx

from ....storage_backends.base.errors import TierlogError
from .requests import Request
from .session import ClientSession, SessionCall
from .sessions import (
    CONNECT_SECONDS,
    HEAD_BYTES_MAX,
    READ_BYTES,
    REFUSED_SECONDS,
    UPGRADE_SECONDS,
    is_session,
    upgrade_request,
)

Clock = Callable[[], float]


class SyncSession:
    """One open session. ``connection`` is connected, and does not block."""

    def __init__(self, connection: socket.socket, clock: Clock, begun: bytes) -> None:
        self._connection = connection
        self._clock = clock
        self._lock = threading.Condition()
        """Guards what follows, and is notified when nobody reads any more."""
        self.core = ClientSession(_no_writer)
        self._is_reading = False
        self._waiting: dict[threading.Event, None] = {}
        """Of the threads that wait while another one reads."""
        self._sending = threading.Lock()
        """Held while frames are taken and sent, which keeps their order."""
        self._unsent = bytearray()
        with self._lock:
            self._take(begun)

    @property
    def is_usable(self) -> bool:
        """Whether a call may begin. Looks for what came while nobody was reading."""
        if self.core.is_open and self.core.is_idle and self._begin_reading():
            try:
                self._read(0.0)
            finally:
                self._end_reading()
        return self.core.is_open

    def begin(self, request: Request, *, is_stream: bool = False) -> SessionCall:
        with self._lock:
            return self.core.begin(request, _no_writer, is_stream=is_stream)

    def take(self, call: SessionCall) -> bytes:
        """What has come of a stream."""
        with self._lock:
            return self.core.take(call)

    def wait(self, call: SessionCall, is_there: Callable[[], object], until: float) -> bool:
        """Return True when ``is_there()``, or when the call has ended; False at the time ``until``."""
        try:
            while not (is_there() or call.is_ended):
                if (left := until - self._clock()) <= 0:
                    return False
                if self._begin_reading():
                    try:
                        self._read_until(call, is_there, until)
                    finally:
                        self._end_reading()
                else:
                    self._send(until)
                    self._await_turn(call, is_there, left)
        finally:
            with self._lock:
                self._wake_next()  # this one may have been the next
        if call.is_ended:
            self.close_unused()
        return True

    def _read_until(self, call: SessionCall, is_there: Callable[[], object], until: float) -> None:
        """Read for all."""
        self._send(until)
        while not (is_there() or call.is_ended) and (left := until - self._clock()) > 0:
            self._read(left)
            if self.core.has_output:  # windows
                self._send(until)

    def _await_turn(self, call: SessionCall, is_there: Callable[[], object], seconds: float) -> None:
        """Return when there is more of the answer, or when this thread may be the one that reads."""
        event = threading.Event()
        with self._lock:
            if is_there() or call.is_ended or not self._is_reading:
                return
            # Each has an event of its own: with one for all, each frame would wake every thread.
            call.wake = event.set
            self._waiting[event] = None
        try:
            event.wait(seconds)
        finally:
            with self._lock:
                call.wake = _no_writer
                self._waiting.pop(event, None)

    def _begin_reading(self) -> bool:
        """Whether this thread reads from now on."""
        with self._lock:
            if self._is_reading:
                return False
            self._is_reading = True
            return True

    def _end_reading(self) -> None:
        with self._lock:
            self._is_reading = False
            self._wake_next()
            self._lock.notify_all()

    def _wake_next(self) -> None:
        """If nobody reads, one of those that wait does."""
        if self._waiting and not self._is_reading:
            event = next(iter(self._waiting))
            del self._waiting[event]
            event.set()

    def end(self, call: SessionCall, *, retires: bool = False) -> None:
        """Nobody waits for the call any more. ``retires``: the server seems to be gone."""
        with self._lock:
            self.core.cancel(call)
            if retires:
                self.core.retire()
        if not self.close_unused():
            self._send(self._clock())

    def close_unused(self) -> bool:
        """Close it if it takes no calls and has none."""
        with self._lock:
            is_unused = self.core.is_idle and not self.core.is_open
        if is_unused:
            self.close()
        return is_unused

    def close(self) -> None:
        with self._lock:
            self.core.fail("the client was closed")
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)  # wakes those that read or send
        # Not while this one sends nothing: the thread that reads may have to send before it returns.
        with self._lock:
            self._lock.wait_for(lambda: not self._is_reading)
        with self._sending:
            self._connection.close()

    # --- inside ------------------------------------------------------------------------------------

    def _send(self, until: float) -> None:
        """Send the frames that wait. What the server does not take in time is left to the next call that
        sends."""
        with self._sending:
            with self._lock:
                self._unsent += self.core.take_output()
            try:
                while self._unsent:
                    try:
                        del self._unsent[: self._connection.send(self._unsent)]
                    except BlockingIOError:
                        if not self._is_ready(select.POLLOUT, until - self._clock()):
                            return
            except BaseException as error:
                self._lose(f"the connection broke: {error}")
                if not isinstance(error, OSError):
                    raise

    def _read(self, seconds: float) -> None:
        """Take in what comes within the time."""
        try:
            if not self._is_ready(select.POLLIN, seconds):
                return
        except OSError as error:
            self._lose(f"the connection broke: {error}")
            return

        try:
            data = self._connection.recv(READ_BYTES)
            with self._lock:
                if data:
                    self._take(data)
        except BlockingIOError:
            return
        except BaseException as error:
            self._lose(f"the connection broke: {error}")
            if not isinstance(error, OSError):
                raise
            return
        if not data:
            self._lose("the server closed the connection")

    def _take(self, data: bytes) -> None:
        try:
            self.core.receive(data)
        except TierlogError as error:
            self.core.fail(f"the server's frames are malformed: {error}")

    def _lose(self, reason: str) -> None:
        with self._lock:
            self.core.fail(reason)
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def _is_ready(self, event: int, seconds: float) -> bool:
        """Whether the socket is ready for ``event``, or broken, within the time."""
        poll = select.poll()
        try:
            poll.register(self._connection, event)
        except ValueError:
            raise OSError("the connection was closed") from None
        return bool(poll.poll(max(seconds, 0.0) * 1000))


def _no_writer() -> None:
    """Whoever has frames to send, sends them."""


class SyncSessions:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._opening: dict[str, threading.Lock] = {}
        self._open: dict[str, SyncSession] = {}
        self._refused_until: dict[str, float] = {}
        self._is_closed = False

    def find(self, url: str, seconds: float) -> SyncSession | None:
        """A session with this server; None if there is none, and plain HTTP shows why. Raises
        ``TimeoutError`` if there is no connection in time."""
        with self._lock:
            if self._is_closed or not url.startswith("http://"):
                return None
            session = self._open.get(url)
            opening = self._opening.setdefault(url, threading.Lock())
        if session is not None:
            if session.is_usable:
                return session
            session.close_unused()

        # One thread opens; those that wait for it find what it has opened.
        if not opening.acquire(timeout=max(seconds, 0.0)):
            raise TimeoutError
        try:
            found = self._open.get(url)
            if found is not None and found is not session and found.is_usable:
                return found
            if self._refused_until.get(url, 0.0) > self._clock():
                return None
            made = self._dial(url, min(CONNECT_SECONDS, max(seconds, 0.001)))
            with self._lock:
                if made is not None and not self._is_closed:
                    self._open[url] = made
                    return made
            if made is not None:
                made.close()
            return None
        finally:
            opening.release()

    def _dial(self, url: str, seconds: float) -> SyncSession | None:
        parts = httpx.URL(url)
        try:
            connection = socket.create_connection((parts.host, parts.port or 80), timeout=seconds)
        except TimeoutError:
            raise
        except OSError:
            return None  # the request over plain HTTP meets it again, and says so

        begun: bytes | None = None
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            begun = self._upgrade(url, connection)
        except TimeoutError:
            self._refused_until[url] = self._clock() + REFUSED_SECONDS
        except OSError:
            pass
        else:
            if begun is None:
                self._refused_until[url] = self._clock() + REFUSED_SECONDS
        finally:
            if begun is None:
                connection.close()
        if begun is None:
            return None

        connection.setblocking(False)
        return SyncSession(connection, self._clock, begun)

    def _upgrade(self, url: str, connection: socket.socket) -> bytes | None:
        """As that of the asynchronous client."""
        connection.settimeout(UPGRADE_SECONDS)
        connection.sendall(upgrade_request(url))
        head = b""
        while b"\r\n\r\n" not in head:
            piece = connection.recv(1 << 16)
            if not piece or len(head) > HEAD_BYTES_MAX:
                return None
            head += piece
        head, _, begun = head.partition(b"\r\n\r\n")
        return begun if is_session(head) else None

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            sessions = list(self._open.values())
        for session in sessions:
            session.close()
