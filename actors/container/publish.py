"""Publishing: what a durable operation makes visible. The only writer of durable lengths, the tail cache and
the log references.

Owns: the step from "durable" to "readable" (rule C1), live and in replay. Does not own: the state's other
fields (``state.py`` set them when the operation was given its sequence). Synchronous; an exception poisons
the container.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from ...journal.operations.abort_transaction import AbortTransaction
from ...journal.operations.append import Append
from ...journal.operations.begin_transaction import BeginTransaction
from ...journal.operations.commit_metadata import CommitMetadata
from ...journal.operations.commit_transaction import CommitTransaction
from ...journal.operations.create_segment import CreateSegment
from ...journal.operations.cycle_complete import CycleComplete
from ...journal.operations.delete_segment import DeleteSegment
from ...journal.operations.forget_segment import ForgetSegment
from ...journal.operations.import_segment import ImportSegment
from ...journal.operations.merge_segments import MergeSegments
from ...journal.operations.operation import Operation
from ...journal.operations.relog_data import RelogData
from ...journal.operations.seal_segment import SealSegment
from ...journal.operations.segment_image import SegmentStatus
from ...journal.operations.truncate_segment import TruncateSegment
from ...storage_backends.segments.records.segment import SEGMENT_PREFIX, segment_of_key
from ..read.tail_cache import TailCache
from .segments import SegmentState
from .state import ContainerState

APPEND_BOUNDARY_BYTES = 1 << 20
"""Append starts are kept about this often (rule S5), so that readers can split a segment where an append
begins."""
JOIN_BYTES_MAX = 16 << 10
"""Up to this size on average, appends of one group are joined before they are cached."""
_GROUPS_PER_MARK = 16
"""So many groups more than needed the log may keep for a segment."""


class Publisher:
    def __init__(
        self, state: ContainerState, cache: TailCache, *, due_bytes: int, on_due: Callable[[int], None]
    ) -> None:
        """``on_due(sid)`` is called when a segment has at least ``due_bytes`` unflushed bytes."""
        self.on_transaction: Callable[[BeginTransaction | CommitTransaction | AbortTransaction], None] = (
            lambda op: None
        )
        """Called with each durable operation that begins or ends a transaction."""
        self.on_record: Callable[[int], None] = lambda sid: None
        """Called with each segment whose record in long-term storage was committed or removed."""
        self.on_cycle: Callable[[], None] = lambda: None
        """Called with each complete flush cycle."""
        self._state = state
        self._evict_above = 0
        state.segments.on_thaw = self._thaw
        self._due_bytes = due_bytes
        self._on_due = on_due
        self._table = state.segments
        self._segments = state.segments.by_id
        self._cache = cache
        self._others: dict[type, Callable[[Any, int], None]] = {
            AbortTransaction: self._abort_transaction,
            BeginTransaction: self._begin_transaction,
            CommitMetadata: self._commit_metadata,
            CommitTransaction: self._commit_transaction,
            CreateSegment: self._create,
            CycleComplete: self._cycle_complete,
            DeleteSegment: self._delete,
            ForgetSegment: self._forget,
            ImportSegment: self._import,
            MergeSegments: self._merge,
            RelogData: self._relog,
            SealSegment: self._wake,
            TruncateSegment: self._wake,
        }

    def publish(self, operations: Iterable[Operation], group: int) -> None:
        """Make the operations of durable group ``group`` visible, in order.

        Hot path: appends to one segment with nothing but appends between them become visible as one run. All
        of it happens in one step, so nobody sees the difference, and what a group costs depends on its
        segments and bytes more than on its appends.
        """
        runs: dict[int, list[Append]] = {}
        for op in operations:
            if type(op) is Append:
                run = runs.get(op.sid)
                if run is None:
                    runs[op.sid] = [op]
                else:
                    run.append(op)
                continue

            if runs:
                self._append_runs(runs, group)
                runs = {}
            show = self._others.get(type(op))
            if show is not None:
                show(op, group)

        self._append_runs(runs, group)

    def restore(self, segment: SegmentState) -> None:
        """Recovery: begin to cache a segment out of a checkpoint."""
        if segment.status is not SegmentStatus.DELETED:
            self._cache.open_segment(segment.sid, segment.flushed)

    def _thaw(self, segment: SegmentState) -> None:
        self._state.load_record(segment)
        self._cache.open_segment(segment.sid, segment.flushed)

    def evict_idle(self, active_max: int) -> None:
        """Keep about ``active_max`` segments in full: drop a tenth of them, idle ones, when there are
        more."""
        if len(self._segments) <= max(active_max, self._evict_above):
            return

        for sid in self._table.evict(len(self._segments) - active_max + active_max // 10):
            self._cache.drop_segment(sid)

        # If few were idle, do not search them all again after every group: only a flush cycle makes many of
        # them idle.
        self._evict_above = len(self._segments) + active_max // 10

    def restore_data(self, op: Append | RelogData, group: int) -> None:
        """Recovery: bytes from before the checkpoint that it counts, but that long-term storage may not have
        yet."""
        segment, end = self._table.get(op.sid), op.offset + len(op.data)
        if op.data and segment is not None and op.sid in self._cache and end > segment.flushed:
            self._cache.append(op.sid, op.offset, op.data)
            self._mark(segment, end, group)
            if type(op) is Append:  # what was re-logged begins anywhere
                self._note_boundary(segment, op.offset)

    def _append_runs(self, runs: dict[int, list[Append]], group: int) -> None:
        for run in runs.values():
            if run[-1].offset - run[0].offset < JOIN_BYTES_MAX * (len(run) - 1):
                self._append(run, group)
                continue

            for op in run:  # large data is kept as it came: to join it would copy it
                self._append([op], group)

    def _append(self, run: list[Append], group: int) -> None:
        """Appends to one segment, one behind the other."""
        sid, offset, data, *_ = run[0]
        if len(run) > 1:
            data = b"".join([op.data for op in run])
        segment = self._segments[sid]
        end = offset + len(data)
        if segment.durable_length > offset:
            raise ValueError(f"{segment!r}: an append at {offset} was published before")

        segment.durable_length = end
        if data:
            self._cache.append(sid, offset, data)
            self._mark(segment, end, group)
            self._note_boundaries(segment, run, end)
            if end - segment.flushed >= self._due_bytes:
                self._on_due(sid)
        if segment.waiter is not None:
            segment.wake()

    def _note_boundaries(self, segment: SegmentState, run: list[Append], end: int) -> None:
        boundaries = segment.append_boundaries
        if boundaries and (end - 1) // APPEND_BOUNDARY_BYTES <= boundaries[-1] // APPEND_BOUNDARY_BYTES:
            return  # nothing in the run begins in a new MiB

        for op in run:
            if op.data:
                self._note_boundary(segment, op.offset)

    def _note_boundary(self, segment: SegmentState, offset: int) -> None:
        """An append begins at ``offset``; the first one in each MiB is kept."""
        boundaries = segment.append_boundaries
        if not boundaries or offset // APPEND_BOUNDARY_BYTES > boundaries[-1] // APPEND_BOUNDARY_BYTES:
            boundaries.append(offset)

    def _mark(self, segment: SegmentState, end: int, group: int) -> None:
        """Note that the bytes up to ``end`` need ``group``, or an older one: a mark for every few groups
        keeps their number small (C9)."""
        references = segment.log_references
        if references and group - references[-1][1] < _GROUPS_PER_MARK:
            # In recovery, re-logged bytes may end before others that were appended earlier.
            references[-1] = (max(end, references[-1][0]), references[-1][1])
        else:
            references.append((end, group))

    def _create(self, op: CreateSegment, group: int) -> None:
        self._segments[op.sid].durable_length = 0
        self._cache.open_segment(op.sid, 0)

    def _import(self, op: ImportSegment, group: int) -> None:
        segment = self._segments[op.image.sid]
        segment.durable_length = op.image.length
        self._cache.open_segment(segment.sid, segment.flushed)

    def _cycle_complete(self, op: CycleComplete, group: int) -> None:
        self._evict_above = 0
        self.on_cycle()

    def _wake(self, op: SealSegment | TruncateSegment, group: int) -> None:
        self._segments[op.sid].wake()

    def _delete(self, op: DeleteSegment, group: int) -> None:
        segment = self._segments[op.sid]
        self._discard(segment)
        for merge in segment.merges:
            self._delete(DeleteSegment(merge.source), group)

    def _discard(self, segment: SegmentState) -> None:
        """Nobody will read or flush these bytes any more."""
        segment.log_references.clear()
        segment.wake()
        self._cache.drop_segment(segment.sid)

    def _forget(self, op: ForgetSegment, group: int) -> None:
        self._cache.drop_segment(op.sid)

    def _begin_transaction(self, op: BeginTransaction, group: int) -> None:
        self.on_transaction(op)

    def _commit_transaction(self, op: CommitTransaction, group: int) -> None:
        self._merge(op, group)
        self._drop(op.dropped, group)
        self.on_transaction(op)

    def _abort_transaction(self, op: AbortTransaction, group: int) -> None:
        self._drop(op.dropped, group)
        self.on_transaction(op)

    def _drop(self, sids: tuple[int, ...], group: int) -> None:
        for sid in sids:
            self._delete(DeleteSegment(sid), group)

    def _merge(self, op: MergeSegments | CommitTransaction, group: int) -> None:
        target = self._segments[op.target]
        target.durable_length = op.offset + sum(length for _, length in op.sources)
        target.wake()
        for sid, _ in op.sources:
            source = self._table.get(sid)
            if source is not None:
                source.wake()

    def _relog(self, op: RelogData, group: int) -> None:
        segment = self._table.get(op.sid)
        end = op.offset + len(op.data)
        if segment is None or end <= segment.flushed or op.sid not in self._cache:
            return

        self._cache.append(op.sid, op.offset, op.data)
        # What lies before was re-logged in an earlier piece, whose group is needed as well.
        before = [mark for mark in segment.log_references if mark[0] <= op.offset]
        later = [mark for mark in segment.log_references if mark[0] > end]
        segment.log_references = deque((*before, (end, group), *later))

    def _commit_metadata(self, op: CommitMetadata, group: int) -> None:
        for key, _ in op.writes:
            if key.startswith(SEGMENT_PREFIX):
                sid = segment_of_key(key)
                self.on_record(sid)
                self._flushed(sid)

    def _flushed(self, sid: int) -> None:
        segment = self._table.get(sid)
        if segment is None:
            self._cache.drop_segment(sid)
            return

        self._cache.mark_flushed(sid, segment.flushed)
        references = segment.log_references
        while references and references[0][0] <= segment.flushed:
            references.popleft()

        boundaries = segment.append_boundaries
        while len(boundaries) > 1 and boundaries[1] <= segment.flushed:
            boundaries.popleft()
