"""CommitTransaction: chosen staged segments move to the target's tail, the others are deleted, the
transaction is over: one step (rule T2).

Layout: ``target u64, offset u64, id text, count u16, [source u64, length u64] * count, dropped u32, [sid u64]
* dropped, attribute values``.
"""

from __future__ import annotations

from typing import NamedTuple

from ...storage_backends.base.codec import Decoder, Encoder
from .abort_transaction import decode_dropped, encode_dropped
from .merge_segments import decode_sources, encode_sources
from .update_attributes import decode_values, encode_values

TYPE = 18


class CommitTransaction(NamedTuple):
    target: int
    offset: int
    """The target's length before the commit: where the first part's bytes begin."""
    id: str
    sources: tuple[tuple[int, int], ...]
    """(segment id, length) of each part, in order."""
    dropped: tuple[int, ...]
    """The transaction's staged segments that the commit does not take."""
    values: tuple[tuple[str, int], ...]
    """The token's attribute with its epoch, if there is a token (rule T4)."""


def encode(op: CommitTransaction) -> bytes:
    out = Encoder().u64(op.target).u64(op.offset).text(op.id)
    encode_sources(out, op.sources)
    encode_dropped(out, op.dropped)
    encode_values(out, op.values)
    return out.finish()


def decode(view: memoryview, start: int, end: int) -> CommitTransaction:
    fields = Decoder(view, start, end)
    target, offset, transaction = fields.u64(), fields.u64(), fields.text()
    op = CommitTransaction(
        target, offset, transaction, decode_sources(fields), decode_dropped(fields), decode_values(fields)
    )
    fields.finish()
    return op
