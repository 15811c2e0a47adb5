"""What a host sends, from a thread of its own: reports at once, a heartbeat at each interval.

The thread sends heartbeats while the event loop is busy, with the loop's lag: so a busy host can be
distinguished from a stuck one (rule V5). The threads of a frozen process are frozen too. If the supervisor
does not read for ``WRITE_SECONDS``, the connection is cut, so that the reading side ends and looks for
another supervisor."""

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
    """What the event loop records for the heartbeat thread. Plain assignments: one writer, one reader."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.interval = 0.1
        self.statistics: Mapping[str, Any] = {}
        self.leaving = False
        """Whether the host asks for its containers to be moved and for the order to exit."""
        self._noted = clock()

    @property
    def lag(self) -> float:
        """Seconds by which the loop's next round is overdue."""
        return max(0.0, self.clock() - self._noted - self.interval)

    async def watch(self, on_round: Callable[[float], None]) -> None:
        """Record each round of the loop and call ``on_round(late)``, with the seconds that the round was
        late."""
        while True:
            await anyio.sleep(self.interval)
            late = self.lag
            self._noted = self.clock()
            on_round(late)


class HeartbeatWriter:
    """The thread that writes to one connection, from ``start`` until ``stop`` or a broken connection."""

    def __init__(self, connection: socket.socket, monitor: LoopMonitor) -> None:
        self._connection = connection
        self._monitor = monitor
        self._waiting: queue.SimpleQueue[Report | None] = queue.SimpleQueue()
        self._beating = False
        self._repeats = True
        """Whether each heartbeat has the statistics, also those that are as before."""
        self._thread = threading.Thread(target=self._run, name="tierlog-heartbeat", daemon=True)

    def start(self) -> None:
        # A supervisor that does not read must not hold this thread, or the host's end.
        self._connection.settimeout(WRITE_SECONDS)
        self._thread.start()

    def begin_heartbeats(self, version: int) -> None:
        """Begin with heartbeats, now that the supervisor has set the interval and speaks ``version``."""
        # A supervisor of the release before takes missing statistics for none.
        self._repeats = version < 2
        self._beating = True

    def send(self, report: Report) -> None:
        self._waiting.put(report)

    def stop(self) -> None:
        """Cut the connection, which is not read any more. The thread closes it and ends by itself, at
        once."""
        self._cut()
        self._waiting.put(None)

    def _cut(self) -> None:
        with suppress(OSError):
            # Not ``close``: the reading side still uses the descriptor.
            self._connection.shutdown(socket.SHUT_RDWR)

    def _run(self) -> None:
        with self._connection:
            if self._write_all():
                return

            # The reading side must see the cut before the descriptor is closed; then it calls ``stop``.
            self._cut()
            while self._waiting.get() is not None:
                continue

    def _write_all(self) -> bool:
        """Write until ``stop``; False if the connection broke."""
        clock = self._monitor.clock
        due, sequence = clock(), 0
        sent: Mapping[str, Any] | None = None
        while True:
            try:
                # A report wakes it at once; without one the next heartbeat is due.
                report = self._waiting.get(timeout=max(0.001, due - clock()))
            except queue.Empty:
                # From now, not from the last due time: after a freeze there is nothing to catch up with.
                due = clock() + self._monitor.interval
                if not self._beating:
                    continue
                sequence += 1
                found = self._monitor.statistics
                news = {} if found is sent and not self._repeats else found
                report, sent = Heartbeat(sequence, self._monitor.lag, news, self._monitor.leaving), found
            if report is None:
                return True
            try:
                self._connection.sendall(encode(report))
            except OSError:
                return False
