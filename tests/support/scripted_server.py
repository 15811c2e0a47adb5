"""An HTTP server that does what a test says, byte by byte: answers, resets, halves, silence.

Plain sockets in threads: nothing between the client and the failure. ``/v1/containers`` is answered by
itself, and a session refused, so that scripts are about the call that a test makes.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

import attrs

from tierlog.actors.gateway.wire.bodies import ContainerAssignment, ContainerMap, encode_json
from tierlog.actors.gateway.wire.errors import to_problem

MAP_PATH = "/v1/containers"
SESSION_PATH = "/v1/session"


@attrs.frozen
class Received:
    number: int
    """The number of this request, from 0; requests for the map are not counted."""
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@attrs.frozen
class Answer:
    status: int = 200
    body: bytes = b"{}"
    headers: Mapping[str, str] = attrs.field(factory=dict)
    cut: int | None = None
    """Send only so many bytes of the body, then close."""


class Fault:
    """What a connection can do instead of an answer."""

    RESET, CLOSE, SILENCE = "reset", "close", "silence"


Act = Answer | str
Script = Callable[[Received], Act]


def json_answer(document: object, status: int = 200) -> Answer:
    return Answer(status, json.dumps(document).encode(), {"Content-Type": "application/json"})


def problem(error: BaseException) -> Answer:
    made = to_problem(error)
    return Answer(made.status, made.body(), made.headers)


def one_container(containers: int = 1, url: str | None = None, epoch: int | None = None) -> ContainerMap:
    return ContainerMap(1, tuple(ContainerAssignment(index, url, epoch) for index in range(containers)))


class ScriptedServer:
    def __init__(self, script: Script) -> None:
        self.script = script
        self.map: ContainerMap | None = one_container()
        """None: requests for the map are answered like every other request."""
        self.received: list[Received] = []
        self.map_requests = self.session_requests = 0
        self._released = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()

    @property
    def paths(self) -> list[str]:
        return [each.path for each in self.received]

    @contextmanager
    def running(self) -> Iterator[ScriptedServer]:
        thread = threading.Thread(target=self._accept, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.stop()
            thread.join()

    def stop(self) -> None:
        """Refuse connections from now on, and end those that are open."""
        self._released.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for connection in self._connections:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """Let the silent connections close."""
        self._released.set()

    def _accept(self) -> None:
        threads = []
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                break
            with self._lock:
                self._connections.add(connection)
            threads.append(threading.Thread(target=self._serve, args=(connection,), daemon=True))
            threads[-1].start()
        for thread in threads:
            thread.join()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            stream = connection.makefile("rb")
            try:
                while (head := stream.readline()) and self._exchange(connection, stream, head):
                    pass
            finally:
                stream.close()
                with self._lock:
                    self._connections.discard(connection)

    def _exchange(self, connection: socket.socket, stream: socket.SocketIO | object, head: bytes) -> bool:
        """One request; returns whether the connection goes on."""
        method, path, _ = head.decode().split(" ", 2)
        headers: dict[str, str] = {}
        while line := stream.readline().decode().strip():  # type: ignore[union-attr]
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        body = stream.read(int(headers.get("content-length", "0")))  # type: ignore[union-attr]
        return self._act(connection, self._decide(method, path, headers, body))

    def _decide(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Act:
        if path == SESSION_PATH:
            self.session_requests += 1
            return Answer(404)  # as an older server
        if path == MAP_PATH and self.map is not None:
            self.map_requests += 1
            return Answer(200, encode_json(self.map), {"Content-Type": "application/json"})

        with self._lock:
            received = Received(len(self.received), method, path, headers, body)
            self.received.append(received)
        return self.script(received)

    def _act(self, connection: socket.socket, act: Act) -> bool:
        if isinstance(act, Answer):
            lines = {"Content-Length": str(len(act.body)), **act.headers}
            if act.status == 204:
                del lines["Content-Length"]
            head = (
                f"HTTP/1.1 {act.status} X\r\n"
                + "".join(f"{name}: {value}\r\n" for name, value in lines.items())
                + "\r\n"
            )
            connection.sendall(head.encode() + (act.body if act.cut is None else act.body[: act.cut]))
            return act.cut is None

        if act == Fault.SILENCE:
            self._released.wait(30)
        elif act == Fault.RESET:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return False


@contextmanager
def scripted(script: Script) -> Iterator[ScriptedServer]:
    with ScriptedServer(script).running() as server:
        yield server


def script_of(*acts: Act) -> Script:
    """One after the other; the last one forever."""
    return lambda received: acts[min(received.number, len(acts) - 1)]
