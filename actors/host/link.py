"""The host's link to its supervisor, whichever process that is at the time.

A host goes on without its supervisor: it serves and looks for the next one at the same path, for as long as
the last welcome allowed (rule V4). A supervisor with a lower term than one seen before is not obeyed (rule
V1). Cancellation cuts the connection.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable

import anyio

from ..supervisor.control.messages import (
    Close,
    Drain,
    Hello,
    Lines,
    Message,
    Open,
    Owners,
    ProtocolError,
    Refuse,
    Report,
    Welcome,
)
from ..telemetry.logging import get_logger
from .heartbeat import HeartbeatWriter, LoopMonitor

_log = get_logger("host")
_PAUSE_FIRST, _PAUSE_MAX = 0.02, 0.25
_READ_BYTES = 1 << 16
_WELCOME_SECONDS = 5.0


Obey = Callable[[Open | Close | Drain], None]


class Refused(Exception):
    """The supervisor refused this host: another process serves as it, or its version differs."""


class Link:
    def __init__(
        self,
        path: str,
        *,
        hello: Callable[[int], Awaitable[Hello]],
        redirect: Callable[[Owners], None],
        monitor: LoopMonitor,
        grace: float,
    ) -> None:
        """``hello(term)`` makes the first message. ``redirect`` gets the containers' locations. ``grace``:
        seconds to go on without a supervisor, until a welcome gives another value."""
        self._path = path
        self._hello = hello
        self._redirect = redirect
        self._monitor = monitor
        self._grace = grace
        self._writer: HeartbeatWriter | None = None
        self.term = 0
        """The highest supervisor's term seen."""

    async def run(self, obey: Obey) -> str:
        """Stay connected and pass orders to ``obey``. Returns why the host should drain and exit."""
        left = anyio.current_time()
        pause = _PAUSE_FIRST
        while True:
            try:
                if await self._converse(obey):
                    left, pause = anyio.current_time(), _PAUSE_FIRST
                    _log.warning("supervisor_lost", grace_seconds=self._grace)
            except Refused as refused:
                return f"refused by the supervisor: {refused}"

            # Hosts serve on without a supervisor, but nobody would replace one that fails.
            if anyio.current_time() - left >= self._grace:
                return f"no supervisor for {self._grace:g} s"
            await anyio.sleep(pause)
            pause = min(_PAUSE_MAX, pause * 2)

    def report(self, report: Report) -> None:
        """Send to the supervisor. Without one it is dropped: the next hello has the present state."""
        if self._writer is not None:
            self._writer.send(report)

    @property
    def is_connected(self) -> bool:
        """Whether there is a supervisor."""
        return self._writer is not None

    def leave(self) -> bool:
        """Ask the supervisor to move all containers and then to order the exit. Returns whether there is
        one."""
        # It stays: the supervisor that answers may be a later one.
        self._monitor.leaving = self._monitor.leaving or self._writer is not None
        return self._writer is not None

    async def _converse(self, obey: Obey) -> bool:
        """One connection, from hello to its end. Returns whether it was a supervisor to obey."""
        connection = _connected(self._path)
        if connection is None:
            return False

        # The thread closes it, after its last write.
        writer = HeartbeatWriter(connection, self._monitor)
        writer.start()
        try:
            # In the thread: a supervisor that does not read must not block this loop.
            writer.send(await self._hello(self.term))
            return await self._listen(connection, writer, obey)
        except ProtocolError as error:
            _log.error("supervisor_protocol_error", reason=str(error))
            return False
        finally:
            self._writer = None
            writer.stop()

    async def _listen(self, connection: socket.socket, writer: HeartbeatWriter, obey: Obey) -> bool:
        lines = Lines()
        welcomed = False
        while True:
            data = b""
            # A process that accepts and sends nothing, such as a frozen supervisor, must not hold this host.
            with anyio.move_on_after(None if welcomed else _WELCOME_SECONDS):
                data = await _receive(connection)
            if not data:
                return welcomed

            for message in lines.feed(data):
                if not welcomed and not self._is_welcome(message, writer):
                    return False
                welcomed = True
                self._handle(message, obey)

    def _is_welcome(self, message: Message, writer: HeartbeatWriter) -> bool:
        if isinstance(message, Refuse):
            raise Refused(message.reason)
        # V1: a supervisor that was replaced is not obeyed, even if it answers first.
        if not isinstance(message, Welcome) or message.term < self.term:
            _log.warning("supervisor_refused", message=str(message), term=self.term)
            return False

        self.term, self._grace, self._monitor.interval = message.term, message.grace, message.heartbeat
        self._writer = writer
        writer.begin_heartbeats()
        _log.info("supervisor_connected", term=message.term)
        return True

    def _handle(self, message: Message, obey: Obey) -> None:
        match message:
            case Open() | Close() | Drain():
                # V1: an order on its way from a supervisor that was replaced meanwhile.
                if message.term >= self.term:
                    obey(message)
            case Owners():
                self._redirect(message)
            case Refuse(reason):
                raise Refused(reason)
            case Welcome():
                pass
            case _:
                raise ProtocolError(f"a supervisor does not send {type(message).__name__.lower()}")


def _connected(path: str) -> socket.socket | None:
    """A connection to the listener at ``path``; None if there is none or it is busy."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # A full queue of the listener would block the loop: it fails at once, and is tried again.
    connection.setblocking(False)
    try:
        connection.connect(path)
    except OSError:
        connection.close()
        return None
    return connection


async def _receive(connection: socket.socket) -> bytes:
    """The next bytes; empty at the end of the connection, whatever ended it."""
    try:
        await anyio.wait_readable(connection)
        return connection.recv(_READ_BYTES)
    except (OSError, ValueError, anyio.ClosedResourceError):
        return b""
