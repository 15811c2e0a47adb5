"""``SyncClient``: the same verbs as plain functions, for executors, notebooks and scripts.

It is a ``Client`` in an event loop in a thread of its own (``kernel/loop_thread.py``), so threads that use
it share sessions and batches. Iterables are consumed, and most requests made, in the caller's thread: a
caller's generator may use the client itself.

Ctrl-C in a call ends it: what was not sent is never sent, and what was sent has an unknown outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import TracebackType
from typing import Any, TypeVar, overload

from ....storage_backends.base.arguments import JoinedAppend, WriterId
from ....storage_backends.base.backups import Backup
from ....storage_backends.base.checksum import Buffer
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
from ...kernel.loop_thread import LoopThread
from ..wire.batch import BatchItem, Outcome
from ..wire.bodies import HostStatus
from . import requests, tables
from .async_client import Client
from .base import ClientBase, ClientStatistics, render
from .tables import SyncTable

T = TypeVar("T")


@copy_docstrings(Client)
@copy_docstrings(SegmentVerbs)
class SyncClient(ClientBase):
    """Made by ``tierlog.connect_sync``; usable inside its ``with`` body, or from ``open`` to ``close``. Its
    verbs are those of ``Client``, as plain functions."""

    def __init__(self, loop: LoopThread[Client]) -> None:
        self._loop = loop
        self._client = loop.value
        super().__init__(self._client._context, None, loop.guard)
        self._tables = tables.ClientTables(self._run_at_once)

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
        return self._loop.run(lambda: self._client.append_each(appends))

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
        return self._loop.blocks(
            lambda: self._client.tail(name, offset, block_size=block_size, history=history)
        )

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
        return self._loop.run(lambda: self._client.list_segments(prefix))

    def page_of_segments(
        self, prefix: str = "", *, token: str | None = None, limit: int = SEGMENTS_PAGE_MAX
    ) -> SegmentPage:
        self._check()
        return self._loop.run(lambda: self._client.page_of_segments(prefix, token=token, limit=limit))

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
        return self._loop.run(lambda: self._client.list_transactions(prefix))

    def page_of_transactions(
        self, prefix: str = "", *, token: str | None = None, limit: int = TRANSACTIONS_PAGE_MAX
    ) -> TransactionPage:
        self._check()
        return self._loop.run(lambda: self._client.page_of_transactions(prefix, token=token, limit=limit))

    # --- the whole store -------------------------------------------------------------------------

    def flush(self) -> None:
        self._check()
        self._loop.run(self._client.flush)

    def backup(self, name: str) -> None:
        self._check()
        self._loop.run(lambda: self._client.backup(name))

    def backups(self) -> list[Backup]:
        return self._run(requests.backups())

    def remove_backup(self, name: str) -> None:
        self._check()
        self._loop.run(lambda: self._client.remove_backup(name))

    def health(self) -> HostStatus:
        return self._run(requests.host_status())

    def statistics(self) -> ClientStatistics:
        return self._client.statistics()

    def metrics(self) -> bytes:
        return render(self.statistics)

    def close(self) -> None:
        """Refuses further calls, and closes the connections; on any thread, and more than once.

        Calls that wait in other threads raise ``ClosedError``, except for appends that may be applied:
        ``OutcomeUnknown``. The end of the ``with`` body does the same if the body fails. Otherwise it first
        waits until the appends of other threads have ended, by their deadlines.
        """
        self._close(drains=False)

    # --- inside ----------------------------------------------------------------------------------

    def _append(self, item: BatchItem) -> int | None:
        return self._loop.run(lambda: self._client._append(item))

    async def _run_at_once(self, call: requests.Call[T]) -> T:
        """As a coroutine that never suspends."""
        return self._run(call)

    def _run(self, call: requests.Call[T]) -> T:
        self._check()
        return self._loop.run(lambda: self._client._run(call))

    def _close(self, *, drains: bool) -> None:
        self._is_closed = True
        self._loop.close(drains=drains)


class SyncConnection(AbstractContextManager[SyncClient, None]):
    """A ``SyncClient`` of the client that ``connect`` opens."""

    def __init__(self, connect: Callable[[], AbstractAsyncContextManager[Client, Any]]) -> None:
        self._connect = connect

    def __enter__(self) -> SyncClient:
        self._client = SyncClient(LoopThread("client", self._connect()))
        return self._client

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._client._close(drains=kind is None)
