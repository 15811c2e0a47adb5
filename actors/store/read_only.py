"""The read-only view of a data folder: what its logs and its long-term storage contain, without owning
anything.

Guarantees: no owner is fenced, no epoch is raised, no byte is written, no temporary file is removed.

A view shows snapshots. Each container's is taken when the first question reaches it, and again by
``refresh``, by a tail, and when a read finds that the living owner has changed the folder. For each segment
it shows a prefix of what was acked or will be: of a living owner's newest group it may show what is written
but not acked yet.

Like ``opening.py`` this module names implementations. Cancellation and crash leave nothing behind. Corruption
is ``DataCorruption`` with file and offset, for the container that it is in."""

from __future__ import annotations

import math
import os
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from itertools import chain
from random import Random
from typing import NoReturn, Protocol, TypeVar

import anyio
import attrs

from ...journal.log.contract import DurableDataLog, OpenedLog
from ...journal.log.local import LocalLog
from ...journal.log.local_layout import LogLayout, log_folder
from ...journal.manifest.store_record import require_store_record
from ...journal.registers.local import REGISTER_BYTES, open_register
from ...storage_backends.base.arguments import (
    WriterId,
    check_attribute_page,
    check_offset,
    check_size,
    required_writer,
)
from ...storage_backends.base.chunk_storage import ChunkStorage
from ...storage_backends.base.errors import DataCorruption, SegmentNotFound, Unavailable, Unsupported
from ...storage_backends.base.files import Close, Files, FolderEntry, Program, Read
from ...storage_backends.base.names import check_segment_name, container_of
from ...storage_backends.base.segment_pages import NamesPart, SegmentsAsked, all_names
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
from ...storage_backends.base.transactions import TransactionInfo, check_transaction_id
from ...storage_backends.base.verbs import ReadVerbs, copy_docstrings
from ...storage_backends.base.world import World
from ...storage_backends.files.local import LocalFiles
from ...storage_backends.segments.storage import ChunkedSegmentStorage
from ...storage_backends.sorted_runs.block_cache import BlockCache
from ...storage_backends.sorted_runs.local_copies import ForeignCopies
from ...storage_backends.sorted_runs.reader import RunReader, StoredRuns
from ...storage_backends.sorted_runs.scan import KeyRange, PageLimits
from ..container.attributes import attribute_page
from ..container.cold_segments import ColdSegments
from ..container.local_disk import run_folder
from ..container.metadata_store import LoggedMetadataStore
from ..container.publish import Publisher
from ..container.recovery import Recovery
from ..container.requests import Request
from ..container.segments import SegmentState
from ..container.state import ContainerState
from ..container.table_pages import Position, page_of_changes, page_of_rows, rows_of_keys
from ..container.transactions import Known, find_known, known_pages
from ..folder.chunk_location import ChunkLocation, make_chunk_reader, recorded_location
from ..folder.fingerprint import Fingerprint, read_fingerprint
from ..folder.identity import StoreIdentity
from ..folder.paths import (
    StoreFolder,
    check_path,
    existing_identity,
    has_lost_logs,
    list_files,
    run_program,
)
from ..read.read_ahead import ReadAhead, ReadAheadOptions
from ..read.reader import Reader
from ..read.tail_cache import TailCache
from ..read.unflushed import UnflushedBytes

T = TypeVar("T")
POLL_SECONDS = 0.2
"""How often a tail checks whether another process changed the log, which cannot signal it."""
_ATTEMPTS_MAX = 5
_TABLE_CACHE_BYTES = 16 << 20
_CACHE_BYTES = 64 << 20
"""For flushed bytes that the log still holds; unflushed ones are kept whatever they need."""


def _refuse() -> NoReturn:
    raise Unsupported("a read-only view changes nothing")


_NO_WORLD = World(_refuse, Random(0), _refuse)


class _NoGarbage:
    """The ``GarbageSink`` of a view, which neither creates nor deletes."""

    async def track(self, names: Sequence[str]) -> None:
        _refuse()

    def keep(self, names: Sequence[str]) -> None:
        _refuse()

    def release(self, names: Sequence[str]) -> None:
        _refuse()

    def doubt(self, names: Sequence[str]) -> None:
        _refuse()


