"""Batch reads: planning, and what a task does with its range.

A task reads between two offsets that were fixed when the read was planned, so a retried task returns the same
rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import attrs
from pyspark.sql.datasource import DataSourceReader, InputPartition

from ..actors.direct_read.storage import DirectStorage
from ..actors.gateway.client.sync_client import SyncClient
from ..storage_backends.base.errors import (
    HistoryLost,
    InvalidArgument,
    SegmentNotFound,
    SegmentTruncated,
    WrongSegmentKind,
)
from ..storage_backends.base.segment_layout import StoragePlace
from ..storage_backends.base.segments import SegmentInfo
from . import events
from .connections import connections, new_id
from .history import History, Refusals, read_extents
from .options import Edge, Offsets, Options
from .ranges import Block, Range, ReadClient, ServiceBytes, plan
from .schema import OFFSET, SEGMENT, VALUE, Column, arrow_schema
from .worker_heap import worker_heap

if TYPE_CHECKING:
    import pyarrow as pa

    from .lts import Chunks


class RangePartition(InputPartition):
    """One task's range."""

    def __init__(self, range: Range, chunks: Chunks | None = None) -> None:
        """``chunks``: where its bytes are, of a store without a service."""
        super().__init__(range)
        self.range = range
        self.chunks = chunks

    def __repr__(self) -> str:
        return f"RangePartition({self.range})"


class TierlogReader(DataSourceReader):
    def __init__(self, options: Options, columns: Sequence[Column]) -> None:
        self.options = options
        self.columns = columns
        # Spark pickles this reader into every task.
        self.job = new_id()

    def partitions(self) -> list[InputPartition]:
        options = self.options
        if not options.lts:
            return [RangePartition(part) for part in _ranges(connections.client(options), options)]

        from .lts import planner

        with planner(options.lts) as view:
            return [
                RangePartition(
                    part, view.chunks(part.segment, part.start, part.end, options.storage_location)
                )
                for part in _ranges(view, options)
            ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, RangePartition):
            return iter(())  # Spark makes a task of its own where there is nothing to read.
        if partition.chunks is not None:
            return read_chunks(partition.chunks, self.columns, partition.range)

        return read_range(
            connections.client(self.options), self.options, self.columns, partition.range, self.job
        )


# --- planning -----------------------------------------------------------------------------------


def _ranges(client: ReadClient, options: Options) -> list[Range]:
    wholes = [whole_range(options, info) for info in segments(client, options)]
    return plan(ServiceBytes(client), wholes, options.min_partitions)


def segments(client: ReadClient, options: Options) -> list[SegmentInfo]:
    """All segments that the options name, as they are now, ordered by name. Of a prefix these may be tables,
    which have no bytes. Raises ``SegmentNotFound`` and ``WrongSegmentKind`` for the only one."""
    if options.segment is not None:
        info = client.segment_info(options.segment)
        if info.is_table:
            raise WrongSegmentKind.of(info.name, is_table=True)
        return [info]

    found = []
    for name in client.list_segments(options.segment_prefix):
        try:
            found.append(client.segment_info(name))
        except SegmentNotFound:
            continue  # deleted since it was listed
    return found


def whole_range(options: Options, info: SegmentInfo) -> Range:
    start = edge_offset(options.starting_offsets, info, Edge.EARLIEST)
    end = edge_offset(options.ending_offsets, info, Edge.LATEST)
    if start < info.start_offset:
        if options.fail_on_data_loss:
            raise truncated(info.name, start, info.start_offset)
        start = info.start_offset
    if end > info.length:
        raise InvalidArgument(f"option endingOffsets: {info.name!r} ends at {info.length}, before {end}")

    return Range(info.name, info.segment_id, start, max(start, end), info.history)


def edge_offset(offsets: Offsets, info: SegmentInfo, otherwise: Edge) -> int:
    if isinstance(offsets, Mapping):
        given = offsets.get(info.name)
        if given is not None:
            return given
        offsets = otherwise
    return info.start_offset if offsets is Edge.EARLIEST else info.length


def truncated(segment: str, offset: int, start: int) -> SegmentTruncated:
    return SegmentTruncated(
        f"segment {segment!r} was truncated at {start}, after the offset {offset} to read from. "
        "Set failOnDataLoss to false to go on without the lost events",
        segment=segment,
        start_offset=start,
    )


# --- tasks -----------------------------------------------------------------------------------


