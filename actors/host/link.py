"""The host's link to its supervisor, whichever process that is at the time.

Owns: connecting, again and again; the welcome; the grace without a supervisor; the highest term seen. Does
not own: what is said on the writing thread (``heartbeat.py``), nor how orders are carried out
(``orders.py``).

A lost supervisor is no reason to stop: the host serves on and looks for the next one at the same path, for as
long as the last welcome allowed (rule V4). A supervisor with a lower term than one seen before is left alone
(rule V1). Cancellation cuts the connection.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

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


class Refused(Exception):
    """The supervisor does not want this host: there is another process in its place, or it is of another
    version."""


class Link:
    def __init__(
        self,
        path: str,
        *,
        hello: Callable[[int], Hello],
        obey: Callable[[Open | Close | Drain], None],
        redirect: Callable[[Owners], None],
        vitals: LoopMonitor,
        grace: float,
    ) -> None:
        """``hello(term)`` says who is here and what it serves, checked at that moment."""
        self._path = path
        self._hello = hello
        self._obey = obey
        self._redirect = redirect
        self._vitals = vitals
        self._grace = grace
        self._speaker: HeartbeatWriter | None = None
        self.term = 0
        """The highest supervisor's term seen."""

    async def run(self) -> str:
        """Stay linked; returns why the host should drain and exit."""
        left = anyio.current_time()
        pause = _PAUSE_FIRST
        while True:
            try:
                if await self._talk():
                    left, pause = anyio.current_time(), _PAUSE_FIRST
                    _log.warning("supervisor_lost", grace_seconds=self._grace)
            except Refused as refused:
                return f"refused by the supervisor: {refused}"

            if anyio.current_time() - left >= self._grace:
                return f"no supervisor for {self._grace:g} s"
            await anyio.sleep(pause)
            pause = min(_PAUSE_MAX, pause * 2)

    def say(self, report: Report) -> None:
        """Tell the supervisor; what nobody hears is told by the next hello."""
        if self._speaker is not None:
            self._speaker.say(report)

    def leave(self) -> bool:
        """Ask to be relieved of all containers and then dismissed; whether there is a supervisor now who may
        do it."""
        self._vitals.leaving = self._vitals.leaving or self._speaker is not None
        return self._speaker is not None

    async def _talk(self) -> bool:
        """One connection, from hello to its end. Whether there was a supervisor to be obeyed."""
        connection = _connected(self._path)
        if connection is None:
            return False

        # The thread closes it, after its last write.
        speaker = HeartbeatWriter(connection, self._vitals)
        speaker.start()
        speaker.say(self._hello(self.term))
        try:
            return await self._listen(connection, speaker)
        except ProtocolError as error:
            _log.error("supervisor_not_understood", reason=str(error))
            return False
        finally:
            self._speaker = None
            speaker.stop()

    async def _listen(self, connection: socket.socket, speaker: HeartbeatWriter) -> bool:
        lines = Lines()
        welcomed = False
        while True:
            data = b""
            with anyio.move_on_after(None if welcomed else _WELCOME_SECONDS):
                data = await _receive(connection)
            if not data:
                return welcomed

            for message in lines.feed(data):
                if not welcomed and not self._is_welcome(message, speaker):
                    return False
                welcomed = True
                self._take(message)

    def _is_welcome(self, message: Message, speaker: HeartbeatWriter) -> bool:
        if isinstance(message, Refuse):
            raise Refused(message.reason)
        if not isinstance(message, Welcome) or message.term < self.term:
            _log.warning("supervisor_not_obeyed", message=str(message), term=self.term)
            return False

        self.term, self._grace, self._vitals.interval = message.term, message.grace, message.heartbeat
        self._speaker = speaker
        speaker.beat()
        _log.info("supervisor_found", term=message.term)
        return True

    def _take(self, message: Message) -> None:
        match message:
            case Open() | Close() | Drain():
                if message.term >= self.term:
                    self._obey(message)
            case Owners():
                self._redirect(message)
            case Refuse(reason):
                raise Refused(reason)
            case Welcome():
                pass
            case _:
                raise ProtocolError(f"a supervisor does not say {type(message).__name__.lower()}")


def _connected(path: str) -> socket.socket | None:
    """A connection to whoever listens at ``path`` and can take one now."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.setblocking(False)
    try:
        connection.connect(path)
    except OSError:
        connection.close()
        return None
    return connection


async def _receive(connection: socket.socket) -> bytes:
    """What comes next; nothing at the end, however it came."""
    try:
        await anyio.wait_readable(connection)
        return connection.recv(_READ_BYTES)
    except (OSError, ValueError, anyio.ClosedResourceError):
        return b""
