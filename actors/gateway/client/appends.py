"""Sends the appends of many tasks: the awaiting shell around the coalescer. It has tasks that send one batch
after the other, the pauses before a repeat, the waiters for full queues, and the deadlines of callers.

Cancellation: a cancelled caller leaves. Those of its appends that were not sent yet are never sent, those
that were sent are carried out, and other callers of the same batch are not affected, because requests belong
to the client and not to callers. When the client ends without having drained, every caller that still waits
gets an error with what is known of its append."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence

import anyio
import anyio.abc
import anyio.lowlevel

from ....storage_backends.base.errors import Throttled, TierlogError
from ...kernel.event_source import EventSource, OneShot
from ...telemetry.tracing import Tracing
from ..wire.batch import BatchItem, Outcome
from .attempts import ClientContext, RefreshMap, Send
from .coalescer import AppendCall, Batch, BatchResult, Coalescer, ContainerQueue, PendingAppend
from .requests import Response, TransportFailure, interpret
from .spans import around_appends

IN_FLIGHT_MAX = 4
"""Requests with appends to one server at a time."""


class Appender:
    def __init__(
        self,
        context: ClientContext,
        send: Callable[[Send], Awaitable[Response | TransportFailure]],
        refresh_map: Callable[[RefreshMap], Awaitable[None]],
        tasks: anyio.abc.TaskGroup,
        events: EventSource,
        tracing: Tracing | None = None,
    ) -> None:
        self._context = context
        self._send = send
        self._refresh_map = refresh_map
        self._tasks = tasks
        self._coalescer = Coalescer(context.map, context.random)
        self._events = events
        self._tracing = tracing
        self._in_flight: dict[str, int] = {}
        self._is_sending = False
        self._idle: list[OneShot] = []
        """Tasks without a batch: to wake one costs less than to start one."""
        self._room_waiters: dict[int, deque[anyio.Event]] = {}
        """Callers that wait for room, in order, by container."""
        self._waiters: dict[AppendCall, None] = {}
        """Calls without an answer, in the order of their deadlines, which is that of the calls."""
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
        queue = self._coalescer.queue(item.name)
        call = self._begin((item,), span)
        try:
            # Never past callers that wait for room: the appends of a segment keep their order.
            if queue.is_full or queue.container in self._room_waiters:
                await self._wait_for_room(queue, call.appends[0])
            else:
                queue.put(call.appends[0])
            if not self._is_sending:
                self._send_soon()
            await call.reply.wait()
        finally:
            self._end(call)

        outcome = call.outcomes[0]
        if isinstance(outcome, TierlogError):
            raise outcome.with_traceback(None)  # several callers may share it

        return outcome

    async def append_each(self, items: Sequence[BatchItem]) -> list[Outcome]:
        if self._tracing is None:
            return await self._append_each(items)

        with around_appends(self._tracing, len(items), sum(len(item.data) for item in items)) as span:
            return await self._append_each(items, span)

    async def _append_each(self, items: Sequence[BatchItem], span: object = None) -> list[Outcome]:
        queues = [self._coalescer.queue(item.name) for item in items]
        call = self._begin(items, span)
        try:
            for append, queue in zip(call.appends, queues, strict=True):
                # One after the other: while this one waits, those behind it to the same segment must not
                # pass.
                if queue.is_full or queue.container in self._room_waiters:
                    await self._wait_for_room(queue, append)
                else:
                    queue.put(append)
            self._send_soon()
            if items:
                await call.reply.wait()
        finally:
            self._end(call)

        return call.outcomes

    def _begin(self, items: Sequence[BatchItem], span: object) -> AppendCall:
        call = AppendCall(items, self._context.clock() + self._context.deadline, self._events, span)
        self._waiters[call] = None
        # Only the first deadline is waited for, and later calls have later ones.
        if len(self._waiters) == 1:
            self._watch.set()
        self.appends += len(items)
        return call

    def _end(self, call: AppendCall) -> None:
        """Answered, late, or cancelled: no caller waits for it any more."""
        # What is in flight may still be applied; what waits is never sent.
        call.is_abandoned = True
        del self._waiters[call]
        if not self._waiters:
            self._drained.set()

    async def _wait_for_room(self, queue: ContainerQueue, append: PendingAppend) -> None:
        """Wait for room, behind earlier callers, until the deadline."""
        self._send_soon()
        waiters, turn = self._room_waiters.setdefault(queue.container, deque()), anyio.Event()
        waiters.append(turn)
        try:
            with anyio.move_on_after(append.call.deadline - self._context.clock()):
                await turn.wait()
            # Even if the deadline came too: the room was given to this one.
            if turn.is_set():
                queue.put(append)
            else:
                append.answer(
                    Throttled(
                        f"no room for the append within {self._context.deadline:g} s: nothing was done, slow "
                        f"down"
                    )
                )
        finally:
            waiters.remove(turn)
            if not waiters:
                del self._room_waiters[queue.container]
            # Each waiter lets the next one in, so that their order stays.
            self._admit_next(queue)

    def _admit_next(self, queue: ContainerQueue) -> None:
        waiters = self._room_waiters.get(queue.container)
        if waiters and not queue.is_full:
            waiters[0].set()

    async def watch_deadlines(self) -> None:
        """End calls at their deadline. Runs as long as the client."""
        while True:
            await self._watch.wait()
            while self._waiters:
                first = next(iter(self._waiters))
                left = first.deadline - self._context.clock()
                if left > 0:
                    await anyio.sleep(left)
                elif not first.is_abandoned:
                    first.give_up(f"no answer within {self._context.deadline:g} s")
                else:
                    # It was given up, and its caller has not run yet.
                    await anyio.lowlevel.checkpoint()
            self._watch = anyio.Event()

    async def drain(self) -> None:
        """Return once every call has ended, by the last deadline. No new calls may be made."""
        while self._waiters:
            self._drained = anyio.Event()
            await self._drained.wait()

    def end(self) -> None:
        """The client ends: end every call."""
        for call in list(self._waiters):
            call.give_up("the client was closed meanwhile")

    # --- requests --------------------------------------------------------------------------------

    def _send_soon(self) -> None:
        """Make batches once the tasks that are ready now have run, so that all their appends share them."""
        if not self._is_sending:
            self._is_sending = True
            # In a task of the client: a caller that is cancelled must not take the batch with it.
            if self._idle:
                self._idle.pop().set()
            else:
                self._tasks.start_soon(self._send_all)

    async def _send_all(self) -> None:
        while True:
            self._is_sending = False
            await self._send_on(self._start_batches())
            due = self._events.new()
            self._idle.append(due)
            await due.wait()

    def _start_batches(self) -> Batch | None:
        """Start what can go. Returns the last batch, which the task that asks sends itself: a task for each
        would cost more than to make the batch."""
        last: Batch | None = None
        # Several at once: each server has room of its own.
        while (batch := self._coalescer.take(self._has_room)) is not None:
            self._in_flight[batch.url] = self._in_flight.get(batch.url, 0) + 1
            self.batches += 1
            for queue in batch.queues:
                self._admit_next(queue)
            if last is not None:
                self._tasks.start_soon(self._send_on, last)
            last = batch
        return last

    def _has_room(self, url: str) -> bool:
        return self._in_flight.get(url, 0) < IN_FLIGHT_MAX

    async def _send_on(self, batch: Batch | None) -> None:
        """Send a batch, and then what gathered meanwhile."""
        while batch is not None:
            batch = await self._send_batch(batch)

    async def _send_batch(self, batch: Batch) -> Batch | None:
        """One request, and what its answer means. Returns the next batch."""
        try:
            call, spans = batch.call(), () if self._tracing is None else batch.spans
            send = Send(
                batch.url, call.request, batch.seconds(self._context.clock()), batch.containers, links=spans
            )
            answer = interpret(call, await self._send(send))
        finally:
            self._in_flight[batch.url] -= 1
        result = self._coalescer.complete(batch, answer, self._context.clock())
        # Answered callers run first: what they append now joins what gathered meanwhile.
        await anyio.lowlevel.checkpoint()
        following = self._free(result.free)
        if result.held:
            if following is not None:
                self._tasks.start_soon(self._send_on, following)
            await self._pause(batch, result)
            following = self._free(result.held)
        return following

    async def _pause(self, batch: Batch, result: BatchResult) -> None:
        """Before the queues continue: refresh the map, and wait unless their containers have moved."""
        if result.refresh:
            await self._refresh_map(RefreshMap(batch.generation, self._context.deadline))
            # Their new owner has refused nothing yet.
            if all(self._context.map.url_of(queue.container) != batch.url for queue in result.held):
                return

            self._context.map.asks_all = True
        await anyio.sleep(result.pause)

    def _free(self, queues: list[ContainerQueue]) -> Batch | None:
        for queue in queues:
            queue.is_busy = False
        return self._start_batches()
