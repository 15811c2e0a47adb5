"""``ChunkedSegmentStorage``: segments in long-term storage, each a chain of chunks (PDP-34).

Changes to one segment are gathered in a transaction and take effect together, with one metadata commit (rule
F1)::

    with storage.begin(sid, create=True) as txn:
        await storage.write(txn, offset, buffers, starts)
        await storage.seal(txn)
        await txn.commit()

Concurrency: one transaction per segment at a time, and a concat holds its source too; the next one waits for
its turn at its first operation (rule S12). Transactions of different segments, and reads, run concurrently.

Failures: an operation that raises ends its transaction. Leaving the ``with`` block aborts it, and the next
transaction starts from the last commit. Bytes that it may have left in chunks are never read (rule S3).
Cancellation: like a failure; the outcome of a cancelled commit is unknown. Crash: before the commit nothing
has happened except garbage whose names were tracked before it was created.

The operations are imported by the first call of each: a flush comes later than the first ack, which does not
wait for them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import anyio.lowlevel

from ..base.checksum import Buffer
from ..base.chunk_storage import ChunkStorage
from ..base.segment_layout import ChunkExtent
from ..base.world import World
from .chain import Chain
from .context import StorageContext
from .garbage_sink import GarbageSink
from .metadata_store import ChunkMetadataStore
from .operations.deferred_work import changed_work, due_work, run_step
from .operations.inspect import chunks, exists, info, segments
from .options import ChunkedOptions
from .records import (
    ChunkRecord,
    DeferredWorkKind,
    DeferredWorkRecord,
    SegmentRecord,
    deferred_work_key,
)
from .segment_transaction import SegmentTransaction

if TYPE_CHECKING:
    from .operations.defrag import DefragResult
    from .statistics import ChunkedStatistics


class ChunkedSegmentStorage:
    """The segments of one container, for the owner with ``epoch``. ``container`` is 0 to 9999, ``epoch`` at
    least 1."""

    def __init__(
        self,
        chunks: ChunkStorage,
        metadata: ChunkMetadataStore,
        *,
        container: int,
        epoch: int,
        world: World,
        garbage: GarbageSink,
        options: ChunkedOptions | None = None,
    ) -> None:
        self._context = StorageContext(
            chunks, metadata, container, epoch, world, garbage, options or ChunkedOptions()
        )

    def begin(
        self, segment: int, *, create: bool = False, rolling_size: int | None = None
    ) -> SegmentTransaction:
        """Begin a transaction on the segment with that id, without waiting or reading anything.

        ``create``: if the segment has no record, the first operation creates one (metadata only, no chunk),
        with ``rolling_size`` in bytes. End the transaction with ``commit``, ``abort`` or by leaving its
        ``with`` block.
        """
        return SegmentTransaction(self._context, segment, create=create, rolling_size=rolling_size)

    async def create(self, txn: SegmentTransaction) -> SegmentRecord:
        """Return the segment's record, creating it if the transaction was begun with ``create``. Raises
        ``SegmentNotFound`` otherwise."""
        async with txn.operation():
            return await txn.segment()

    async def write(
        self, txn: SegmentTransaction, offset: int, data: Sequence[Buffer], starts: Sequence[int] = ()
    ) -> int:
        """Append ``data`` at ``offset``, which must be the segment's length. Returns the new length.

        ``starts``: ascending segment offsets in ``offset .. offset + size`` at which client appends begin.
        Buffers must not change until the call returns. Raises ``BadOffset``, ``SegmentSealed``,
        ``SegmentNotFound``, ``NotOwner``, and what the chunk storage raises.
        """
        from .operations.write import write

        async with txn.operation():
            return await write(txn, offset, data, starts)

    async def truncate(self, txn: SegmentTransaction, offset: int) -> None:
        """Move the start of the segment, sealed or not, to ``offset``. At or before the current start nothing
        changes; beyond the length raises ``BadOffset``."""
        from .operations.truncate import truncate

        async with txn.operation():
            await truncate(txn, offset)

    async def seal(self, txn: SegmentTransaction) -> None:
        """Set the seal flag. Idempotent."""
        async with txn.operation():
            txn.update(await txn.segment(), sealed=True)

    async def concat(self, txn: SegmentTransaction, source: int) -> int:
        """Append the sealed segment ``source`` by linking its chunks behind the target's. Returns the new
        length.

        Chunks are not touched. The source's record is deleted in the same commit, however many chunks it has;
        the index of its part is deferred work. Raises ``SegmentNotFound``, ``SegmentNotSealed`` (source),
        ``SegmentSealed`` (target), ``InvalidArgument`` (a truncated source, or the target itself).
        """
        from .operations.concat import concat

        async with txn.operation():
            return await concat(txn, source)

    async def delete(self, txn: SegmentTransaction) -> None:
        """Delete the segment. Its id is never used again.

        The records of its chunks, beyond a few, are deferred work, and the chunks are released with them.
        Raises ``SegmentNotFound``.
        """
        from .operations.delete import delete

        async with txn.operation():
            await delete(txn)

    async def defrag(
        self, segment: int, claim: Callable[[], Awaitable[None]] = anyio.lowlevel.checkpoint
    ) -> DefragResult:
        """Join all small chunks of a segment into as few as fit (rule S9), one run and one transaction at a
        time, each after ``claim()``, which returns once this owner may write.

        May be cancelled at any moment: what was joined stays joined. Writes go on between two runs; small
        chunks that begin after the segment's length at the call are left to the next one. Raises
        ``SegmentNotFound``, ``NotOwner``, ``DataCorruption`` for a chunk that does not match its checksums,
        and what the chunk storage raises.
        """
        from .operations.defrag import defrag_segment

        return await defrag_segment(self._context, segment, claim)

    async def relocate(self, txn: SegmentTransaction) -> bool:
        """Copy the live end of a mostly truncated first chunk to a new one, if that is worthwhile (rule S10).
        Returns whether it did."""
        from .operations.defrag import relocate

        async with txn.operation():
            return await relocate(txn)

    async def read(self, segment: int, offset: int, size: int) -> Buffer:
        """Return up to ``size`` bytes at ``offset``: fewer only at the segment's end, ``b""`` at or past it.

        Every block is verified (rule S5). Fastest for ranges of several whole MiB. Raises
        ``SegmentNotFound``, ``SegmentTruncated`` (before the start), ``DataCorruption`` (with chunk and
        offset), and what the chunk storage raises.
        """
        from .operations.read import read

        return await read(self._context, segment, offset, size)

    async def starts(self, segment: int, start: int, end: int, limit: int) -> Sequence[int]:
        """The first ``limit`` recorded offsets in ``start .. end`` at which an append begins, ascending (rule
        S5).

        Reads metadata only. Raises ``SegmentNotFound``.
        """
        from .operations.read import starts

        return await starts(self._context, segment, start, end, limit)

    async def extents(self, segment: int, start: int, end: int) -> Sequence[ChunkExtent]:
        """The whole blocks of chunks that have the bytes ``start .. end``, as far as they are there, in
        order; a bounded answer, whose last extent may end before ``end``.

        Reads metadata only. Raises ``SegmentNotFound``.
        """
        from .operations.extents import extents

        return await extents(self._context, segment, start, end)

    async def info(self, segment: int) -> SegmentRecord:
        """The segment's record at its last commit. Raises ``SegmentNotFound``."""
        return await info(self._context, segment)

    async def exists(self, segment: int) -> bool:
        return await exists(self._context, segment)

    async def list(self) -> list[int]:
        """The ids of all segments, ascending."""
        return await segments(self._context)

    async def chunks(self, segment: int) -> Sequence[tuple[int, ChunkRecord]]:
        """(segment offset of its first byte, record) of every chunk, in order."""
        return await chunks(self._context, segment)

    def is_one_piece(self, chain: Chain) -> bool:
        """Whether all records of ``chain`` fit into one transaction. Raises ``InvalidArgument`` if those of
        one chunk fit into none."""
        from .operations.adopt import is_one_piece

        return is_one_piece(self._context, chain)

    async def adopt(self, segment: int, chain: Chain) -> None:
        """Write the chunk and index records of ``chain`` for the unused id ``segment``, in bounded
        transactions (rule S14).

        They stay invisible until the segment's own record is committed, together with an emptied deferred
        work record. ``end_adoption`` must follow in any case: if the segment was not committed, the records
        are deferred work from then on, for the next owner too.
        """
        from .operations.adopt import adopt

        await adopt(self._context, segment, chain)

    def end_adoption(self, segment: int) -> None:
        """The segment is committed, or will not be: what is left of its adoption is due."""
        self._context.adopting.discard(segment)
        self._context.deferred_work.touch(deferred_work_key(segment, DeferredWorkKind.ADOPT))

    async def deferred_work(self) -> Sequence[DeferredWorkRecord]:
        """The work left by metadata-only operations that can be done now, in the order in which to do it
        (rule S11).

        The record store is read once; after that this instance knows from its own commits. Raises
        ``DataCorruption``.
        """
        return await due_work(self._context)

    async def deferred_changes(self) -> Mapping[str, DeferredWorkRecord | None]:
        """By key, some of the items of ``deferred_work`` that changed since they were last given, at first
        all; None for those that are not among them any more. Empty if none is left. Raises
        ``DataCorruption``."""
        return await changed_work(self._context)

    def has_deferred_changes(self) -> bool:
        """Whether ``deferred_changes`` may return any; cheap."""
        return self._context.deferred_work.has_changes

    def retry_in(self) -> float:
        """Seconds for which long-term storage refuses every change (rule S7); 0.0 if it does not."""
        return self._context.chunks.retry_in()

    def notifying(self, notify: Callable[[], None]) -> AbstractContextManager[None]:
        """Inside the body ``notify()`` is called when long-term storage accepts changes again."""
        return self._context.chunks.notifying(notify)

    def newer_deferred_work(self) -> frozenset[str]:
        """Keys of deferred work of kinds that only a newer version knows, as of the last ``deferred_work``.
        It is left alone."""
        return self._context.deferred_work.newer

    async def run_deferred(self, work: DeferredWorkRecord) -> bool:
        """Do one bounded step of ``work`` in one transaction on the segment that has the chunks. Returns
        whether something is left.

        Work that was finished in the meantime is not an error. Chunks that the step makes superfluous are
        released after its commit (rule F2). Raises what a transaction raises, and for steps that copy
        (defrag, relocation) what the chunk storage raises; the work then stays as it was.
        """
        return await run_step(self._context, work)

    def statistics(self) -> ChunkedStatistics:
        return self._context.statistics()
