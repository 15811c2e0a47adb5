"""``SyncClient``: the same verbs as plain functions, for executors, notebooks and scripts.

Owns: how programs are carried out without an event loop. Does not own: requests, retries (see the package).

Safe to use from many threads, each call with a connection of its own. Appends of several threads do not
travel together: ``append_each`` and ``append_many`` are the way to be fast here. Ctrl-C in a call that
changes something leaves its outcome unknown.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import httpx

from ....storage_backends.base.arguments import JoinedAppend, WriterId, check_offset, check_size
from ....storage_backends.base.checksum import Buffer
from ....storage_backends.base.errors import ClosedError, TierlogError
from ....storage_backends.base.names import check_segment_name
from ....storage_backends.base.segments import AttributeUpdate, SegmentInfo
from ....storage_backends.base.transactions import (
    LEASE_DEFAULT,
    CommitResult,
    StagedPart,
    TransactionInfo,
    TransactionToken,
)
from ...kernel.fork_guard import forks
from ...kernel.one_shot import EventSource
from ...telemetry.tracing import Tracing
from ..wire.batch import BatchItem, Outcome
from ..wire.documents import HostStatus
from . import calls, conversation, transactions
from .calls import Lost, Response
from .coalescer import Batch, Coalescer, Parcel, Sorted, checked_items, told
from .conversation import Look, Pause, Program, Send, Terms
from .spans import SyncTracingPool, around, around_appends
from .statistics import ClientStatistics
from .tailing import POLL_SECONDS, Tail
from .transport import SyncTransport

T = TypeVar("T")


class SyncClient:
    """Made by ``tierlog.connect_sync``; usable inside its ``with`` body. Its verbs are those of
    ``Client``."""

    append_bytes_max = calls.APPEND_BYTES_MAX

    def __init__(
        self,
        terms: Terms,
        transport: SyncTransport,
        sleep: Callable[[float], None],
        tracing: Tracing | None = None,
    ) -> None:
        self._terms = terms
        self._transport = transport
        self._sleep = sleep
        self._tracing = tracing
        self._looking = threading.Lock()
        self._appends = self._batches = 0
        self._forks = forks.count
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<SyncClient of {self._terms.map.base}{', closed' if self._is_closed else ''}>"

    # --- changing --------------------------------------------------------------------------------

    def create_segment(self, name: str, *, rolling_size: int | None = None) -> None:
        self._run(calls.create_segment(name, rolling_size))

    def append(
        self,
        name: str,
        data: Buffer,
        *,
        writer_id: WriterId | None = None,
        event_number: int | None = None,
        previous_event_number: int | None = None,
        expected_offset: int | None = None,
    ) -> int | None:
        item = calls.append_item(name, data, writer_id, event_number, previous_event_number, expected_offset)
        return self._append(item)

    def append_many(
        self,
        name: str,
        events: Iterable[Buffer],
        *,
        writer_id: WriterId | None = None,
        first_event_number: int | None = None,
        previous_event_number: int | None = None,
        expected_offset: int | None = None,
    ) -> int | None:
        item = calls.append_many_item(
            name, events, writer_id, first_event_number, previous_event_number, expected_offset
        )
        return self._append(item)

    def append_each(self, appends: Sequence[JoinedAppend]) -> list[Outcome]:
        self._check()
        items, refusals = checked_items(appends)
        return told(refusals, self._append_each(items))

    def seal_segment(self, name: str) -> int:
        return self._run(calls.seal_segment(name))

    def truncate_segment(self, name: str, offset: int) -> None:
        self._run(calls.truncate_segment(name, offset))

    def delete_segment(self, name: str) -> None:
        self._run(calls.delete_segment(name))

    def merge_segments(
        self, target: str, sources: Sequence[str], *, attribute_updates: Sequence[AttributeUpdate] = ()
    ) -> int:
        return self._run(calls.merge_segments(target, sources, attribute_updates))

    def update_attributes(self, name: str, updates: Sequence[AttributeUpdate]) -> dict[str, int]:
        return self._run(calls.update_attributes(name, updates))

    def expire_writers(self, name: str, writer_ids: Iterable[WriterId]) -> int:
        return self._run(calls.expire_writers(name, writer_ids))

    # --- reading ---------------------------------------------------------------------------------

    def read(self, name: str, offset: int, size: int) -> bytes:
        return self._run(calls.read(name, offset, size))

    def tail(self, name: str, offset: int = 0, *, block_size: int = 1 << 20) -> Iterator[bytes]:
        check_offset(offset)
        check_size(block_size, "block_size")
        tail = Tail(offset, block_size)
        while not tail.is_over:
            yield from tail.take(self._run(calls.poll(name, tail.position, POLL_SECONDS)))

    def poll(self, name: str, offset: int, wait: float) -> calls.Polled:
        return self._run(calls.poll(name, offset, wait))

    def segment_info(self, name: str) -> SegmentInfo:
        return self._run(calls.segment_info(name))

    def append_starts(self, name: str, start: int, end: int) -> list[int]:
        return self._run(calls.append_starts(name, start, end))

    def list_segments(self, prefix: str = "") -> list[str]:
        self._check()
        return self._drive(conversation.list_segments(self._terms, prefix))

    def last_event_number(self, name: str, writer_id: WriterId) -> int | None:
        return self._run(calls.last_event_number(name, writer_id))

    # --- transactions ----------------------------------------------------------------------------

    def begin_transaction(
        self,
        target: str,
        transaction_id: str,
        token: TransactionToken | None = None,
        lease: float = LEASE_DEFAULT,
    ) -> TransactionInfo:
        return self._run(transactions.begin_transaction(target, transaction_id, token, lease))

    def stage_segment(self, target: str, transaction_id: str, part: str) -> str:
        return self._run(transactions.stage_segment(target, transaction_id, part))

    def commit_transaction(
        self,
        target: str,
        transaction_id: str,
        parts: Sequence[StagedPart],
        token: TransactionToken | None = None,
    ) -> CommitResult:
        return self._run(transactions.commit_transaction(target, transaction_id, parts, token))

    def abort_transaction(self, target: str, transaction_id: str, reason: str = "") -> TransactionInfo:
        return self._run(transactions.abort_transaction(target, transaction_id, reason))

    def transaction_info(self, target: str, transaction_id: str) -> TransactionInfo:
        return self._run(transactions.transaction_info(target, transaction_id))

    def list_transactions(self, prefix: str = "") -> list[TransactionInfo]:
        self._check()
        return self._drive(transactions.list_transactions(self._terms, prefix))

    # --- the whole store -------------------------------------------------------------------------

    def flush(self) -> None:
        self._check()
        self._drive(conversation.everywhere(self._terms, calls.flush()))

    def health(self) -> HostStatus:
        return self._run(calls.ready())

    def statistics(self) -> ClientStatistics:
        return ClientStatistics(
            self._transport.requests,
            self._appends,
            self._batches,
            0,
            self._transport.in_flight,
            self._terms.map.looks,
        )

    def metrics(self) -> bytes:
        from ...telemetry.metrics import render_metrics

        return render_metrics(lambda: (self.statistics(),))

    def container_of(self, name: str) -> int:
        check_segment_name(name)
        return self._terms.map.container_of(name)

    def open(self) -> None:
        """Find the server."""
        self._drive(conversation.opening(self._terms))

    def close(self) -> None:
        """Refuse further calls, and close the connections."""
        self._is_closed = True
        self._transport.close()

    # --- inside ----------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._is_closed:
            raise ClosedError("the client is closed: use it inside its `with` body")

        if self._forks != forks.count:
            raise ClosedError(
                "this client was opened by the parent of this forked process: open one here, after the fork"
            )

    def _append(self, item: BatchItem) -> int | None:
        self._check()
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
        """The coalescer, for the appends of this call: a batch to each server after the other."""
        terms = self._terms
        coalescer = Coalescer(terms.map, terms.random)
        parcel = Parcel(items, terms.clock() + terms.deadline, EventSource())
        for entry in parcel.entries:
            entry.alone = entry.alone or len(items) == 1
            coalescer.lane(entry.item.name).put(entry)
        self._appends += len(items)
        while (batch := coalescer.take(lambda url: True)) is not None:
            left = batch.seconds(terms.clock())
            if left <= 0:
                parcel.give_up(f"no answer within {terms.deadline:g} s")
                break

            self._batches += 1
            call = batch.call()
            answer = calls.understand(
                call, self._transport.send(Send(batch.url, call.request, left, batch.containers))
            )
            self._prepare(batch, coalescer.settle(batch, answer, terms.clock()))

        return parcel.outcomes

    def _prepare(self, batch: Batch, sorted: Sorted) -> None:
        if sorted.held and sorted.refresh:
            self._look(Look(batch.looks, self._terms.deadline))
        if any(self._terms.map.url_of(lane.container) == batch.url for lane in sorted.held):
            self._sleep(sorted.pause)
        for lane in batch.lanes:
            lane.is_busy = False

    def _run(self, call: calls.Call[T]) -> T:
        self._check()
        with around(self._tracing, call):
            return self._drive(conversation.converse(self._terms, call))

    def _drive(self, program: Program[T]) -> T:
        result: Response | Lost | None = None
        while True:
            try:
                effect = program.send(result)
            except StopIteration as ended:
                value: T = ended.value
                return value

            result = None
            if isinstance(effect, Send):
                self._check()
                result = self._transport.send(effect)
            elif isinstance(effect, Pause):
                self._sleep(effect.seconds)
            else:
                self._look(effect)

    def _look(self, look: Look) -> None:
        """Get a newer map, if no other thread did meanwhile."""
        if self._looking.acquire(timeout=max(look.seconds, 0.0)):
            try:
                if self._terms.map.looks == look.looks:
                    self._drive(conversation.look(self._terms, look.seconds))
            finally:
                self._looking.release()


@contextmanager
def open_sync_client(
    terms: Terms,
    make: Callable[[], httpx.BaseTransport],
    sleep: Callable[[float], None],
    tracing: Tracing | None = None,
) -> Iterator[SyncClient]:
    pools = make if tracing is None else lambda: SyncTracingPool(make(), tracing)
    client = SyncClient(terms, SyncTransport(terms.map, pools, terms.clock), sleep, tracing)
    try:
        client.open()
        yield client
    finally:
        client.close()
