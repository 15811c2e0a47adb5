"""Reading one or more segments as a stream: offsets, the size of micro-batches, and their tasks.

``partitions(start, end)`` depends on the offsets and on bytes that never change, so a replayed micro-batch
has the same rows. A finished micro-batch truncates nothing, because others may read the segment too.

Spark asks an idle stream for its latest offset every few milliseconds. The service holds the request for a
moment and answers as soon as there are bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

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
from .reader import RangePartition, check_history, edge_offset, read_range, segments, truncated
from .schema import Column

if TYPE_CHECKING:
    import pyarrow as pa

WAIT_SECONDS = 0.2
"""How long the service holds an idle stream's request for its latest offset."""

Position = dict[str, Any]
"""By segment its offset, and under ``HISTORIES`` the histories of these offsets."""
HISTORIES = ""
"""No segment has this name. Histories that are 0 are left out: a store that was never recovered has no
other."""


def position(offsets: Mapping[str, int], histories: Mapping[str, int]) -> Position:
    known = {name: histories[name] for name in offsets if histories.get(name)}
    return {**offsets, **({HISTORIES: known} if known else {})}


def offsets_of(at: Position) -> dict[str, int]:
    return {name: offset for name, offset in at.items() if name != HISTORIES}


def histories_of(at: Position) -> dict[str, int]:
    return {**dict.fromkeys(offsets_of(at), 0), **at.get(HISTORIES, {})}


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
        infos = self._segments()
        return position(
            {info.name: self._beginning(info) for info in infos}, {info.name: info.history for info in infos}
        )

    def latestOffset(self, start: Position, limit: ReadLimit) -> Position:  # noqa: N802
        backlog = self._backlog(start)
        # An available-now query ends once there is nothing more, so it must not wait.
        if not backlog and self._until is None:
            self._wait(start)
            backlog = self._backlog(start)
        if isinstance(limit, ReadMaxBytes):
            return _after(start, backlog, admit(ServiceBytes(self._client()), backlog, limit.max_bytes))

        if not isinstance(limit, ReadAllAvailable):
            raise Unsupported(
                f"the data source tierlog limits a micro-batch by bytes only, not by {limit!r}: use "
                f"maxBytesPerTrigger"
            )

        # With the segments that have nothing new: one that an offset lacks would be read from its start.
        return _after(start, backlog, {whole.segment: whole.end for whole in backlog})

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
        histories = histories_of(end)
        wholes = [
            self._planned(name, start.get(name), until, histories[name])
            for name, until in sorted(offsets_of(end).items())
        ]
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

    def _planned(self, name: str, start: int | None, end: int, history: int) -> Range:
        """``start`` is None for a segment that was created after the query began: it is read from its start
        offset."""
        if start is None:
            try:
                start = self._client().segment_info(name).start_offset
            except SegmentNotFound as error:
                self._check_loss(error)
                start = end
        # Without an id: a replay has the offsets of the checkpoint and nothing else.
        return Range(name, None, start, end, history)

    def _backlog(self, start: Position) -> list[Range]:
        """What can be read now, after ``start``."""
        infos, offsets, histories = self._segments(), offsets_of(start), histories_of(start)
        for name in sorted(offsets.keys() - {info.name for info in infos}):
            self._check_loss(
                SegmentNotFound(
                    f"segment {name!r} is gone; it was read up to {offsets[name]}. {_HINT}", segment=name
                )
            )
        wholes = (
            self._waiting(info, offsets.get(info.name), histories.get(info.name, info.history))
            for info in infos
        )
        return [whole for whole in wholes if whole.size > 0]

    def _waiting(self, info: SegmentInfo, start: int | None, history: int) -> Range:
        # Spark's offsets never decrease, so the query cannot continue, also if others have appended as much.
        if start is not None and history != info.history:
            check_history(self._client(), info.name, start, history)
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
        return Range(info.name, info.segment_id, begin, max(begin, min(self._limits(info))), info.history)

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
        client, histories = self._client(), histories_of(start)
        for name, offset in sorted(offsets_of(start).items()):
            try:
                # One poll that waited is enough: Spark asks again. A sealed segment answers at once.
                if not client.poll(name, offset, WAIT_SECONDS, history=histories[name]).sealed:
                    return
            except (SegmentNotFound, LookupError):
                continue
        # None of them will ever grow; a new segment is not announced.
        pause(WAIT_SECONDS)


def _after(start: Position, backlog: Sequence[Range], ends: Mapping[str, int]) -> Position:
    """``start``, with the new ``ends``, which are of the present histories."""
    present = {whole.segment: whole.history or 0 for whole in backlog if whole.segment in ends}
    return position({**offsets_of(start), **ends}, {**histories_of(start), **present})


_HINT = "Set failOnDataLoss to false to go on without the lost events"
