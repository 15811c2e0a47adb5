"""Recovery: builds a container's state from its log.

Owns: the way from recovered groups to a state in which every acked append is readable. Does not own: fencing,
sealing or torn tails (the log handled them before ``read``), nor long-term storage.

Order: find the newest complete checkpoint by its tag; load its parts; then read from the truncation address
on. Operations at or before the checkpoint's sequence only supply bytes that are not flushed yet; later ones
are applied and published by the same code as live ones. At the end the log must hold every unflushed
byte, or it is refused as corrupt; the cache holds as many as its limit allows (rule C10).

An operation that cannot be decoded or applied is corruption, with its address. Recovery writes nothing, so a
failed one changes nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import aclosing
from typing import TypeVar

import anyio.lowlevel
import attrs

from ...journal.group_payload import decode_group
from ...journal.log.contract import DurableDataLog, OpenedLog
from ...journal.manifest.element import CONSISTENT
from ...journal.operations.append import Append
from ...journal.operations.begin_history import BeginHistory
from ...journal.operations.checkpoint import (
    CheckpointCounters,
    CheckpointEnd,
    CheckpointImages,
    CheckpointPart,
    CheckpointPiece,
    CheckpointRows,
)
from ...journal.operations.checkpoint_closures import CheckpointClosures
from ...journal.operations.ended_transactions import CheckpointEnds
from ...journal.operations.log_element import CheckpointManifest, LogElement
from ...journal.operations.operation import Operation
from ...journal.operations.relog_data import RelogData
from ...journal.operations.segment_image import SegmentStatus, decode_image
from ...journal.operations.transaction_image import TransactionStatus, decode_transaction
from ...storage_backends.base.codec import DecodeError, NewerFormat
from ...storage_backends.base.errors import DataCorruption, StoreMismatch
from ...storage_backends.base.statistics import gauge
from ...storage_backends.sorted_runs.rows import Row
from ..kernel.slices import in_slices
from ..read.tail_cache import TailCache
from .checkpoint import TAG_CHECKPOINT_END
from .manifest_state import ManifestState
from .publish import Publisher
from .segments import SegmentState
from .state import ContainerState

T = TypeVar("T")
_STEP = 32
"""Records that are restored in one step."""


@attrs.frozen(eq=False, repr=False)
class RecoveryReport:
    groups: int = attrs.field(metadata=gauge("Log groups read at the last recovery."))
    operations: int = attrs.field(
        metadata=gauge("Operations applied after the checkpoint at the last recovery.")
    )
    checkpoint_sequence: int = attrs.field(
        metadata=gauge("The operation sequence of the checkpoint that was loaded; 0 for none.")
    )


def _decode(number: int, payload: memoryview) -> tuple[int, list[Operation]]:
    try:
        return decode_group(payload)
    except NewerFormat as error:
        raise StoreMismatch(f"group {number} of the log has an {error}: use a newer tierlog") from error
    except (DecodeError, ValueError) as error:
        raise DataCorruption(
            f"group {number} of the log does not decode: {error}", file=f"group {number}"
        ) from error


@attrs.define(eq=False, repr=False)
class _CheckpointRecords:
    """What the parts of one checkpoint hold. Elements and rows go into the state as they come,
    because segments are restored after them."""

    checkpoint: int
    sequence: int
    state: ContainerState
    live_segments: int | None = None
    """None in checkpoints of earlier versions, which have all segments."""
    ends: int = 0
    """Of transactions, those that are rows."""
    is_complete: bool = False
    size: int = 0
    images: deque[tuple[int, bytes]] = attrs.field(factory=deque)
    """With their versions: the checkpoint's own where it has none."""
    transactions: deque[bytes] = attrs.field(factory=deque)
    _pieces: list[bytes] = attrs.field(factory=list)

    def add(self, op: Operation) -> None:
        if type(op) is CheckpointPart and op.checkpoint == self.checkpoint:
            self.images += ((self.sequence, image) for image in op.images)
            self.transactions += op.transactions
            self.size += sum(map(len, (*op.images, *op.transactions)))
            self._restore_rows(Row(key.encode(), version, value) for key, version, value in op.entries)
        elif type(op) is CheckpointImages and op.checkpoint == self.checkpoint:
            self.images += op.images
            self.size += sum(len(image) for _, image in op.images)
        elif type(op) is CheckpointCounters and op.checkpoint == self.checkpoint:
            self.live_segments = op.segments
        elif type(op) is CheckpointEnds and op.checkpoint == self.checkpoint:
            self.ends = op.ends
        elif type(op) is CheckpointClosures and op.checkpoint == self.checkpoint:
            self.state.closures.restore(op.changes)
        elif type(op) is CheckpointRows and op.checkpoint == self.checkpoint:
            self._restore_rows(op.rows)
        elif type(op) is CheckpointPiece and op.checkpoint == self.checkpoint:
            self._pieces.append(op.data)
            self.size += len(op.data)
            if op.is_last:
                self.images.append((self.sequence, b"".join(self._pieces)))
                self._pieces.clear()
        elif type(op) is CheckpointManifest and op.checkpoint == self.checkpoint:
            head = LogElement(op.head) if op.head else None
            manifest = ManifestState(head)
            if op.intent:
                manifest = manifest.recorded(LogElement.after(head, op.intent))
            self.state.know_elements(manifest)
            self.size += len(op.head) + len(op.intent)
        elif type(op) is CheckpointEnd and op.checkpoint == self.checkpoint:
            self.is_complete = True

    def _restore_rows(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self.state.restore_row(row)
            self.size += len(row.key) + len(row.value or b"")


def _taken(items: deque[T]) -> Iterator[T]:
    """Each is freed when it was used: to free all of them at the end would be one long step."""
    while items:
        yield items.popleft()


class Recovery:
    def __init__(
        self,
        log: DurableDataLog,
        opened: OpenedLog,
        state: ContainerState,
        publisher: Publisher,
        cache: TailCache,
    ) -> None:
        self._log = log
        self._opened = opened
        self._state = state
        self._publisher = publisher
        self._cache = cache
        self._divided = state.manifest
        """What was known of the chain when the memtable was divided last."""

    async def run(self) -> RecoveryReport:
        self._state.recovered_ends = {}
        end = await self._newest_checkpoint()
        begin_group, begin_sequence = (0, 0) if end is None else (end.begin_group, end.begin_sequence)
        if end is not None:
            await self._load(end)
        # Only a checkpoint allows a truncation (C7), so a log without one must begin with its first group.
        elif self._opened.groups and self._opened.groups[0].number != 1:
            first = self._opened.groups[0].number
            raise DataCorruption(
                f"the log begins at group {first} and holds no checkpoint", file=f"group {first}"
            )

        groups = operations = 0
        async with aclosing(self._log.read()) as recovered:
            async for number, payload in recovered:
                first, ops = _decode(number, payload)
                groups += 1
                if number < begin_group:
                    self._restore_data(number, ops)
                else:
                    operations += self._replay(number, first, ops, begin_sequence)
                # Replay is bound by the CPU; the other containers of the process must run too.
                await anyio.lowlevel.checkpoint()
                await self._free_clean_rows()

        await self._publish_again()
        await self._check_complete()
        return RecoveryReport(groups, operations, begin_sequence)

    async def _newest_checkpoint(self) -> CheckpointEnd | None:
        ends = (number for number, tag in self._opened.tags.items() if tag == TAG_CHECKPOINT_END)
        tagged = max(ends, default=None)
        if tagged is None:
            return None

        async with aclosing(self._log.read(tagged)) as groups:
            async for number, payload in groups:
                for op in _decode(number, payload)[1]:
                    if type(op) is CheckpointEnd:
                        return op
                break

        raise DataCorruption(
            f"group {tagged} is tagged as the end of a checkpoint and holds none",
            file=f"group {tagged}",
        )

    async def _load(self, end: CheckpointEnd) -> None:
        """The state as it was at the checkpoint's begin."""
        records = _CheckpointRecords(end.checkpoint, end.begin_sequence, self._state)
        # These groups are read once more, for the operations between the parts: to keep them would take the
        # memory of all appends since the begin.
        try:
            async with aclosing(self._log.read(end.begin_group)) as groups:
                async for number, payload in groups:
                    for op in _decode(number, payload)[1]:
                        records.add(op)

                    if records.is_complete:
                        break

                    await anyio.lowlevel.checkpoint()

            # Transactions first: restoring a staged segment adds it to its transaction.
            for transactions in in_slices(_taken(records.transactions), _STEP):
                for data in transactions:
                    self._restore_transaction(data)
                await anyio.lowlevel.checkpoint()
            for images in in_slices(_taken(records.images), _STEP):
                for version, data in images:
                    self._restore_segment(version, data)
                await anyio.lowlevel.checkpoint()
        except (DecodeError, ValueError) as error:
            raise DataCorruption(
                f"the checkpoint at group {end.begin_group} is damaged: {error}",
                file=f"group {end.begin_group}",
            ) from error

        if records.live_segments is not None:
            self._state.live_segments = records.live_segments
        self._state.transactions.ends += records.ends
        self._state.restored(end.begin_sequence, end.cycle, records.size)
        await self._free_clean_rows()

    async def _free_clean_rows(self) -> None:
        """Release the rows that the runs have. Those that the runs of a recorded element have are moved into
        a memtable of their own, as in the owner that recorded it, and released together when it counts."""
        table, manifest = self._state.table, self._state.manifest
        if manifest is self._divided:
            return

        for runs in (manifest.runs, manifest.intended_runs):
            for _ in table.divide(runs):
                await anyio.lowlevel.checkpoint()
        for _ in self._state.hold_back():
            await anyio.lowlevel.checkpoint()
        while table.free():
            await anyio.lowlevel.checkpoint()
        self._divided = manifest

    async def _publish_again(self) -> None:
        """Earlier versions published no names and no images, or no ended transactions: the next run has all
        of them (rules M13, M21)."""
        if not self._state.table.runs.schema:
            for sids in in_slices(self._state.segments.ids()):
                self._state.publish_again(sids)
                await anyio.lowlevel.checkpoint()
        if self._state.table.runs.schema < CONSISTENT:
            for begun in in_slices(self._state.transactions.records.values()):
                self._state.publish_begins_again(begun)
                await anyio.lowlevel.checkpoint()
        recovered, self._state.recovered_ends = self._state.recovered_ends or {}, None
        for records in in_slices(recovered.values()):
            self._state.publish_ends_again(records)
            await anyio.lowlevel.checkpoint()

    def _restore_transaction(self, data: bytes) -> None:
        record = decode_transaction(data)
        if record.status is TransactionStatus.OPEN:
            self._state.transactions.restore(record)
        else:
            self._state.restore_end(record)

    def _restore_segment(self, version: int, data: bytes) -> None:
        segment = SegmentState.from_image(decode_image(data), version)
        self._state.restore(segment)
        self._publisher.restore(segment)

    def _restore_data(self, number: int, ops: list[Operation]) -> None:
        for op in ops:
            if type(op) is Append or type(op) is RelogData:
                self._publisher.restore_data(op, number)

    def _replay(self, number: int, first: int, ops: list[Operation], begin_sequence: int) -> int:
        """Apply and publish what comes after the checkpoint's begin; returns how many operations that
        were."""
        skip, sequence = 0, first - 1
        while sequence < begin_sequence and skip < len(ops):
            op = ops[skip]
            sequence = max(sequence + 1, op.above) if type(op) is BeginHistory else sequence + 1
            skip += 1
        if skip:
            # The group of the begin may have operations before it, which the snapshot includes (C7).
            self._restore_data(number, ops[:skip])
            ops = ops[skip:]

        apply = self._state.apply
        # Sequences are dense. After a gap the state would be that of another history.
        if ops and self._state.sequence != sequence:
            raise DataCorruption(
                f"group {number} begins with operation {sequence + 1}, after {self._state.sequence}",
                file=f"group {number}",
            )

        try:
            for op in ops:
                apply(op)

            self._publisher.publish(ops, number)
        # What apply functions raise for an impossible change (C5). Anything else is a bug of this code and
        # must not be reported as corruption.
        except (DecodeError, ValueError, KeyError) as error:
            sequence = self._state.sequence
            raise DataCorruption(
                f"operation {sequence} in group {number} of the log cannot be applied: {error!r}",
                file=f"group {number}",
                offset=sequence,
            ) from error

        return len(ops)

    async def _check_complete(self) -> None:
        """Every byte that long-term storage does not have must have come out of the log."""
        for segments in in_slices(self._state.segments.dirty_segments()):
            for segment in segments:
                if segment.status is not SegmentStatus.DELETED:
                    self._check_segment(segment)
            await anyio.lowlevel.checkpoint()

    def _check_segment(self, segment: SegmentState) -> None:
        position = segment.flushed
        for merge in segment.merges:
            # A merged range is checked with its source, which stays in the table until it is spliced.
            self._check_range(segment, position, merge.offset)
            position = merge.offset + merge.length
        self._check_range(segment, position, segment.length)

    def _check_range(self, segment: SegmentState, start: int, end: int) -> None:
        if start < end:
            gap = self._cache.first_missing(segment.sid, start, end)
            # Nothing is repaired: what is missing was acked, and must not be missing silently.
            if gap < end:
                raise DataCorruption(
                    f"segment {segment.name!r} ({segment.sid:#x}): bytes from {gap} on are neither in the "
                    f"log nor flushed (flushed up to {segment.flushed})",
                    file=f"segment {segment.sid:#x}",
                    offset=gap,
                )