async def _refuse_request(request: Request, size: int) -> object:
    _refuse()


@attrs.frozen
class ContainerSnapshot:
    """One container as of one moment of its log."""

    opened: OpenedLog
    state: ContainerState
    cache: TailCache
    metadata: LoggedMetadataStore
    storage: ChunkedSegmentStorage
    reader: Reader
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

    async def table(self, name: str, sid: int = 0) -> SegmentState:
        """As ``find``, of a table. Raises ``WrongSegmentKind`` for a segment of bytes."""
        return (await self.find(name, sid)).of_kind(is_table=True)

    async def read(self, name: str, sid: int, offset: int, size: int) -> bytes:
        """Bytes of a segment. Raises as ``find``, and ``WrongSegmentKind`` for a table."""
        segment = (await self.find(name, sid)).of_kind(is_table=False)
        return bytes(await self.reader.read(segment, offset, size))


async def take_snapshot(
    index: int, log: DurableDataLog, chunks: ChunkStorage, runs: RunReader
) -> ContainerSnapshot:
    """Replay a log, without opening it, into a state of its own. Raises ``DataCorruption`` (file, offset),
    ``StoreMismatch``, ``Unavailable``."""
    opened = await log.inspect()
    cache = TailCache(_CACHE_BYTES, None)
    state = ContainerState(index, opened.epoch)
    publisher = Publisher(state, cache, due_bytes=sys.maxsize)
    await Recovery(log, opened, state, publisher, cache).run()
    cache.evict()  # bytes that were cached before replay found them flushed
    metadata = LoggedMetadataStore(state, _refuse_request, runs)
    # A log that was never opened has epoch 0, and nothing to read.
    epoch = max(1, opened.epoch)
    storage = ChunkedSegmentStorage(
        chunks, metadata, container=index, epoch=epoch, world=_NO_WORLD, garbage=_NoGarbage()
    )
    # The read-ahead is not run: a snapshot has no tasks, and each read goes to storage itself.
    reader = Reader(
        cache,
        UnflushedBytes(cache, log),
        ReadAhead(storage.read, ReadAheadOptions()),
        state.segments.readable,
    )
    return ContainerSnapshot(opened, state, cache, metadata, storage, reader, runs, ColdSegments(state, runs))


@attrs.frozen
class _LogFingerprint:
    """Changes whenever an owner does anything: the log's files, and its register, which notes each group
    (rule W3)."""

    files: tuple[FolderEntry, ...]
    register: bytes


def _fingerprint(folder: str) -> Program[_LogFingerprint]:
    files = yield from list_files(folder)
    register = yield from open_register(LogLayout(folder).register, write=False)
    if register is None:
        return _LogFingerprint(files, b"")
    try:
        noted: bytes = yield Read(register, 0, REGISTER_BYTES)
    finally:
        yield Close(register)
    return _LogFingerprint(files, noted)


