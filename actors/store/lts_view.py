"""The read-only view of long-term storage alone: what the newest element of each container's chain and the
sorted runs that it names describe. It needs no logs, and nothing of the store's process or disk.

It shows what was flushed and published, and nothing newer: each segment as of one moment (rule F10). Earlier
versions published images as of a later moment than records: so of each segment the view shows what the record
has, which is what can be read, and what was set together with an append may be ahead of that
(``LtsSnapshot``). Of transactions those that ended are shown.

Guarantees: nothing is written, and no owner is fenced or disturbed. Of a living store each container is as of
the element that was the newest when the view first read it; ``refresh`` reads on, and so does a read that
meets a chunk or a run which its owner has deleted since. Cancellation and crash leave nothing behind. What is
damaged is ``DataCorruption`` with the object and the offset."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import anyio
import attrs
from msgspec.structs import replace

from ...journal.manifest.chain import StoredElement, element_name, journal_prefix, runs_prefix
from ...journal.manifest.element import SEGMENTS, Element
from ...journal.manifest.store_record import StoreRecord, other_store, require_store_record
from ...journal.operations.log_element import LogElement
from ...storage_backends.base.arguments import check_range
from ...storage_backends.base.chunk_storage import ChunkStorage
from ...storage_backends.base.errors import (
    DataCorruption,
    InvalidArgument,
    SegmentNotFound,
    StoreMismatch,
    Unavailable,
)
from ...storage_backends.base.files import Files
from ...storage_backends.base.segment_layout import SegmentLayout, StoragePlace
from ...storage_backends.base.verbs import ReadVerbs, copy_docstrings
from ...storage_backends.base.world import NO_WORLD
from ...storage_backends.chunks.filesystem import FileSystemChunkReader
from ...storage_backends.chunks.filesystem_programs import IDENTIFICATION
from ...storage_backends.chunks.s3_location import SCHEME
from ...storage_backends.files.local import LocalFiles
from ...storage_backends.segments.records import SegmentRecord, segment_key
from ...storage_backends.segments.storage import ChunkedSegmentStorage
from ...storage_backends.segments.transaction import decode_record
from ...storage_backends.sorted_runs.block_cache import BlockCache
from ...storage_backends.sorted_runs.lookup import find_row
from ...storage_backends.sorted_runs.reader import RunReader, StoredRuns
from ...storage_backends.sorted_runs.rows import decoded
from ..container.cold_segments import ColdSegments, checked, without_image
from ..container.listed_chain import list_chain
from ..container.manifest_state import ManifestState
from ..container.metadata_store import LoggedMetadataStore
from ..container.published_check import may_be_later
from ..container.segment_layout import find_layout
from ..container.segments import SegmentState
from ..container.state import HISTORY_KEY, ContainerState
from ..folder.chunk_location import ChunkLocation, make_chunk_reader, recorded_location
from ..folder.paths import StoreFolder, check_path, list_data_folder, run_program
from ..read.append_starts import APPEND_STARTS_MAX
from ..read.reader import check_start
from ..settings.configuration import StoreConfig
from .views import ContainerSnapshot, NoGarbage, SegmentView, refuse_request

_TABLE_CACHE_BYTES = 16 << 20


@attrs.frozen
class LtsSnapshot(ContainerSnapshot):
    """One container as of an element of its chain."""

    element: Element | None
    """None if no owner ever opened the container."""

    async def image(self, name: str, sid: int = 0) -> SegmentState:
        """The segment as its image has it, and its record. Raises as ``find``."""
        lookup = await self.cold.look_up((name,))
        found = lookup.sids[name]
        if found is None:
            raise SegmentNotFound(f"no segment {name!r}", segment=name)
        if sid and found != sid:
            raise SegmentNotFound.replaced(name)
        if (load := lookup.loads[found]) is None:
            raise without_image(name, found)

        # Not the image's copy of the record: the rows of the chunks are as of the moment of the record's row.
        segment = checked(found, load._replace(record_version=0), name)
        key = segment_key(found)
        record = await self.metadata.get(key)
        if record is not None:
            decode_record(SegmentRecord, key, record[1])
            segment.load_record(*record)
        return segment

    async def find(self, name: str, sid: int = 0) -> SegmentState:
        """The segment as its record has it; its attributes are those of the image."""
        segment = await self.image(name, sid)
        segment.length = segment.durable_length = segment.flushed
        segment.start_offset, segment.sealed = segment.flushed_start, segment.flushed_sealed
        return segment

    async def last_event(self, name: str, writer: bytes) -> int | None:
        """Raises as ``find``, and ``Unavailable`` if the writer's newest events may be above the bytes that
        can be read: who goes on behind them would leave a gap."""
        segment = await self.image(name)
        # The version of a segment from an image is that of the image's row.
        if not segment.is_flushed or may_be_later(segment, segment.touched, self.state.table.runs):
            raise Unavailable(
                f"long-term storage has segment {name!r} as of two moments, so the newest event in it is not "
                f"known: flush the store, or ask the store itself; `tierlog lts verify` lists such segments"
            )

        return await self.cold.last_event(segment, writer)

    async def read(self, name: str, sid: int, offset: int, size: int, history: int | None = None) -> bytes:
        segment = await self.readable(name, sid, offset, history)
        check_start(segment, offset)
        return bytes(await self.storage.read(segment.sid, offset, size)) if segment.has_record else b""


class LtsContainer:
    """One container's snapshot, taken when it is first needed."""

    def __init__(self, index: int, chunks: ChunkStorage, store: bytes) -> None:
        self.index = index
        self._chunks = chunks
        self._store = store
        self._runs = RunReader(StoredRuns(chunks), BlockCache(_TABLE_CACHE_BYTES))
        self._lock = anyio.Lock()
        self._snapshot: LtsSnapshot | None = None

    async def snapshot(self) -> LtsSnapshot:
        async with self._lock:
            if self._snapshot is None:
                self._snapshot = await self._take(await self.newest())
            return self._snapshot

    async def refresh(self) -> bool:
        """Take a new snapshot if there is a newer element; returns whether there is."""
        async with self._lock:
            newest, before = await self.newest(), self._snapshot
            if before is not None and before.element == (None if newest is None else newest.element):
                return False

            self._snapshot = await self._take(newest)
            return True

    async def newest(self) -> StoredElement | None:
        """The newest element in storage now. Raises ``DataCorruption``, ``StoreMismatch`` if it cannot be
        used."""
        listed = await list_chain(self._chunks, self.index)
        for store in listed.stores - {self._store}:
            raise other_store(store, self._store)
        if listed.newest is None:
            await self._check_unused()
        else:
            check_readable(listed.newest.element, element_name(self.index, listed.newest.n))
        return listed.newest

    async def _check_unused(self) -> None:
        """An owner creates an element before anything else (rule W8)."""
        for prefix in (runs_prefix(self.index), f"containers/{self.index:04d}/"):
            async with aclosing(self._chunks.list(prefix)) as infos:
                async for info in infos:
                    raise DataCorruption(
                        f"there is no element of container {self.index}, and there is {info.name}: its "
                        f"journal is lost, or an earlier version wrote it and no later one has opened it",
                        file=journal_prefix(self.index),
                    )

    async def _take(self, newest: StoredElement | None) -> LtsSnapshot:
        element = None if newest is None else newest.element
        # No segment is created here, and no chunk: the epoch is any that there may be.
        epoch = 1 if element is None else element.epoch
        state = ContainerState(self.index, epoch)
        if element is not None:
            state.know_elements(ManifestState(LogElement.of(element)))
        state.sequence = state.table.version
        # Which changes of a table are complete depends on it (rule J6).
        with state.table.view() as view:
            history = await find_row(view, self._runs, HISTORY_KEY.encode())
        if history is not None:
            decoded(state.restore_row, history, history.key)
        metadata = LoggedMetadataStore(state, refuse_request, self._runs)
        storage = ChunkedSegmentStorage(
            self._chunks, metadata, container=self.index, epoch=epoch, world=NO_WORLD, garbage=NoGarbage()
        )
        return LtsSnapshot(state, metadata, storage, self._runs, ColdSegments(state, self._runs), element)


