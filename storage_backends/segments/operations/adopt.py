"""Adopt: write the records of a chain whose chunks exist already, in pieces, before the operation that makes
it a segment (rule S14).

Each piece is one transaction, bounded in bytes, that also rewrites the deferred work record. So that record
names exactly what was written, and running it removes that again; the chunks stay, because they belong to the
legacy layout or to a backup until the segment exists. The last operation, which writes the segment's record
and empties the work record in one commit, belongs to the caller; until then nothing is visible. While the
adoption runs in this instance its work is not due. After a cancellation or crash it is, here or for the next
owner.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from ...base.errors import InvalidArgument
from ..chain import Chain, ChunkRecords
from ..context import StorageContext
from ..metadata_store import TRANSACTION_BYTES_MAX
from ..records import DeferredWorkKind, DeferredWorkRecord
from ..segment_transaction import SegmentTransaction


def is_one_piece(context: StorageContext, chain: Chain) -> bool:
    """Whether all records of ``chain`` can be committed together with the segment."""
    return next(_pieces(context, 0, chain), ([], True))[1]


async def adopt(context: StorageContext, segment: int, chain: Chain) -> None:
    """Write all chunk and index records of ``chain`` for the unused segment id ``segment``. Raises
    ``MetadataConflict`` if a chunk has a record, ``InvalidArgument`` if the records of one chunk fit into no
    transaction."""
    # Before the first commit, which makes a work record: a step of that work would delete what this writes.
    context.adopting.add(segment)
    for piece, _ in _pieces(context, segment, chain):
        await _write(context, segment, piece)


async def _write(context: StorageContext, segment: int, piece: list[ChunkRecords]) -> None:
    with SegmentTransaction(context, segment, create=False, rolling_size=None) as txn:
        async with txn.operation():
            work = await txn.deferred(DeferredWorkKind.ADOPT)
            work = work or DeferredWorkRecord(
                DeferredWorkKind.ADOPT, segment, index_offset=piece[0].start, chunk=piece[0].chunk.name
            )
            for records in piece:
                # Not read before, so the commit conflicts if the chunk has a record (S14).
                txn.metadata.put(records.chunk)
                for index in records.multiples:
                    txn.metadata.put(index)
            last = piece[-1]
            txn.defer(replace(work, end=last.start + last.chunk.length, chunks=work.chunks + len(piece)))
        await txn.commit()


def _pieces(context: StorageContext, segment: int, chain: Chain) -> Iterator[tuple[list[ChunkRecords], bool]]:
    """(records of some chunks, whether they are the last) for each transaction."""
    piece: list[ChunkRecords] = []
    size = 0
    for records in chain.chunk_records(segment, context.options.index_spacing):
        if records.size > TRANSACTION_BYTES_MAX:
            raise InvalidArgument(
                f"the records of chunk {records.chunk.name} take {records.size} bytes; one transaction holds "
                f"{TRANSACTION_BYTES_MAX}"
            )
        # A piece has one chunk at least: its records cannot be divided, and fit into a transaction.
        if piece and size + records.size > context.options.adopt_bytes:
            yield piece, False
            piece, size = [], 0
        piece.append(records)
        size += records.size
    if piece:
        yield piece, True
