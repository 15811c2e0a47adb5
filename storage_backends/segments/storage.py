"""``ChunkedSegmentStorage``: segments in tier 2, each a chain of chunks (PDP-34). The facade; one file per
operation does the work.

Owns: the verbs and what a caller may rely on. Does not own: when to flush (the storage writer), when to
delete chunks (the collector), retries and deadlines (the storage actor), which segment has which id (the
container).

Changes to one segment are gathered in a transaction and take effect together, with one metadata commit (rule
F1)::

    with storage.begin(sid, create=True) as txn:
        await storage.write(txn, offset, buffers, starts)
        await storage.seal(txn)
        await txn.commit()

Ordering: one transaction per segment at a time; a concat holds its source too. A second one is the caller's
bug and raises ``RuntimeError``. Transactions of different segments, and reads, run side by side. An operation
that raises ends its transaction: leaving the ``with`` block gives up what it did, and the next transaction
starts from the last commit. Bytes that it may have left in chunks are never seen (rule S3). Cancellation: a
cancelled operation or commit ends the transaction likewise; a cancelled commit's outcome is unknown. Crash:
before the commit nothing happened but garbage, whose names the sink tracked before they came to be.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..base.checksum import Buffer
from ..base.chunk_storage import ChunkStorage
from ..base.world import World
from .chain import Chain
from .core import ChunkedOptions, ChunkedStatistics, Core
from .garbage import GarbageSink
from .metadata_store import ChunkMetadataStore
from .operations.adopt import adopt, is_one_piece
from .operations.append_starts import starts
from .operations.concat import concat
from .operations.deferred_work import due_work, run_step
from .operations.defrag import DefragResult, defrag_segment
from .operations.delete import delete
from .operations.inspect import chunks, exists, info, segments
from .operations.read import read
from .operations.relocate import relocate
from .operations.seal import seal, unseal
from .operations.truncate import truncate
from .operations.write import write
from .records import ChunkRecord, DeferredWorkRecord, SegmentRecord
from .segment_transaction import SegmentTransaction


class ChunkedSegmentStorage:
    """Segments of one container, as the owner with ``epoch`` sees them. ``container`` is 0 to 9999; ``epoch``
    at least 1."""

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
        self._core = Core(chunks, metadata, container, epoch, world, garbage, options or ChunkedOptions())

    def begin(
        self, segment: int, *, create: bool = False, rolling_size: int | None = None
    ) -> SegmentTransaction:
        """A transaction on the segment with that id. Reads nothing yet.

        ``create``: if there is no record, the first operation makes one (metadata only; no chunk).
        ``rolling_size`` is that new segment's, in bytes. The transaction must end by ``commit``, ``abort`` or
        by leaving its ``with`` block.
        """
        return SegmentTransaction(self._core, segment, create=create, rolling_size=rolling_size)

    async def create(self, txn: SegmentTransaction) -> SegmentRecord:
        """The segment's record, made if the transaction was begun with ``create``; else
        ``SegmentNotFound``."""
        async with txn.operation():
            return await txn.segment()

    async def write(
        self, txn: SegmentTransaction, offset: int, data: Sequence[Buffer], starts: Sequence[int] = ()
    ) -> int:
        """Append ``data`` at segment offset ``offset``, which must be the length; returns the new length.

        ``starts``: segment offsets at which client appends begin, ascending, in ``offset .. offset + size``.
        Buffers must not change until the call returns. ``BadOffset``, ``SegmentSealed``, ``SegmentNotFound``,
        ``NotOwner``, and what the chunk storage raises.
        """
        async with txn.operation():
            return await write(txn, offset, data, starts)

    async def truncate(self, txn: SegmentTransaction, offset: int) -> None:
        """Move the start to ``offset``; at or before the start nothing changes, beyond the length raises
        ``BadOffset``. Sealed is fine."""
        async with txn.operation():
            await truncate(txn, offset)

    async def seal(self, txn: SegmentTransaction) -> None:
        """Set the seal flag. Idempotent."""
        async with txn.operation():
            await seal(txn)

    async def unseal(self, txn: SegmentTransaction) -> None:
        """Clear the seal flag. Idempotent."""
        async with txn.operation():
            await unseal(txn)

    async def concat(self, txn: SegmentTransaction, source: int) -> int:
        """Append the sealed segment ``source`` by linking its chunks behind the target's; returns the new
        length. No chunk is touched.

        The source's record vanishes in the same commit, however many chunks it has: the index of the joined
        part is deferred work. ``SegmentNotFound``, ``SegmentNotSealed`` (source), ``SegmentSealed`` (target),
        ``InvalidArgument`` (a truncated source, or the target itself).
        """
        async with txn.operation():
            return await concat(txn, source)

    async def delete(self, txn: SegmentTransaction) -> None:
        """The segment is gone with the commit; the records of its chunks, beyond a few, are deferred work, and the
        chunks are released with them.

        ``SegmentNotFound`` if there is none. Its id is never used again.
        """
        async with txn.operation():
            await delete(txn)

    async def defrag(self, segment: int) -> DefragResult:
        """Join all small chunks of a segment into as few as fit (rule S9), a run and a transaction at a time.

        May be cancelled at any moment: what was joined stays joined. No other transaction on the segment may
        be open meanwhile. ``SegmentNotFound``, ``NotOwner``, ``DataCorruption`` for a chunk that is not what
        was written, and what the chunk storage raises.
        """
        return await defrag_segment(self._core, segment)

    async def relocate(self, txn: SegmentTransaction) -> bool:
        """Move the rest of a mostly truncated first chunk to a new one, if it is worth it (rule S10). Whether
        it was."""
        async with txn.operation():
            return await relocate(txn)

    async def read(self, segment: int, offset: int, size: int) -> Buffer:
        """Up to ``size`` bytes at ``offset``, perhaps a view of whole blocks: fewer only at the segment's
        end, ``b""`` at or past it.

        Every block is verified (rule S5). ``SegmentNotFound``, ``SegmentTruncated`` (before the start),
        ``DataCorruption`` (chunk, offset in it), and what the chunk storage raises. Fastest for ranges of
        several whole MiB.
        """
        return await read(self._core, segment, offset, size)

    async def starts(self, segment: int, start: int, end: int, limit: int) -> Sequence[int]:
        """Offsets in ``start .. end`` at which an append begins, ascending, the first ``limit`` of those that
        are kept (rule S5).

        Out of the records alone. ``SegmentNotFound``.
        """
        return await starts(self._core, segment, start, end, limit)

    async def info(self, segment: int) -> SegmentRecord:
        """The segment's record at its last commit; ``SegmentNotFound`` if there is none."""
        return await info(self._core, segment)

    async def exists(self, segment: int) -> bool:
        return await exists(self._core, segment)

    async def list(self) -> list[int]:
        """The ids of all segments, ascending."""
        return await segments(self._core)

    async def chunks(self, segment: int) -> Sequence[tuple[int, ChunkRecord]]:
        """(segment offset of its first byte, record) of every chunk, in order."""
        return await chunks(self._core, segment)

    def is_one_piece(self, chain: Chain) -> bool:
        """Whether all records of ``chain`` go into one transaction. ``InvalidArgument`` for a chunk whose
        records are too many for any."""
        return is_one_piece(self._core, chain)

    async def adopt(self, segment: int, chain: Chain) -> None:
        """Lay the chunk and index records of ``chain`` for the unused id ``segment``, a bounded piece in a
        transaction (rule S14).

        Nobody sees them until the segment's own record is committed with an empty record of deferred work of that kind.
        ``end_adoption`` must follow, whatever happens: if the segment did not come, the records are deferred work
        from then on, of the next owner too.
        """
        await adopt(self._core, segment, chain)

    def end_adoption(self, segment: int) -> None:
        """The segment is there, or will not be: what is left of its adoption is due."""
        self._core.adopting.discard(segment)

    async def deferred_work(self) -> Sequence[DeferredWorkRecord]:
        """What metadata-only operations left to be done and can be paid now, in the order in which it should
        be (rule S11).

        The record store is asked once; after that this instance knows its deferred work from its own commits.
        ``DataCorruption``.
        """
        return await due_work(self._core)

    def newer_deferred_work(self) -> frozenset[str]:
        """The keys of deferred work that only a newer version knows how to run, once ``deferred work`` was asked: they stay
        as they are."""
        return self._core.deferred_work.newer

    async def run_deferred(self, work: DeferredWorkRecord) -> bool:
        """Do one bounded step on deferred work, in one transaction on the segment that has the chunks; whether
        something of it is left.

        Deferred work that somebody has paid meanwhile is nothing to do. No other transaction on that segment may be
        open. Chunks that the step makes superfluous are released after its commit (rule F2). Errors as of a
        transaction, and for steps that copy (relocation, defrag) what the chunk storage raises; the deferred work then
        stays as it was.
        """
        return await run_step(self._core, work)

    def statistics(self) -> ChunkedStatistics:
        return self._core.statistics()
