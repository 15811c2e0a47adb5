"""Read-only views: the verbs of a store over snapshots of its containers, wherever these come from.

A view owns nothing and changes nothing. When a read finds that its snapshot names what is gone, it asks for a
newer one, once. Cancellation and crash leave nothing behind."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Generic, NoReturn, Protocol, TypeVar

import attrs

from ...storage_backends.base.arguments import (
    WriterId,
    check_attribute_page,
    check_history,
    check_offset,
    check_size,
    required_writer,
)
from ...storage_backends.base.chunk_storage import ChunkStorage
from ...storage_backends.base.errors import DataCorruption, SegmentNotFound, Unavailable, Unsupported
from ...storage_backends.base.list_pages import SEGMENTS, TRANSACTIONS, PageAsked, Part, all_pages, text_of
from ...storage_backends.base.names import check_segment_name, container_of
from ...storage_backends.base.segments import (
    ATTRIBUTE_PAGE,
    SEGMENTS_PAGE_MAX,
    AttributeName,
    AttributePage,
    SegmentInfo,
    SegmentPage,
)
from ...storage_backends.base.table import Table, WriterEvent
from ...storage_backends.base.tables import ChangesPage, TablePage, TableRow
from ...storage_backends.base.transactions import (
    TRANSACTIONS_PAGE_MAX,
    TransactionInfo,
    TransactionPage,
    check_transaction_id,
)
from ...storage_backends.base.verbs import ReadVerbs, copy_docstrings
from ...storage_backends.segments.storage import ChunkedSegmentStorage
from ...storage_backends.sorted_runs.reader import RunReader
from ...storage_backends.sorted_runs.scan import KeyRange, PageLimits
from ..container.attributes import attribute_page
from ..container.cold_segments import ColdSegments
from ..container.lost_histories import check_position
from ..container.metadata_store import LoggedMetadataStore
from ..container.requests import Request
from ..container.segments import SegmentState
from ..container.state import ContainerState
from ..container.table_pages import Position, page_of_changes, page_of_rows, rows_of_keys
from ..container.transactions import Known, find_known, known_page

T = TypeVar("T")


def refuse() -> NoReturn:
    raise Unsupported("a read-only view changes nothing")


class NoGarbage:
    """The ``GarbageSink`` of a view, which neither creates nor deletes."""

    async def track(self, names: Sequence[str]) -> None:
        refuse()

    def keep(self, names: Sequence[str]) -> None:
        refuse()

    def release(self, names: Sequence[str]) -> None:
        refuse()

    def doubt(self, names: Sequence[str]) -> None:
        refuse()


async def refuse_request(request: Request, size: int) -> object:
    refuse()


@attrs.frozen
class ContainerSnapshot(ABC):
    """One container as of one moment."""

    state: ContainerState
    metadata: LoggedMetadataStore
    storage: ChunkedSegmentStorage
    runs: RunReader
    cold: ColdSegments

    async def find(self, name: str, sid: int = 0) -> SegmentState:
        """With ``sid`` a later segment of the same name is not found. Raises ``Unavailable`` if the segment
        is cold and its rows cannot be read."""
        segment = await self.cold.find(name)
        if segment is None:
            raise SegmentNotFound(f"no segment {name!r}", segment=name)

        if sid and segment.sid != sid:
            raise SegmentNotFound.replaced(name)
        return segment

    async def last_event(self, name: str, writer: bytes) -> int | None:
        """The last event number of a writer of a segment. Raises as ``find``."""
        return await self.cold.last_event(await self.find(name), writer)

    async def table(self, name: str, sid: int = 0) -> SegmentState:
        """As ``find``, of a table. Raises ``WrongSegmentKind`` for a segment of bytes."""
        return (await self.find(name, sid)).of_kind(is_table=True)

    @abstractmethod
    async def read(self, name: str, sid: int, offset: int, size: int, history: int | None = None) -> bytes:
        """Bytes of a segment. Raises as ``find``, ``WrongSegmentKind`` for a table, and ``HistoryLost``."""

    async def readable(self, name: str, sid: int, offset: int, history: int | None) -> SegmentState:
        """The segment of a read from ``offset`` on, which is of ``history``. Raises as ``read``."""
        segment = (await self.find(name, sid)).of_kind(is_table=False)
        check_position(self.state.histories, segment, offset, segment.durable_length, history)
        return segment


class SnapshotSource(Protocol):
    """A container whose snapshots a view shows."""

    @property
    def index(self) -> int: ...
    async def snapshot(self) -> ContainerSnapshot: ...
    async def refresh(self) -> bool:
        """Take a new snapshot if the container changed since the last one; returns whether it did."""
        ...


C_co = TypeVar("C_co", bound=SnapshotSource, covariant=True)


class _OnSnapshot(Protocol):
    def __call__(self, name: str, act: Callable[[ContainerSnapshot], Awaitable[T]]) -> Awaitable[T]: ...


class _ViewTables:
    """The ``TableAccess`` of a view."""

    def __init__(self, on_snapshot: _OnSnapshot) -> None:
        self._on_snapshot = on_snapshot

    async def update(
        self,
        name: str,
        rows: Sequence[tuple[bytes, bytes | None]],
        expected: Mapping[bytes, int],
        event: WriterEvent,
    ) -> int | None:
        refuse()

    async def get(self, name: str, keys: Sequence[bytes]) -> list[TableRow | None]:
        async def get(found: ContainerSnapshot) -> list[TableRow | None]:
            return await rows_of_keys(found.state, found.runs, await found.table(name), keys)

        return await self._on_snapshot(name, get)

    async def page(
        self, name: str, start: bytes, end: bytes | None, token: str | None, limit: int
    ) -> TablePage:
        position, limits = Position.of_rows(name, KeyRange(start, end), token), PageLimits(limit)

        async def page(found: ContainerSnapshot) -> TablePage:
            table = await found.table(name, position.sid)
            return await page_of_rows(found.state, found.runs, table, position, limits)

        return await self._on_snapshot(name, page)

    async def changes(self, name: str, since: int, token: str | None, limit: int) -> ChangesPage:
        position, limits = Position.of_changes(name, since, token), PageLimits(limit)

        async def page(found: ContainerSnapshot) -> ChangesPage:
            table = await found.table(name, position.sid)
            return await page_of_changes(found.state, found.runs, table, position, limits)

        return await self._on_snapshot(name, page)


async def on_snapshot(container: SnapshotSource, act: Callable[[ContainerSnapshot], Awaitable[T]]) -> T:
    """What ``act`` returns, of the newest snapshot if the one before does not do."""
    snapshot = await container.snapshot()
    try:
        return await act(snapshot)
    except (DataCorruption, Unavailable):
        # A living owner may have deleted a chunk or a run that this snapshot still refers to.
        if not await container.refresh():
            raise
    return await act(await container.snapshot())


def _without_clock(known: Known) -> TransactionInfo:
    return attrs.evolve(known.info, expires_in=math.inf)


@copy_docstrings(ReadVerbs)
class SegmentView(Generic[C_co]):
    """The verbs that read, over the snapshots of all containers of a store."""

    def __init__(self, containers: Sequence[C_co], chunks: ChunkStorage) -> None:
        self.containers = containers
        self.chunks = chunks

    async def segment_info(self, name: str) -> SegmentInfo:
        index = self.container_of(name)

        async def info(snapshot: ContainerSnapshot) -> SegmentInfo:
            return (await snapshot.find(name)).info(index, snapshot.state.history)

        return await self._on_snapshot(name, info)

    async def list_attributes(
        self,
        name: str,
        prefix: AttributeName = "",
        *,
        after: AttributeName | None = None,
        limit: int = ATTRIBUTE_PAGE,
    ) -> AttributePage:
        check_attribute_page(prefix, after, limit)

        async def page(snapshot: ContainerSnapshot) -> AttributePage:
            segment = await snapshot.find(name)
            return await attribute_page(snapshot.state, snapshot.runs, segment, prefix, after, limit)

        return await self._on_snapshot(name, page)

    def table(self, name: str) -> Table:
        check_segment_name(name)
        return Table(_ViewTables(self._on_snapshot), name)

    async def list_segments(self, prefix: str = "") -> list[str]:
        async with aclosing(all_pages(self.page_of_segments, prefix)) as pages:
            return [name async for page in pages for name in page.names]

    async def page_of_segments(
        self, prefix: str = "", *, token: str | None = None, limit: int = SEGMENTS_PAGE_MAX
    ) -> SegmentPage:
        asked = PageAsked.of(SEGMENTS, prefix, token, limit)
        share = asked.share(len(self.containers))

        async def part(found: ContainerSnapshot) -> Part[str]:
            return await found.cold.page(asked.prefix, asked.start, share)

        parts = [await on_snapshot(container, part) for container in self.containers]
        return SegmentPage(*asked.page(parts, str))

    async def transaction_info(self, target: str, transaction_id: str) -> TransactionInfo:
        """Returns what is known of one transaction. Its ``expires_in`` is infinite: a snapshot has no clock.

        Raises:
            TransactionNotFound: It never began, or it ended so long ago that it was forgotten.
        """
        checked = check_transaction_id(transaction_id)

        async def find(found: ContainerSnapshot) -> Known:
            return await find_known(found.state, found.runs, target, checked)

        return _without_clock(await self._on_snapshot(target, find))

    async def list_transactions(self, prefix: str = "") -> list[TransactionInfo]:
        """Returns the known transactions whose target's name begins with ``prefix``, sorted by target and id.
        Their ``expires_in`` is infinite."""
        async with aclosing(all_pages(self.page_of_transactions, prefix)) as pages:
            return [info async for page in pages for info in page.transactions]

    async def page_of_transactions(
        self, prefix: str = "", *, token: str | None = None, limit: int = TRANSACTIONS_PAGE_MAX
    ) -> TransactionPage:
        asked = PageAsked.of(TRANSACTIONS, prefix, token, limit)
        share = asked.share(len(self.containers))

        async def part(found: ContainerSnapshot) -> Part[TransactionInfo]:
            known, stop = await known_page(found.state, found.runs, asked.prefix, asked.start, share)
            return [_without_clock(each) for each in known], stop

        parts = [await on_snapshot(container, part) for container in self.containers]
        return TransactionPage(*asked.page(parts, text_of))

    async def last_event_number(self, name: str, writer_id: WriterId) -> int | None:
        writer = required_writer(writer_id, "last_event_number")

        async def number(snapshot: ContainerSnapshot) -> int | None:
            return await snapshot.last_event(name, writer)

        return await self._on_snapshot(name, number)

    async def read(self, name: str, offset: int, size: int, *, history: int | None = None) -> bytes:
        check_offset(offset)
        check_size(size)
        return await self._read(name, offset, size, history=check_history(history))

    async def _read(
        self, name: str, offset: int, size: int, sid: int = 0, history: int | None = None
    ) -> bytes:
        return await self._on_snapshot(name, lambda snapshot: snapshot.read(name, sid, offset, size, history))

    async def _on_snapshot(self, name: str, act: Callable[[ContainerSnapshot], Awaitable[T]]) -> T:
        return await on_snapshot(self._container(name), act)

    async def refresh(self) -> bool:
        """Takes new snapshots of the containers that changed; returns whether any did."""
        changed = [await container.refresh() for container in self.containers]
        return any(changed)

    def container_of(self, name: str) -> int:
        check_segment_name(name)
        return container_of(name, len(self.containers))

    def _container(self, name: str) -> C_co:
        return self.containers[self.container_of(name)]
