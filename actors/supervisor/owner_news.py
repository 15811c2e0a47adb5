"""Hosts learn from the supervisor which containers have other owners, for redirects, and why some
have none until an operator opens them: all of them after their
hello, then at most ten times a second what has changed.

One answer of a host must not send a message to each other one. Cancellation: a host that missed something is
sent all owners after its next hello.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

import anyio

from .control.channel import Connection
from .control.messages import OwnersLines
from .fleet import Fleet
from .statistics import absences, owners, url_of

PAUSE_SECONDS = 0.1


class OwnerNews:
    def __init__(self, fleet: Fleet, connections: Mapping[str, Connection]) -> None:
        self._fleet = fleet
        self._connections = connections
        self._moved: set[int] = set()
        self._new: set[str] = set()
        """Hosts that were sent no owners yet."""
        self._any = anyio.Event()

    def note_moved(self, containers: Iterable[int]) -> None:
        self._moved.update(containers)
        self._any.set()

    def note_hello(self, host: str) -> None:
        self._new.add(host)
        self._any.set()

    async def run(self) -> None:
        """Send what was noted, again and again."""
        while True:
            await self._any.wait()
            self._any = anyio.Event()
            moved, self._moved = self._moved, set()
            new, self._new = self._new, set()
            changes = {index: url_of(self._fleet, index) or "" for index in sorted(moved)}
            lines = OwnersLines(partial(owners, self._fleet), changes, partial(absences, self._fleet))
            for host, connection in self._connections.items():
                for line in lines.of(connection.version, is_new=host in new):
                    connection.send_line(line)
            await anyio.sleep(PAUSE_SECONDS)