def read_range(
    client: SyncClient, options: Options, columns: Sequence[Column], part: Range, job: str
) -> Iterator[pa.RecordBatch]:
    worker_heap.begin()
    schema = arrow_schema(columns)
    try:
        present, flushed = _without_truncated(client, options, part)
        history = History(options.direct, job, client, _Storages(options.storage_location), _refusals)
        for block in history.blocks(ServiceBytes(client), present, flushed, options.read_bytes):
            yield record_batch(block, part.segment, schema)
        # Once more, now that all is read: in between, the name may have become another segment's.
        check_same(client, part)
    except (SegmentTruncated, SegmentNotFound) as error:
        if options.fail_on_data_loss:
            raise
        _log_lost(part, error)


def read_chunks(chunks: Chunks, columns: Sequence[Column], part: Range) -> Iterator[pa.RecordBatch]:
    worker_heap.begin()
    schema = arrow_schema(columns)
    for block in read_extents(connections.storage(chunks.place), chunks.extents, part):
        yield record_batch(block, part.segment, schema)


@attrs.frozen
class _Storages:
    """Those of this process; ``location`` is where it finds them, if not where the service says."""

    location: str

    def storage(self, place: StoragePlace) -> DirectStorage:
        return connections.storage(self._here(place))

    def drop_storage(self, place: StoragePlace) -> None:
        connections.drop_storage(self._here(place))

    def _here(self, place: StoragePlace) -> StoragePlace:
        # Where the service's endpoint and region do not count, those of the environment do.
        return StoragePlace(place.store, self.location) if self.location else place


def _report_refusal(reason: str) -> None:
    import logging

    logging.getLogger(__name__).warning(
        "history is read through the service, which is slower, because this executor cannot read long-term "
        "storage itself: %s. Correct that, or set direct to never",
        reason,
    )


_refusals = Refusals(_report_refusal)


def _without_truncated(client: SyncClient, options: Options, part: Range) -> tuple[Range, int]:
    """The range, without the bytes that were truncated since it was planned; and what is flushed."""
    info = check_same(client, part)
    if info.start_offset <= part.start:
        return part, info.flushed_length

    if options.fail_on_data_loss:
        raise truncated(part.segment, part.start, info.start_offset)

    return attrs.evolve(part, start=min(info.start_offset, part.end)), info.flushed_length


def check_same(client: SyncClient, part: Range) -> SegmentInfo:
    info = client.segment_info(part.segment)
    if part.segment_id not in (None, info.segment_id):
        raise SegmentNotFound(
            f"segment {part.segment!r} was deleted and recreated while it was read", segment=part.segment
        )

    if part.history not in (None, info.history):
        check_history(client, part.segment, part.end, part.history)
    return info


class HistoryClient(Protocol):
    """What is asked of a client."""

    def read(self, name: str, offset: int, size: int, *, history: int | None = None) -> bytes: ...


def check_history(client: HistoryClient, segment: str, offset: int, history: int | None) -> None:
    """Raise ``HistoryLost`` if the store was recovered from long-term storage alone since the offset was
    planned, without some of the bytes before it (rule R10)."""
    try:
        client.read(segment, offset, 1, history=history)
    except SegmentTruncated:
        return  # as far as it is known, the offset is of this history
    except HistoryLost as lost:
        raise HistoryLost(
            f"{lost}. The query has read events up to offset {offset}, of which those from "
            f"{lost.recovered_length} on are lost. Start it again with a new checkpoint, and with "
            f'startingOffsets {{"{segment}": {lost.recovered_length}}} to go on there',
            segment=segment,
            history=lost.history,
            recovered_length=lost.recovered_length,
        ) from lost


def _log_lost(part: Range, error: Exception) -> None:
    import logging

    logging.getLogger(__name__).warning(
        "events were lost: the rest of bytes %d to %d of %r is gone: %s",
        part.start,
        part.end,
        part.segment,
        error,
    )


def record_batch(block: Block, segment: str, schema: pa.Schema) -> pa.RecordBatch:
    import numpy as np
    import pyarrow as pa

    count = len(block.boundaries) - 1

    def column(field: pa.Field) -> Any:
        if field.name == VALUE:
            # The cast to a string checks that events are UTF-8.
            return events.decode_arrow(block.data, block.boundaries).cast(field.type)
        if field.name == OFFSET:
            return events.integers(np.asarray(block.boundaries[:-1], np.int64) + block.offset)
        assert field.name == SEGMENT
        return events.repeated(segment, count)

    return pa.RecordBatch.from_arrays([column(field) for field in schema], schema=schema)
