"""CycleComplete: a flush cycle is whole (section 7 of the design, rules F1 and F2).

Until the SystemJournal exists the record rides in the log and its checkpoint. Layout: ``epoch u64, cycle u64,
cut u64, full u8``.
"""

from __future__ import annotations

from typing import NamedTuple

from ...storage_backends.base.codec import Decoder, Encoder

TYPE = 12


class CycleComplete(NamedTuple):
    epoch: int
    cycle: int
    cut: int
    """The operation sequence up to which the cycle's segments were flushed."""
    full: bool
    """Every segment took part, not just those that were due by size."""


def encode(op: CycleComplete) -> bytes:
    return Encoder().u64(op.epoch).u64(op.cycle).u64(op.cut).u8(op.full).finish()


def decode(view: memoryview, start: int, end: int) -> CycleComplete:
    fields = Decoder(view, start, end)
    op = CycleComplete(fields.u64(), fields.u64(), fields.u64(), fields.flag())
    fields.finish()
    return op
