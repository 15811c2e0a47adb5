"""Flushing one segment: its pieces into chunks, then one commit with length, start and seal (rule F1).

Order: data and splices in offset order; the last transaction also truncates and seals. A long backlog is
committed in steps, so that memory is freed as it goes. A merged source was flushed and sealed in an earlier
wave (rule F3). If long-term storage has no room, a truncation is committed alone (``make_room``). An error or
a cancellation ends the segment's part in this cycle only; its next transaction starts from the last commit.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from msgspec.structs import replace

from ...journal.operations.segment_image import SegmentStatus
from ...storage_backends.base.checksum import Buffer
from ...storage_backends.base.errors import SegmentNotFound
from ...storage_backends.segments.segment_transaction import SegmentTransaction
from ...storage_backends.segments.storage import ChunkedSegmentStorage
from .aggregation import DataPiece, FlushableSegment, Piece, SegmentFlush

PIECE_BYTES = 4 << 20
"""The largest write to a chunk that can grow."""
_PIECES_PER_COMMIT = 4
_CHUNKS_PER_PIECE = 256
"""A segment of the legacy layout may roll after each byte."""
_COMMIT_BYTES = 1 << 20
"""A commit takes no more pieces above this many bytes of records. One piece adds little but the record of the
chunk that it grows or links, 12 bytes per MiB, so a commit stays far below ``TRANSACTION_BYTES_MAX``."""
WHOLE_BYTES_MAX = 128 << 20
"""The largest chunk that is written with one call, where chunks cannot grow."""


def _deleted(plan: SegmentFlush) -> SegmentNotFound:
    return SegmentNotFound(f"segment {plan.name!r} was deleted while it was flushed", segment=plan.name)


class UnflushedSource(Protocol):
    def take(self, sid: int, start: int, end: int) -> AbstractAsyncContextManager[Sequence[Buffer]]:
        """The unflushed bytes from ``start`` on, up to ``end`` or as many as there is room for; empty if the
        segment was deleted."""
        ...

    async def load_oldest(
        self, ranges: Mapping[int, tuple[int, int]], *, by_segment: bool, bytes_max: int | None
    ) -> Mapping[int, int]:
        """Load spilled bytes; returns up to where, by segment. ``release`` must follow."""
        ...

    @property
    def has_spilled(self) -> bool: ...
    def is_spilled(self, sid: int, start: int, end: int) -> bool: ...
    def release(self, sid: int) -> None: ...


class SegmentFlusher:
    def __init__(
        self,
        storage: ChunkedSegmentStorage,
        unflushed: UnflushedSource,
        segment_of: Callable[[int], FlushableSegment | None],
        forget: Callable[[int], Awaitable[object]],
        keep_proven: Callable[[], Awaitable[None]],
        *,
        whole_chunks: bool = False,
    ) -> None:
        """``forget(sid)`` logs that a deleted segment has no record any more. ``keep_proven()`` returns if
        the last proof of ownership is recent, or after another one (rule W8). ``whole_chunks``: chunks cannot
        grow, so each is written at once, as large as it may be."""
        self._storage = storage
        self._unflushed = unflushed
        self._segment_of = segment_of
        self._forget = forget
        self._keep_proven = keep_proven
        self._whole_chunks = whole_chunks

    async def load_spilled(
        self, plans: Mapping[int, SegmentFlush], *, is_probe: bool = False
    ) -> dict[int, SegmentFlush]:
        """Load spilled bytes of some of ``plans``, and return the flushes of these bytes (rule F8);
        ``release`` must follow. Empty if nothing is spilled, or flushes under way need the memory.

        The bytes that were logged first come first. Where chunks cannot grow, a flush gets as many as
        possible, although the log is read more often for it. ``is_probe``: the flushes may well fail, so
        little is read."""
        limits = await self._unflushed.load_oldest(
            {sid: self._data_of(plan) for sid, plan in plans.items()},
            by_segment=self._whole_chunks,
            bytes_max=PIECE_BYTES if is_probe else None,
        )
        return {sid: replace(plans[sid], limit=limit) for sid, limit in limits.items()}

    @property
    def has_spilled(self) -> bool:
        """Whether any segment is spilled."""
        return self._unflushed.has_spilled

    def is_spilled(self, plan: SegmentFlush) -> bool:
        return self._unflushed.is_spilled(plan.sid, *self._data_of(plan))

    def release(self, sid: int) -> None:
        self._unflushed.release(sid)

    def _data_of(self, plan: SegmentFlush) -> tuple[int, int]:
        """The data that can be flushed before anything is spliced."""
        segment = self._segment_of(plan.sid)
        if segment is None or plan.deleted:
            return (0, 0)

        return (segment.flushed, plan.data_end(segment.flushed))

    async def flush(self, plan: SegmentFlush) -> int:
        """Bring long-term storage to the captured state; returns the bytes written. Raises
        ``SegmentNotFound`` if the segment was deleted meanwhile."""
        if plan.deleted:
            await self._delete(plan)
            return 0

        segment = self._segment_of(plan.sid)
        if segment is None:
            return 0  # spliced into its target in an earlier cycle
        if segment.status is SegmentStatus.DELETED:
            # Its sources were deleted with it, and may not be flushed.
            raise _deleted(plan)

        return await self._advance(plan, segment)

    async def make_room(self, plan: SegmentFlush) -> bool:
        """Commit the captured truncation alone, as far as the bytes are flushed; returns whether there was
        one.

        For a long-term storage without room: a truncation that waited for the data before it would wait for
        the room that it makes."""
        segment = self._segment_of(plan.sid)
        if plan.deleted or segment is None or not segment.has_record:
            return False

        # F1: only as far as bytes are flushed, because a record cannot start behind its length.
        record = await self._storage.info(plan.sid)
        start = min(plan.start_offset, record.length)
        if start <= record.start_offset:
            return False

        with self._storage.begin(plan.sid) as txn:
            await self._storage.truncate(txn, start)
            await txn.commit()
        return True

    async def _delete(self, plan: SegmentFlush) -> None:
        """Remove the record in this cycle; the chunks are deleted after its ``CycleComplete`` (rule F2)."""
        # It has no record if it was deleted before its first flush.
        if await self._storage.exists(plan.sid):
            with self._storage.begin(plan.sid) as txn:
                await self._storage.delete(txn)
                await txn.commit()

        # After the commit. The other way round a crash in between would leave a record of a segment that no
        # container knows, which nothing ever removes.
        await self._forget(plan.sid)

    async def _advance(self, plan: SegmentFlush, segment: FlushableSegment) -> int:
        written = 0
        # A chunk that cannot grow stays as small as its one write, so it takes as much as memory allows; two
        # in a commit, because their bytes stay in memory until it.
        whole = min(plan.rolling_size, WHOLE_BYTES_MAX)
        size, count = (whole, 2) if self._whole_chunks else (PIECE_BYTES, _PIECES_PER_COMMIT)
        pieces = plan.pieces(segment.flushed, min(size, _CHUNKS_PER_PIECE * plan.rolling_size))
        piece = next(pieces, None)
        while True:
            # A transaction for a few pieces: each commit lets their memory go, and bounds what a failure
            # writes again.
            with self._storage.begin(plan.sid, create=True, rolling_size=plan.rolling_size) as txn:
                await self._storage.create(txn)
                for _ in range(count):
                    if piece is None or txn.metadata.size > _COMMIT_BYTES:
                        break

                    written += await self._write(txn, plan, segment, piece)
                    piece = next(pieces, None)
                if piece is None:
                    await self._finish(txn, plan)
                await txn.commit()

            if piece is None:
                return written

    async def _write(
        self, txn: SegmentTransaction, plan: SegmentFlush, segment: FlushableSegment, piece: Piece
    ) -> int:
        if not isinstance(piece, DataPiece):
            await self._keep_proven()  # a splice may join chunks, which takes long (rule J7)
            # F3: one commit links the chunks and removes the source's record. Wherever a crash comes, exactly
            # one of the two records has the bytes.
            await self._storage.concat(txn, piece.source)
            return 0

        position = piece.start
        while position < piece.end:
            position = await self._write_data(txn, plan, segment, DataPiece(position, piece.end))
        return piece.end - piece.start

    async def _write_data(
        self, txn: SegmentTransaction, plan: SegmentFlush, segment: FlushableSegment, piece: DataPiece
    ) -> int:
        """Write the piece, as far as memory has room for it; returns up to where."""
        async with self._unflushed.take(plan.sid, piece.start, piece.end) as data:
            if not data:
                # Only a delete makes unflushed bytes unknown.
                raise _deleted(plan)

            # J7: here and not once for a flush, because a long backlog takes minutes.
            await self._keep_proven()
            taken = DataPiece(piece.start, piece.start + sum(map(len, data)))
            return await self._storage.write(txn, piece.start, data, list(self._starts(segment, taken)))

    def _starts(self, segment: FlushableSegment, piece: DataPiece) -> Iterator[int]:
        return (boundary for boundary in segment.append_boundaries if piece.start <= boundary < piece.end)

    async def _finish(self, txn: SegmentTransaction, plan: SegmentFlush) -> None:
        # F8: truncation and seal belong to the flush that reaches the captured length (F1).
        if plan.limit is not None:
            return

        if plan.start_offset:
            await self._storage.truncate(txn, plan.start_offset)
        if plan.sealed:
            await self._storage.seal(txn)
