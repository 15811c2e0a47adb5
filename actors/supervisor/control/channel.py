"""The control socket: its path, who may use it, and one connection on it, or on the TCP port for hosts that
join, from the supervisor's side.

The path follows from the store and its folder, so that a supervisor's hosts find the next one (rule V4). A
connection whose host does not read fills its bounded queue and is closed; one without a timely hello is
closed; a silent one is found by its missing heartbeats (rule V5).
"""

from __future__ import annotations

import hashlib
import os
import socket
import stat
import struct
import tempfile
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager, suppress

import anyio
import anyio.abc

from ....storage_backends.base.errors import Unavailable
from ....storage_backends.base.modes import make_folders
from ....storage_backends.base.os_errors import explain
from ....storage_backends.files.local_lock import lock_file
from ...kernel.lost_sockets import lost_sockets
from ...telemetry.logging import get_logger
from .messages import (
    LINE_BYTES_MAX,
    Challenge,
    Hello,
    Lines,
    Message,
    Order,
    Proof,
    ProtocolError,
    Unanswered,
    encode,
)
from .proof import PROOF_BYTES_MAX, confirm_proof

_log = get_logger("supervisor")
_PATH_BYTES_MAX = 103
"""The most bytes of a socket's path; Linux takes 4 more."""
_NEW = ".new"
"""Ends the name of a socket whose process does not listen yet."""
QUEUE_MAX = 10_000
"""Orders queued for one host at most: a few for each container."""
HELLO_SECONDS = 5.0
_ACCEPT_PAUSE = 0.1
"""Seconds until the next attempt if a connection cannot be accepted."""
_READ_BYTES = 1 << 16
_PEER = struct.Struct("3i")
_LINGER = struct.Struct("ii")


def control_path(store_id: bytes, folder: str, environment: Mapping[str, str]) -> str:
    """The socket's path for the store in ``folder``. It is not in the data folder, because a socket's path
    has at most about 100 bytes. A runtime folder with a relative or a longer path is ignored."""
    name = hashlib.blake2b(store_id + os.fsencode(os.path.realpath(folder)), digest_size=8).hexdigest()
    bases = (environment.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir(), "/tmp")  # noqa: S108 - private below
    paths = [f"{base}/tierlog-{os.getuid()}/{name}" for base in bases if os.path.isabs(base)]
    # A path that is too long fails at ``bind`` with a message that names no path.
    return next((path for path in paths if len(os.fsencode(path + _NEW)) <= _PATH_BYTES_MAX), paths[-1])


def make_private_folder(path: str) -> None:
    """Make the folder ``path``, accessible to this user only. Raises ``Unavailable`` if it belongs to another
    user, or is open to others."""
    try:
        make_folders(path)
        found = os.lstat(path)
    except OSError as error:
        raise Unavailable(
            f"{path} cannot be made: {error.strerror}; set XDG_RUNTIME_DIR to a folder of your own"
        ) from error

    # In ``/tmp``, another user may have made a folder of this name first.
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise Unavailable(
            f"{path} is not a folder that only you can enter: remove it, or set XDG_RUNTIME_DIR to a folder "
            f"of your own"
        )


def living_listener(path: str) -> int | None:
    """The process that listens at ``path``; None if there is none and a socket left there may be replaced."""
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with probe:
        probe.settimeout(1)
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return None
        except OSError:
            return 0  # It does not accept, or its queue of connections is full.
        return peer_pid(probe)


def remove_left_sockets(folder: str) -> None:
    """Remove the sockets of supervisors that were killed, whose folders may never be served again."""
    with os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):  # another supervisor renamed it, or ended
                # Not those that are being made: their process does not listen yet.
                is_socket = stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode)
                if is_socket and not entry.name.endswith(_NEW) and living_listener(entry.path) is None:
                    os.unlink(entry.path)


def peer_pid(connection: socket.socket) -> int:
    """The process at the other end; 0 where the system does not report it."""
    if not hasattr(socket, "SO_PEERCRED") or connection.family != socket.AF_UNIX:
        return 0

    pid, _, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return int(pid)


def _socket_of(stream: anyio.abc.ByteStream) -> socket.socket | None:
    try:
        with lost_sockets():
            return stream.extra(anyio.abc.SocketAttribute.raw_socket, None)  # noqa: S610 - not Django's
    except ConnectionResetError:
        return None


def _address_of(connection: socket.socket | None) -> str:
    if connection is None or connection.family == socket.AF_UNIX:
        return ""
    try:
        return str(connection.getpeername()[0])
    except OSError:
        return ""  # It was reset.


async def listen(path: str) -> anyio.abc.SocketListener:
    """Listen at ``path``, for this user only. A socket left there is replaced, and others left in its folder
    are removed. Raises ``Unavailable`` if another process listens there."""
    folder = os.path.dirname(path)
    make_private_folder(folder)
    with _locked(folder):
        remove_left_sockets(folder)
        pid = living_listener(path)
        if pid is not None:
            raise Unavailable(
                f"process {pid or 'unknown'} already supervises this store (it listens at {path}): stop it "
                f"first"
            )

        # Under another name first: a socket at the final path always has a process that accepts.
        listener = await anyio.create_unix_listener(path + _NEW, mode=0o600)
        os.rename(path + _NEW, path)
    return listener


