"""``SyncClient``: the same verbs as plain functions, for executors, notebooks and scripts.

Safe to use from many threads, each call with a connection of its own. Appends of several threads do not share
requests: ``append_each`` and ``append_many`` are the fast ways here. Ctrl-C in a call that changes something
leaves its outcome unknown.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar, overload

import httpx

from ....storage_backends.base.arguments import (
    JoinedAppend,
    WriterId,
    check_history,
    check_offset,
    check_size,
)
from ....storage_backends.base.backups import (
    Backup,
    check_backup_name,
    make_backup,
    remove_backup,
    undo,
)
from ....storage_backends.base.checksum import Buffer
from ....storage_backends.base.errors import TierlogError
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
from ....storage_backends.base.transactions import (
    LEASE_DEFAULT,
    TRANSACTIONS_PAGE_MAX,
    CommitResult,
    StagedPart,
    TransactionInfo,
    TransactionPage,
    TransactionToken,
)
from ....storage_backends.base.verbs import SegmentVerbs, copy_docstrings
from ...kernel.event_source import EventSource
from ...kernel.use_guard import UseGuard
from ...telemetry.tracing import Tracing
from ..wire.batch import BatchItem, Outcome
from ..wire.bodies import HostStatus
from . import attempts, requests, tables
from .async_client import Client
from .attempts import ClientContext, Pause, Program, RefreshMap, Send
from .base import ClientBase, ClientStatistics, render
from .coalescer import AppendCall, Batch, BatchResult, Coalescer, with_refusals
from .requests import Response, TailCursor, TransportFailure
from .spans import SyncTracingPool, around, around_appends
from .sync_sessions import SyncSessions
from .tables import SyncTable
from .transport import SyncTransport

T = TypeVar("T")


@copy_docstrings(Client)
@copy_docstrings(SegmentVerbs)
class SyncClient(ClientBase):
    """Made by ``tierlog.connect_sync``; usable inside its ``with`` body. Its verbs are those of ``Client``,
    as plain functions."""

    _usage = "with"

    def __init__(
        self,
        context: ClientContext,
        transport: SyncTransport,
        sleep: Callable[[float], None],
        tracing: Tracing | None = None,
    ) -> None:
        super().__init__(context, tracing, UseGuard("client", any_thread=True))
        self._transport = transport
        self._tables = tables.ClientTables(self._run_at_once)
        self._sleep = sleep
        self._refresh_lock = threading.Lock()
        self._appends = self._batches = 0

    # --- changing --------------------------------------------------------------------------------

    def create_segment(self, name: str, *, rolling_size: int | None = None, exist_ok: bool = False) -> None:
        self._run(requests.create_segment(name, rolling_size, exist_ok))

    @overload
    def append(
        self, name: str, data: Buffer, *, expected_offset: int | None = None, history: int | None = None
    ) -> int: ...
    @overload
    def append(
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
    def append(
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
        return self._append(item)

    @overload
    def append_many(
        self,
        name: str,
        events: Iterable[Buffer],
        *,
        expected_offset: int | None = None,
        history: int | None = None,
    ) -> int: ...
    @overload
    def append_many(
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
    def append_many(
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
        return self._append(item)

    def append_each(self, appends: Sequence[JoinedAppend]) -> list[Outcome]:
        self._check()
        items, refusals = self._drive(self._checked_items(appends))
        return with_refusals(refusals, self._append_each(items))

    def seal_segment(self, name: str) -> int:
        return self._run(requests.seal_segment(name))

    def truncate_segment(self, name: str, offset: int, *, history: int | None = None) -> None:
        self._run(requests.truncate_segment(name, offset, history))

    def delete_segment(self, name: str) -> None:
        self._run(requests.delete_segment(name))

    def merge_segments(
        self, target: str, sources: Sequence[str], *, attribute_updates: Sequence[AttributeUpdate] = ()
    ) -> int:
        return self._run(requests.merge_segments(target, sources, attribute_updates))

    def update_attributes(self, name: str, updates: Sequence[AttributeUpdate]) -> dict[AttributeName, int]:
        return self._run(requests.update_attributes(name, updates))

    def expire_writers(self, name: str, writer_ids: Iterable[WriterId]) -> int:
        return self._run(requests.expire_writers(name, writer_ids))

    def create_table(self, name: str, *, exist_ok: bool = False) -> None:
        self._run(tables.create_table(name, exist_ok))

    def table(self, name: str) -> SyncTable:
        check_segment_name(name)
        return SyncTable(self._tables, name)

    # --- reading ---------------------------------------------------------------------------------

    def read(self, name: str, offset: int, size: int, *, history: int | None = None) -> bytes:
        return self._run(requests.read(name, offset, size, history))

    def tail(
        self, name: str, offset: int = 0, *, block_size: int = 1 << 20, history: int | None = None
    ) -> Iterator[bytes]:
        check_offset(offset)
        check_size(block_size, "block_size")
        tail = TailCursor(name, offset, block_size, check_history(history))
        while not tail.is_over:
            yield from tail.take_poll(self._run(tail.poll()))
            if tail.is_at_end and not tail.is_over:
                with self._transport.stream(*attempts.stream(self._context, tail)) as stream:
                    while data := stream.next():
                        yield from tail.take(data)
                    if stream.is_idle:
                        tail.note_idle()

    def poll(self, name: str, offset: int, wait: float, *, history: int | None = None) -> requests.PollResult:
        return self._run(requests.poll(name, offset, wait, history))

    def segment_info(self, name: str) -> SegmentInfo:
        return self._run(requests.segment_info(name))

    def append_starts(self, name: str, start: int, end: int) -> list[int]:
        return self._run(requests.append_starts(name, start, end))

    def segment_layout(self, name: str, start: int, end: int) -> SegmentLayout:
        return self._run(requests.segment_layout(name, start, end))

    def list_segments(self, prefix: str = "") -> list[str]:
        self._check()
        return self._drive(attempts.list_segments(self._context, prefix))

    def page_of_segments(
        self, prefix: str = "", *, token: str | None = None, limit: int = SEGMENTS_PAGE_MAX
    ) -> SegmentPage:
        self._check()
        asked = PageAsked.of(SEGMENTS, prefix, token, limit)
        return self._drive(attempts.page_of_segments(self._context, asked))

    def list_attributes(
        self,
        name: str,
        prefix: AttributeName = "",
        *,
        after: AttributeName | None = None,
        limit: int = ATTRIBUTE_PAGE,
    ) -> AttributePage:
        return self._run(requests.list_attributes(name, prefix, after, limit))

    def last_event_number(self, name: str, writer_id: WriterId) -> int | None:
        return self._run(requests.last_event_number(name, writer_id))

    # --- transactions ----------------------------------------------------------------------------

    def begin_transaction(
        self,
        target: str,
        transaction_id: str,
        token: TransactionToken | None = None,
        lease: float = LEASE_DEFAULT,
    ) -> TransactionInfo:
        return self._run(requests.begin_transaction(target, transaction_id, token, lease))

    def stage_segment(self, target: str, transaction_id: str, part: str) -> str:
        return self._run(requests.stage_segment(target, transaction_id, part))

    def commit_transaction(
        self,
        target: str,
        transaction_id: str,
        parts: Sequence[StagedPart],
        token: TransactionToken | None = None,
    ) -> CommitResult:
        return self._run(requests.commit_transaction(target, transaction_id, parts, token))

    def abort_transaction(self, target: str, transaction_id: str, reason: str = "") -> TransactionInfo:
        return self._run(requests.abort_transaction(target, transaction_id, reason))

    def transaction_info(self, target: str, transaction_id: str) -> TransactionInfo:
        return self._run(requests.transaction_info(target, transaction_id))

    def list_transactions(self, prefix: str = "") -> list[TransactionInfo]:
        self._check()
        return self._drive(attempts.list_transactions(self._context, prefix))

    def page_of_transactions(
        self, prefix: str = "", *, token: str | None = None, limit: int = TRANSACTIONS_PAGE_MAX
    ) -> TransactionPage:
        self._check()
        asked = PageAsked.of(TRANSACTIONS, prefix, token, limit)
        return self._drive(attempts.page_of_transactions(self._context, asked))

    # --- the whole store -------------------------------------------------------------------------

    def flush(self) -> None:
        self._check()
        self._drive(attempts.call_all_hosts(self._context, requests.flush()))

    def backup(self, name: str) -> None:
        check_backup_name(name)
        self.flush()  # all hosts before their containers, one by one
        token = f"{self._context.random.getrandbits(128):032x}"
        steps = make_backup(name, token, len(self._context.map.assignments))
        try:
            self._drive(attempts.take_steps(self._context, steps))
        except KeyboardInterrupt:
            # P3: otherwise the containers learn by its silence that nobody goes on with it.
            self._drive(attempts.take_steps(self._context, undo(steps)))
            raise

    def backups(self) -> list[Backup]:
        return self._run(requests.backups())

    def remove_backup(self, name: str) -> None:
        self._check()
        steps = remove_backup(check_backup_name(name), len(self._context.map.assignments))
        self._drive(attempts.take_steps(self._context, steps))

    def health(self) -> HostStatus:
        return self._run(requests.host_status())

    def statistics(self) -> ClientStatistics:
        return ClientStatistics(
            self._transport.requests,
            self._appends,
            self._batches,
            0,
            self._transport.in_flight,
            self._context.map.generation,
        )

    def metrics(self) -> bytes:
        return render(self.statistics)

    def open(self) -> None:
        """Find the server."""
        self._drive(attempts.load_first_map(self._context))

    def close(self) -> None:
        """Refuse further calls, and close the connections."""
        self._is_closed = True
        self._transport.close()

    # --- inside ----------------------------------------------------------------------------------

    def _append(self, item: BatchItem) -> int | None:
        if len(item.data) > self.append_bytes_max:
            self._drive(self._check_size(len(item.data)))
        [outcome] = self._append_each([item])
        if isinstance(outcome, TierlogError):
            raise outcome

        return outcome

    def _append_each(self, items: Sequence[BatchItem]) -> list[Outcome]:
        if self._tracing is None:
            return self._append_all(items)

        segment = items[0].name if len(items) == 1 else None
        with around_appends(self._tracing, len(items), sum(len(item.data) for item in items), segment):
            return self._append_all(items)

    def _append_all(self, items: Sequence[BatchItem]) -> list[Outcome]:
        """Runs the coalescer for the appends of this call alone: one batch after the other."""
        context = self._context
        # Of its own, because many threads may use one client.
        coalescer = Coalescer(context.map, context.random)
        call = AppendCall(items, context.clock() + context.deadline, EventSource())
        for append in call.appends:
            # A raw append, whose body is sent as it is: a batch would copy it.
            append.alone = append.alone or len(items) == 1
            coalescer.queue(append.item.name).put(append)
        self._appends += len(items)
        # There is always room: this thread sends one batch at a time.
        while (batch := coalescer.take(lambda url: True)) is not None:
            left = batch.seconds(context.clock())
            if left <= 0:
                call.give_up(f"no answer within {context.deadline:g} s")
                break

            self._batches += 1
            sent = batch.call()
            answer = requests.interpret(
                sent, self._transport.send(Send(batch.url, sent.request, left, batch.containers))
            )
            self._prepare(batch, coalescer.complete(batch, answer, context.clock()))

        return call.outcomes

    def _prepare(self, batch: Batch, result: BatchResult) -> None:
        if result.held and result.refresh:
            self._refresh_map(RefreshMap(batch.generation, self._context.deadline))
        if any(self._context.map.url_of(queue.container) == batch.url for queue in result.held):
            self._context.map.asks_all = self._context.map.asks_all or result.refresh
            self._sleep(result.pause)
        for queue in batch.queues:
            queue.is_busy = False

    async def _run_at_once(self, call: requests.Call[T]) -> T:
        """As a coroutine that never suspends."""
        return self._run(call)

    def _run(self, call: requests.Call[T]) -> T:
        self._check()
        with around(self._tracing, call):
            return self._drive(attempts.run_call(self._context, call))

    def _drive(self, program: Program[T]) -> T:
        result: Response | TransportFailure | None = None
        while True:
            try:
                effect = program.send(result)
            except StopIteration as ended:
                value: T = ended.value
                return value

            result = None
            if isinstance(effect, Send):
                # Another thread may have closed the client during a pause.
                self._check()
                result = self._transport.send(effect)
            elif isinstance(effect, Pause):
                self._sleep(effect.seconds)
            else:
                self._refresh_map(effect)

    def _refresh_map(self, wanted: RefreshMap) -> None:
        """Refresh the map, unless another thread did meanwhile."""
        # A timeout of -1 means forever.
        if self._refresh_lock.acquire(timeout=max(wanted.seconds, 0.0)):
            try:
                if self._context.map.generation == wanted.generation:
                    self._drive(attempts.refresh_map(self._context, wanted.seconds))
            finally:
                self._refresh_lock.release()


@contextmanager
def open_sync_client(
    context: ClientContext,
    make: Callable[[], httpx.BaseTransport],
    sleep: Callable[[float], None],
    tracing: Tracing | None = None,
    *,
    sessions: bool = False,
) -> Iterator[SyncClient]:
    pools = make if tracing is None else lambda: SyncTracingPool(make(), tracing)
    opened = SyncSessions(context.clock) if sessions else None
    transport = SyncTransport(context.map, pools, context.clock, opened, tracing)
    client = SyncClient(context, transport, sleep, tracing)
    try:
        client.open()
        yield client
    finally:
        client.close()
