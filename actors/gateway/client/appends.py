"""Sends the appends of many tasks: the awaiting shell around the coalescer. It has the task that begins
batches, the pauses before a repeat, the waiters for full queues, and the deadlines of callers and of batches.

Cancellation: a cancelled caller leaves. Those of its appends that were not sent yet are never sent, those
that were sent are carried out, and other callers of the same batch are not affected, because requests belong
to the client and not to callers. When the client ends without having drained, every caller that still waits
gets an error with what is known of its append."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import anyio
import anyio.abc
import anyio.lowlevel

from ....storage_backends.base.errors import Throttled, TierlogError
from ...kernel.event_source import EventSource
from ...kernel.reply import answers_of
from ...telemetry.tracing import Tracing
from ..wire.batch import BatchItem, Outcome
from .attempts import ClientContext, RefreshMap, Send
from .coalescer import AppendCall, Batch, BatchResult, Coalescer, ContainerQueue, PendingAppend
from .requests import Call, Response, TransportFailure, interpret
from .session_flight import SessionFlight
from .spans import around_appends
from .transport import AsyncTransport

IN_FLIGHT_MAX = 4
"""Requests with appends to one server at a time."""


class Appender:
    def __init__(
        self,
        context: ClientContext,
        transport: AsyncTransport,
        refresh_map: Callable[[RefreshMap], Awaitable[None]],
        tasks: anyio.abc.TaskGroup,
        events: EventSource,
        tracing: Tracing | None = None,
    ) -> None:
        self._context = context
        self._transport = transport
        self._refresh_map = refresh_map
        self._tasks = tasks
        self._coalescer = Coalescer(context.map, context.random)
        self._events = events
        self._make_answer = answers_of(events)
        self._tracing = tracing
        self._in_flight: dict[str, int] = {}
        self._is_sending = False
        """Batches are begun soon."""
        self._due = events.new()
        self._flights: dict[SessionFlight, None] = {}
        self._held: list[tuple[Batch, BatchResult]] = []
        """Batches with appends that are sent again after a pause, which begins soon."""
        self._has_ended = False
        self._room_waiters: dict[ContainerQueue, deque[anyio.Event]] = {}
        """Callers that wait for room, in order."""
        self._waiters: dict[AppendCall, None] = {}
        """Calls without an answer, in the order of their deadlines, which is that of the calls."""
        self._watch = anyio.Event()
        self._is_watching = False
        self._drained: anyio.Event | None = None
        self.batches = 0
        self.appends = 0

    @property
    def waiting(self) -> int:
        return len(self._waiters)

    # --- callers ---------------------------------------------------------------------------------

    def append(self, item: BatchItem) -> Awaitable[int | None]:
        return self._append(item) if self._tracing is None else self._append_traced(self._tracing, item)

    async def _append_traced(self, tracing: Tracing, item: BatchItem) -> int | None:
        with around_appends(tracing, item.count or 1, len(item.data), item.name) as span:
            return await self._append(item, span)

    async def _append(self, item: BatchItem, span: object = None) -> int | None:
        queue = self._coalescer.queue(item.name)
        call = self._begin((item,), span)
        try:
            # Never past callers that wait for room: the appends of a segment keep their order.
            if queue in self._room_waiters or not queue.offer(call.appends[0]):
                await self._wait_for_room(queue, call.appends[0])
            if not self._is_sending:
                self._send_soon()
            await call.reply.wait()
        finally:
            outcome = self._end(call)[0]

        if isinstance(outcome, TierlogError):
            try:
                raise outcome.with_traceback(None)  # several callers may share it
            finally:
                # The traceback has this frame: only the garbage collector would free both.
                del outcome
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
                if queue in self._room_waiters or not queue.offer(append):
                    await self._wait_for_room(queue, append)
            self._send_soon()
            if items:
                await call.reply.wait()
        finally:
            outcomes = self._end(call)

        return outcomes

    def _begin(self, items: Sequence[BatchItem], span: object) -> AppendCall:
        call = AppendCall(items, self._context.clock() + self._context.deadline, self._make_answer(), span)
        self._waiters[call] = None
        # Only the first deadline is waited for, and later calls have later ones.
        if not self._is_watching:
            self._is_watching = True
            self._watch.set()
        self.appends += len(items)
        return call

    def _end(self, call: AppendCall) -> list[Outcome]:
        """Answered, late, or cancelled: what is in flight may still be applied."""
        del self._waiters[call]
        if self._drained is not None and not self._waiters:
            self._drained.set()
        return call.end()

    async def _wait_for_room(self, queue: ContainerQueue, append: PendingAppend) -> None:
        """Wait for room, behind earlier callers, until the deadline or the end of the client."""
        if self._has_ended:
            return

        self._send_soon()
        waiters, turn = self._room_waiters.setdefault(queue, deque()), anyio.Event()
        waiters.append(turn)
        try:
            with anyio.move_on_after(append.call.deadline - self._context.clock()):
                await turn.wait()
            if self._has_ended:
                return  # it has its outcome
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
                del self._room_waiters[queue]
            # Each waiter lets the next one in, so that their order stays.
            self._admit_next(queue)

    def _admit_next(self, queue: ContainerQueue) -> None:
        waiters = self._room_waiters.get(queue)
        if waiters and not queue.is_full:
            waiters[0].set()

    async def watch_deadlines(self) -> None:
        """End batches and calls at their deadline. Runs as long as the client."""
        while True:
            await self._watch.wait()
            while self._waiters or self._flights:
                now = self._context.clock()
                for flight in [flight for flight in self._flights if flight.deadline <= now]:
                    flight.expire()
                deadlines = [flight.deadline for flight in self._flights]
                if self._waiters:
                    first = next(iter(self._waiters))
                    if first.deadline <= now and not first.is_abandoned:
                        first.give_up(f"no answer within {self._context.deadline:g} s")
                    deadlines.append(first.deadline)
                # Its caller, if it was given up, has not run yet.
                await anyio.sleep(max(0.0, min(deadlines, default=0.0) - now))
            self._watch, self._is_watching = anyio.Event(), False

    async def drain(self) -> None:
        """Return once every call has ended, by the last deadline. No new calls may be made."""
        while self._waiters:
            self._drained = anyio.Event()
            await self._drained.wait()
        self._drained = None

    def end(self) -> None:
        """The client ends: end every call."""
        self._has_ended = True
        for call in list(self._waiters):
            call.give_up("the client was closed meanwhile")
        for waiters in self._room_waiters.values():
            for turn in waiters:
                turn.set()

    # --- requests --------------------------------------------------------------------------------

    def _send_soon(self) -> None:
        """Make batches once the tasks that are ready now have run, so that all their appends share them."""
        if not self._is_sending:
            self._is_sending = True
            self._due.set()

    async def send(self) -> None:
        """Begin batches when there is something to send. Runs as long as the client: a caller that is
        cancelled must not take a batch with it. Tasks are started here only: answers are callbacks of the
        event loop, outside of any task, where anyio may not know its backend."""
        while True:
            await self._due.wait()
            self._due = self._events.new()
            self._is_sending = False
            for batch, result in self._held:
                self._tasks.start_soon(self._pause, batch, result)
            self._held.clear()
            self._start_batches()

    def _start_batches(self) -> None:
        # Several at once: each server has room of its own.
        while (batch := self._coalescer.take(self._has_room)) is not None:
            self._in_flight[batch.url] = self._in_flight.get(batch.url, 0) + 1
            self.batches += 1
            self._begin_batch(batch)
        # A queue has room, too, where what its callers have left was dropped.
        for queue in list(self._room_waiters):
            self._admit_next(queue)

    def _has_room(self, url: str) -> bool:
        return self._in_flight.get(url, 0) < IN_FLIGHT_MAX

    def _begin_batch(self, batch: Batch) -> None:
        call, spans = batch.call(), () if self._tracing is None else batch.spans
        deadline = batch.deadline
        seconds = deadline - self._context.clock()
        send = Send(batch.url, call.request, seconds, batch.containers, links=spans)
        if seconds > 0 and (session := self._transport.session_with(batch.url)) is not None:
            landed = partial(self._landed, batch, call)
            self._flights[self._transport.begin(session, send, deadline, landed)] = None
        else:
            self._tasks.start_soon(self._exchange, batch, call, send)

    async def _exchange(self, batch: Batch, call: Call[list[Outcome]], send: Send) -> None:
        """Over plain HTTP, or while there is no session yet."""
        self._answered(batch, call, await self._transport.send(send))

    def _landed(
        self,
        batch: Batch,
        call: Call[list[Outcome]],
        flight: SessionFlight,
        answer: Response | TransportFailure,
    ) -> None:
        del self._flights[flight]
        self._answered(batch, call, answer)

    def _answered(self, batch: Batch, call: Call[list[Outcome]], answer: Response | TransportFailure) -> None:
        """What the answer to a batch means."""
        if self._has_ended:  # and with it all callers
            return

        self._in_flight[batch.url] -= 1
        outcomes = interpret(call, answer)
        result = self._coalescer.complete(batch, outcomes, self._context.clock())
        if result.held:
            self._held.append((batch, result))
            self._send_soon()
        self._free(result.free)

    async def _pause(self, batch: Batch, result: BatchResult) -> None:
        """Before the queues continue: refresh the map, and wait unless their containers have moved."""
        if result.refresh:
            await self._refresh_map(RefreshMap(batch.generation, self._context.deadline))
            # Their new owner has refused nothing yet.
            if all(self._context.map.url_of(queue.container) != batch.url for queue in result.held):
                self._free(result.held)
                return

            self._context.map.asks_all = True
        await anyio.sleep(result.pause)
        self._free(result.held)

    def _free(self, queues: list[ContainerQueue]) -> None:
        for queue in queues:
            queue.is_busy = False
        # Answered callers run before: what they append now joins what gathered meanwhile.
        if self._coalescer.has_waiting:
            self._send_soon()