async def accept_each(
    listener: anyio.abc.Listener[anyio.abc.SocketStream],
    talk: Callable[[anyio.abc.SocketStream], Awaitable[None]],
) -> None:
    """``talk`` on each connection. One that fails unexpectedly ends alone, and one that cannot be accepted
    waits: the supervisor outlives both (V6)."""

    async def talk_alone(stream: anyio.abc.SocketStream) -> None:
        try:
            await talk(stream)
        except Exception as error:  # noqa: BLE001 - one host must not end the supervisor of all
            _log.error("connection_failed", exc_info=error)

    async with listener, anyio.create_task_group() as tasks:
        while True:
            try:
                # Those that were accepted go on in these tasks, whatever the next one fails with.
                await listener.serve(talk_alone, tasks)
            except OSError as error:
                # The process has no descriptor left, or the other side has gone.
                _log.warning("connection_not_accepted", error=str(error))
                await anyio.sleep(_ACCEPT_PAUSE)


@contextmanager
def _locked(folder: str) -> Generator[None]:
    """Nobody else makes or removes a socket in the folder: a path where nobody listened may be a living
    supervisor's a moment later."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        lock_file(fd, folder, wait=True)
        yield
    except OSError as error:
        raise Unavailable(explain(error, path=folder)) from error
    finally:
        os.close(fd)


class Connection:
    """One host's connection, from the supervisor's side."""

    def __init__(self, stream: anyio.abc.ByteStream) -> None:
        self._stream = stream
        self._raw = _socket_of(stream)
        self.peer = 0 if self._raw is None else peer_pid(self._raw)
        """The process at the other end; 0 if the system does not report it."""
        self.address = _address_of(self._raw)
        """Where the other side is; empty if that is unknown, or of a Unix socket."""
        self.version = 0
        """The version of the protocol that both speak; 0 before hello."""
        self._waiting: deque[bytes] = deque()
        self._more = anyio.Event()
        self._finished = False
        self._lines = Lines()
        self._received: deque[Message] = deque()
        self._scope = anyio.CancelScope()
        self.written = anyio.Event()
        """Set when all is written after ``finish``, or when the connection broke."""

    async def prove(self, secret: bytes, nonce: str) -> bool:
        """Have the other side prove that it knows ``secret``, and prove the same to it (rule V12). ``nonce``
        was never used. Returns False if the other side only tried whether somebody listens. Raises
        ``Unanswered`` if there is no proof in time, because the record may have been an earlier one."""
        challenge = Challenge(nonce)
        self.send(challenge)
        self._lines.limit = PROOF_BYTES_MAX
        with anyio.move_on_after(HELLO_SECONDS):
            try:
                message = await self.receive()
            except ProtocolError as error:
                raise Unanswered(str(error)) from error
            if message is None:
                return False
            if isinstance(message, Proof) and (proved := confirm_proof(secret, challenge, message)):
                self._lines.limit = LINE_BYTES_MAX
                self.send(proved)
                return True
        raise Unanswered("there was no proof that the other side has read this supervisor's record")

    async def hello(self) -> Hello | None:
        """Return the first message; None if the other side only tried whether somebody listens. Raises
        ``ProtocolError`` if it is not a timely hello."""
        with anyio.move_on_after(HELLO_SECONDS):
            message = await self.receive()
            if message is None or isinstance(message, Hello):
                return message
        raise ProtocolError("a control connection begins with hello")

    async def receive(self) -> Message | None:
        """Return the next message; None at the connection's end. Raises ``ProtocolError`` if it is
        malformed."""
        while not self._received:
            try:
                # V12: before the proof no more than it has: each line costs more to decode than to send.
                data = await self._stream.receive(min(_READ_BYTES, self._lines.limit))
            except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
                return None
            self._received.extend(self._lines.feed(data))
        return self._received.popleft()

    def send(self, order: Order) -> None:
        """Queue an order. If the queue is full because the host does not read, the connection is closed."""
        self.send_line(encode(order))

    def send_line(self, line: bytes) -> None:
        """``send`` of an encoded order, which may go to many hosts."""
        # V5: a host that does not read is treated like one that is silent.
        if len(self._waiting) >= QUEUE_MAX:
            self.close()
            return

        self._waiting.append(line)
        self._more.set()

    def close(self) -> None:
        """End the connection: cancels ``scope``."""
        self._scope.cancel()

    def abort(self) -> None:
        """``close``, so that nothing arrives any more of what has not arrived yet."""
        self._waiting.clear()
        if self._raw is not None:
            # The system drops what the other side has not confirmed; else it would send it when it can.
            self._raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER.pack(1, 0))
        self.close()

    async def write(self) -> None:
        """Write what ``send`` queues, until ``finish`` or the connection's end."""
        try:
            # What is queued before ``finish`` is still written: a refusal is the last message.
            while self._waiting or not self._finished:
                await self._more.wait()
                self._more = anyio.Event()
                while self._waiting:
                    await self._stream.send(self._waiting.popleft())
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            return  # The reading task sees the end too.
        finally:
            self.written.set()

    def finish(self) -> None:
        """Write what is queued; nothing more is sent."""
        self._finished = True
        self._more.set()

    @property
    def scope(self) -> anyio.CancelScope:
        """The scope in which the connection is read; ``close`` cancels it."""
        return self._scope