def check_readable(element: Element, name: str) -> None:
    """Raises ``StoreMismatch`` if the names of the segments are in the log only."""
    progress = element.progress
    if element.runs.schema >= SEGMENTS:
        return

    if element.runs.runs:
        raise StoreMismatch(
            f"{name} was written by an earlier version, which published no names of segments: open the store "
            f"once with this version and flush it"
        )
    # M12: an element of a version that knew no runs looks the same.
    if progress.cycle and progress.newest_segment:
        raise StoreMismatch(
            f"{name} completes cycle {progress.cycle} and names no rows: no cycle had room for them yet (the "
            f"event rows_not_published), or an earlier version wrote it, which published none. They are in "
            f"the log: open the store with it, make room if there is none, and flush. Without the log "
            f"nothing of the container can be recovered"
        )


@copy_docstrings(ReadVerbs)
class LtsView(SegmentView[LtsContainer]):
    """What long-term storage alone shows of a store. ``open_lts`` makes it; use it inside the ``async with``
    body.

    Each segment is as of one moment, that of the newest full flush that it was in: what an info shows can be
    read. If an earlier version flushed it, attributes may include some that were set with appends which were
    not flushed yet. Of transactions only those that ended are shown.
    """

    def __init__(self, place: StoragePlace, record: StoreRecord, chunks: ChunkStorage) -> None:
        super().__init__(
            [LtsContainer(index, chunks, record.store) for index in range(record.containers)], chunks
        )
        self.place = replace(place, store=record.store.hex())
        self.record = record

    def __repr__(self) -> str:
        return f"<LtsView {self.location} {len(self.containers)} containers>"

    @property
    def location(self) -> str:
        """The prefix of a chunk's name in messages: a folder, or a bucket."""
        return self.place.location

    async def append_starts(self, name: str, start: int, end: int) -> list[int]:
        check_range(start, end)

        async def starts(snapshot: ContainerSnapshot) -> list[int]:
            segment = (await snapshot.find(name)).of_kind(is_table=False)
            if not segment.has_record:
                return []
            return list(await snapshot.storage.starts(segment.sid, start, end, APPEND_STARTS_MAX))

        return await self._on_snapshot(name, starts)

    async def segment_layout(self, name: str, start: int, end: int) -> SegmentLayout:
        check_range(start, end)

        async def layout(snapshot: ContainerSnapshot) -> SegmentLayout:
            segment = (await snapshot.find(name)).of_kind(is_table=False)
            epoch = snapshot.state.epoch
            # Of a living store nothing here says when its owner deletes a chunk.
            return await find_layout(
                snapshot.storage, segment, start, end, epoch=epoch, valid_for=0.0, place=self.place
            )

        return await self._on_snapshot(name, layout)


