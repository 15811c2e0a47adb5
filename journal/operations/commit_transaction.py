"""CommitTransaction: moves the chosen staged segments to the target's tail, deletes the others and ends the
transaction, in one step (rule T2).

Layout: ``target u64, offset u64, id text, count u16, [source u64, length u64] * count, dropped u32, [sid u64]
* dropped, attribute values``.
"""

from __future__ import annotations

from typing import NamedTuple

from ...storage_backends.base.codec import Decoder, Encoder
from .abort_transaction import decode_dropped, encode_dropped
from .merge_segments import decode_sources, encode_sources
from .operation import operation
from .update_attributes import decode_values, encode_values


@operation(18)
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

    def encode(self) -> bytes:
        out = Encoder().u64(self.target).u64(self.offset).text(self.id)
        encode_sources(out, self.sources)
        encode_dropped(out, self.dropped)
        encode_values(out, self.values)
        return out.finish()

    @staticmethod
    def decode(fields: Decoder) -> CommitTransaction:
        target, offset, transaction = fields.u64(), fields.u64(), fields.text()
        return CommitTransaction(
            target, offset, transaction, decode_sources(fields), decode_dropped(fields), decode_values(fields)
        )