class ContainerView:
    """One container's snapshot, taken when it is first needed and again when its log files changed."""

    def __init__(
        self,
        index: int,
        files: Files,
        folder: str,
        make_log: Callable[[], DurableDataLog],
        chunks: ChunkStorage,
    ) -> None:
        self.index = index
        self.folder = folder
        self.files = files
        self._make_log = make_log
        self._chunks = chunks
        copies = ForeignCopies(files, run_folder(folder), StoredRuns(chunks))
        self._runs = RunReader(copies, BlockCache(_TABLE_CACHE_BYTES))
        self._lock = anyio.Lock()
        self._snapshot: ContainerSnapshot | None = None
        self._seen = _LogFingerprint((), b"")

    @property
    def log_files(self) -> tuple[FolderEntry, ...]:
        """The log's folder when the snapshot was taken."""
        return self._seen.files

    async def snapshot(self) -> ContainerSnapshot:
        async with self._lock:
            return self._snapshot or await self._take()

    async def refresh(self) -> bool:
        """Take a new snapshot if the log changed since the last one; returns whether it did."""
        async with self._lock:
            if self._snapshot is not None and await self._read_fingerprint() == self._seen:
                return False

            await self._take()
            return True

    async def wait_changed(self) -> None:
        """Return once there is a newer snapshot."""
        while not await self.refresh():  # noqa: ASYNC110 - another process sets no event here
            await anyio.sleep(POLL_SECONDS)

    async def _read_fingerprint(self) -> _LogFingerprint:
        return await run_program(self.files, _fingerprint(self.folder), self.folder)

    async def _take(self) -> ContainerSnapshot:
        """The fingerprint is read before the log: what a living owner adds meanwhile makes the next one
        differ."""
        seen = await self._read_fingerprint()
        for _ in range(_ATTEMPTS_MAX - 1):
            try:
                return await self._take_once(seen)
            except (DataCorruption, Unavailable):
                before, seen = seen, await self._read_fingerprint()
                if seen == before:
                    raise  # no owner changed the files meanwhile

        return await self._take_once(seen)

    async def _take_once(self, seen: _LogFingerprint) -> ContainerSnapshot:
        log = self._make_log()
        try:
            snapshot = await take_snapshot(self.index, log, self._chunks, self._runs)
        finally:
            with anyio.CancelScope(shield=True):
                # Without a footer: a reader writes nothing.
                await log.close(clean=False)
        self._snapshot, self._seen = snapshot, seen
        return snapshot


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
        _refuse()

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


async def _on_snapshot(container: ContainerView, act: Callable[[ContainerSnapshot], Awaitable[T]]) -> T:
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
class StoreView:
    """A read-only view of a store. ``open_reader`` makes it; use it inside the ``async with`` body."""

    def __init__(
        self,
        folder: StoreFolder,
        identity: StoreIdentity,
        containers: Sequence[ContainerView],
        chunks: ChunkStorage,
        chunk_location: str,
        fingerprint: Fingerprint,
        *,
        has_logs: bool = True,
    ) -> None:
        self.has_logs = has_logs
        """Whether there are logs, without which no container has a snapshot."""
        self.folder = folder
        self.identity = identity
        self.containers = containers
        self.chunks = chunks
        self.chunk_location = chunk_location
        """The prefix of a chunk's name in messages: a folder, or a bucket."""
        self.fingerprint = fingerprint
        """The fingerprint of the folder, which the next owner compares with the last one's (rule G4)."""

    def __repr__(self) -> str:
        return f"<StoreView {self.folder.path} {len(self.containers)} containers>"

    async def segment_info(self, name: str) -> SegmentInfo:
        index = self.container_of(name)
        return (await self._on_snapshot(name, lambda snapshot: snapshot.find(name))).info(index)

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
        return await all_names(self.page_of_segments, prefix)

    async def page_of_segments(
        self, prefix: str = "", *, token: str | None = None, limit: int = SEGMENTS_PAGE_MAX
    ) -> SegmentPage:
        asked = SegmentsAsked.of(prefix, token, limit)
        share = asked.share(len(self.containers))

        async def part(found: ContainerSnapshot) -> NamesPart:
            return await found.cold.page(asked.prefix, asked.start, share)

        return asked.page([await _on_snapshot(container, part) for container in self.containers])

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

        async def listed(found: ContainerSnapshot) -> list[TransactionInfo]:
            async with aclosing(known_pages(found.state, found.runs, prefix)) as pages:
                return [_without_clock(known) async for page in pages for known in page]

        infos = chain.from_iterable([await _on_snapshot(container, listed) for container in self.containers])
        return sorted(infos, key=lambda info: (info.target, info.transaction_id))

    async def last_event_number(self, name: str, writer_id: WriterId) -> int | None:
        writer = required_writer(writer_id, "last_event_number")

        async def number(snapshot: ContainerSnapshot) -> int | None:
            return await snapshot.cold.last_event(await snapshot.find(name), writer)

        return await self._on_snapshot(name, number)

    async def read(self, name: str, offset: int, size: int) -> bytes:
        check_offset(offset)
        check_size(size)
        return await self._read(name, offset, size)

    async def _read(self, name: str, offset: int, size: int, sid: int = 0) -> bytes:
        return await self._on_snapshot(name, lambda snapshot: snapshot.read(name, sid, offset, size))

    async def _on_snapshot(self, name: str, act: Callable[[ContainerSnapshot], Awaitable[T]]) -> T:
        return await _on_snapshot(self._container(name), act)

    async def tail(self, name: str, offset: int = 0, *, block_size: int = 1 << 20) -> AsyncIterator[bytes]:
        """Yields the segment's bytes from ``offset`` on, in blocks of at most ``block_size`` bytes (default 1
        MiB). At the end it checks every 0.2 seconds whether another process appended more, until the segment
        is sealed.

        Raises the errors of ``read``; ``SegmentNotFound`` also if the segment is deleted meanwhile.
        """
        check_offset(offset)
        check_size(block_size, "block_size")
        container = self._container(name)
        # The segment, not the name: one that is created later under this name is another segment.
        sid = (await (await container.snapshot()).find(name)).of_kind(is_table=False).sid
        while True:
            segment = await (await container.snapshot()).find(name, sid)
            block = await self._read(name, offset, block_size, sid)
            if block:
                offset += len(block)
                yield block
            elif segment.sealed:
                return
            else:
                await container.wait_changed()

    async def refresh(self) -> bool:
        """Takes new snapshots of the containers whose log changed; returns whether any did."""
        changed = [await container.refresh() for container in self.containers]
        return any(changed)

    def container_of(self, name: str) -> int:
        check_segment_name(name)
        return container_of(name, len(self.containers))

    def _container(self, name: str) -> ContainerView:
        return self.containers[self.container_of(name)]


