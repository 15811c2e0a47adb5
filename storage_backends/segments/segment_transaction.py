"""``SegmentTransaction``: what one transaction on one segment has done so far, and how it ends.

It buffers the segment's records and the names of created and dropped chunks, and ends exactly once:
committed, aborted or in doubt. Each end reports every name to the garbage sink once. Order: track a name,
create the chunk, commit the metadata, then release what the commit dropped.

States: ``open`` -> ``ended``. An operation that raises or is cancelled moves it to ``failed``, which only
``abort`` leaves, because its buffered records may be half changed. A cancelled ``commit`` has an unknown
outcome: every name is in doubt.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Literal, Self

from msgspec.structs import replace

from ..base.errors import (
    DataCorruption,
    InvalidArgument,
    MetadataConflict,
    NotOwner,
    SegmentNotFound,
    StorageFull,
    Unavailable,
)
from .context import StorageContext
from .layout import Layout, LayoutChanged
from .records import (
    ChunkRecord,
    DeferredWorkKind,
    DeferredWorkRecord,
    IndexRecord,
    ReleasedRecord,
    SegmentRecord,
)
from .transaction import MetadataTransaction

_NOTHING_CHANGED = (InvalidArgument, MetadataConflict, Unavailable, StorageFull)
"""Errors of a commit that prove that it was not applied."""


class Operation:
    """``async with txn.operation():``. A class, because a generator costs 2 us more, 5 % of a commit."""

    __slots__ = ("_transaction",)

    def __init__(self, transaction: SegmentTransaction) -> None:
        self._transaction = transaction

    async def __aenter__(self) -> None:
        await self._transaction._begin_operation()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._transaction._end_operation(kind is None)


class SegmentTransaction:
    """Made by ``ChunkedSegmentStorage.begin``. Pass it to the storage's operations, then ``commit``."""

    def __init__(
        self, context: StorageContext, segment: int, *, create: bool, rolling_size: int | None
    ) -> None:
        if not 0 <= segment < 1 << 64 or (rolling_size is not None and rolling_size < 1):
            raise InvalidArgument(
                f"segment id {segment} must fit 64 bits and rolling size {rolling_size} be at least 1"
            )

        self.context = context
        self.id = segment
        self.metadata = MetadataTransaction(context.metadata, context.decoded)
        self._create = create
        self._rolling_size = rolling_size or context.options.rolling_size
        self._held: list[int] = []
        self._state: Literal["open", "busy", "failed", "ended"] = "open"
        self._created: dict[str, None] = {}
        self._dropped: dict[str, None] = {}
        self._tails: dict[str, int] = {}

    # --- for the caller --------------------------------------------------------------------------

    async def commit(self) -> None:
        """Make all changes durable and visible at once. Raises what ``ChunkMetadataStore.commit`` raises; the
        transaction has ended then too."""
        self._require_open()
        self._state = "busy"
        try:
            # Before anything is sent: an unsound record is a bug, and must not look like a commit of unknown
            # outcome.
            writes = self.metadata.checked()
        except BaseException:
            self.abort()
            raise

        try:
            await self.metadata.publish(writes)
        except _NOTHING_CHANGED:
            self.abort()
            raise
        except BaseException:
            # After a cancellation too: the commit may be in the log.
            self._doubt()
            raise
        self._committed()

    def abort(self) -> None:
        """Discard all changes and release the created chunks to the garbage sink. Does nothing after the
        end."""
        if self._state == "ended":
            return

        self._end()
        # Dropped chunks are not reported: the records that name them are still there.
        self.context.aborts += 1
        self.context.garbage.release(list(self._created))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()

    # --- for the operations ----------------------------------------------------------------------

    def operation(self) -> Operation:
        """Wraps one operation: no other may run at the same time, and an error fails the transaction. The
        first one waits until no other transaction holds the segment (rule S12)."""
        return Operation(self)

    async def _begin_operation(self) -> None:
        self._require_open()
        self._state = "busy"
        # S12: here and not in ``begin``, which does not wait.
        if not self._held:
            try:
                await self._hold(self.id)
            except BaseException:
                self._state = "failed"
                raise

    def _end_operation(self, succeeded: bool) -> None:
        self._state = "open" if succeeded else "failed"

    async def segment(self) -> SegmentRecord:
        """The segment's record as this transaction sees it, created if the transaction was begun with
        ``create``."""
        record = await self.load(self.id)
        if record is not None:
            return record

        if not self._create:
            raise SegmentNotFound(
                f"segment {self.id:016x} has no record in tier 2", segment=f"{self.id:016x}"
            )

        # A new segment under the id would be taken apart by the steps of that work.
        for kind in (DeferredWorkKind.DELETE, DeferredWorkKind.SPLICE):
            if await self.metadata.deferred(self.id, kind) is not None:
                raise RuntimeError(
                    f"segment id {self.id:016x} was used before, and that segment is not completely deleted"
                )

        self._create = False
        return self.update(SegmentRecord(self.id, rolling_size=self._rolling_size))

    async def load(self, segment: int) -> SegmentRecord | None:
        """The record of any segment. Raises ``NotOwner`` if it belongs to a newer owner."""
        record = await self.metadata.segment(segment)
        if record is not None and record.owner_epoch > self.context.epoch:
            raise NotOwner(
                f"segment {segment:016x} belongs to epoch {record.owner_epoch}, this owner has "
                f"{self.context.epoch}"
            )

        return record

    def update(self, record: SegmentRecord, **changes: Any) -> SegmentRecord:
        """Buffer the segment's record with ``changes`` and this owner's epoch."""
        record = replace(record, **changes, owner_epoch=self.context.epoch)
        self.metadata.put(record)
        return record

    async def take_source(self, segment: int) -> SegmentRecord | None:
        """Hold another segment too, and return its record. Merges form no circle, so nobody who holds the
        source waits for this segment (rule S12)."""
        await self._hold(segment)
        return await self.load(segment)

    async def _hold(self, segment: int) -> None:
        await self.context.writers.acquire(segment)
        # Only when it is held: a cancelled wait holds nothing.
        self._held.append(segment)

    async def name_chunk(self, offset: int) -> str:
        """A new name for a chunk that starts at segment offset ``offset``, tracked already (rule S2,
        PDP-53)."""
        # S3: a storage that refuses every attempt costs one name and not one for each.
        spare = self.context.spare.get(self.id)
        if spare is not None and spare[0] == offset:
            # S7: the breaker is asked before a name is tracked or used, so that an outage costs none.
            self.context.chunks.admit(spare[1])
            # Only after the breaker: after its refusal the name is still there for the next attempt.
            del self.context.spare[self.id]
            self._created[spare[1]] = None
            return spare[1]

        name = self.context.new_chunk_name(self.id, offset)
        self.context.chunks.admit(name)
        # Before the call: if that is cancelled, the name may be tracked, and the abort releases it.
        self._created[name] = None
        await self.context.garbage.track([name])
        return name

    def spare_chunk(self, offset: int, name: str) -> None:
        """The chunk was certainly not created: the next transaction that begins one at ``offset`` uses its
        tracked name.

        So a storage that refuses every attempt costs one name, and the collector's queue does not grow.
        """
        self.drop_spare(self.id)
        del self._created[name]
        self.context.spare[self.id] = offset, name

    def drop_spare(self, segment: int) -> None:
        """Release the unused name of a failed attempt at this transaction's end."""
        spare = self.context.spare.pop(segment, None)
        if spare is not None:
            self._created[spare[1]] = self._dropped[spare[1]] = None

    def room(self, segment: SegmentRecord, chunk: ChunkRecord) -> int:
        """Bytes that may still be appended to ``chunk``: 0 unless this instance created it and knows its
        exact length (rule S3)."""
        # Unknown: another instance created it, or its last write was not committed. Then there may be bytes
        # behind the recorded length, which would come to lie in front of the new ones.
        known = self._tails.get(chunk.name, self.context.appendable.get(chunk.name))
        if not self.context.chunks.capabilities.append or known != chunk.length:
            return 0

        return max(0, segment.rolling_size - chunk.length)

    def begin_append(self, name: str) -> int | None:
        """Call before appending to a chunk: until the append has succeeded, no other may follow.

        Returns its length at the last commit if this transaction has not appended to it yet.
        """
        self._tails.pop(name, None)
        return self.context.appendable.pop(name, None)

    def undo_append(self, name: str, committed: int | None) -> None:
        """Nothing reached the chunk: the next transaction may append to what was committed."""
        if committed is not None:
            self.context.remember(name, committed)

    def end_append(self, name: str, length: int) -> None:
        """The chunk is exactly ``length`` bytes long. Other transactions rely on it only after the commit."""
        self._tails[name] = length

    def link(self, last: ChunkRecord, name: str) -> None:
        """Link the chunk ``name`` behind ``last``, which is complete from now on."""
        self.metadata.put(replace(last, next_chunk=name))
        # A chunk in the middle of a segment never grows, so this instance forgets its length.
        self.begin_append(last.name)

    def grow_index(self, chunk: str, chunk_start: int, start: int, end: int) -> None:
        """Write the index records for ``start .. end``, all inside ``chunk``."""
        for offset in self.multiples(start, end):
            self.metadata.put(IndexRecord(self.id, offset, chunk, chunk_start))

    async def drop_index(self, segment: int, start: int, end: int) -> None:
        """Delete the index records in ``start .. end``."""
        for offset in self.multiples(start, end):
            record = await self.metadata.index(segment, offset)
            if record is not None:
                self.metadata.drop(record)

    def multiples(self, start: int, end: int) -> range:
        """The offsets in ``start .. end`` that have an index record."""
        spacing = self.context.options.index_spacing
        return range(max(spacing, -(-start // spacing) * spacing), end, spacing)

    async def deferred(self, kind: DeferredWorkKind, segment: int | None = None) -> DeferredWorkRecord | None:
        """What is left of an earlier operation. Raises ``NotOwner`` if it belongs to a newer owner."""
        work = await self.metadata.deferred(self.id if segment is None else segment, kind)
        if work is not None and work.owner_epoch > self.context.epoch:
            raise NotOwner(
                f"deferred work {work.key} belongs to epoch {work.owner_epoch}, this owner has "
                f"{self.context.epoch}"
            )

        return work

    async def layout(self) -> Layout:
        """The segment's layout as this transaction sees it."""
        layout = Layout(
            self.metadata,
            self.id,
            self.context.options.index_spacing,
            self.context.layouts.sparse_index(self.id),
        )
        await layout.load()
        return layout

    async def locate(self, offset: int) -> tuple[int, ChunkRecord]:
        """(segment offset of its first byte, record) of the chunk that holds ``offset``, as this transaction
        sees the segment."""
        layout = await self.layout()
        try:
            return await layout.locate(offset)
        except LayoutChanged as gone:  # the transaction holds the segment, so nothing else has changed it
            raise DataCorruption(str(gone), file=gone.name) from gone

    def defer(self, work: DeferredWorkRecord) -> None:
        """Record what is left to do, with this owner's epoch."""
        self.metadata.put(replace(work, owner_epoch=self.context.epoch))

    async def take_deferred(
        self, kind: DeferredWorkKind, segment: int | None = None
    ) -> DeferredWorkRecord | None:
        """Delete a record of deferred work and return it: it is done, void, or the caller's from now on."""
        work = await self.deferred(kind, segment)
        if work is not None:
            self.metadata.drop(work)
        return work

    def discard(self, name: str) -> None:
        """A chunk that this transaction created is not needed: it is released with the dropped ones."""
        self._dropped[name] = None

    async def drop_chunk(self, record: ChunkRecord) -> None:
        """Delete a chunk's record; the chunk itself is released after the commit. A chunk that a listing of
        the container's own names would not find leaves a released record (rule S19)."""
        self.metadata.drop(record)
        self._dropped[record.name] = None
        if (
            not record.name.startswith(self.context.prefix)
            and await self.metadata.released(record.name) is None
        ):
            self.metadata.put(ReleasedRecord(record.name, record.length))

    # --- the end ---------------------------------------------------------------------------------

    def _require_open(self) -> None:
        if self._state != "open":
            raise RuntimeError(f"the transaction on segment {self.id:016x} is {self._state}; begin another")

    def _end(self) -> None:
        self._state = "ended"
        for segment in self._held:
            self.context.writers.release(segment)
        self._held.clear()

    def _committed(self) -> None:
        # Before `_end`, which gives up the segments. A read that begins now sees this commit.
        self._discard_layouts()
        self._end()
        self.context.commits += 1
        self.context.deferred_work.committed(self.metadata.written_deferred_work())
        # Nothing refers to it any more, so nothing may be appended to it.
        for name in self._dropped:
            self.begin_append(name)
        for name, length in self._tails.items():
            self.context.remember(name, length)
        # A chunk that was created and dropped in one transaction is released only.
        self.context.garbage.keep([name for name in self._created if name not in self._dropped])
        self.context.garbage.release(list(self._dropped))

    def _doubt(self) -> None:
        self._discard_layouts()
        self._end()
        # The work records of this commit are stored or not; only another read can tell.
        self.context.deferred_work.invalidate()
        self.context.garbage.doubt(list(self._created | self._dropped))

    def _discard_layouts(self) -> None:
        for segment in self._held:
            self.context.layouts.discard(segment)
