"""Appends of many tasks on their way to the servers: the awaiting shell around the coalescer.

Owns: one short task for each request with appends, the pauses before a repeat, the doors of lanes that are
full, the deadlines of those who wait. Does not own: order and batches (``coalescer.py``), verdicts
(``retries.py``), the transport.

Cancellation: a caller that is cancelled leaves; what of its appends was not sent yet is never sent, what was
sent is carried out, and the others of the same batch hear nothing of it, because requests belong to the
client and not to callers. When the client ends without having drained, everybody who still waits is told what
is known of his append.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence

import anyio
import anyio.abc
import anyio.lowlevel

from ....storage_backends.base.errors import Throttled, TierlogError
from ...kernel.one_shot import EventSource
from ...telemetry.tracing import Tracing
from ..wire.batch import BatchItem, Outcome
from .calls import Lost, Response, understand
from .coalescer import Batch, Coalescer, Entry, Lane, Parcel, Sorted
from .conversation import Look, Send, Terms
from .spans import around_appends

FLYING_MAX = 4
"""Requests with appends to one server at a time."""


class Appender:
    def __init__(
        self,
        terms: Terms,
        send: Callable[[Send], Awaitable[Response | Lost]],
        look: Callable[[Look], Awaitable[None]],
        tasks: anyio.abc.TaskGroup,
        events: EventSource,
        tracing: Tracing | None = None,
    ) -> None:
        self._terms = terms
        self._send = send
        self._look = look
        self._tasks = tasks
        self._coalescer = Coalescer(terms.map, terms.random)
        self._events = events
        self._tracing = tracing
        self._flying: dict[str, int] = {}
        self._is_pumping = False
        self._doors: dict[int, deque[anyio.Event]] = {}
        """Who waits for room in a lane, in order."""
        self._waiters: dict[Parcel, None] = {}
        """Those without an answer, in the order of their deadlines, which is that of their calls."""
        self._watch = anyio.Event()
        self._drained = anyio.Event()
        self.batches = 0
        self.appends = 0

    @property
    def waiting(self) -> int:
        return len(self._waiters)

    # --- callers ---------------------------------------------------------------------------------

    async def append(self, item: BatchItem) -> int | None:
        if self._tracing is None:
            return await self._append(item)

        with around_appends(self._tracing, item.count or 1, len(item.data), item.name) as span:
            return await self._append(item, span)

    async def _append(self, item: BatchItem, span: object = None) -> int | None:
        lane = self._coalescer.lane(item.name)
        parcel = self._begin((item,), span)
        try:
            if lane.is_full or lane.container in self._doors:
                await self._enter_in_turn(lane, parcel.entries[0])
            else:
                lane.put(parcel.entries[0])
            if not self._is_pumping:
                self._pump_soon()
            await parcel.reply.wait()
        finally:
            self._end(parcel)

        outcome = parcel.outcomes[0]
        if isinstance(outcome, TierlogError):
            raise outcome.with_traceback(None)  # several callers may share it

        return outcome

    async def append_each(self, items: Sequence[BatchItem]) -> list[Outcome]:
        if self._tracing is None:
            return await self._append_each(items)

        with around_appends(self._tracing, len(items), sum(len(item.data) for item in items)) as span:
            return await self._append_each(items, span)

    async def _append_each(self, items: Sequence[BatchItem], span: object = None) -> list[Outcome]:
        lanes = [self._coalescer.lane(item.name) for item in items]
        parcel = self._begin(items, span)
        try:
            for entry, lane in zip(parcel.entries, lanes, strict=True):
                if lane.is_full or lane.container in self._doors:
                    await self._enter_in_turn(lane, entry)
                else:
                    lane.put(entry)
            self._pump_soon()
            if items:
                await parcel.reply.wait()
        finally:
            self._end(parcel)

        return parcel.outcomes

    def _begin(self, items: Sequence[BatchItem], span: object) -> Parcel:
        parcel = Parcel(items, self._terms.clock() + self._terms.deadline, self._events, span)
        self._waiters[parcel] = None
        if len(self._waiters) == 1:
            self._watch.set()
        self.appends += len(items)
        return parcel

    def _end(self, parcel: Parcel) -> None:
        """Answered, late, or cancelled: nobody waits for it any more."""
        parcel.is_abandoned = True
        del self._waiters[parcel]
        if not self._waiters:
            self._drained.set()

    async def _enter_in_turn(self, lane: Lane, entry: Entry) -> None:
        """Wait for room, behind those who came before. A parcel that is too late gives up at its deadline,
        here too."""
        self._pump_soon()
        door, turn = self._doors.setdefault(lane.container, deque()), anyio.Event()
        door.append(turn)
        try:
            with anyio.move_on_after(entry.parcel.deadline - self._terms.clock()):
                await turn.wait()
            if turn.is_set():
                lane.put(entry)
            else:
                entry.answer(
                    Throttled(
                        f"no room for the append within {self._terms.deadline:g} s: nothing was done, slow "
                        f"down"
                    )
                )
        finally:
            door.remove(turn)
            if not door:
                del self._doors[lane.container]
            self._open_door(lane)

    def _open_door(self, lane: Lane) -> None:
        door = self._doors.get(lane.container)
        if door and not lane.is_full:
            door[0].set()

    async def watch_deadlines(self) -> None:
        """Tell those whose time is over. Runs as long as the client."""
        while True:
            await self._watch.wait()
            while self._waiters:
                first = next(iter(self._waiters))
                left = first.deadline - self._terms.clock()
                if left > 0:
                    await anyio.sleep(left)
                elif not first.is_abandoned:
                    first.give_up(f"no answer within {self._terms.deadline:g} s")
                else:
                    await anyio.lowlevel.checkpoint()
            self._watch = anyio.Event()

    async def drain(self) -> None:
        """Return when nobody waits any more, by the last deadline. Nothing new may come."""
        while self._waiters:
            self._drained = anyio.Event()
            await self._drained.wait()

    def end(self) -> None:
        """The client ends: tell everybody who still waits."""
        for parcel in list(self._waiters):
            parcel.give_up("the client was closed meanwhile")

    # --- requests --------------------------------------------------------------------------------

    def _pump_soon(self) -> None:
        """Put batches together when the tasks that are ready now have run: all their appends go with the
        first one, and nobody waits."""
        if not self._is_pumping:
            self._is_pumping = True
            self._tasks.start_soon(self._pump)

    async def _pump(self) -> None:
        self._is_pumping = False
        self._start_batches()

    def _start_batches(self) -> None:
        while (batch := self._coalescer.take(self._has_room)) is not None:
            self._flying[batch.url] = self._flying.get(batch.url, 0) + 1
            self.batches += 1
            for lane in batch.lanes:
                self._open_door(lane)
            self._tasks.start_soon(self._carry, batch)

    def _has_room(self, url: str) -> bool:
        return self._flying.get(url, 0) < FLYING_MAX

    async def _carry(self, batch: Batch) -> None:
        """One request and what its answer means."""
        try:
            call, spans = batch.call(), () if self._tracing is None else batch.spans
            send = Send(
                batch.url, call.request, batch.seconds(self._terms.clock()), batch.containers, links=spans
            )
            answer = understand(call, await self._send(send))
        finally:
            self._flying[batch.url] -= 1
        sorted = self._coalescer.settle(batch, answer, self._terms.clock())
        # Those who were answered run first: what they append now travels with what gathered meanwhile.
        await anyio.lowlevel.checkpoint()
        self._free(sorted.free)
        if sorted.held:
            await self._hold(batch, sorted)
            self._free(sorted.held)

    async def _hold(self, batch: Batch, sorted: Sorted) -> None:
        """Before the lanes go on: look where their containers are, and wait unless that helped."""
        if sorted.refresh:
            await self._look(Look(batch.looks, self._terms.deadline))
            if all(self._terms.map.url_of(lane.container) != batch.url for lane in sorted.held):
                return

        await anyio.sleep(sorted.pause)

    def _free(self, lanes: list[Lane]) -> None:
        for lane in lanes:
            lane.is_busy = False
        self._start_batches()
