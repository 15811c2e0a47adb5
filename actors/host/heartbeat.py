"""What a host says, from a thread of its own: reports as they come, a heartbeat at each interval.

Owns: the writing end of one connection to the supervisor. Does not own: the reading end (``link.py``), nor
what is said.

The thread beats while the event loop is busy, and says how late the loop is: a host that works hard is told
from one that is stuck (rule V5). A frozen process does not beat, for its threads are frozen too. A
supervisor that does not read for ``WRITE_SECONDS`` is given up: the connection is cut, so that the reading
end hears of it and looks for another supervisor.
"""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import anyio

from ..supervisor.control.messages import Heartbeat, Report, encode

WRITE_SECONDS = 10.0


class LoopMonitor:
    """What the event loop notes about itself for the thread to tell. Plain assignments: one writer, one
    reader."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.interval = 0.1
        self.statistics: Mapping[str, Any] = {}
        self.leaving = False
        """Whether the host asks to be dismissed."""
        self._noted = clock()

    @property
    def lag(self) -> float:
        """Seconds for which the loop should have come round and has not."""
        return max(0.0, self.clock() - self._noted - self.interval)

    async def watch(self, look: Callable[[float], None]) -> None:
        """Note each round of the loop; ``look(late)`` is called in each, with the seconds that it came
        late."""
        while True:
            await anyio.sleep(self.interval)
            late = self.lag
            self._noted = self.clock()
            look(late)


class HeartbeatWriter:
    """The thread that writes to one connection, from ``start`` until ``stop`` or a broken connection."""

    def __init__(self, connection: socket.socket, vitals: LoopMonitor) -> None:
        self._connection = connection
        self._vitals = vitals
        self._waiting: queue.SimpleQueue[Report | None] = queue.SimpleQueue()
        self._beating = False
        self._thread = threading.Thread(target=self._run, name="tierlog-heartbeat", daemon=True)

    def start(self) -> None:
        self._connection.settimeout(WRITE_SECONDS)
        self._thread.start()

    def beat(self) -> None:
        """Begin with heartbeats: the supervisor has said how often."""
        self._beating = True

    def say(self, report: Report) -> None:
        self._waiting.put(report)

    def stop(self) -> None:
        """Nobody reads the connection any more: cut it. The thread closes it and ends by itself, at once."""
        self._cut()
        self._waiting.put(None)

    def _cut(self) -> None:
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def _run(self) -> None:
        with self._connection:
            if self._write_all():
                return

            # The reading end must see the cut before the descriptor is gone: it says so with ``stop``.
            self._cut()
            while self._waiting.get() is not None:
                continue

    def _write_all(self) -> bool:
        """Write until ``stop``; False if the connection broke."""
        clock = self._vitals.clock
        due, sequence = clock(), 0
        while True:
            try:
                report = self._waiting.get(timeout=max(0.001, due - clock()))
            except queue.Empty:
                due = clock() + self._vitals.interval
                if not self._beating:
                    continue
                sequence += 1
                report = Heartbeat(sequence, self._vitals.lag, self._vitals.statistics, self._vitals.leaving)
            if report is None:
                return True
            try:
                self._connection.sendall(encode(report))
            except OSError:
                return False
