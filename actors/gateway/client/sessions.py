"""The sessions of an asynchronous client, one for each server (rule N1), and plain HTTP where there is none:
with an older server, or behind a proxy that refuses the upgrade (rule N7).

A session belongs to the client and not to the call that opened it. A call that is cancelled sends a cancel
frame, and the others go on."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable

import anyio
import anyio.abc
import httpx

from ....storage_backends.base.errors import TierlogError
from ...kernel.byte_connection import ByteConnection, LoopConnection, byte_connection
from ...kernel.event_source import EventSource
from ...kernel.lost_sockets import lost_sockets
from ..wire import paths
from ..wire.session import PROTOCOL
from .requests import Request
from .session import ClientSession, SessionCall
from .session_stream import WaitingStreams

CONNECT_SECONDS = 3.0
"""Seconds to establish a connection; nothing is sent before."""
UPGRADE_SECONDS = 2.0
"""Seconds that a server may take to answer the request for a session."""
REFUSED_SECONDS = 30.0
"""Seconds after which a server that refused a session is asked again."""
HEAD_BYTES_MAX = 64 << 10
_LOST = (OSError, anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError)
Dial = Callable[[str], Awaitable[anyio.abc.ByteStream]]
"""Connects to a server's URL; raises ``OSError``."""


def upgrade_request(url: str) -> bytes:
    host = httpx.URL(url).netloc.decode("ascii")
    return (
        f"GET {paths.SESSION} HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: {PROTOCOL}\r\n\r\n"
    ).encode()


