"""What keeps ended transactions as rows of the system table (rule M21), of any number.

ForgetEnds: removes ended transactions, and those ends of them that a later one under the same target and id
has replaced. CheckpointEnds marks a checkpoint that has such rows, and counts the ends: earlier code, which
would take these transactions for unknown ones, refuses it.

Layouts: ``count u32, [version u64, is newest u8, target text, id text] * count``; ``id u64, count u64``.
"""

from __future__ import annotations

from typing import NamedTuple

from ...storage_backends.base.codec import Decoder, Encoder
from .operation import operation


class TransactionEnd(NamedTuple):
    version: int
    """The sequence of the operation that ended the transaction; 0 if it was brought over from a checkpoint of
    an earlier version."""
    is_newest: bool
    """Whether the row of the transaction is that of this end."""
    target: str
    id: str


@operation(40)
class ForgetEnds(NamedTuple):
    ends: tuple[TransactionEnd, ...]

    def encode(self) -> bytes:
        out = Encoder().u32(len(self.ends))
        for end in self.ends:
            out.u64(end.version).u8(end.is_newest).text(end.target).text(end.id)
        return out.finish()

    @staticmethod
    def decode(fields: Decoder) -> ForgetEnds:
        count = fields.u32()
        return ForgetEnds(
            tuple(
                TransactionEnd(fields.u64(), fields.flag(), fields.text(), fields.text())
                for _ in range(count)
            )
        )


@operation(41)
class CheckpointEnds(NamedTuple):
    checkpoint: int
    ends: int

    def encode(self) -> bytes:
        return Encoder().u64(self.checkpoint).u64(self.ends).finish()

    @staticmethod
    def decode(fields: Decoder) -> CheckpointEnds:
        return CheckpointEnds(fields.u64(), fields.u64())
