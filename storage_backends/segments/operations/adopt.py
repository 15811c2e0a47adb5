"""Adopt: the records of a chain whose chunks are there already, laid in pieces before the operation that
makes it a segment (rule S14).

Owns: the pieces, and the deferred work that says how far they go. Does not own: the chain, nor the last operation,
which writes the segment's record and empties the deferred work at once (``container/older.py``): before it no reader
can tell that anything was laid.

Ordering: each piece is one transaction, bounded in bytes, that also writes the deferred work anew. So the deferred work names
exactly what was laid, and the steps that run it take that out again; the chunks stay, because they are the
legacy layout's, or a backup's, until the segment is there. While the adoption goes on, in this instance, its
deferred work is not due. Cancellation and crash: the deferred work is due, here or for the next owner.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...base.errors import InvalidArgument
from ..chain import Chain, Laid
from ..core import Core
from ..metadata_store import TRANSACTION_BYTES_MAX
from ..records import DeferredWorkKind, DeferredWorkRecord
from ..records.header import changed
from ..segment_transaction import SegmentTransaction


def is_one_piece(core: Core, chain: Chain) -> bool:
    """Whether the records of ``chain`` are few enough to be committed with the segment."""
    return next(_pieces(core, 0, chain), ([], True))[1]


async def adopt(core: Core, segment: int, chain: Chain) -> None:
    """Lay all chunk and index records of ``chain`` for the segment id ``segment``, which nobody has.
    ``MetadataConflict`` if a chunk has a record, ``InvalidArgument`` for a chunk whose records no transaction
    can hold."""
    core.adopting.add(segment)
    for piece, _ in _pieces(core, segment, chain):
        await _lay(core, segment, piece)


async def _lay(core: Core, segment: int, piece: list[Laid]) -> None:
    with SegmentTransaction(core, segment, create=False, rolling_size=None) as txn:
        async with txn.operation():
            work = await txn.deferred(DeferredWorkKind.ADOPT)
            work = work or DeferredWorkRecord(
                DeferredWorkKind.ADOPT, segment, index_offset=piece[0].start, chunk=piece[0].chunk.name
            )
            for laid in piece:
                txn.metadata.put(laid.chunk)
                for index in laid.multiples:
                    txn.metadata.put(index)
            last = piece[-1]
            txn.defer(changed(work, end=last.start + last.chunk.length, chunks=work.chunks + len(piece)))
        await txn.commit()


def _pieces(core: Core, segment: int, chain: Chain) -> Iterator[tuple[list[Laid], bool]]:
    """(chunks with their records, whether they are the last) of each transaction."""
    piece: list[Laid] = []
    size = 0
    for laid in chain.laid(segment, core.options.index_spacing):
        if laid.size > TRANSACTION_BYTES_MAX:
            raise InvalidArgument(
                f"the records of {laid.chunk.name} take {laid.size} bytes, those of one chunk have at most "
                f"{TRANSACTION_BYTES_MAX}"
            )
        if piece and size + laid.size > core.options.adopt_bytes:
            yield piece, False
            piece, size = [], 0
        piece.append(laid)
        size += laid.size
    if piece:
        yield piece, True
