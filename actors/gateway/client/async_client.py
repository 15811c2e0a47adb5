"""``Client``: the verbs of a store over HTTP, on asyncio and trio.

All verbs are safe to call from many tasks of the event loop that opened the client. Each ends by its
deadline, except ``tail``, which waits for bytes as long as its caller does. Cancelling one that changes
something leaves its outcome unknown; the client stays usable."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TypeVar, overload

import anyio
import anyio.abc
import httpx

from ....storage_backends.base.arguments import (
    JoinedAppend,
    WriterId,
    check_history,
    check_offset,
    check_size,
)
from ....storage_backends.base.backups import (
    UNDO_SECONDS,
    Backup,
    check_backup_name,
    make_backup,
    remove_backup,
    undo,
)
from ....storage_backends.base.checksum import Buffer
from ....storage_backends.base.errors import ClosedError, TierlogError
from ....storage_backends.base.list_pages import SEGMENTS, TRANSACTIONS, PageAsked
from ....storage_backends.base.names import check_segment_name
from ....storage_backends.base.segment_layout import SegmentLayout
from ....storage_backends.base.segments import (
    ATTRIBUTE_PAGE,
    SEGMENTS_PAGE_MAX,
    AttributeName,
    AttributePage,
    AttributeUpdate,
    SegmentInfo,
    SegmentPage,
)
from ....storage_backends.base.table import Table
from ....storage_backends.base.transactions import (
    LEASE_DEFAULT,
    TRANSACTIONS_PAGE_MAX,
    CommitResult,
    StagedPart,
    TransactionInfo,
    TransactionPage,
    TransactionToken,
)
from ....storage_backends.base.verbs import SegmentVerbs
from ...kernel.contexts import Closable
from ...kernel.event_source import EventSource
from ...kernel.task_groups import body_group
from ...kernel.use_guard import GuardedGenerator, UseGuard
from ...telemetry.tracing import Tracing
from ..wire.batch import BatchItem, Outcome
from ..wire.bodies import HostStatus
from . import attempts, requests, tables
from .appends import Appender
from .attempts import ClientContext, Pause, Program, RefreshMap, Send
from .base import ClientBase, ClientStatistics, render
from .coalescer import with_refusals
from .requests import Response, TailCursor, TransportFailure
from .sessions import Dial, Sessions
from .spans import TracingPool, around
from .transport import AsyncTransport

T = TypeVar("T")


class Client(ClientBase, Closable, SegmentVerbs):
    """Made by ``tierlog.connect``. The end of the ``async with`` body closes it, or ``aclose``.

    Concurrent appends share requests. When a connection breaks meanwhile, an append with a ``writer_id`` or
    an ``expected_offset`` is sent again; a plain one raises ``OutcomeUnknown``, because a repeat could not be
    distinguished from a second append. ``create_segment`` raises ``OutcomeUnknown`` if the segment exists and
    may be this call's own. ``flush`` and the lists concern all hosts."""

    def __init__(
        self,
        context: ClientContext,
        transport: AsyncTransport,
        tasks: anyio.abc.TaskGroup,
        events: EventSource,
        tracing: Tracing | None = None,
    ) -> None:
        super().__init__(context, tracing, UseGuard("client"))
        self._transport = transport
        self._tasks = tasks
        self._refresh_lock = anyio.Lock()
        self._has_ended = False
        """Nothing may be sent any more. A closed client still finishes its appends, which takes requests."""
        self._tables = tables.ClientTables(self._run)
        self._appender = Appender(context, transport, self._refresh_map, tasks, events, tracing)

    # --- changing --------------------------------------------------------------------------------

    async def create_segment(
        self, name: str, *, rolling_size: int | None = None, exist_ok: bool = False
    ) -> None:
        await self._run(requests.create_segment(name, rolling_size, exist_ok))

    @overload
    async def append(
        self, name: str, data: Buffer, *, expected_offset: int | None = None, history: int | None = None
    ) -> int: ...
    @overload
    async def append(
        self,
        name: str,
        data: Buffer,
        *,
        writer_id: WriterId | None = None,
        event_number: int | None = None,
        previous_event_number: int | None = None,
        expected_offset: int | None = None,
        history: int | None = None,
    ) -> int | None: ...
    async def append(
        self,
        name: str,
        data: Buffer,
        *,
        writer_id: WriterId | None = None,
        event_number: int | None = None,
        previous_event_number: int | None = None,
        expected_offset: int | None = None,
        history: int | None = None,
    ) -> int | None:
        self._check()
        item = self._append_item(
            name, data, writer_id, event_number, previous_event_number, expected_offset, history
        )
        return await self._append(item)

    @overload
    async def append_many(
        self,
        name: str,
        events: Iterable[Buffer],
        *,
        expected_offset: int | None = None,
        history: int | None = None,
    ) -> int: ...
    @overload
    async def append_many(
        self,
        name: str,
        events: Iterable[Buffer],
        *,
        writer_id: WriterId | None = None,
        first_event_number: int | None = None,
        previous_event_number: int | None = None,
        expected_offset: int | None = None,
        history: int | None = None,
    ) -> int | None: ...
    async def append_many(
        self,
        name: str,
        events: Iterable[Buffer],
        *,
        writer_id: WriterId | None = None,
        first_event_number: int | None = None,
        previous_event_number: int | None = None,
        expected_offset: int | None = None,
        history: int | None = None,
    ) -> int | None:
        self._check()
        item = self._append_many_item(
            name, events, writer_id, first_event_number, previous_event_number, expected_offset, history
        )
        return await self._append(item)

    async def append_each(self, appends: Sequence[JoinedAppend]) -> list[Outcome]:
        self._check()
        items, refusals = await self._drive(self._checked_items(appends))
        return with_refusals(refusals, await self._appender.append_each(items))

    async def seal_segment(self, name: str) -> int:
        return await self._run(requests.seal_segment(name))

    async def truncate_segment(self, name: str, offset: int, *, history: int | None = None) -> None:
        await self._run(requests.truncate_segment(name, offset, history))

    async def delete_segment(self, name: str) -> None:
        await self._run(requests.delete_segment(name))

    async def merge_segments(
        self, target: str, sources: Sequence[str], *, attribute_updates: Sequence[AttributeUpdate] = ()
    ) -> int:
        return await self._run(requests.merge_segments(target, sources, attribute_updates))

    async def update_attributes(
        self, name: str, updates: Sequence[AttributeUpdate]
    ) -> dict[AttributeName, int]:
        return await self._run(requests.update_attributes(name, updates))

    async def expire_writers(self, name: str, writer_ids: Iterable[WriterId]) -> int:
        return await self._run(requests.expire_writers(name, writer_ids))

    async def create_table(self, name: str, *, exist_ok: bool = False) -> None:
        await self._run(tables.create_table(name, exist_ok))

    def table(self, name: str) -> Table:
        check_segment_name(name)
        return Table(self._tables, name)

    # --- reading ---------------------------------------------------------------------------------

    async def read(self, name: str, offset: int, size: int, *, history: int | None = None) -> bytes:
        return await self._run(requests.read(name, offset, size, history))

    def tail(
        self, name: str, offset: int = 0, *, block_size: int = 1 << 20, history: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        return GuardedGenerator(self._guard, self._tail(name, offset, block_size, history))

    async def _tail(
        self, name: str, offset: int, block_size: int, history: int | None
    ) -> AsyncGenerator[bytes, None]:
        check_offset(offset)
        check_size(block_size, "block_size")
        tail = TailCursor(name, offset, block_size, check_history(history))
        # A poll and a stream in turn: the poll finds the owner and raises the errors, the stream costs no
        # requests.
        while not tail.is_over:
            for block in tail.take_poll(await self._run(tail.poll())):
                yield block
            if tail.is_at_end and not tail.is_over:
                # The poll may have been answered while the client closed: nothing would end the stream.
                self._check_ended()
                send, starts = attempts.stream(self._context, tail)
                async with self._transport.stream(send) as stream:
                    await stream.open(starts, self._tracing)
                    del send, starts
                    while data := await stream.next():
                        for block in tail.take(data):
                            yield block
                    if stream.is_idle:
                        tail.note_idle()

    async def poll(
        self, name: str, offset: int, wait: float, *, history: int | None = None
    ) -> requests.PollResult:
        """One step of ``tail``: returns the next bytes from ``offset`` on as soon as there are any, or none
        after ``wait`` seconds (0 to 60); ``sealed`` if there never will be any."""
        return await self._run(requests.poll(name, offset, wait, history))

    async def segment_info(self, name: str) -> SegmentInfo:
        return await self._run(requests.segment_info(name))

    async def append_starts(self, name: str, start: int, end: int) -> list[int]:
        return await self._run(requests.append_starts(name, start, end))

    async def segment_layout(self, name: str, start: int, end: int) -> SegmentLayout:
        return await self._run(requests.segment_layout(name, start, end))

    async def list_segments(self, prefix: str = "") -> list[str]:
        self._check()
        return await self._drive(attempts.list_segments(self._context, prefix))

    async def page_of_segments(
        self, prefix: str = "", *, token: str | None = None, limit: int = SEGMENTS_PAGE_MAX
    ) -> SegmentPage:
        self._check()
        asked = PageAsked.of(SEGMENTS, prefix, token, limit)
        return await self._drive(attempts.page_of_segments(self._context, asked))

    async def list_attributes(
        self,
        name: str,
        prefix: AttributeName = "",
        *,
        after: AttributeName | None = None,
        limit: int = ATTRIBUTE_PAGE,
    ) -> AttributePage:
        return await self._run(requests.list_attributes(name, prefix, after, limit))

    async def last_event_number(self, name: str, writer_id: WriterId) -> int | None:
        return await self._run(requests.last_event_number(name, writer_id))

    # --- transactions ----------------------------------------------------------------------------

    async def begin_transaction(
        self,
        target: str,
        transaction_id: str,
        token: TransactionToken | None = None,
        lease: float = LEASE_DEFAULT,
    ) -> TransactionInfo:
        return await self._run(requests.begin_transaction(target, transaction_id, token, lease))

    async def stage_segment(self, target: str, transaction_id: str, part: str) -> str:
        return await self._run(requests.stage_segment(target, transaction_id, part))

    async def commit_transaction(
        self,
        target: str,
        transaction_id: str,
        parts: Sequence[StagedPart],
        token: TransactionToken | None = None,
    ) -> CommitResult:
        return await self._run(requests.commit_transaction(target, transaction_id, parts, token))

    async def abort_transaction(self, target: str, transaction_id: str, reason: str = "") -> TransactionInfo:
        return await self._run(requests.abort_transaction(target, transaction_id, reason))

    async def transaction_info(self, target: str, transaction_id: str) -> TransactionInfo:
        return await self._run(requests.transaction_info(target, transaction_id))

    async def list_transactions(self, prefix: str = "") -> list[TransactionInfo]:
        self._check()
        return await self._drive(attempts.list_transactions(self._context, prefix))

    async def page_of_transactions(
        self, prefix: str = "", *, token: str | None = None, limit: int = TRANSACTIONS_PAGE_MAX
    ) -> TransactionPage:
        self._check()
        asked = PageAsked.of(TRANSACTIONS, prefix, token, limit)
        return await self._drive(attempts.page_of_transactions(self._context, asked))

    # --- the whole store -------------------------------------------------------------------------

    async def flush(self) -> None:
        self._check()
        await self._drive(attempts.call_all_hosts(self._context, requests.flush()))

    async def backup(self, name: str) -> None:
        check_backup_name(name)
        await self.flush()  # all hosts before their containers, one by one
        token = f"{self._context.random.getrandbits(128):032x}"
        steps = make_backup(name, token, len(self._context.map.assignments))
        try:
            await self._drive(attempts.take_steps(self._context, steps))
        except TierlogError:
            raise
        except BaseException:
            # P3: otherwise the containers learn by its silence that nobody goes on with it.
            with anyio.move_on_after(UNDO_SECONDS, shield=True):
                await self._drive(attempts.take_steps(self._context, undo(steps)))
            raise

    async def backups(self) -> list[Backup]:
        return await self._run(requests.backups())

    async def remove_backup(self, name: str) -> None:
        self._check()
        steps = remove_backup(check_backup_name(name), len(self._context.map.assignments))
        await self._drive(attempts.take_steps(self._context, steps))

    async def health(self) -> HostStatus:
        """Returns the status of the server at the client's URL, available or not.

        ``ready`` tells whether every container is served, ``draining`` whether the server is about to stop,
        and ``containers`` has the ``container`` number and the ``state`` of each: of all containers from a
        supervisor, of its own from a host.

        Raises ``Unavailable`` if the server does not answer within ``deadline``.
        """
        return await self._run(requests.host_status())

    def statistics(self) -> ClientStatistics:
        """A frozen snapshot of this client's counters."""
        appender = self._appender
        return ClientStatistics(
            self._transport.requests,
            appender.appends,
            appender.batches,
            appender.waiting,
            self._transport.in_flight,
            self._context.map.generation,
        )

    def metrics(self) -> bytes:
        """The client's statistics in Prometheus' text format."""
        return render(self.statistics)

    # --- inside ----------------------------------------------------------------------------------

    async def _run(self, call: requests.Call[T]) -> T:
        self._check()
        with around(self._tracing, call):
            return await self._drive(attempts.run_call(self._context, call))

    def _append(self, item: BatchItem) -> Awaitable[int | None]:
        if len(item.data) > self._context.map.append_bytes_max:
            return self._append_large(item)

        return self._appender.append(item)

    async def _append_large(self, item: BatchItem) -> int | None:
        await self._drive(self._check_size(len(item.data)))
        return await self._appender.append(item)

    async def _drive(self, program: Program[T]) -> T:
        result: Response | TransportFailure | None = None
        while True:
            try:
                effect = program.send(result)
            except StopIteration as ended:
                value: T = ended.value
                return value

            result = None
            if isinstance(effect, Send):
                self._check_ended()
                result = await self._transport.send(effect)
            elif isinstance(effect, Pause):
                await anyio.sleep(effect.seconds)
            else:
                await self._refresh_map(effect)

    def _check_ended(self) -> None:
        if self._has_ended:  # while this call paused, or got an answer
            raise ClosedError("the client was closed during the call: nothing more was sent")

    async def _refresh_map(self, wanted: RefreshMap) -> None:
        """Refresh the map, unless another task did meanwhile. If that task is cancelled, the next one in line
        takes over."""
        with anyio.move_on_after(wanted.seconds):
            async with self._refresh_lock:
                # Of many calls that failed together, the first one asks for all.
                if self._context.map.generation == wanted.generation:
                    # A client that has ended needs no map: its calls end by themselves.
                    with suppress(ClosedError):
                        await self._drive(attempts.refresh_map(self._context, wanted.seconds))
                    # The new map may show that what they wait for will never come.
                    self._transport.end_pointless()

    async def _watch(self) -> None:
        """While attempts wait long for an answer, keep the container map fresh."""
        while True:
            await anyio.sleep(self._context.map_refresh)
            # A frozen host does not even refuse: only the map shows that its containers have moved.
            if self._transport.may_be_pointless:
                await self._refresh_map(RefreshMap(self._context.map.generation, attempts.WATCH_SECONDS))

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Client]:
        """Usable inside the body. At its end, appends with waiting callers are finished; if the body fails,
        they end with an error."""
        self._tasks.start_soon(self._appender.watch_deadlines)
        self._tasks.start_soon(self._appender.send)
        # Every request needs it: the number of containers decides where a segment is.
        await self._drive(attempts.load_first_map(self._context))
        # After the first map, which it would ask for a second time.
        self._tasks.start_soon(self._watch)
        try:
            yield self
            # From here on no new calls, or the end could be put off forever.
            self._is_closed = True
            await self._appender.drain()
        finally:
            self._is_closed = self._has_ended = True
            # Nobody sends them now: without an answer their callers would wait.
            self._appender.end()


@asynccontextmanager
async def open_client(
    context: ClientContext,
    make: Callable[[], httpx.AsyncBaseTransport],
    events: EventSource,
    tracing: Tracing | None = None,
    dial: Dial | None = None,
) -> AsyncIterator[Client]:
    # Without tracing no layer in between: it would cost each request.
    pools = make if tracing is None else lambda: TracingPool(make(), tracing)
    transport = AsyncTransport(context.map, pools, tracing)
    try:
        async with body_group() as tasks:
            transport.sessions = None if dial is None else Sessions(dial, tasks, events)
            try:
                async with Client(context, transport, tasks, events, tracing).open() as client:
                    yield client
            finally:
                tasks.cancel_scope.cancel()
    finally:
        await transport.aclose()
