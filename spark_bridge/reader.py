"""Reading events: a range of a segment as Arrow batches, and the reader of a batch.

Owns: what a task does with its range, what is done about bytes that are gone, and how a batch is planned.
Does not own: where segments may be cut (``ranges.py``), nor streams (``stream_reader.py``).

A task reads between two offsets that were fixed when the read was planned, so a task that runs again gives
the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
from pyspark.sql.datasource import DataSourceReader, InputPartition

from ..actors.gateway.client.sync_client import SyncClient
from ..storage_backends.base.errors import InvalidArgument, SegmentNotFound, SegmentTruncated
from ..storage_backends.base.segments import SegmentInfo
from . import events
from .bytes_source import ServiceBytes
from .connections import connections
from .options import Edge, Offsets, Options
from .ranges import Block, Range, blocks, plan
from .schema import OFFSET, SEGMENT, VALUE, Column, arrow_schema
from .worker_heap import worker_heap

if TYPE_CHECKING:
    import pyarrow as pa


class RangePartition(InputPartition):
    """One task's range."""

    def __init__(self, range: Range) -> None:
        super().__init__(range)
        self.range = range

    def __repr__(self) -> str:
        return f"RangePartition({self.range})"


class TierlogReader(DataSourceReader):
    def __init__(self, options: Options, columns: Sequence[Column]) -> None:
        self.options = options
        self.columns = columns

    def partitions(self) -> list[InputPartition]:
        options = self.options
        client = connections.client(options)
        wholes = [whole_range(options, info) for info in segments(client, options)]
        return [RangePartition(part) for part in plan(ServiceBytes(client), wholes, options.min_partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangePartition)
        return read_range(connections.client(self.options), self.options, self.columns, partition.range)


# --- what there is to read ----------------------------------------------------------------------


def segments(client: SyncClient, options: Options) -> list[SegmentInfo]:
    """All segments that the options name, as they are now, in the order of their names."""
    if options.segment is not None:
        return [client.segment_info(options.segment)]

    found = []
    for name in client.list_segments(options.segment_prefix):
        try:
            found.append(client.segment_info(name))
        except SegmentNotFound:
            # Deleted since it was listed: as if it had been a moment earlier.
            continue
    return found


def whole_range(options: Options, info: SegmentInfo) -> Range:
    start = edge_offset(options.starting_offsets, info, Edge.EARLIEST)
    end = edge_offset(options.ending_offsets, info, Edge.LATEST)
    if start < info.start_offset:
        if options.fail_on_data_loss:
            raise gone(info.name, start, info.start_offset)
        start = info.start_offset
    if end > info.length:
        raise InvalidArgument(f"option endingOffsets: {info.name!r} ends at {info.length}, before {end}")

    return Range(info.name, info.segment_id, start, max(start, end))


def edge_offset(offsets: Offsets, info: SegmentInfo, otherwise: Edge) -> int:
    if isinstance(offsets, Mapping):
        given = offsets.get(info.name)
        if given is not None:
            return given
        offsets = otherwise
    return info.start_offset if offsets is Edge.EARLIEST else info.length


def gone(segment: str, offset: int, start: int) -> SegmentTruncated:
    return SegmentTruncated(
        f"segment {segment!r} begins at {start}, and is to be read from {offset} on: it was truncated. "
        "Set failOnDataLoss to false to go on without what is lost",
        segment=segment,
        start_offset=start,
    )


# --- what a task does ---------------------------------------------------------------------------


def read_range(
    client: SyncClient, options: Options, columns: Sequence[Column], part: Range
) -> Iterator[pa.RecordBatch]:
    worker_heap.begin()
    schema = arrow_schema(columns)
    try:
        begun = _begin(client, options, part)
        for block in blocks(ServiceBytes(client), part.segment, begun.start, begun.end, options.read_bytes):
            yield record_batch(block, part.segment, schema)
        _check_same(client, part)
    except (SegmentTruncated, SegmentNotFound) as error:
        if options.fail_on_data_loss:
            raise
        _lost(part, error)


def _begin(client: SyncClient, options: Options, part: Range) -> Range:
    """The range, without what was truncated since it was planned."""
    info = _check_same(client, part)
    if info.start_offset <= part.start:
        return part

    if options.fail_on_data_loss:
        raise gone(part.segment, part.start, info.start_offset)

    return attrs.evolve(part, start=min(info.start_offset, part.end))


def _check_same(client: SyncClient, part: Range) -> SegmentInfo:
    info = client.segment_info(part.segment)
    if part.segment_id not in (None, info.segment_id):
        raise SegmentNotFound(
            f"segment {part.segment!r} was deleted and made anew while it was read", segment=part.segment
        )

    return info


def _lost(part: Range, error: Exception) -> None:
    import logging

    logging.getLogger(__name__).warning(
        "the rest of bytes %d to %d of %r is gone: %s", part.start, part.end, part.segment, error
    )


def record_batch(block: Block, segment: str, schema: pa.Schema) -> pa.RecordBatch:
    import numpy as np
    import pyarrow as pa

    count = len(block.borders) - 1

    def column(field: pa.Field) -> Any:
        if field.name == VALUE:
            # Text is checked to be UTF-8 here; anything else is as it was.
            return events.decode_arrow(block.data, block.borders).cast(field.type)
        if field.name == OFFSET:
            return pa.array(np.asarray(block.borders[:-1], np.int64) + block.offset)
        assert field.name == SEGMENT
        return pa.repeat(segment, count)

    return pa.RecordBatch.from_arrays([column(field) for field in schema], schema=schema)
