"""Appends put straight to a host that is, or will be, frozen: what a zombie says must be true.

Owns: one plain lane for each container, and the requests under way. A request goes to the host that had the
container, whatever the map says. It is sent before the freeze ends, so it waits in the frozen process's
buffers, and the host finds it when it wakes up, after another host has opened the container. An ack of it
counts as any ack: the event must be in what the new owner serves.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import anyio
import anyio.abc
import httpx

from chaos_parts.events import event_bytes
from chaos_parts.ledger import Lane, Ledger, Record, Told
from tierlog.actors.gateway.wire.paths import Verb, segment_path

_LIMIT = 20.0


class Zombies:
    def __init__(self, ledger: Ledger, segments: Sequence[str]) -> None:
        self._ledger = ledger
        self._segments = segments
        self._lanes = [
            ledger.add_lane(Lane(f"z{index}", segment, index, identified=False, ordered=False))
            for index, segment in enumerate(segments)
        ]
        self._next = [0] * len(segments)
        self._client = httpx.AsyncClient(timeout=_LIMIT, trust_env=False)
        self.acked = 0
        self.refused = 0

    async def aclose(self) -> None:
        await self._client.aclose()

    def prod(self, tasks: anyio.abc.TaskGroup, url: str, containers: Sequence[int]) -> None:
        """Send one event for each of the containers, each on its own connection; the tasks tell the
        outcomes."""
        for container in containers:
            number = self._next[container]
            self._next[container] += 1
            tasks.start_soon(self._send, url, container, number)

    async def _send(self, url: str, container: int, number: int) -> None:
        lane, began = self._ledger.lanes[self._lanes[container]], time.monotonic()
        path = segment_path(self._segments[container], Verb.APPEND)
        told = Told.DOUBTFUL
        try:
            answer = await self._client.post(
                url + path,
                content=event_bytes(lane.writer, number),
                headers={"Content-Type": "application/octet-stream"},
            )
            told = self._read(answer)
        except (httpx.ConnectError, httpx.ConnectTimeout):
            told = Told.REFUSED
        except httpx.TransportError:
            told = Told.DOUBTFUL
        finally:
            # A cancelled request is a doubt as well.
            self._ledger.note([Record(told, self._lanes[container], number, 1, began, time.monotonic())])

    def _read(self, answer: httpx.Response) -> Told:
        if answer.is_success:
            self.acked += 1
            return Told.ACKED
        if answer.status_code in (408, 500):
            return Told.DOUBTFUL
        self.refused += 1
        return Told.REFUSED
