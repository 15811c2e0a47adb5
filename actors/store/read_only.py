"""The read-only view of a data folder: what its logs and its long-term storage say, without owning anything.

Owns: ``open_reader`` and ``StoreView``, with the reading verbs of ``SegmentStore`` under the same names and
with the same answers. Does not own: how a log is read (``LocalLog.inspect``), nor how its operations become a
state (the container's own ``Recovery``).

Promise: nobody is fenced, no epoch is raised, no byte is written, no temporary name is swept. Like
``node.py`` it names implementations, because it must know where an embedded store keeps what.

A view is a snapshot: each container is looked at when the first question reaches it, and again by ``refresh``,
by a tail, and when a read finds that the living owner has changed the folder meanwhile. What it shows is, for
each segment, a prefix of what was or will be acked. Of a living owner's newest group it may show what is
written but not yet acked (the files give no cheap way to tell).

Cancellation and crash: nothing is left behind. Damage is ``DataCorruption`` with file and offset, for the
container that is damaged only.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import NoReturn

import anyio
import attrs

from ...journal.log.contract import DurableDataLog, OpenedLog
from ...journal.log.local import LocalLog
from ...journal.log.local_layout import LogLayout, log_folder
from ...journal.registers.local import REGISTER_BYTES, open_register
from ...storage_backends.base.arguments import WriterId, check_offset, check_size, required_writer
from ...storage_backends.base.chunk_storage import ChunkStorage
from ...storage_backends.base.errors import DataCorruption, SegmentNotFound, Unavailable, Unsupported
from ...storage_backends.base.files import Close, Files, FolderEntry, Program, Read
from ...storage_backends.base.names import check_segment_name, container_of
from ...storage_backends.base.segments import SegmentInfo
from ...storage_backends.base.transactions import TransactionInfo, check_transaction_id
from ...storage_backends.base.world import World
from ...storage_backends.files.local import LocalFiles
from ...storage_backends.segments.storage import ChunkedSegmentStorage
from ..container.metadata_store import LoggedMetadataStore
from ..container.operations.transactions import (
    ListTransactionsRequest,
    TransactionRequest,
    decide_list_transactions,
    decide_transaction,
)
from ..container.publish import Publisher
from ..container.recovery import Recovery
from ..container.requests import Request
from ..container.segments import SegmentState
from ..container.state import ContainerState
from ..folder.chunk_location import make_chunk_reader, recorded_location
from ..folder.identity import StoreIdentity
from ..folder.paths import StoreFolder, check_path, existing_identity, list_files, run_program
from ..read.read_ahead import ReadAhead, ReadAheadOptions
from ..read.reader import Reader
from ..read.tail_cache import TailCache

POLL_SECONDS = 0.2
"""How often a tail looks whether another process changed the log: no signal crosses from there to here."""
_LOOKS_MAX = 5
_CACHE_BYTES = 64 << 20
"""For flushed bytes that the log still holds; unflushed ones are kept whatever they need."""


def _refuse() -> NoReturn:
    raise Unsupported("a read-only view makes nothing")


_NO_WORLD = World(_refuse, Random(0), _refuse)


class _NoGarbage:
    """The ``GarbageSink`` of somebody who neither creates nor deletes."""

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
    """One container as its log said it at one moment."""

    opened: OpenedLog
    state: ContainerState
    cache: TailCache
    storage: ChunkedSegmentStorage
    reader: Reader

    def find(self, name: str) -> SegmentState:
        segment = self.state.segments.find(name)
        if segment is None:
            raise SegmentNotFound(f"no segment {name!r}", segment=name)

        return segment


async def take_snapshot(index: int, log: DurableDataLog, chunks: ChunkStorage) -> ContainerSnapshot:
    """Replay an inspected log into a state of its own. ``DataCorruption`` (file, offset), ``StoreMismatch``,
    ``Unavailable``."""
    opened = await log.inspect()
    cache = TailCache(_CACHE_BYTES)
    state = ContainerState(index, opened.epoch, cache.open_segment)
    publisher = Publisher(state, cache, due_bytes=sys.maxsize)
    await Recovery(log, opened, state, publisher, cache).run()
    cache.evict()  # what turned out to be flushed only after it had been cached
    metadata = LoggedMetadataStore(state, _refuse_request)
    # A log that was never opened has epoch 0, and nothing to read.
    epoch = max(1, opened.epoch)
    storage = ChunkedSegmentStorage(
        chunks, metadata, container=index, epoch=epoch, world=_NO_WORLD, garbage=_NoGarbage()
    )
    # Nobody runs the read-ahead: a snapshot has no tasks of its own, and each read goes to storage itself.
    reader = Reader(cache, ReadAhead(storage.read, ReadAheadOptions()), state.segments.get)
    return ContainerSnapshot(opened, state, cache, storage, reader)


@attrs.frozen
class _Sight:
    """What shows whether an owner did anything: its files, and its register, where it notes each group (rule
    W3)."""

    files: tuple[FolderEntry, ...]
    register: bytes


def _look_at(folder: str) -> Program[_Sight]:
    files = yield from list_files(folder)
    register = yield from open_register(LogLayout(folder).register, write=False)
    if register is None:
        return _Sight(files, b"")
    try:
        noted: bytes = yield Read(register, 0, REGISTER_BYTES)
    finally:
        yield Close(register)
    return _Sight(files, noted)


class ContainerView:
    """One container's snapshot, taken when it is first asked for and again when its log files changed."""

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
        self._files = files
        self._make_log = make_log
        self._chunks = chunks
        self._turn = anyio.Lock()
        self._snapshot: ContainerSnapshot | None = None
        self._seen = _Sight((), b"")

    @property
    def log_files(self) -> tuple[FolderEntry, ...]:
        """What lay in the log's folder when the snapshot was taken."""
        return self._seen.files

    async def snapshot(self) -> ContainerSnapshot:
        async with self._turn:
            return self._snapshot or await self._take()

    async def refresh(self) -> bool:
        """Take a new snapshot if the log files changed since the last one; whether they did."""
        async with self._turn:
            if self._snapshot is not None and await self._look() == self._seen:
                return False

            await self._take()
            return True

    async def wait_changed(self) -> None:
        """Return once there is a newer snapshot."""
        while not await self.refresh():  # noqa: ASYNC110 - the owner is another process, which sets no event here
            await anyio.sleep(POLL_SECONDS)

    async def _look(self) -> _Sight:
        return await run_program(self._files, _look_at(self.folder), self.folder)

    async def _take(self) -> ContainerSnapshot:
        """The folder is listed before the log is read: what a living owner adds meanwhile makes the next look
        differ."""
        seen = await self._look()
        for _ in range(_LOOKS_MAX - 1):
            try:
                return await self._take_once(seen)
            except (DataCorruption, Unavailable):
                before, seen = seen, await self._look()
                if seen == before:
                    raise  # nobody changed the files under our feet

        return await self._take_once(seen)

    async def _take_once(self, seen: _Sight) -> ContainerSnapshot:
        log = self._make_log()
        try:
            snapshot = await take_snapshot(self.index, log, self._chunks)
        finally:
            with anyio.CancelScope(shield=True):
                await log.close(clean=False)
        self._snapshot, self._seen = snapshot, seen
        return snapshot


