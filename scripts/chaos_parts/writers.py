"""A writer process: appends on its lanes, repeats calls, and reports every outcome to its parent.

Each lane has one call in flight. An identified lane sends one or more events at a time, with writer id and
event numbers, until they are acked. A plain lane sends each event once and gives up on an unknown outcome. A
call that takes longer than ``HANG`` is cancelled and reported as hung.

Outcomes are records on the standard output (``ledger.py``). When its standard input ends, the process
finishes the calls in flight and exits."""

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
from chaos_parts.ledger import Outcome, Record

HANG = 60.0
"""Far above any deadline of the clients."""
ENDING = 30.0
"""Seconds for which an ending lane repeats its last events."""
_BATCH_MAX = 20
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
    """The task of one lane."""

    lane: int
    writer: str
    segment: str
    identified: bool


@attrs.frozen
class Plan:
    """The task of one process; JSON in its first argument."""

    url: str
    client: str
    seed: str
    pace: float
    """Seconds between two calls of a lane."""
    lanes: tuple[LanePlan, ...]


class LaneWriter:
    def __init__(
        self, plan: LanePlan, store: Store, random: Random, pace: float, report: Callable[[Record], None]
    ) -> None:
        self._plan = plan
        self._store = store
        self._random = random
        self._pace = pace
        self._report = report
        self._number = 0
        self._ending = float("inf")

    def end(self) -> None:
        self._ending = time.monotonic() + ENDING

    async def run(self) -> None:
        while self._ending == float("inf"):
            await (self._send_identified() if self._plan.identified else self._send_plain())
            await anyio.sleep(self._random.uniform(0, 2 * self._pace))
        self._report(Record(Outcome.ENDED, self._plan.lane, self._number, 0, 0.0, 0.0))

    async def _send_identified(self) -> None:
        first, count = (
            self._number,
            1 if self._random.random() < 0.7 else self._random.randint(2, _BATCH_MAX),
        )
        events = [event_bytes(self._plan.writer, number) for number in range(first, first + count)]
        self._number += count
        while await self._call(first, count, lambda: self._append(first, events)) is not Outcome.ACKED:
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

    async def _call(self, first: int, count: int, call: Callable[[], Awaitable[object]]) -> Outcome:
        """Make one call and report its outcome."""
        began, outcome = time.monotonic(), Outcome.HUNG
        with anyio.move_on_after(HANG):
            outcome = await self._outcome(call)
        outcomes = [outcome]
        if outcome is Outcome.HUNG and not self._plan.identified:
            outcomes.append(Outcome.UNKNOWN)
        if outcome is Outcome.FULL and not self._plan.identified:
            outcomes.append(Outcome.REJECTED)
        for each in outcomes:
            self._report(Record(each, self._plan.lane, first, count, began, time.monotonic()))
        return outcome

    async def _outcome(self, call: Callable[[], Awaitable[object]]) -> Outcome:
        try:
            await call()
        except tierlog.StorageFull:
            return Outcome.FULL
        except tierlog.OutcomeUnknown:
            return Outcome.RETRIED if self._plan.identified else Outcome.UNKNOWN
        except _NOT_NOW:
            return Outcome.RETRIED if self._plan.identified else Outcome.REJECTED
        return Outcome.ACKED


def open_client(kind: str, url: str) -> AbstractAsyncContextManager[Any]:
    """The store at ``url``: tierlog's client, or plain HTTP."""
    if kind == "raw":
        from chaos_parts.http_store import HttpStore

        return HttpStore(url)

    return tierlog.connect(url)


async def write(
    plan: Plan, finished: Callable[[], Awaitable[None]], report: Callable[[Record], None]
) -> None:
    """Run every lane until ``finished`` returns."""
    async with open_client(plan.client, plan.url) as store, anyio.create_task_group() as tasks:
        lanes = [
            LaneWriter(lane, store, Random(f"{plan.seed}/{lane.lane}"), plan.pace, report)
            for lane in plan.lanes
        ]
        for lane in lanes:
            tasks.start_soon(lane.run)
        await finished()
        for lane in lanes:
            lane.end()


async def _end_of_input() -> None:
    # A thread that waits for the parent would keep a failed process alive.
    descriptor = sys.stdin.fileno()
    await anyio.wait_readable(descriptor)
    while os.read(descriptor, 1024):
        await anyio.wait_readable(descriptor)


def _report(record: Record) -> None:
    # Unbuffered, and smaller than what a pipe takes atomically.
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
        anyio.run(write, plan, _end_of_input, _report, backend_options={"use_uvloop": True})
    except* tierlog.TierlogError as errors:
        print(f"a writer stops: {errors.exceptions[0]!r}", file=sys.stderr)
        status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
