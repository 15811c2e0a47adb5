"""The components of one ownership, built once its epoch is known. Each gets what it needs when it is
constructed, and none is replaced later."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ...storage_backends.segments.storage import ChunkedSegmentStorage
from ..flush.segment_flusher import SegmentFlusher
from ..flush.writer import StorageWriter
from ..gc.collector import Collector
from ..read.append_starts import AppendStarts
from ..read.read_ahead import ReadAhead
from ..read.reader import Reader
from ..read.unflushed import UnflushedBytes
from .admission import Admission
from .checkpoint import Checkpointer
from .cycle_cut import CycleCut
from .imports import SegmentImporter
from .leases import Leases
from .loader import Loader
from .parked import ParkedRequests
from .pins import Pins
from .pipeline import Pipeline, PipelineHooks
from .publish import Listeners, Publisher
from .row_removal import RowRemoval
from .sources import ContainerCollectorSource, ContainerFlushSource
from .table_runs import TableRuns
from .tables import Tables

if TYPE_CHECKING:
    from .container import Container


class ContainerComponents(Struct, frozen=True, eq=False):
    pipeline: Pipeline
    publisher: Publisher
    collector: Collector
    storage: ChunkedSegmentStorage
    reader: Reader
    append_starts: AppendStarts
    read_ahead: ReadAhead
    unflushed: UnflushedBytes
    checkpointer: Checkpointer
    writer: StorageWriter
    admission: Admission
    leases: Leases
    imports: SegmentImporter
    table_runs: TableRuns
    loader: Loader
    tables: Tables
    row_removal: RowRemoval
    pins: Pins


def build_components(container: Container) -> ContainerComponents:
    """The components of ``container``, whose log is open."""
    options, state, cache, log = container.options, container.state, container.cache, container.log
    pins, collector = _garbage(container)
    storage = ChunkedSegmentStorage(
        container.chunks,
        container.metadata,
        container=container.index,
        epoch=state.epoch,
        world=container.world,
        garbage=collector,
        options=options.chunked,
    )
    view, ownership = ContainerFlushSource(container), container.ownership
    table_runs = TableRuns(container, collector)
    can_append = container.chunks.capabilities.append
    # F8: beside the cache, for bytes that are in the log only.
    unflushed = UnflushedBytes(cache, log, load_bytes=options.cache_bytes // 2)
    flusher = SegmentFlusher(
        storage, unflushed, view.segment_of, view.forget, ownership.keep_proven, whole_chunks=not can_append
    )
    publish = _publishing(table_runs, collector)
    # F5: a segment with a whole chunk is flushed before it has part of another one.
    writing = options.writer if can_append else replace(options.writer, size_interval=0.0)
    writer = StorageWriter(view, flusher, storage, ownership.prove, publish, writing)
    leases = Leases(state, container.runs, container.ask_internal, writer.flush, tombstone=options.tombstone)
    listeners = _listeners(container, writer, leases)
    publisher = Publisher(
        state,
        cache,
        due_bytes=options.flush_bytes,
        # F5: chunks that cannot grow are written whole, so a segment waits for a whole one while less than
        # half of what makes a cycle due is unflushed.
        aggregate_bytes=0 if can_append else options.admission.cycle_bytes // 2,
        listeners=listeners,
    )
    loader = Loader(state, log, container.cold, ParkedRequests(options.parked))
    hooks = PipelineHooks(container.group_published, options.protect, options.span)
    read_ahead = ReadAhead(storage.read, options.read_ahead, options.read_ahead_budget)
    return ContainerComponents(
        pipeline=Pipeline(state, log, container.mailbox, publisher, loader, options.pipeline, hooks),
        publisher=publisher,
        collector=collector,
        storage=storage,
        reader=Reader(cache, unflushed, read_ahead, state.segments.readable),
        append_starts=AppendStarts(storage, state.segments.readable),
        read_ahead=read_ahead,
        unflushed=unflushed,
        checkpointer=Checkpointer(state, cache, unflushed, log, container.ask_internal, options.checkpoint),
        writer=writer,
        admission=Admission(state, cache, log, writer, options.admission),
        leases=leases,
        imports=_importer(container, storage, writer),
        table_runs=table_runs,
        loader=loader,
        tables=Tables(container),
        row_removal=RowRemoval(state, container.runs, container.ask_internal, container.wait_progress),
        pins=pins,
    )


def _publishing(table_runs: TableRuns, collector: Collector) -> Callable[[CycleCut], Awaitable[None]]:
    async def publish(cut: CycleCut) -> None:
        await table_runs.complete_cycle(cut)
        collector.published()

    return publish


def _garbage(container: Container) -> tuple[Pins, Collector]:
    def pin_ended() -> None:
        collector.list_own()

    pins = Pins(container, pin_ended)
    source = ContainerCollectorSource(container, pins)
    collector = Collector(container.chunks, source, container.options.collector)
    return pins, collector


def _importer(container: Container, storage: ChunkedSegmentStorage, writer: StorageWriter) -> SegmentImporter:
    return SegmentImporter(
        container.state,
        container.metadata,
        storage,
        container.ask_internal,
        writer.request_cycle,
        index_spacing=container.options.chunked.index_spacing,
    )


def _listeners(container: Container, writer: StorageWriter, leases: Leases) -> Listeners:
    legacy, segments = container.legacy, container.state.segments
    if legacy is None:
        return Listeners(segment_due=writer.segment_due, transaction_changed=leases.note)

    def record_changed(sid: int) -> None:
        segment = segments.get(sid)
        if segment is not None:
            legacy.record_changed(sid, segment.name)

    return Listeners(
        segment_due=writer.segment_due,
        transaction_changed=leases.note,
        record_changed=record_changed,
        cycle_completed=legacy.cycle_completed,
    )
