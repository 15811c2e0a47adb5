"""A load balancer for tests: one port, and for each connection the next server that takes it. Bytes only."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

Address = tuple[str, int]


class Relay:
    def __init__(self, targets: Callable[[], Sequence[Address]]) -> None:
        """``targets()``: where there are servers now."""
        self._targets = targets
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._turn = itertools.count()
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self.used: list[Address] = []
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    @contextmanager
    def running(self) -> Iterator[Relay]:
        thread = threading.Thread(target=self._accept, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            with self._lock:
                for each in self._open:
                    with suppress(OSError):
                        each.shutdown(socket.SHUT_RDWR)
            thread.join()

    def _accept(self) -> None:
        threads = []
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                break
            threads.append(threading.Thread(target=self._serve, args=(client,), daemon=True))
            threads[-1].start()
        for thread in threads:
            thread.join()

    def _serve(self, client: socket.socket) -> None:
        with client:
            server = self._connect()
            if server is None:
                return
            with server:
                with self._lock:
                    self._open |= {client, server}
                back = threading.Thread(target=_copy, args=(server, client), daemon=True)
                back.start()
                _copy(client, server)
                back.join()
                with self._lock:
                    self._open -= {client, server}

    def _connect(self) -> socket.socket | None:
        targets = list(self._targets())
        first = next(self._turn)
        for number in range(len(targets)):
            address = targets[(first + number) % len(targets)]
            with suppress(OSError):
                found = socket.create_connection(address, 1)
                found.settimeout(None)
                self.used.append(address)
                return found
        return None


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Until either side ends, then both ends."""
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    for each in (source, target):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
