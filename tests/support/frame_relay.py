"""A relay between a client and a server that knows the frames of a session, and may lose, double or exchange
them, cut the connection, or fall silent."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import attrs

from tierlog.actors.gateway.wire.session import Kind

_HEAD = struct.Struct(">IIIBB")


@attrs.frozen
class Passing:
    """A frame on its way. ``number`` counts the frames of its kind on its connection, from 0."""

    from_client: bool
    kind: int
    number: int
    data: bytes


class Cut(Exception):
    """Ends the connection."""


class CloseHalf(Exception):
    """Passes nothing more in this direction."""


Fault = Callable[[Passing], list[bytes]]


def whole(passing: Passing) -> list[bytes]:
    return [passing.data]


class FrameRelay:
    """``fault``: what becomes of each frame."""

    def __init__(self, url: str, fault: Fault = whole) -> None:
        host, _, port = url.removeprefix("http://").rpartition(":")
        self._target = (host, int(port))
        self.fault = fault
        self.connections = 0
        self.sessions = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    @contextmanager
    def running(self) -> Iterator[FrameRelay]:
        threads = [threading.Thread(target=self._accept, daemon=True)]
        threads[0].start()
        try:
            yield self
        finally:
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self.cut()
            threads[0].join()

    def cut(self) -> None:
        """End all connections."""
        with self._lock:
            for each in self._open:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        threads = []
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                break
            server = socket.create_connection(self._target)
            self.connections += 1
            for each in (client, server):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._open |= {client, server}
            threads.append(threading.Thread(target=self._serve, args=(client, server), daemon=True))
            threads[-1].start()
        for thread in threads:
            thread.join()

    def _serve(self, client: socket.socket, server: socket.socket) -> None:
        with client, server:
            back = threading.Thread(target=self._pass, args=(server, client, False), daemon=True)
            back.start()
            self._pass(client, server, True)
            back.join()
            with self._lock:
                self._open -= {client, server}

    def _pass(self, source: socket.socket, target: socket.socket, from_client: bool) -> None:
        ends = [target]
        try:
            with source.makefile("rb") as stream:
                if self._pass_head(stream, target):
                    self._pass_frames(stream, target, from_client)
        except CloseHalf:
            pass
        except (OSError, Cut, struct.error):
            ends.append(source)
        for each in ends:
            with suppress(OSError):
                each.shutdown(socket.SHUT_WR if each is target and len(ends) == 1 else socket.SHUT_RDWR)

    def _pass_head(self, stream: object, target: socket.socket) -> bool:
        """What comes before the frames; returns whether frames follow."""
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            if not (line := stream.readline()):  # type: ignore[attr-defined]
                return False
            head += line
        target.sendall(head)
        if b"session" in head.lower():
            self.sessions += head.startswith(b"GET")
            return True
        while data := stream.read1(1 << 16):  # type: ignore[attr-defined]
            target.sendall(data)
        return False

    def _pass_frames(self, stream: object, target: socket.socket, from_client: bool) -> None:
        counts = dict.fromkeys(Kind, 0)
        while head := stream.read(_HEAD.size):  # type: ignore[attr-defined]
            size, _, _, kind, _ = _HEAD.unpack(head)
            data = head + stream.read(size)  # type: ignore[attr-defined]
            for each in self.fault(Passing(from_client, kind, counts[Kind(kind)], data)):
                target.sendall(each)
            counts[Kind(kind)] += 1
