"""Appends of many tasks on their way to the servers: the awaiting shell around the coalescer.

Owns: one short task for each request with appends, the pauses before a repeat, the doors of queues that are
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
from .attempts import ClientContext, RefreshMap, Send
from .coalescer import AppendCall, Batch, BatchResult, Coalescer, ContainerQueue, PendingAppend
from .requests import Response, TransportFailure, interpret
from .spans import around_appends

FLYING_MAX = 4
"""Requests with appends to one server at a time."""


class Appender:
    def __init__(
        self,
        context: ClientContext,
        send: Callable[[Send], Awaitable[Response | TransportFailure]],
        look: Callable[[RefreshMap], Awaitable[None]],
        tasks: anyio.abc.TaskGroup,
        events: EventSource,
        tracing: Tracing | None = None,
    ) -> None:
        self._context = context
        self._send = send
        self._refresh_map = look
        self._tasks = tasks
        self._coalescer = Coalescer(context.map, context.random)
        self._events = events
        self._tracing = tracing
        self._flying: dict[str, int] = {}
        self._is_pumping = False
        self._doors: dict[int, deque[anyio.Event]] = {}
        """Who waits for room in a queue, in order."""
        self._waiters: dict[AppendCall, None] = {}
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
        queue = self._coalescer.queue(item.name)
        call = self._begin((item,), span)
        try:
            if queue.is_full or queue.container in self._doors:
                await self._enter_in_turn(queue, call.appends[0])
            else:
                queue.put(call.appends[0])
            if not self._is_pumping:
                self._pump_soon()
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
                if queue.is_full or queue.container in self._doors:
                    await self._enter_in_turn(queue, append)
                else:
                    queue.put(append)
            self._pump_soon()
            if items:
                await call.reply.wait()
        finally:
            self._end(call)

        return call.outcomes

    def _begin(self, items: Sequence[BatchItem], span: object) -> AppendCall:
        call = AppendCall(items, self._context.clock() + self._context.deadline, self._events, span)
        self._waiters[call] = None
        if len(self._waiters) == 1:
            self._watch.set()
        self.appends += len(items)
        return call

    def _end(self, call: AppendCall) -> None:
        """Answered, late, or cancelled: nobody waits for it any more."""
        call.is_abandoned = True
        del self._waiters[call]
        if not self._waiters:
            self._drained.set()

    async def _enter_in_turn(self, queue: ContainerQueue, append: PendingAppend) -> None:
        """Wait for room, behind those who came before. A call that is too late gives up at its deadline,
        here too."""
        self._pump_soon()
        door, turn = self._doors.setdefault(queue.container, deque()), anyio.Event()
        door.append(turn)
        try:
            with anyio.move_on_after(append.call.deadline - self._context.clock()):
                await turn.wait()
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
            door.remove(turn)
            if not door:
                del self._doors[queue.container]
            self._open_door(queue)

    def _open_door(self, queue: ContainerQueue) -> None:
        door = self._doors.get(queue.container)
        if door and not queue.is_full:
            door[0].set()

    async def watch_deadlines(self) -> None:
        """Tell those whose time is over. Runs as long as the client."""
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
                    await anyio.lowlevel.checkpoint()
            self._watch = anyio.Event()

    async def drain(self) -> None:
        """Return when nobody waits any more, by the last deadline. Nothing new may come."""
        while self._waiters:
            self._drained = anyio.Event()
            await self._drained.wait()

    def end(self) -> None:
        """The client ends: tell everybody who still waits."""
        for call in list(self._waiters):
            call.give_up("the client was closed meanwhile")

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
            for queue in batch.queues:
                self._open_door(queue)
            self._tasks.start_soon(self._carry, batch)

    def _has_room(self, url: str) -> bool:
        return self._flying.get(url, 0) < FLYING_MAX

    async def _carry(self, batch: Batch) -> None:
        """One request and what its answer means."""
        try:
            call, spans = batch.call(), () if self._tracing is None else batch.spans
            send = Send(
                batch.url, call.request, batch.seconds(self._context.clock()), batch.containers, links=spans
            )
            answer = interpret(call, await self._send(send))
        finally:
            self._flying[batch.url] -= 1
        sorted = self._coalescer.settle(batch, answer, self._context.clock())
        # Those who were answered run first: what they append now travels with what gathered meanwhile.
        await anyio.lowlevel.checkpoint()
        self._free(sorted.free)
        if sorted.held:
            await self._hold(batch, sorted)
            self._free(sorted.held)

    async def _hold(self, batch: Batch, sorted: BatchResult) -> None:
        """Before the queues go on: look where their containers are, and wait unless that helped."""
        if sorted.refresh:
            await self._refresh_map(RefreshMap(batch.generation, self._context.deadline))
            if all(self._context.map.url_of(queue.container) != batch.url for queue in sorted.held):
                return

        await anyio.sleep(sorted.pause)

    def _free(self, queues: list[ContainerQueue]) -> None:
        for queue in queues:
            queue.is_busy = False
        self._start_batches()
