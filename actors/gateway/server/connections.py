"""The connections of one server: they are accepted, bounded, and ended together (rules H12, H15).

A process's descriptors are bounded, and its log and chunks need some. So connections stop below the limit of
open files: a full server closes the connection that has been silent longest, answers 503 if there is none,
and leaves what comes faster than that to the system's queue."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel

from ...telemetry.logging import get_logger
from .connection import READ_BYTES, HttpConnection
from .exchange import App
from .session import SessionConnection

if TYPE_CHECKING:
    from asyncio import Task

_log = get_logger("gateway")
Connection = HttpConnection | SessionConnection
BACKLOG = 4096
REFUSED_MAX = 16
"""Connections above the maximum, which have their last answer."""
_EXAMINED_MAX = 64
"""Silent connections that are examined for one that can make room."""
_DEFAULT_MAX = 32_768
"""Connections, whatever the limit of open files allows: each takes memory too."""
_FEW = 64
_UNLIMITED_FILES = 10_240
"""What macOS grants a process whose hard limit is none."""
_ABORT_SECONDS = 1.0
"""For requests that were cancelled, to send what they still have; and to accept the last connections."""
_ACCEPT_PAUSE = 0.1
"""Seconds until the next attempt if the system has no descriptor or memory for a connection."""


def raise_file_limit() -> None:
    """Raises this process's limit of open files as far as it may. An app that embeds a store has limits of
    its own, which stay."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft in (hard, resource.RLIM_INFINITY):
        return

    wanted = max(soft, _UNLIMITED_FILES) if hard == resource.RLIM_INFINITY else hard
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:
        _log.warning("file_limit_not_raised", limit=soft, error=str(error))


def connections_max(configured: int, reserved: int) -> int:
    """The most connections of this process: as configured, if the limit of open files leaves ``reserved``
    descriptors. 0 means as many as that limit allows."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files == resource.RLIM_INFINITY:
        files = 1 << 30
    room = max(1, files - reserved - REFUSED_MAX)
    if room < _FEW:
        _log.warning("file_limit_low", limit=files, reserved=reserved, connections=room)
    return min(configured or _DEFAULT_MAX, room)


class Connections:
    def __init__(
        self,
        app: App,
        maximum: Callable[[], int],
        is_stopping: Callable[[], bool],
        frame_bytes_max: int = 256 << 20,
    ) -> None:
        """``frame_bytes_max``: for frames of sessions that are not complete."""
        self.app = app
        self.is_stopping = is_stopping
        self.received = bytearray(READ_BYTES)
        """What they read into, one after the other."""
        self.tasks: set[Task[None]] = set()
        """The requests that are answered."""
        self.silent: dict[Connection, None] = {}
        """Connections without a complete request, the one that is silent longest first."""
        self.lingering: dict[Connection, None] = {}
        """Connections that have their last answer and whose clients may close them, longest first."""
        self.frame_bytes = 0
        """Bytes of frames that are not complete."""
        self._frame_bytes_max = frame_bytes_max
        self._frames: dict[SessionConnection, int] = {}
        """Bytes of each, the oldest one first."""
        self._maximum = maximum
        self._all: set[Connection] = set()
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._all)

    async def accept(self, listener: socket.socket) -> None:
        """Accept connections until cancelled. ``listener`` listens already."""
        listener.setblocking(False)
        while True:
            await self._accept_queued(listener)
            await anyio.wait_readable(listener)

    async def _accept_queued(self, listener: socket.socket) -> None:
        """Accept the connections in the system's queue."""
        loop = asyncio.get_running_loop()
        while True:
            if len(self._all) >= self._maximum() + REFUSED_MAX and self.lingering:
                next(iter(self.lingering)).transport.abort()  # it had the most time to read its answer
            await self._wait(lambda: len(self._all) < self._maximum() + REFUSED_MAX)
            # Nothing else here can be cancelled while clients connect faster than they are accepted.
            await anyio.lowlevel.checkpoint()
            try:
                accepted, _ = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                _log.warning("connection_not_accepted", error=str(error))
                await anyio.sleep(_ACCEPT_PAUSE)
                continue

            try:
                # With Nagle's algorithm an answer in several writes would wait 40 ms for an ACK. asyncio sets
                # this for the sockets that it accepts itself, uvloop for all.
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                # H15: cancelled here, by a stop, it would be closed with its request unread.
                with anyio.CancelScope(shield=True):
                    await loop.connect_accepted_socket(lambda: HttpConnection(self), accepted)
            except OSError:
                accepted.close()  # the client has left

    def admit(self, connection: HttpConnection) -> bool:
        """Counts it; returns whether there is room for it."""
        has_room = len(self._all) - len(self.lingering) < self._maximum() or any(
            silent.make_room() for silent in islice(self.silent, _EXAMINED_MAX)
        )
        self._all.add(connection)
        self.silent[connection] = None
        return has_room

    def replace(self, connection: HttpConnection, session: SessionConnection) -> None:
        """``connection`` has become ``session``."""
        self.remove(connection)
        self._all.add(session)
        self.silent[session] = None

    def remove(self, connection: Connection) -> None:
        self._all.discard(connection)
        self.silent.pop(connection, None)
        self.lingering.pop(connection, None)
        self._changed.set()

    def hold(self, session: SessionConnection, size: int) -> None:
        """The session has ``size`` bytes of a frame that is not complete. If that is too much in all, the
        oldest one is dropped: a client that sends goes on in less time."""
        self.frame_bytes += size - self._frames.get(session, 0)
        self._frames[session] = size
        while self.frame_bytes > self._frame_bytes_max:
            next(iter(self._frames)).drop_frame()

    def release(self, session: SessionConnection) -> None:
        self.frame_bytes -= self._frames.pop(session, 0)

    def task_ended(self, task: Task[None]) -> None:
        self.tasks.discard(task)
        self._changed.set()

    async def end(self, listener: socket.socket, seconds: float, drop_bodies: Callable[[], bool]) -> None:
        """Ends each connection after the requests that it has; after ``seconds``, those too.
        ``drop_bodies()`` refuses requests whose body is incomplete then, if there are any."""
        # The kernel resets what is in the queue of a socket that is closed, and those clients may have sent
        # requests.
        with anyio.move_on_after(_ABORT_SECONDS):
            await self._accept_queued(listener)
        listener.close()
        for connection in list(self._all):
            connection.shutdown()
        with anyio.move_on_after(seconds):
            await self._wait(lambda: not self._all and not self.tasks)
        # A cancelled handler answers nothing, because its outcome is unknown; without the body it is known.
        if drop_bodies():
            with anyio.move_on_after(_ABORT_SECONDS):
                await self._wait(lambda: not self.tasks)
        for task in self.tasks:
            task.cancel()
        with anyio.move_on_after(_ABORT_SECONDS):
            await self._wait(lambda: not self._all and not self.tasks)
        for connection in list(self._all):
            connection.transport.abort()

    async def _wait(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()