@asynccontextmanager
async def open_lts(
    place: str | os.PathLike[str], *, config: StoreConfig | None = None
) -> AsyncIterator[LtsView]:
    """Opens what long-term storage alone has of a store, for reading only, whether the store lives or not:
    ``async with open_lts("s3://bucket/prefix") as view``. Its logs are not needed, nor looked at.

    ``place`` is ``s3://BUCKET/PREFIX``, a data folder, or the ``lts/`` of one, also a copy of it. ``config``
    says how a bucket is reached (its table ``s3``).

    Raises:
        InvalidArgument: There is no store in ``place``.
        StoreMismatch: It is of a newer version, or of an earlier one that published no names of segments.
        DataCorruption: An object is damaged or missing; the error has its name and the offset.
        Unavailable: Long-term storage does not answer.
    """
    if config is not None and not isinstance(config, StoreConfig):
        raise InvalidArgument(f"config is a tierlog.StoreConfig, not {type(config).__name__}")
    place_of_chunks, chunks = await _find_chunks(
        place, StoreConfig() if config is None else config, LocalFiles()
    )
    await chunks.open()
    try:
        yield LtsView(place_of_chunks, await require_store_record(chunks), chunks)
    finally:
        await chunks.close()


async def _find_chunks(
    place: str | os.PathLike[str], config: StoreConfig, files: Files
) -> tuple[StoragePlace, ChunkStorage]:
    """Where the long-term storage is that ``open_lts`` reads, and a reader of it."""
    if isinstance(place, str) and place.startswith(SCHEME):
        nowhere, bucket = StoreFolder(""), ChunkLocation(place, config.s3)
        return bucket.place(nowhere), make_chunk_reader(bucket, files, nowhere, NO_WORLD)

    folder = check_path(place)
    names = {entry.name for entry in await run_program(files, list_data_folder(folder), folder.path)}
    if IDENTIFICATION in names:
        return StoragePlace("", folder.path), FileSystemChunkReader(files, folder.path, NO_WORLD)

    if not names & {"wal", "lts"}:
        raise InvalidArgument(
            f"{folder.path} is neither a data folder nor the long-term storage of one: name one of them, or "
            f"{SCHEME}BUCKET/PREFIX"
        )
    location = await recorded_location(files, folder)
    return location.place(folder), make_chunk_reader(location, files, folder, NO_WORLD)
