"""The host's link to its supervisor, whichever process that is at the time.

A host goes on without its supervisor: it serves and looks for the next one, for as long as the last welcome
allowed (rule V4); one that joined does what ``on_grace_expired`` says then, and looks on. A supervisor with a
lower term than one seen before is not obeyed (rule V1). Cancellation cuts the connection.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Awaitable, Callable

import anyio

from ..supervisor.control.messages import (
    OLDEST,
    VERSION,
    Close,
    Drain,
    Hello,
    Leave,
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
from .dialing import Dialer, Refused
from .heartbeat import HeartbeatWriter, LoopMonitor

_log = get_logger("host")
_PAUSE_FIRST = 0.02
_READ_BYTES = 1 << 16
_WELCOME_SECONDS = 5.0
_LOOKS = 4
"""For a successor of a supervisor that is not heard, in the time after which the first one is made."""


Obey = Callable[[Open | Close | Drain], None]


class Link:
    def __init__(
        self,
        dialer: Dialer,
        *,
        hello: Callable[[int], Awaitable[Hello]],
        redirect: Callable[[Owners], None],
        monitor: LoopMonitor,
        grace: float,
        on_grace_expired: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """``hello(term)`` makes the first message. ``redirect`` gets the containers' locations. ``grace``:
        seconds to go on without a supervisor, until a welcome gives another value. ``on_grace_expired``: what
        is done then, in place of ending."""
        self._dialer = dialer
        self._hello = hello
        self._redirect = redirect
        self._monitor = monitor
        self._grace = grace
        self._on_grace_expired = on_grace_expired
        self._left = 0.0
        """Since when there is no supervisor."""
        self._is_doubtful = False
        """Whether the supervisor may have a successor, by its own word."""
        self._asked = -math.inf
        """When the dialer was asked for one last."""
        self.welcomed = anyio.Event()
        """Set by the first welcome."""
        self.refusal = ""
        """Why a supervisor refused this host."""
        self._writer: HeartbeatWriter | None = None
        self.term = 0
        """The highest supervisor's term seen."""

    async def run(self, obey: Obey) -> str:
        """Stay connected and pass orders to ``obey``. Returns why the host should drain and exit."""
        self._left = anyio.current_time()
        pause, has_expired = _PAUSE_FIRST, False
        while True:
            try:
                if await self._converse(obey):
                    pause, has_expired = _PAUSE_FIRST, False
                    _log.warning("supervisor_lost", grace_seconds=self._grace)
            except Refused as refused:
                self.refusal = str(refused)
                return f"refused by the supervisor: {refused}"

            # Hosts serve on without a supervisor, but nobody would replace one that fails.
            if not has_expired and anyio.current_time() - self._left >= self._grace:
                if self._on_grace_expired is None or self._monitor.leaving:
                    return f"no supervisor for {self._grace:g} s"
                # Before the next hello, which names what is served.
                await self._on_grace_expired()
                has_expired = True
            await anyio.sleep(pause)
            pause = min(self._dialer.pause_max, pause * 2)

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
        connection = await self._dialer.dial(self.term)
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
            data = await self._next(connection, welcomed)
            if not data:
                return welcomed

            for message in lines.feed(data):
                if not welcomed and not self._is_welcome(message, writer):
                    return False
                welcomed = True
                self._handle(message, obey)
            if self._is_doubtful and await self._is_followed():
                self._left = anyio.current_time()
                return True

    async def _is_followed(self) -> bool:
        """V4: whether a supervisor that lost its lease has a successor. Hosts that stayed with it while it is
        cut off from the bucket, and orders nothing, would be missing there."""
        quiet, now = self._dialer.quiet, anyio.current_time()
        if quiet is None or now - self._asked < quiet:
            return False
        self._asked = now
        return await self._dialer.is_replaced(self.term)

    async def _next(self, connection: socket.socket, welcomed: bool) -> bytes:
        """The next bytes; empty if this supervisor is none any more, from ``_left`` on."""
        heard, is_late = anyio.current_time(), False
        while True:
            data: bytes | None = None
            # A process that accepts and sends nothing, such as a frozen supervisor, must not hold this host.
            with anyio.move_on_after(self._patience(is_late) if welcomed else _WELCOME_SECONDS):
                data = await _receive(connection)
            if data is not None:
                if welcomed and not data:
                    self._left = anyio.current_time()
                # V4: what was on its way for so long may be orders that fence what a successor has found.
                elif is_late and await self._dialer.is_replaced(self.term):
                    self._left, data = heard, b""
                return data
            is_late = True
            if not welcomed:
                return b""
            # V4: it may be late, or its machine gone, which shows by no event. Who leaves it too soon loses
            # its containers.
            is_over = anyio.current_time() - heard >= self._grace
            if is_over or await self._dialer.is_replaced(self.term):
                self._left = heard
                return b""

    def _patience(self, is_late: bool) -> float | None:
        # V4: a successor waits for its hosts.
        quiet = self._dialer.quiet
        return quiet if quiet is None or not is_late else quiet / _LOOKS

    def _is_welcome(self, message: Message, writer: HeartbeatWriter) -> bool:
        if isinstance(message, Refuse):
            raise Refused(message.reason)
        # V1: a supervisor that was replaced is not obeyed, even if it answers first.
        if not isinstance(message, Welcome) or message.term < self.term:
            _log.warning("supervisor_refused", message=str(message), term=self.term)
            return False
        # V13: a supervisor chooses within the range of the hello, unless it does not know ranges.
        if not OLDEST <= message.version <= VERSION:
            raise Refused(
                f"the supervisor speaks version {message.version} of the control protocol, this host "
                f"{OLDEST} to {VERSION}: upgrade the older one, by one release at a time"
            )

        self.term, self._grace, self._monitor.interval = message.term, message.grace, message.heartbeat
        self._writer = writer
        writer.begin_heartbeats(message.version)
        self.welcomed.set()
        _log.info("supervisor_connected", term=message.term)
        return True

    def _handle(self, message: Message, obey: Obey) -> None:
        match message:
            case Open() | Close() | Drain():
                # V1: an order on its way from a supervisor that was replaced meanwhile.
                if message.term >= self.term:
                    obey(message)
            case Leave(term):
                # V10: the heartbeats say so from now on, to this supervisor and to the next.
                if term >= self.term and not self._monitor.leaving:
                    _log.info("drain_requested", reason="the supervisor's order")
                    self._monitor.leaving = True
            case Owners():
                self._redirect(message)
            case Refuse(reason):
                raise Refused(reason)
            case Welcome():
                self._is_doubtful = not message.held
            case _:
                raise ProtocolError(f"a supervisor does not send {type(message).__name__.lower()}")


async def _receive(connection: socket.socket) -> bytes:
    """The next bytes; empty at the end of the connection, whatever ended it."""
    try:
        await anyio.wait_readable(connection)
        return connection.recv(_READ_BYTES)
    except (OSError, ValueError, anyio.ClosedResourceError):
        return b""