class StoreView:
    """Made by ``open_reader``; usable inside its ``async with`` body."""

    def __init__(
        self,
        folder: StoreFolder,
        identity: StoreIdentity,
        containers: Sequence[ContainerView],
        chunks: ChunkStorage,
        chunk_location: str,
    ) -> None:
        self.folder = folder
        self.identity = identity
        self.containers = containers
        self.chunks = chunks
        self.chunk_location = chunk_location
        """What stands before a chunk's name in messages: a folder, or a bucket."""

    def __repr__(self) -> str:
        return f"<StoreView {self.folder.path} {len(self.containers)} containers>"

    async def segment_info(self, name: str) -> SegmentInfo:
        """Length, start, seal, attributes and more, at one moment. ``SegmentNotFound``."""
        container = self._container(name)
        return (await container.snapshot()).find(name).info(container.index)

    async def list_segments(self, prefix: str = "") -> list[str]:
        """The names that begin with ``prefix``, sorted; staged ones (rule T1) only if ``prefix`` has
        ``#txn.``."""
        names: list[str] = []
        for container in self.containers:
            names += (await container.snapshot()).state.segments.listed(prefix)

        return sorted(names)

    async def transaction_info(self, target: str, transaction_id: str) -> TransactionInfo:
        """What is known of a transaction; ``TransactionNotFound``. No clock runs in a snapshot: ``expires_in``
        is infinite."""
        state = (await self._container(target).snapshot()).state
        info: TransactionInfo
        _, info = decide_transaction(state, TransactionRequest(target, check_transaction_id(transaction_id)))
        return attrs.evolve(info, expires_in=math.inf)

    async def list_transactions(self, prefix: str = "") -> list[TransactionInfo]:
        """Those whose target begins with ``prefix``, sorted by target and id; as ``transaction_info``."""
        infos: list[TransactionInfo] = []
        for container in self.containers:
            _, found = decide_list_transactions(
                (await container.snapshot()).state, ListTransactionsRequest(prefix)
            )
            infos += [attrs.evolve(info, expires_in=math.inf) for info in found]

        return sorted(infos, key=lambda info: (info.target, info.transaction_id))

    async def last_event_number(self, name: str, writer_id: WriterId) -> int | None:
        """The number of the writer's latest event in the segment, or None."""
        writer = required_writer(writer_id, "last_event_number")
        known = (await self._container(name).snapshot()).find(name).writers.get(writer)
        return None if known is None else known.last_event

    async def read(self, name: str, offset: int, size: int) -> bytes:
        """Up to ``size`` bytes at ``offset``, possibly fewer; ``b""`` at or past the tail, of a sealed
        segment too.

        Raises ``SegmentNotFound``, ``SegmentTruncated`` (before the start), ``DataCorruption``,
        ``Unavailable``.
        """
        check_offset(offset)
        check_size(size)
        container = self._container(name)
        snapshot = await container.snapshot()
        try:
            return bytes(await snapshot.reader.read(snapshot.find(name), offset, size))
        except DataCorruption:
            # A living owner may have collected a chunk that our snapshot still refers to.
            if not await container.refresh():
                raise

        snapshot = await container.snapshot()
        return bytes(await snapshot.reader.read(snapshot.find(name), offset, size))

    async def tail(self, name: str, offset: int = 0, *, block_size: int = 1 << 20) -> AsyncIterator[bytes]:
        """Blocks of at most ``block_size`` bytes from ``offset`` on; at the tail it looks every
        ``POLL_SECONDS`` for what another process appended. Ends when the segment is sealed and read through;
        ``SegmentNotFound`` if it is deleted meanwhile. Raises as ``read``."""
        check_offset(offset)
        check_size(block_size, "block_size")
        container = self._container(name)
        sid = (await container.snapshot()).find(name).sid
        while True:
            segment = (await container.snapshot()).find(name)
            if segment.sid != sid:
                raise SegmentNotFound(f"segment {name!r} was deleted, and made again", segment=name)

            block = await self.read(name, offset, block_size)
            if block:
                offset += len(block)
                yield block
            elif segment.sealed:
                return
            else:
                await container.wait_changed()

    async def refresh(self) -> bool:
        """Look again at every container whose log files changed; whether any did."""
        changed = [await container.refresh() for container in self.containers]
        return any(changed)

    def container_of(self, name: str) -> int:
        """The index of the container that hosts ``name``."""
        check_segment_name(name)
        return container_of(name, len(self.containers))

    def _container(self, name: str) -> ContainerView:
        return self.containers[self.container_of(name)]


@asynccontextmanager
async def open_reader(
    path: str | os.PathLike[str], *, files: Files | None = None
) -> AsyncIterator[StoreView]:
    """Look into the store in the folder ``path``, open elsewhere or not: ``async with open_reader("data") as
    view``.

    Raises ``InvalidArgument`` (no store there), ``StoreMismatch`` (a newer format), ``DataCorruption`` (file,
    offset), ``Unavailable``.
    """
    files = files or LocalFiles()
    folder = check_path(path)
    identity = await existing_identity(files, folder)
    location = await recorded_location(files, folder)
    chunks = make_chunk_reader(location, files, folder, _NO_WORLD)
    await chunks.open()
    try:
        containers = [
            _container_view(files, folder, identity, index, chunks) for index in range(identity.containers)
        ]
        yield StoreView(folder, identity, containers, chunks, location.shown(folder))
    finally:
        await chunks.close()


def _container_view(
    files: Files, folder: StoreFolder, identity: StoreIdentity, index: int, chunks: ChunkStorage
) -> ContainerView:
    logs = log_folder(folder.wal, index)
    return ContainerView(
        index, files, logs, lambda: LocalLog(files, logs, identity.container_log_id(index)), chunks
    )
