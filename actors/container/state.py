"""The state of a container, and what each operation does to it: the same code live and in replay.

Owns: segments, transactions, chunk metadata entries, sequence and id counters, the newest complete flush
cycle, and the copy-on-write snapshot of a checkpoint under way. Does not own: whether an operation is allowed
(decisions made sure of that; apply is total, rule C5), durability (``pipeline.py``), or bytes
(``TailCache``).

Ordering: operations are applied in sequence order, each once, synchronously. An exception out of ``apply``
poisons the container live and is corruption in replay.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...journal.operations.abort_transaction import AbortTransaction
from ...journal.operations.append import Append
from ...journal.operations.barrier import Barrier
from ...journal.operations.begin_transaction import BeginTransaction
from ...journal.operations.checkpoint import CheckpointBegin, CheckpointEnd, CheckpointPart
from ...journal.operations.commit_metadata import CommitMetadata
from ...journal.operations.commit_transaction import CommitTransaction
from ...journal.operations.create_segment import CreateSegment
from ...journal.operations.cycle_complete import CycleComplete
from ...journal.operations.delete_segment import DeleteSegment
from ...journal.operations.expire_writers import ExpireWriters
from ...journal.operations.forget_segment import ForgetSegment
from ...journal.operations.forget_transactions import ForgetTransactions
from ...journal.operations.import_segment import ImportSegment
from ...journal.operations.merge_segments import MergeSegments
from ...journal.operations.operation import Operation
from ...journal.operations.relog_data import RelogData
from ...journal.operations.seal_segment import SealSegment
from ...journal.operations.segment_image import MergedRange, SegmentStatus, WriterState
from ...journal.operations.transaction_image import TransactionImage, encode_transaction
from ...journal.operations.truncate_segment import TruncateSegment
from ...journal.operations.update_attributes import UpdateAttributes
from ...storage_backends.base.ids import counter_of, epoch_of, segment_id
from ...storage_backends.base.transactions import is_staged
from ...storage_backends.segments.records.segment import SEGMENT_PREFIX, SegmentRecord, segment_of_key
from .segments import SegmentState, SegmentTable
from .transaction_table import Key, TransactionTable

CAUSED = frozenset(
    (
        AbortTransaction,
        Append,
        BeginTransaction,
        CommitTransaction,
        CreateSegment,
        DeleteSegment,
        ExpireWriters,
        MergeSegments,
        SealSegment,
        TruncateSegment,
        UpdateAttributes,
    )
)
"""Operations that a client caused; all others are internal and never make a flush cycle due (rule F5)."""

NO_CYCLE = CycleComplete(0, 0, 0, False)


class Snapshot:
    """The state at one sequence, kept while it is encoded in parts: a segment is encoded before its first
    change (rule C7)."""

    def __init__(
        self,
        sequence: int,
        segments: SegmentTable,
        entries: dict[str, tuple[int, bytes]],
        transactions: dict[Key, TransactionImage],
    ) -> None:
        self.sequence = sequence
        self.cycle = NO_CYCLE
        self._pending = dict(segments.by_id)
        self._saved = list(segments.evicted.values())
        # Entries and transactions are immutable, so a shallow copy is a snapshot.
        self._entries = entries
        self._transactions = transactions

    def before_change(self, segment: SegmentState) -> None:
        if self._pending.pop(segment.sid, None) is not None:
            self._saved.append(segment.image())

    def take(
        self, limit: int
    ) -> tuple[tuple[bytes, ...], tuple[tuple[str, int, bytes], ...], tuple[bytes, ...]]:
        """The next at most ``limit`` records: (images, entries, transactions). All empty once all were
        taken."""
        images = self._saved[:limit]
        del self._saved[:limit]
        while len(images) < limit and self._pending:
            images.append(self._pending.popitem()[1].image())

        entries: list[tuple[str, int, bytes]] = []
        while len(images) + len(entries) < limit and self._entries:
            key, (version, value) = self._entries.popitem()
            entries.append((key, version, value))

        transactions: list[bytes] = []
        while len(images) + len(entries) + len(transactions) < limit and self._transactions:
            transactions.append(encode_transaction(self._transactions.popitem()[1]))

        return tuple(images), tuple(entries), tuple(transactions)


class ContainerState:
    def __init__(self, epoch: int = 0) -> None:
        self.epoch = epoch
        self.segments = SegmentTable()
        self.transactions = TransactionTable()
        self.metadata: dict[str, tuple[int, bytes]] = {}
        self.sequence = 0
        """The sequence of the newest operation."""
        self.client_sequence = 0
        """The sequence of the newest operation that a client caused."""
        self.cycle = NO_CYCLE
        self.snapshot: Snapshot | None = None
        self._created = 0
        self._apply: dict[type, Callable[[Any], None]] = {
            AbortTransaction: self._abort_transaction,
            Append: self._append,
            Barrier: self._nothing,
            BeginTransaction: self._begin_transaction,
            CheckpointBegin: self._nothing,
            CheckpointEnd: self._nothing,
            CheckpointPart: self._nothing,
            CommitMetadata: self._commit_metadata,
            CommitTransaction: self._commit_transaction,
            CreateSegment: self._create,
            CycleComplete: self._cycle_complete,
            DeleteSegment: self._delete,
            ExpireWriters: self._expire_writers,
            ForgetSegment: self._forget,
            ForgetTransactions: self._forget_transactions,
            ImportSegment: self._import,
            MergeSegments: self._merge,
            RelogData: self._nothing,
            SealSegment: self._seal,
            TruncateSegment: self._truncate,
            UpdateAttributes: self._update_attributes,
        }

    def next_segment_id(self) -> int:
        """A fresh id; it counts once its creation is applied."""
        return segment_id(self.epoch, self._created + 1)

    def take_segment_id(self) -> int:
        """A fresh id for good, before anything durable has it: the ids of an epoch that is over are never
        given again (rule C2)."""
        self._created += 1
        return segment_id(self.epoch, self._created)

    def apply(self, op: Operation) -> None:
        """Give ``op`` the next sequence and change the state by it."""
        self.sequence += 1
        kind = type(op)
        if kind in CAUSED:
            self.client_sequence = self.sequence
        self._apply[kind](op)

    def begin_snapshot(self) -> Snapshot:
        """Fix the state as it is now, at ``sequence``. One at a time."""
        if self.snapshot is not None:
            raise RuntimeError("a checkpoint is under way already")

        self.snapshot = Snapshot(
            self.sequence, self.segments, dict(self.metadata), dict(self.transactions.records)
        )
        self.snapshot.cycle = self.cycle
        return self.snapshot

    def end_snapshot(self) -> None:
        self.snapshot = None

    def _change(self, sid: int) -> SegmentState:
        """The segment, about to be changed."""
        segment = self.segments.by_id[sid]
        segment.touched = self.sequence
        if self.snapshot is not None:
            self.snapshot.before_change(segment)

        return segment

    # --- one method per operation ----------------------------------------------------------------

    def _nothing(self, op: Operation) -> None:
        """Changes no state; its place in the log is its meaning."""

    def _append(self, op: Append) -> None:
        segment = self._change(op.sid)
        if segment.length != op.offset:
            raise ValueError(f"append at {op.offset} to {segment!r}")

        segment.length += len(op.data)
        if op.writer:
            segment.writers[op.writer] = WriterState(
                op.first_event, op.first_event + op.event_count - 1, op.offset
            )

    def _create(self, op: CreateSegment) -> None:
        self._count_id(op.sid)
        self.segments.add(SegmentState(op.sid, op.name, op.rolling_size))
        if is_staged(op.name):
            self.transactions.stage(op.name, op.sid)

    def _import(self, op: ImportSegment) -> None:
        self._count_id(op.image.sid)
        for key, value in op.records:
            self.metadata[key] = (self.sequence, value)
        segment = SegmentState.from_image(op.image)
        segment.durable_length = -1
        segment.touched = self.sequence
        self.load_record(segment)
        self.segments.add(segment)

    def _count_id(self, sid: int) -> None:
        """The id is given, and never given again."""
        if epoch_of(sid) == self.epoch:
            self._created = max(self._created, counter_of(sid))

    def _seal(self, op: SealSegment) -> None:
        self._change(op.sid).sealed = True

    def _truncate(self, op: TruncateSegment) -> None:
        segment = self._change(op.sid)
        segment.start_offset = max(segment.start_offset, op.offset)

    def _delete(self, op: DeleteSegment) -> None:
        segment = self._change(op.sid)
        self._unname(segment, SegmentStatus.DELETED)
        for merge in segment.merges:
            self._delete(DeleteSegment(merge.source))

    def _unname(self, segment: SegmentState, status: SegmentStatus) -> None:
        if segment.sid in self.transactions.open_of:
            raise ValueError(f"{segment!r} has open transactions, which end before it (rule T8)")

        self.segments.unname(segment, status)

    def _forget(self, op: ForgetSegment) -> None:
        self._change(op.sid)
        self.segments.remove(op.sid)

    def _update_attributes(self, op: UpdateAttributes) -> None:
        self._change(op.sid).attributes.update(op.values)

    def _expire_writers(self, op: ExpireWriters) -> None:
        segment = self._change(op.sid)
        for writer in op.writers:
            del segment.writers[writer]
            segment.expired[writer] = None

    def _begin_transaction(self, op: BeginTransaction) -> None:
        self.transactions.begin(self.segments.by_id[op.target].name, op)

    def _commit_transaction(self, op: CommitTransaction) -> None:
        self.transactions.commit(self.segments.by_id[op.target].name, op)
        for sid, _ in op.sources:
            self._change(sid).sealed = True

        self._merge(op)
        for sid in op.dropped:
            self._delete(DeleteSegment(sid))

    def _abort_transaction(self, op: AbortTransaction) -> None:
        self.transactions.abort(self.segments.by_id[op.target].name, op)
        for sid in op.dropped:
            self._delete(DeleteSegment(sid))

    def _forget_transactions(self, op: ForgetTransactions) -> None:
        self.transactions.forget(op.transactions)

    def _merge(self, op: MergeSegments | CommitTransaction) -> None:
        target = self._change(op.target)
        if target.length != op.offset:
            raise ValueError(f"merge at {op.offset} into {target!r}")

        for sid, length in op.sources:
            source = self._change(sid)
            if source.length != length:
                raise ValueError(f"merge of {length} bytes from {source!r}")

            self._unname(source, SegmentStatus.MERGED if length else SegmentStatus.DELETED)
            if length:
                target.merges.append(MergedRange(target.length, sid, length))
                target.length += length

        target.attributes.update(op.values)

    def _cycle_complete(self, op: CycleComplete) -> None:
        self.cycle = op

    def _commit_metadata(self, op: CommitMetadata) -> None:
        for key, value in op.writes:
            if value is None:
                self.metadata.pop(key, None)
            else:
                self.metadata[key] = (self.sequence, value)

            if key.startswith(SEGMENT_PREFIX):
                self._record_changed(segment_of_key(key), value)

    def _record_changed(self, sid: int, value: bytes | None) -> None:
        """Long-term storage's record of a segment changed: that commit is the flush position (rule F3)."""
        segment = self._change(sid)
        if value is None:
            segment.has_record = False
            if segment.status is SegmentStatus.MERGED:
                self.segments.remove(sid)  # spliced: its chunks belong to the target's record now
            return

        self._take_record(segment, value)
        while segment.merges and segment.merges[0].offset + segment.merges[0].length <= segment.flushed:
            segment.merges.pop(0)

    def load_record(self, segment: SegmentState) -> None:
        """Take over what long-term storage's record says of a segment that came out of an image."""
        entry = self.metadata.get(f"{SEGMENT_PREFIX}{segment.sid:016x}")
        if entry is not None:
            self._take_record(segment, entry[1])

    def _take_record(self, segment: SegmentState, value: bytes) -> None:
        record = SegmentRecord.decode(value)
        segment.has_record = True
        segment.flushed = record.length
        segment.flushed_start = record.start_offset
        segment.flushed_sealed = record.sealed

    def restore(self, segment: SegmentState) -> None:
        """Recovery: put a segment of a checkpoint into place; metadata entries and transactions are there
        already."""
        self.load_record(segment)
        self.segments.add(segment)
        if not segment.is_gone and is_staged(segment.name):
            self.transactions.stage(segment.name, segment.sid)

    def restored(self, sequence: int, cycle: CycleComplete) -> None:
        """Recovery: the checkpoint is loaded; what follows has sequences above ``sequence``."""
        self.sequence = sequence
        self.cycle = cycle
        dirty = any(s.needs_flush for s in self.segments.by_id.values())
        self.client_sequence = sequence if dirty else min(sequence, cycle.cut)
