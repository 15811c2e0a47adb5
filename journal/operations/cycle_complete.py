"""CycleComplete: a flush cycle has ended (rules F1 and F2). Checkpoints keep the newest one.

Layout: ``epoch u64, cycle u64, cut u64, full u8``.
"""

from __future__ import annotations

from typing import NamedTuple

from ...storage_backends.base.codec import Decoder, Encoder
from .operation import operation


@operation(12)
class CycleComplete(NamedTuple):
    epoch: int
    cycle: int
    cut: int
    """The operation sequence up to which the cycle's segments were flushed."""
    full: bool
    """Every segment took part, not only those that were due by size."""

    def encode(self) -> bytes:
        return Encoder().u64(self.epoch).u64(self.cycle).u64(self.cut).u8(self.full).finish()

    @staticmethod
    def decode(fields: Decoder) -> CycleComplete:
        return CycleComplete(fields.u64(), fields.u64(), fields.u64(), fields.flag())
