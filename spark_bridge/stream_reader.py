"""Reading one or more segments as a stream: offsets, the size of micro-batches, and their tasks.

``partitions(start, end)`` depends on the offsets and on bytes that never change, so a replayed micro-batch
has the same rows. A finished micro-batch truncates nothing, because others may read the segment too.

Spark asks an idle stream for its latest offset every few milliseconds. The service holds the request for a
moment and answers as soon as there are bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)

from ..actors.gateway.client.sync_client import SyncClient
from ..storage_backends.base.errors import SegmentNotFound, Unsupported
from ..storage_backends.base.segments import SegmentInfo
from .connections import connections, new_id, pause
from .options import Edge, Options
from .ranges import Range, ServiceBytes, admit, plan
from .reader import RangePartition, edge_offset, read_range, segments, truncated
from .schema import Column

if TYPE_CHECKING:
    import pyarrow as pa

WAIT_SECONDS = 0.2
"""How long the service holds an idle stream's request for its latest offset."""

Position = dict[str, int]


class TierlogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: Options, columns: Sequence[Column]) -> None:
        self.options = options
        self.columns = columns
        # Spark pickles this reader into every task.
        self.job = new_id()
        self._until: Position | None = None
        """Where an available-now query ends."""

    # --- offsets ---------------------------------------------------------------------------------

    def initialOffset(self) -> Position:  # noqa: N802 - Spark calls it so
        return {info.name: self._beginning(info) for info in self._segments()}

    def latestOffset(self, start: Position, limit: ReadLimit) -> Position:  # noqa: N802
        backlog = self._backlog(start)
        # An available-now query ends once there is nothing more, so it must not wait.
        if not backlog and self._until is None:
            self._wait(start)
            backlog = self._backlog(start)
        if isinstance(limit, ReadMaxBytes):
            return {**start, **admit(ServiceBytes(self._client()), backlog, limit.max_bytes)}

        if not isinstance(limit, ReadAllAvailable):
            raise Unsupported(
                f"the data source tierlog limits a micro-batch by bytes only, not by {limit!r}: use "
                f"maxBytesPerTrigger"
            )

        # With the segments that have nothing new: one that an offset lacks would be read from its start.
        return {**start, **{whole.segment: whole.end for whole in backlog}}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        limit = self.options.max_bytes_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxBytes(limit)

    def reportLatestOffset(self) -> Position:  # noqa: N802
        # For Spark's progress reports only.
        return {info.name: info.length for info in self._segments()}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        # Fixed once: a run ends although others go on appending.
        self._until = {info.name: info.length for info in self._segments()}

    # --- a micro-batch ---------------------------------------------------------------------------

    def partitions(self, start: Position, end: Position) -> list[InputPartition]:
        wholes = [self._planned(name, start.get(name), until) for name, until in sorted(end.items())]
        return [
            RangePartition(part)
            for part in plan(ServiceBytes(self._client()), wholes, self.options.min_partitions)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangePartition)
        return read_range(self._client(), self.options, self.columns, partition.range, self.job)

    # --- planning --------------------------------------------------------------------------------

    def _client(self) -> SyncClient:
        return connections.client(self.options)

    def _segments(self) -> list[SegmentInfo]:
        return segments(self._client(), self.options)

    def _beginning(self, info: SegmentInfo) -> int:
        return edge_offset(self.options.starting_offsets, info, Edge.EARLIEST)

    def _planned(self, name: str, start: int | None, end: int) -> Range:
        """``start`` is None for a segment that was created after the query began: it is read from its start
        offset."""
        if start is None:
            try:
                start = self._client().segment_info(name).start_offset
            except SegmentNotFound as error:
                self._check_loss(error)
                start = end
        # Without an id: a replay has the offsets of the checkpoint and nothing else.
        return Range(name, None, start, end)

    def _backlog(self, start: Position) -> list[Range]:
        """What can be read now, after ``start``."""
        infos = {info.name: info for info in self._segments()}
        for name in start.keys() - infos.keys():
            self._check_loss(
                SegmentNotFound(
                    f"segment {name!r} is gone; it was read up to {start[name]}. {_HINT}", segment=name
                )
            )
        return [
            whole for info in infos.values() if (whole := self._waiting(info, start.get(info.name))).size > 0
        ]

    def _waiting(self, info: SegmentInfo, start: int | None) -> Range:
        # A segment that the query has not seen yet is new, whatever startingOffsets has for the others.
        begin = 0 if start is None else start
        if begin < info.start_offset:
            if start is not None:
                self._check_loss(truncated(info.name, begin, info.start_offset))
            begin = info.start_offset
        if begin > info.length:
            # The offsets belong to another segment, and Spark's offsets never decrease: the query cannot
            # continue.
            raise SegmentNotFound(
                f"segment {info.name!r} has {info.length} bytes and was read up to {begin}: it was deleted "
                "and recreated. Start a new query with a new checkpoint",
                segment=info.name,
            )
        return Range(info.name, info.segment_id, begin, max(begin, min(self._limits(info))))

    def _limits(self, info: SegmentInfo) -> Iterator[int]:
        yield info.length
        if self._until is not None:
            # What was created since is left to the next run.
            yield self._until.get(info.name, 0)
        if isinstance(self.options.ending_offsets, Mapping):
            yield self.options.ending_offsets.get(info.name, info.length)

    def _check_loss(self, error: Exception) -> None:
        if self.options.fail_on_data_loss:
            raise error

    def _wait(self, start: Position) -> None:
        """Wait for bytes of one of the segments; new bytes of the others are seen afterwards."""
        client = self._client()
        for name in sorted(start):
            try:
                # One poll that waited is enough: Spark asks again. A sealed segment answers at once.
                if not client.poll(name, start[name], WAIT_SECONDS).sealed:
                    return
            except (SegmentNotFound, LookupError):
                continue
        # None of them will ever grow; a new segment is not announced.
        pause(WAIT_SECONDS)


_HINT = "Set failOnDataLoss to false to go on without the lost events"