class _UpgradeAnswer:
    """Reads the head of the answer, which may begin a session."""

    def __init__(self) -> None:
        self._data = b""

    def room(self, shared: memoryview) -> memoryview:
        return shared

    def filled(self, shared: memoryview, size: int) -> bool:
        self._data += shared[:size]
        return b"\r\n\r\n" not in self._data and len(self._data) <= HEAD_BYTES_MAX

    @property
    def begun(self) -> bytes | None:
        """What came of the session behind the head; None if it is refused."""
        head, end, begun = self._data.partition(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        begins = lines[0].startswith(b"http/1.1 101") and b"upgrade: " + PROTOCOL.encode() in lines
        return begun if begins and end else None


def dial_with(verify: ssl.SSLContext) -> Dial:
    async def dial(url: str) -> anyio.abc.ByteStream:
        parts = httpx.URL(url)
        with lost_sockets():
            if parts.scheme != "https":
                return await anyio.connect_tcp(parts.host, parts.port or 80)
            return await anyio.connect_tcp(
                parts.host, parts.port or 443, tls=True, ssl_context=verify, tls_standard_compatible=False
            )

    return dial


class AsyncSession:
    """One open session."""

    def __init__(self, connection: ByteConnection, events: EventSource) -> None:
        self._connection = connection
        self._direct = connection if isinstance(connection, LoopConnection) else None
        self._is_flush_due = False
        self.events = events
        self.streams = WaitingStreams(events)
        self._due = events.new()
        self._scope = anyio.CancelScope()
        self.core = ClientSession(self._wake_writer)

    async def run(self, begun: bytes) -> None:
        """Carry frames until the connection ends. ``begun``: what came behind the server's answer."""
        reason = "the connection broke"
        try:
            async with anyio.create_task_group() as tasks:
                self._scope = tasks.cancel_scope
                tasks.start_soon(self.streams.watch)
                try:
                    self.core.receive(begun)
                    if self._direct is None:
                        tasks.start_soon(self._write)
                    else:
                        self._direct.on_writable = self._flush
                    if self.core.is_open:
                        await self._connection.read(self.core)
                except TierlogError as error:
                    reason = f"the server's frames are malformed: {error}"
                except _LOST as error:
                    reason = f"the connection broke: {str(error) or type(error).__name__}"
                tasks.cancel_scope.cancel()
        finally:
            self.core.fail(reason)
            await self._connection.aclose()

    async def _write(self) -> None:
        try:
            while True:
                while self.core.has_output:
                    for part in self.core.take_output():
                        await self._connection.send(part)
                self._due = self.events.new()
                await self._due.wait()
        except _LOST:
            # The reader says what happened; what the server still sends counts.
            self.core.retire()

    def _wake_writer(self) -> None:
        if self._direct is None:
            self._due.set()
        elif not self._is_flush_due:
            # Once for all calls that begin now.
            self._is_flush_due = True
            self._direct.soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_due = False
        assert self._direct is not None
        while self.core.has_output and self._direct.is_writable:
            for part in self.core.take_output():
                self._direct.write(part)

    # --- calls -------------------------------------------------------------------------------------

    def begin(self, request: Request, *, is_stream: bool = False) -> SessionCall:
        return self.core.begin(request, _nobody, is_stream=is_stream)

    def begin_now(self, request: Request) -> SessionCall:
        """``begin``, of a call that waits for no others to be sent with."""
        if self._direct is None:
            return self.begin(request)

        self._is_flush_due = True
        try:
            return self.core.begin(request, _nobody)
        finally:
            self._flush()

    async def wait(self, call: SessionCall, is_there: Callable[[], object]) -> None:
        """Return when ``is_there()``, or when the call has ended."""
        while not (call.is_ended or is_there()):
            event = self.events.new()
            call.wake = event.set
            await event.wait()

    def end(self, call: SessionCall) -> None:
        self.core.cancel(call)
        self._end_unused()

    def retire(self) -> None:
        """Take no more calls: the server seems to be gone, or stands still. Those in flight go on."""
        self.core.retire()
        self._end_unused()

    def _end_unused(self) -> None:
        if not self.core.is_open and self.core.is_idle:
            self._scope.cancel()


def _nobody() -> None:
    """Nobody waits yet."""


class _Server:
    """What is known of one server."""

    def __init__(self) -> None:
        self.session: AsyncSession | None = None
        self.opening: anyio.Event | None = None
        self.is_late = False
        """The last attempt to connect took too long."""
        self.refused_until = 0.0


class Sessions:
    """``tasks`` runs the sessions, and cancels them when the client ends."""

    def __init__(self, dial: Dial, tasks: anyio.abc.TaskGroup, events: EventSource) -> None:
        self._dial = dial
        self._tasks = tasks
        self._events = events
        self._servers: dict[str, _Server] = {}

    def open_at(self, url: str) -> AsyncSession | None:
        """The session with this server, if there is one."""
        server = self._servers.get(url)
        session = None if server is None else server.session
        return session if session is not None and session.core.is_open else None

    async def find(self, url: str) -> AsyncSession | None:
        """A session with this server; None if it has none to give, or does not answer: plain HTTP then shows
        why. Raises ``TimeoutError`` if there is no connection in time."""
        while True:
            if (session := self.open_at(url)) is not None:
                return session

            server = self._servers.setdefault(url, _Server())
            if server.refused_until > anyio.current_time():
                return None

            if server.opening is None:
                server.opening = anyio.Event()
                self._tasks.start_soon(self._open, url, server)
            opening = server.opening
            await opening.wait()
            if server.is_late:
                raise TimeoutError
            if self.open_at(url) is None:
                return None

    async def _open(self, url: str, server: _Server) -> None:
        """Open one and run it to its end. In a task of the client: a call that is cancelled must not take the
        session of the others with it."""
        opening = server.opening
        assert opening is not None
        session: AsyncSession | None = None
        begun = b""
        server.is_late = False
        try:
            with anyio.move_on_after(CONNECT_SECONDS) as scope:
                stream = await self._dial(url)
            if scope.cancelled_caught:
                server.is_late = True
                return

            connection: ByteConnection | None = None
            try:
                connection = await byte_connection(stream)
                found = await self._upgrade(url, connection)
            except BaseException:
                await (anyio.aclose_forcefully(stream) if connection is None else connection.aclose())
                raise
            if found is None:
                server.refused_until = anyio.current_time() + REFUSED_SECONDS
                await connection.aclose()
            else:
                begun = found
                session = server.session = AsyncSession(connection, self._events)
        except _LOST:
            pass  # the request over plain HTTP meets it again, and says so
        finally:
            server.opening = None
            opening.set()
        if session is not None:
            await session.run(begun)
            if not session.core.received:
                # N7: a proxy may pass the upgrade and not what follows.
                server.refused_until = anyio.current_time() + REFUSED_SECONDS

    @staticmethod
    async def _upgrade(url: str, connection: ByteConnection) -> bytes | None:
        """What came behind the answer that begins the session; None if it is refused."""
        answer = _UpgradeAnswer()
        with anyio.move_on_after(UPGRADE_SECONDS):
            await connection.send(upgrade_request(url))
            await connection.read(answer)
        return answer.begun
