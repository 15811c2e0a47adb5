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

import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

import anyio
import attrs

from ...journal.log.contract import DurableDataLog, OpenedLog
from ...journal.log.local import LocalLog
from ...journal.log.local_layout import LogLayout, log_folder
from ...journal.manifest.store_record import require_store_record
from ...journal.registers.local import REGISTER_BYTES, open_register
from ...storage_backends.base.arguments import check_history, check_offset, check_size
from ...storage_backends.base.chunk_storage import ChunkStorage
from ...storage_backends.base.errors import DataCorruption, Unavailable
from ...storage_backends.base.files import Close, Files, FolderEntry, Program, Read
from ...storage_backends.base.world import NO_WORLD
from ...storage_backends.files.local import LocalFiles
from ...storage_backends.segments.storage import ChunkedSegmentStorage
from ...storage_backends.sorted_runs.block_cache import BlockCache
from ...storage_backends.sorted_runs.local_copies import ForeignCopies
from ...storage_backends.sorted_runs.reader import RunReader, StoredRuns
from ..container.cold_segments import ColdSegments
from ..container.listed_chain import list_chain, lost_log, refuse_migrated, refuse_older_log
from ..container.local_disk import run_folder
from ..container.metadata_store import LoggedMetadataStore
from ..container.publish import Publisher
from ..container.recovery import Recovery
from ..container.state import ContainerState
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
from .views import ContainerSnapshot, NoGarbage, SegmentView, refuse_request

POLL_SECONDS = 0.2
"""How often a tail checks whether another process changed the log, which cannot signal it."""
_ATTEMPTS_MAX = 5
_TABLE_CACHE_BYTES = 16 << 20
_CACHE_BYTES = 64 << 20
"""For flushed bytes that the log still holds; unflushed ones are kept whatever they need."""


@attrs.frozen
class LogSnapshot(ContainerSnapshot):
    """One container as of one moment of its log."""

    opened: OpenedLog
    reader: Reader

    @property
    def is_empty(self) -> bool:
        """Whether the log holds nothing: it is new, or lost."""
        return not self.opened.groups

    async def read(self, name: str, sid: int, offset: int, size: int, history: int | None = None) -> bytes:
        segment = await self.readable(name, sid, offset, history)
        return bytes(await self.reader.read(segment, offset, size))


async def take_snapshot(
    index: int, log: DurableDataLog, chunks: ChunkStorage, runs: RunReader
) -> LogSnapshot:
    """Replay a log, without opening it, into a state of its own. Raises ``DataCorruption`` (file, offset),
    ``StoreMismatch``, ``Unavailable``."""
    opened = await log.inspect()
    cache = TailCache(_CACHE_BYTES, None)
    state = ContainerState(index, opened.epoch)
    publisher = Publisher(state, cache, due_bytes=sys.maxsize)
    await Recovery(log, opened, state, publisher, cache).run()
    refuse_migrated(state.manifest.recorded_last, index)
    cache.evict()  # bytes that were cached before replay found them flushed
    metadata = LoggedMetadataStore(state, refuse_request, runs)
    # A log that was never opened has epoch 0, and nothing to read.
    epoch = max(1, opened.epoch)
    storage = ChunkedSegmentStorage(
        chunks, metadata, container=index, epoch=epoch, world=NO_WORLD, garbage=NoGarbage()
    )
    # The read-ahead is not run: a snapshot has no tasks, and each read goes to storage itself.
    reader = Reader(
        cache,
        UnflushedBytes(cache, log),
        ReadAhead(storage.read, ReadAheadOptions()),
        state.segments.readable,
    )
    return LogSnapshot(state, metadata, storage, runs, ColdSegments(state, runs), opened, reader)


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


@attrs.define(eq=False)
class _Look:
    """How all containers of a view look whether the store was moved."""

    seconds: float = 5.0
    """Long-term storage that takes longer is not waited for."""

    async def refuse_older_log(self, chunks: ChunkStorage, snapshot: LogSnapshot) -> None:
        known = snapshot.state.manifest.known
        with suppress(Unavailable, DataCorruption), anyio.move_on_after(self.seconds) as scope:
            await refuse_older_log(chunks, snapshot.state.container, known)
        if scope.cancelled_caught:
            self.seconds = 0.0  # nor by the next one


