"""The writers: processes of their own that append, send again what has no answer, and tell every outcome to
their parent.

Owns: the lanes of one process. Does not own: what the outcomes mean (``ledger.py``, ``checker.py``), nor the
processes (``processes.py``).

Each lane has one call under way. An identified lane sends events, one or several at a time, with writer id
and event numbers until they are acked. A plain lane sends each event once: what has an unknown outcome it
gives up as a doubt. A call that takes longer than ``HANG`` is cut off and told as hung: no call may hang for
ever.

The process tells outcomes as records on its standard output. The end of its standard input means: finish what
is under way, and leave.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from random import Random
from typing import Any, Protocol

import anyio
import attrs

import tierlog
from chaos_parts.events import event_bytes
from chaos_parts.ledger import Record, Told

HANG = 60.0
"""Far above any deadline of the clients."""
ENDING = 30.0
"""How long a lane that shall end goes on trying to get its last events acked."""
_SEVERAL_MAX = 20
_AFTER_ERROR = 0.02
_NOT_NOW = (tierlog.Unavailable, tierlog.Throttled, tierlog.NotOwner)


class Store(Protocol):
    async def append(
        self, name: str, data: bytes, *, writer_id: str | None = None, event_number: int | None = None
    ) -> Any: ...

    async def append_many(
        self, name: str, events: list[bytes], *, writer_id: str, first_event_number: int
    ) -> Any: ...


@attrs.frozen
class LanePlan:
    """What a lane is told to do."""

    lane: int
    writer: str
    segment: str
    identified: bool


@attrs.frozen
class Plan:
    """What a process is told to do; as JSON in its first argument."""

    url: str
    client: str
    seed: str
    pace: float
    """Seconds between two calls of a lane."""
    lanes: tuple[LanePlan, ...]


class LaneRun:
    def __init__(
        self, plan: LanePlan, store: Store, random: Random, pace: float, tell: Callable[[Record], None]
    ) -> None:
        self._plan = plan
        self._store = store
        self._random = random
        self._pace = pace
        self._tell = tell
        self._number = 0
        self._ending = float("inf")

    def end(self) -> None:
        self._ending = time.monotonic() + ENDING

    async def run(self) -> None:
        while self._ending == float("inf"):
            await (self._send_identified() if self._plan.identified else self._send_plain())
            await anyio.sleep(self._random.uniform(0, 2 * self._pace))
        self._tell(Record(Told.ENDED, self._plan.lane, self._number, 0, 0.0, 0.0))

    async def _send_identified(self) -> None:
        first, count = (
            self._number,
            1 if self._random.random() < 0.7 else self._random.randint(2, _SEVERAL_MAX),
        )
        events = [event_bytes(self._plan.writer, number) for number in range(first, first + count)]
        self._number += count
        while await self._call(first, count, lambda: self._append(first, events)) is not Told.ACKED:
            if time.monotonic() >= self._ending:
                return
            await anyio.sleep(_AFTER_ERROR)

    async def _append(self, first: int, events: list[bytes]) -> None:
        if len(events) == 1:
            await self._store.append(
                self._plan.segment, events[0], writer_id=self._plan.writer, event_number=first
            )
        else:
            await self._store.append_many(
                self._plan.segment, events, writer_id=self._plan.writer, first_event_number=first
            )

    async def _send_plain(self) -> None:
        number = self._number
        self._number += 1
        await self._call(
            number, 1, lambda: self._store.append(self._plan.segment, event_bytes(self._plan.writer, number))
        )

    async def _call(self, first: int, count: int, call: Callable[[], Awaitable[object]]) -> Told:
        """Make one call and tell how it went."""
        began, told = time.monotonic(), Told.HUNG
        with anyio.move_on_after(HANG):
            told = await self._outcome(call)
        self._tell(Record(told, self._plan.lane, first, count, began, time.monotonic()))
        if told is Told.HUNG and not self._plan.identified:
            self._tell(Record(Told.DOUBTFUL, self._plan.lane, first, count, began, time.monotonic()))
        if told is Told.FULL and not self._plan.identified:
            self._tell(Record(Told.REFUSED, self._plan.lane, first, count, began, time.monotonic()))
        return told

    async def _outcome(self, call: Callable[[], Awaitable[object]]) -> Told:
        try:
            await call()
        except tierlog.StorageFull:
            return Told.FULL
        except tierlog.OutcomeUnknown:
            return Told.RETRIED if self._plan.identified else Told.DOUBTFUL
        except _NOT_NOW:
            return Told.RETRIED if self._plan.identified else Told.REFUSED
        return Told.ACKED


def open_client(kind: str, url: str) -> AbstractAsyncContextManager[Any]:
    """The store at ``url``: by tierlog's client, or by hand."""
    if kind == "raw":
        from chaos_parts.raw import RawStore

        return RawStore(url)

    return tierlog.connect(url)


async def write(plan: Plan, finished: Callable[[], Awaitable[None]], tell: Callable[[Record], None]) -> None:
    """Run every lane until ``finished`` returns."""
    async with open_client(plan.client, plan.url) as store, anyio.create_task_group() as tasks:
        lanes = [
            LaneRun(lane, store, Random(f"{plan.seed}/{lane.lane}"), plan.pace, tell) for lane in plan.lanes
        ]
        for lane in lanes:
            tasks.start_soon(lane.run)
        await finished()
        for lane in lanes:
            lane.end()


async def _end_of_input() -> None:
    # Not by a thread: one that waits for its parent would keep a process alive that has failed.
    descriptor = sys.stdin.fileno()
    await anyio.wait_readable(descriptor)
    while os.read(descriptor, 1024):
        await anyio.wait_readable(descriptor)


def _tell(record: Record) -> None:
    # Unbuffered, and smaller than what a pipe takes in one piece.
    os.write(sys.stdout.fileno(), record.encode())


def plan_json(plan: Plan) -> str:
    return json.dumps(attrs.asdict(plan))


def parse_plan(text: str) -> Plan:
    document = json.loads(text)
    return Plan(**{**document, "lanes": tuple(LanePlan(**lane) for lane in document["lanes"])})


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m chaos_parts.writers", description="A writer of the chaos scripts, which start it."
    )
    parser.add_argument("plan", type=parse_plan)
    plan: Plan = parser.parse_args(arguments).plan
    status = 0
    try:
        anyio.run(write, plan, _end_of_input, _tell, backend_options={"use_uvloop": True})
    except* tierlog.TierlogError as errors:
        print(f"a writer stops: {errors.exceptions[0]!r}", file=sys.stderr)
        status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
