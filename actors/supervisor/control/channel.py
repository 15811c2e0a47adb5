"""The control socket: where it lies, who may have it, and one connection on it as the supervisor sees it.

Owns: the path (short, in a folder that only this user can enter), the check for a living listener, the bound
on what waits to be written. Does not own: what messages mean (``messages.py``, ``supervisor.py``), nor the
host's end (``tierlog.actors.host``).

The path follows from the store and its folder, so that hosts of a supervisor that is gone find the next one
(rule V4). A connection whose other side does not read fills its bounded queue and is closed; one that does
not say hello in time is closed; one that says nothing more is found by its silence (rule V5).
"""

from __future__ import annotations

import hashlib
import os
import socket
import stat
import struct
import tempfile
from collections import deque
from collections.abc import Mapping

import anyio
import anyio.abc

from ....storage_backends.base.errors import Unavailable
from .messages import Hello, Lines, Message, Order, ProtocolError, encode

QUEUE_MAX = 10_000
"""Orders that wait to be written to one host: a few for each container."""
HELLO_SECONDS = 5.0
_READ_BYTES = 1 << 16
_PEER = struct.Struct("3i")


def control_path(store_id: bytes, folder: str, environment: Mapping[str, str]) -> str:
    """The socket of the store in ``folder``. A socket's path may have about 100 bytes, so it cannot lie in
    the data folder."""
    base = environment.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    name = hashlib.blake2b(store_id + os.path.realpath(folder).encode(), digest_size=8).hexdigest()
    return f"{base}/tierlog-{os.getuid()}/{name}"


def make_private_folder(path: str) -> None:
    """The folder ``path``, for this user alone. ``Unavailable`` if it is somebody else's, or open to
    others."""
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        found = os.lstat(path)
    except OSError as error:
        raise Unavailable(
            f"{path} cannot be made: {error.strerror}; set XDG_RUNTIME_DIR to a folder of yours"
        ) from error

    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise Unavailable(
            f"{path} is not a folder that only you can enter: remove it, or set XDG_RUNTIME_DIR to a folder "
            f"of yours"
        )


def living_listener(path: str) -> int | None:
    """The process that listens at ``path``; None if nobody does, so that a socket left there may be
    replaced."""
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with probe:
        probe.settimeout(1)
        try:
            probe.connect(path)
        except OSError:
            return None
        return peer_pid(probe)


def peer_pid(connection: socket.socket) -> int:
    """The process at the other end, 0 where the system does not tell."""
    if not hasattr(socket, "SO_PEERCRED"):
        return 0

    pid, _, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return int(pid)


async def listen(path: str) -> anyio.abc.SocketListener:
    """The listening socket at ``path``, for this user alone; one that was left there is replaced."""
    make_private_folder(os.path.dirname(path))
    pid = living_listener(path)
    if pid is not None:
        raise Unavailable(
            f"process {pid} supervises this store already (it answers at {path}): stop that one first"
        )

    return await anyio.create_unix_listener(path, mode=0o600)


class Connection:
    """One host's connection, from the supervisor's side."""

    def __init__(self, stream: anyio.abc.ByteStream) -> None:
        self._stream = stream
        self._waiting: deque[bytes] = deque()
        self._more = anyio.Event()
        self._finished = False
        self._lines = Lines()
        self._heard: deque[Message] = deque()
        self._scope = anyio.CancelScope()
        self.written = anyio.Event()
        """Set when nothing waits to be written any more: after ``finish``, or because the connection
        broke."""

    async def hello(self) -> Hello:
        """The first message, which must come soon. ``ProtocolError`` if it is another or none."""
        with anyio.move_on_after(HELLO_SECONDS):
            message = await self.receive()
            if isinstance(message, Hello):
                return message
        raise ProtocolError("a control connection begins with hello")

    async def receive(self) -> Message | None:
        """What the host says next; None at the connection's end. ``ProtocolError`` if it cannot be
        understood."""
        while not self._heard:
            try:
                data = await self._stream.receive(_READ_BYTES)
            except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
                return None
            self._heard.extend(self._lines.feed(data))
        return self._heard.popleft()

    def send(self, order: Order) -> None:
        """Put an order into the queue. A host that reads nothing loses its connection."""
        if len(self._waiting) >= QUEUE_MAX:
            self.close()
            return

        self._waiting.append(encode(order))
        self._more.set()

    def close(self) -> None:
        """End the connection: whoever reads it stops."""
        self._scope.cancel()

    async def write(self) -> None:
        """Write what ``send`` gets, until ``finish`` or until the connection ends."""
        try:
            while self._waiting or not self._finished:
                await self._more.wait()
                self._more = anyio.Event()
                while self._waiting:
                    await self._stream.send(self._waiting.popleft())
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            return  # Whoever reads the connection hears so.
        finally:
            self.written.set()

    def finish(self) -> None:
        """Nothing more is sent; what waits is written."""
        self._finished = True
        self._more.set()

    @property
    def scope(self) -> anyio.CancelScope:
        """Where the connection is read; ``close`` cancels it."""
        return self._scope