class ContainerView:
    """One container's snapshot, taken when it is first needed and again when its log files changed."""

    def __init__(
        self,
        index: int,
        files: Files,
        folder: str,
        make_log: Callable[[], DurableDataLog],
        chunks: ChunkStorage,
        store: bytes,
        look: _Look,
    ) -> None:
        self.index = index
        self._store = store
        self._look = look
        self.folder = folder
        self.files = files
        self._make_log = make_log
        self._chunks = chunks
        copies = ForeignCopies(files, run_folder(folder), StoredRuns(chunks))
        self._runs = RunReader(copies, BlockCache(_TABLE_CACHE_BYTES))
        self._lock = anyio.Lock()
        self._snapshot: LogSnapshot | None = None
        self._seen = _LogFingerprint((), b"")

    @property
    def log_files(self) -> tuple[FolderEntry, ...]:
        """The log's folder when the snapshot was taken."""
        return self._seen.files

    async def snapshot(self) -> LogSnapshot:
        """Raises the errors of ``take_snapshot``, and ``StoreMismatch`` if the log is lost (rule R11) or from
        before a move of the store (rule E2)."""
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

    async def _take(self) -> LogSnapshot:
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

    async def _take_once(self, seen: _LogFingerprint) -> LogSnapshot:
        snapshot = await self._replay()
        if snapshot.is_empty:
            listed = await list_chain(self._chunks, self.index)
            listed.check_store(self._store)
            # The first owner may have come meanwhile: it logs each element before it creates it.
            snapshot = await self._replay()
            if snapshot.is_empty and listed.newest is not None:
                raise lost_log(listed, self.index, await self._make_log().find_moved())
        elif self._snapshot is None:
            # Later the log says it.
            await self._look.refuse_older_log(self._chunks, snapshot)
        self._snapshot, self._seen = snapshot, seen
        return snapshot

    async def _replay(self) -> LogSnapshot:
        log = self._make_log()
        try:
            return await take_snapshot(self.index, log, self._chunks, self._runs)
        finally:
            with anyio.CancelScope(shield=True):
                # Without a footer: a reader writes nothing.
                await log.close(clean=False)


class StoreView(SegmentView[ContainerView]):
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
        super().__init__(containers, chunks)
        self.has_logs = has_logs
        """Whether there are logs, without which no container has a snapshot."""
        self.folder = folder
        self.identity = identity
        self.chunk_location = chunk_location
        """The prefix of a chunk's name in messages: a folder, or a bucket."""
        self.fingerprint = fingerprint
        """The fingerprint of the folder, which the next owner compares with the last one's (rule G4)."""

    def __repr__(self) -> str:
        return f"<StoreView {self.folder.path} {len(self.containers)} containers>"

    async def tail(
        self, name: str, offset: int = 0, *, block_size: int = 1 << 20, history: int | None = None
    ) -> AsyncIterator[bytes]:
        """Yields the segment's bytes from ``offset`` on, in blocks of at most ``block_size`` bytes (default 1
        MiB). At the end it checks every 0.2 seconds whether another process appended more, until the segment
        is sealed.

        Raises the errors of ``read``; ``SegmentNotFound`` also if the segment is deleted meanwhile.
        """
        check_offset(offset)
        check_size(block_size, "block_size")
        container, known = self._container(name), check_history(history)
        # The segment, not the name: one that is created later under this name is another segment.
        sid = (await (await container.snapshot()).find(name)).of_kind(is_table=False).sid
        while True:
            snapshot = await container.snapshot()
            segment = await snapshot.find(name, sid)
            block = await self._read(name, offset, block_size, sid, known)
            # The logs of the folder may be lost and recovered meanwhile (rule R10).
            known = snapshot.state.history
            if block:
                offset += len(block)
                yield block
            elif segment.sealed:
                return
            else:
                await container.wait_changed()


@asynccontextmanager
async def open_reader(
    path: str | os.PathLike[str],
) -> AsyncIterator[StoreView]:
    """Opens the store in the folder ``path`` for reading only, whether another process has it open or not:
    ``async with open_reader("data") as view``.

    Raises:
        InvalidArgument: There is no store in the folder.
        StoreMismatch: The folder is of a newer format, or the store was moved to another place.
        DataCorruption: A file is damaged; the error has its name and the offset.
        Unavailable: The files or long-term storage do not answer.
    """
    files = LocalFiles()
    folder = check_path(path)
    identity = await existing_identity(files, folder)
    fingerprint = await run_program(files, read_fingerprint(folder.wal, socket.gethostname()), folder.wal)
    location = await recorded_location(files, folder)
    chunks = make_chunk_reader(location, files, folder, NO_WORLD)
    await chunks.open()
    try:
        containers = _container_views(files, folder, identity, chunks)
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
    chunks = make_chunk_reader(location, files, folder, NO_WORLD)
    await chunks.open()
    try:
        record = await require_store_record(chunks)
        identity = StoreIdentity(record.store, bytes(16), record.containers, 0)
        containers = _container_views(files, folder, identity, chunks)
        yield StoreView(
            folder, identity, containers, chunks, location.shown(folder), Fingerprint(), has_logs=False
        )
    finally:
        await chunks.close()


def _container_views(
    files: Files, folder: StoreFolder, identity: StoreIdentity, chunks: ChunkStorage
) -> list[ContainerView]:
    look = _Look()

    def view(index: int) -> ContainerView:
        logs = log_folder(folder.wal, index)
        log_id = identity.container_log_id(index)
        return ContainerView(
            index, files, logs, lambda: LocalLog(files, logs, log_id), chunks, identity.store_id, look
        )

    return [view(index) for index in range(identity.containers)]
