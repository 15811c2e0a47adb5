"""CheckpointClosures: which segments changed records or names since the last flush cycle was published, and
which of them belong together (rule F10). Without it an opening could not hold back what an unfinished flush
committed before the checkpoint.

Layout: ``id u64, count u32, count times (version u64, segment u64, other u64)``.
"""

from __future__ import annotations

from typing import NamedTuple

from ...storage_backends.base.codec import Decoder, Encoder
from .operation import operation


class ClosureChange(NamedTuple):
    version: int
    """That of the rows which one operation put for the segment."""
    segment: int
    other: int = 0
    """A segment that is published together with it, maybe itself; 0 if the rows are records of long-term
    storage."""


@operation(45)
class CheckpointClosures(NamedTuple):
    checkpoint: int
    changes: tuple[ClosureChange, ...]

    def encode(self) -> bytes:
        out = Encoder().u64(self.checkpoint).u32(len(self.changes))
        for change in self.changes:
            out.u64(change.version).u64(change.segment).u64(change.other)
        return out.finish()

    @staticmethod
    def decode(fields: Decoder) -> CheckpointClosures:
        checkpoint, count = fields.u64(), fields.u32()
        changes = (ClosureChange(fields.u64(), fields.u64(), fields.u64()) for _ in range(count))
        return CheckpointClosures(checkpoint, tuple(changes))