@asynccontextmanager
async def open_reader(
    path: str | os.PathLike[str],
) -> AsyncIterator[StoreView]:
    """Opens the store in the folder ``path`` for reading only, whether another process has it open or not:
    ``async with open_reader("data") as view``.

    Raises:
        InvalidArgument: There is no store in the folder.
        StoreMismatch: The folder is of a newer format.
        DataCorruption: A file is damaged; the error has its name and the offset.
        Unavailable: The files or long-term storage do not answer.
    """
    files = LocalFiles()
    folder = check_path(path)
    identity = await existing_identity(files, folder)
    fingerprint = await run_program(files, read_fingerprint(folder.wal, socket.gethostname()), folder.wal)
    location = await recorded_location(files, folder)
    # A reader draws no ids and needs no clock.
    chunks = make_chunk_reader(location, files, folder, _NO_WORLD)
    await chunks.open()
    try:
        containers = [
            _container_view(files, folder, identity, index, chunks) for index in range(identity.containers)
        ]
        yield StoreView(folder, identity, containers, chunks, location.shown(folder), fingerprint)
    finally:
        await chunks.close()


@asynccontextmanager
async def open_storage(path: str | os.PathLike[str]) -> AsyncIterator[StoreView]:
    """As ``open_reader``; if the logs are lost, what long-term storage alone shows."""
    files = LocalFiles()
    folder = check_path(path)
    if not await run_program(files, has_lost_logs(folder), folder.path):
        async with open_reader(path) as view:
            yield view
        return

    location = ChunkLocation()
    chunks = make_chunk_reader(location, files, folder, _NO_WORLD)
    await chunks.open()
    try:
        record = await require_store_record(chunks)
        identity = StoreIdentity(record.store, bytes(16), record.containers, 0)
        containers = [
            _container_view(files, folder, identity, index, chunks) for index in range(identity.containers)
        ]
        yield StoreView(
            folder, identity, containers, chunks, location.shown(folder), Fingerprint(), has_logs=False
        )
    finally:
        await chunks.close()


def _container_view(
    files: Files, folder: StoreFolder, identity: StoreIdentity, index: int, chunks: ChunkStorage
) -> ContainerView:
    logs = log_folder(folder.wal, index)
    return ContainerView(
        index, files, logs, lambda: LocalLog(files, logs, identity.container_log_id(index)), chunks
    )
