"""The state of a container: segments, transactions, chunk metadata, and the counters for ids and sequences.

There is one state, the *speculative* one: it includes every operation that was given a sequence, durable or
not. Operations are applied in sequence order, each once and synchronously, with the same code live and in
replay (``operations/``). The pipeline makes operations durable; the tail cache holds the bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import attrs

from ...journal.operations.cycle_complete import CycleComplete
from ...journal.operations.operation import Operation
from ...journal.operations.segment_image import SegmentStatus
from ...journal.operations.transaction_image import TransactionImage, encode_transaction
from ...storage_backends.base.ids import counter_of, epoch_of, segment_id
from ...storage_backends.base.sorted_dict import FrozenView, SortedDict
from ...storage_backends.base.transactions import is_staged
from ...storage_backends.segments.records.segment import SEGMENT_PREFIX
from .manifest_state import ManifestState
from .operations import APPLY, CLIENT_OPERATIONS
from .segments import SegmentState, SegmentTable
from .transaction_table import Key, TransactionTable

NO_CYCLE = CycleComplete(0, 0, 0, False)


@attrs.define
class Records:
    """Records of a snapshot that are logged together: at most ``count_max``, of ``size_max`` bytes. A larger
    one comes alone."""

    count_max: int
    size_max: int
    size: int = 0
    images: list[bytes] = attrs.field(factory=list)
    entries: list[tuple[str, int, bytes]] = attrs.field(factory=list)
    transactions: list[bytes] = attrs.field(factory=list)

    def count_in(self, size: int) -> bool:
        """Count one more record of ``size`` bytes, if there is room for it."""
        count = len(self.images) + len(self.entries) + len(self.transactions)
        if count and (count == self.count_max or self.size + size > self.size_max):
            return False

        self.size += size
        return True


class Snapshot:
    """The state at one sequence, while a checkpoint encodes it in parts. A segment is encoded before its
    first change (rule C7)."""

    def __init__(
        self,
        sequence: int,
        cycle: CycleComplete,
        manifest: ManifestState,
        segments: FrozenView[int, bytes],
        entries: FrozenView[str, tuple[int, bytes]],
        transactions: FrozenView[Key, TransactionImage],
    ) -> None:
        self.sequence = sequence
        self.cycle = cycle
        self.manifest = manifest
        self.segments = segments
        self._left = chain(
            (("images", len(image), image) for _, image in segments),
            (("entries", len(key) + len(value), (key, version, value)) for key, (version, value) in entries),
            (
                ("transactions", len(encoded), encoded)
                for encoded in (encode_transaction(transaction) for _, transaction in transactions)
            ),
        )
        self._held: tuple[str, int, Any] | None = None
        """The record for which the last part had no room."""

    def take(self, count: int, size: int) -> Records:
        """Remove the next records, at most ``count``, of ``size`` bytes; none at the end."""
        found = Records(count, size)
        while (item := self._held or next(self._left, None)) is not None:
            kind, record_size, record = self._held = item
            if not found.count_in(record_size):
                break

            getattr(found, kind).append(record)
            self._held = None
        return found


class ContainerState:
    def __init__(
        self,
        container: int = 0,
        epoch: int = 0,
        on_load: Callable[[SegmentState], None] = lambda segment: None,
    ) -> None:
        """``on_load(segment)`` is called when an evicted segment comes back into memory."""
        self.container = container
        self.epoch = epoch
        self.segments = SegmentTable(self._load_segment)
        self.transactions = TransactionTable()
        self.metadata: SortedDict[str, tuple[int, bytes]] = SortedDict()
        """Chunk metadata: key -> (version, encoded record)."""
        self.sequence = 0
        """The sequence of the newest operation."""
        self.client_sequence = 0
        """The sequence of the newest operation that a client caused."""
        self.cycle = NO_CYCLE
        """The newest complete flush cycle."""
        self.manifest = ManifestState()
        """What the log knows of the chain in long-term storage."""
        self.snapshot: Snapshot | None = None
        self.checkpoint_bytes = 0
        """The size of the newest checkpoint."""
        self._on_load = on_load
        self._created = 0
        self.newest_segment = 0
        """The highest segment id that the log is known to have used."""
        self._knows_newest = True
        """Whether no checkpoint left that id out."""

    def apply(self, op: Operation) -> None:
        """Give ``op`` the next sequence and change the state by it."""
        self.sequence += 1
        kind = type(op)
        if kind in CLIENT_OPERATIONS:
            self.client_sequence = self.sequence
        APPLY[kind](self, op)

    # --- segment ids (rule C2) -------------------------------------------------------------------

    def next_segment_id(self) -> int:
        """A fresh id; it is used up when its creation is applied."""
        return segment_id(self.epoch, self._created + 1)

    def take_segment_id(self) -> int:
        """A fresh id, used up at once, for records that are committed before the creation."""
        self._created += 1
        return segment_id(self.epoch, self._created)

    def count_segment_id(self, sid: int) -> None:
        """The id is used up: never assign it again."""
        self.newest_segment = max(self.newest_segment, sid)
        # C2: ids of earlier owners have their epochs, which are not used again.
        if epoch_of(sid) == self.epoch:
            self._created = max(self._created, counter_of(sid))

    def note_newest_segment(self, sid: int) -> None:
        """A checkpoint notes the highest id, whose segment may be deleted."""
        self.newest_segment = max(self.newest_segment, sid)
        self._knows_newest = True

    @property
    def known_newest_segment(self) -> int | None:
        """The highest id that the log used; None if it may have used higher ones, which checkpoints of older
        versions leave open."""
        return self.newest_segment if self._knows_newest else None

    # --- for apply functions ---------------------------------------------------------------------

    def change(self, sid: int) -> SegmentState:
        """The segment, about to be changed. ``KeyError`` if there is none."""
        segments = self.segments
        segment = segments.by_id[sid]
        segment.touched = self.sequence
        if not segment.is_listed:
            segments.list_dirty(segment)
        if self.snapshot is not None:
            self.snapshot.segments.before_change(sid)

        return segment

    def unname(self, segment: SegmentState, status: SegmentStatus) -> None:
        """The segment is deleted or merged: free its name."""
        if segment.sid in self.transactions.open_of:
            raise ValueError(f"{segment!r} has open transactions: they must end first (rule T8)")

        self.segments.unname(segment, status)

    def load_record(self, segment: SegmentState) -> None:
        """Load the record in long-term storage of a segment that was made from an image."""
        entry = self.metadata.get(f"{SEGMENT_PREFIX}{segment.sid:016x}")
        if entry is not None:
            segment.load_record(entry[1])

    def _load_segment(self, segment: SegmentState) -> None:
        self.load_record(segment)
        self._on_load(segment)

    # --- checkpoints and recovery ----------------------------------------------------------------

    def begin_snapshot(self) -> Snapshot:
        """Fix the state as it is now, at ``sequence``. One at a time."""
        if self.snapshot is not None:
            raise RuntimeError("another checkpoint is in progress")

        self.snapshot = Snapshot(
            self.sequence,
            self.cycle,
            self.manifest,
            self.segments.freeze(),
            self.metadata.freeze(),
            self.transactions.records.freeze(),
        )
        return self.snapshot

    def end_snapshot(self) -> None:
        self.snapshot = None
        self.metadata.end_view()
        self.transactions.records.end_view()

    def restore(self, segment: SegmentState) -> None:
        """Recovery: add a segment of a checkpoint. Its metadata entries and transactions are restored
        first."""
        self.load_record(segment)
        self.segments.add(segment)
        self.newest_segment = max(self.newest_segment, segment.sid)
        if not segment.is_gone and is_staged(segment.name):
            self.transactions.stage(segment.name, segment.sid)

    def restored(self, sequence: int, cycle: CycleComplete, size: int) -> None:
        """Recovery: a checkpoint of ``size`` bytes is loaded; the next operation gets the sequence after
        ``sequence``."""
        self._knows_newest = False
        self.checkpoint_bytes = size
        self.sequence = sequence
        self.cycle = cycle
        # A checkpoint does not say which operations clients caused. If all segments are clean, none makes a
        # cycle due, so an idle store stays quiet after its opening (F5).
        self.client_sequence = sequence if self.segments.dirty else min(sequence, cycle.cut)
