"""Long tails: so many operations in each container's log that its next owner has something to replay.

Lanes of its own, one for each container, send batches between two rounds, and are checked like all others. A
checkpoint truncates a tail; ``settings_for`` makes it due when the log is about that long.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import anyio
import httpx

from chaos_parts.events import event_bytes
from chaos_parts.ledger import Lane, Ledger, Outcome, Record
from chaos_parts.processes import RunError
from chaos_parts.service import Service
from tierlog.actors.gateway.wire.batch import BATCH_TYPE, BatchItem, decode_outcomes, encode_batch
from tierlog.actors.gateway.wire.paths import BATCH
from tierlog.actors.settings.units import MiB

_BATCH = 1000
_OPERATION_BYTES = 500
"""More than an event takes in the log on average, so that tails reach their length before a checkpoint."""
_LIMIT = 60.0
_PAUSE = 0.05


def settings_for(operations: int) -> str:
    """The configuration of a service whose containers have tails of about so many operations."""
    return f'[checkpoint]\nwal_bytes = "{max(MiB, operations * _OPERATION_BYTES)} B"\n' if operations else ""


class TailWriters:
    def __init__(self, service: Service, ledger: Ledger, segments: Sequence[str]) -> None:
        self._service = service
        self._ledger = ledger
        self._lanes = {
            container: ledger.add_lane(Lane(f"t{container}", segment, container, identified=True))
            for container, segment in enumerate(segments)
        }
        self._client = httpx.AsyncClient(timeout=5.0, trust_env=False)

    async def aclose(self) -> None:
        for index in self._lanes.values():
            self._ledger.add([Record(Outcome.ENDED, index, self._ledger.lanes[index].next, 0, 0.0, 0.0)])
        await self._client.aclose()

    async def add(self, operations: int) -> None:
        """Append so many operations in every container. Raises ``RunError`` after 60 s."""
        async with anyio.create_task_group() as tasks:
            for index in self._lanes.values():
                tasks.start_soon(self._add, index, operations)

    async def _add(self, index: int, operations: int) -> None:
        lane = self._ledger.lanes[index]
        goal = lane.next + operations
        with anyio.move_on_after(_LIMIT):
            while lane.next < goal:
                await self._send(index, lane, min(_BATCH, goal - lane.next))
            return
        raise RunError(
            f"{lane.segment}: {goal - lane.next} events of {operations} were not acked within {_LIMIT:g} s"
        )

    async def _send(self, index: int, lane: Lane, count: int) -> None:
        """One batch; the next one repeats what was not acked."""
        numbers = range(lane.next, lane.next + count)
        items = [
            BatchItem(lane.segment, event_bytes(lane.writer, number), lane.writer.encode(), number, 1)
            for number in numbers
        ]
        began = time.monotonic()
        try:
            url = await self._owner(lane.container)
            answer = await self._client.post(
                url + BATCH, content=b"".join(encode_batch(items)), headers={"Content-Type": BATCH_TYPE}
            )
            outcomes = decode_outcomes(answer.content, count) if answer.is_success else []
        except (httpx.TransportError, ValueError):
            outcomes = []
        acked = next(
            (at for at, outcome in enumerate(outcomes) if isinstance(outcome, Exception)), len(outcomes)
        )
        if acked:
            self._ledger.add([Record(Outcome.ACKED, index, numbers.start, acked, began, time.monotonic())])
        else:
            await anyio.sleep(_PAUSE)

    async def _owner(self, container: int) -> str:
        status = await self._service.wait_for(lambda status: status["ready"], "every container is served")
        owner = status["containers"][container]["host"]
        return str(next(host["url"] for host in status["hosts"] if host["id"] == owner))
