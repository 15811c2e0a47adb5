"""A checkpoint: begin, parts, end (rule C7).

``CheckpointBegin`` fixes the sequence whose state the checkpoint shows; parts carry segment images, metadata
entries and transactions as they were before their first change after the begin; ``CheckpointEnd`` makes it
valid and names where a reader must start. A checkpoint without its end does not exist.

Layouts: begin ``id u64``; part ``id u64, images u32 [blob], entries u32 [key text, version u64, value blob],
transactions u32 [blob]``;
end ``id u64, begin group u64, begin sequence u64, last cycle (epoch u64, cycle u64, cut u64, full u8)``.
"""

from __future__ import annotations

from typing import NamedTuple

from ...storage_backends.base.codec import Decoder, Encoder
from .cycle_complete import CycleComplete

TYPE_BEGIN = 14
TYPE_PART = 15
TYPE_END = 16


class CheckpointBegin(NamedTuple):
    checkpoint: int


class CheckpointPart(NamedTuple):
    checkpoint: int
    images: tuple[bytes, ...]
    """Encoded ``SegmentImage`` records."""
    entries: tuple[tuple[str, int, bytes], ...]
    """(key, version, encoded record) of chunk metadata."""
    transactions: tuple[bytes, ...] = ()
    """Encoded ``TransactionImage`` records."""


class CheckpointEnd(NamedTuple):
    checkpoint: int
    begin_group: int
    begin_sequence: int
    cycle: CycleComplete
    """The newest complete flush cycle at the begin; all zero if there was none."""


def encode_begin(op: CheckpointBegin) -> bytes:
    return Encoder().u64(op.checkpoint).finish()


def decode_begin(view: memoryview, start: int, end: int) -> CheckpointBegin:
    fields = Decoder(view, start, end)
    op = CheckpointBegin(fields.u64())
    fields.finish()
    return op


def encode_part(op: CheckpointPart) -> bytes:
    out = Encoder().u64(op.checkpoint).u32(len(op.images))
    for image in op.images:
        out.blob(image)

    out.u32(len(op.entries))
    for key, version, value in op.entries:
        out.text(key).u64(version).blob(value)

    out.u32(len(op.transactions))
    for transaction in op.transactions:
        out.blob(transaction)

    return out.finish()


def decode_part(view: memoryview, start: int, end: int) -> CheckpointPart:
    fields = Decoder(view, start, end)
    checkpoint = fields.u64()
    images = tuple(fields.blob() for _ in range(fields.u32()))
    entries = tuple((fields.text(), fields.u64(), fields.blob()) for _ in range(fields.u32()))
    transactions = tuple(fields.blob() for _ in range(fields.u32()))
    fields.finish()
    return CheckpointPart(checkpoint, images, entries, transactions)


def encode_end(op: CheckpointEnd) -> bytes:
    out = Encoder().u64(op.checkpoint).u64(op.begin_group).u64(op.begin_sequence)
    out.u64(op.cycle.epoch).u64(op.cycle.cycle).u64(op.cycle.cut).u8(op.cycle.full)
    return out.finish()


def decode_end(view: memoryview, start: int, end: int) -> CheckpointEnd:
    fields = Decoder(view, start, end)
    checkpoint, group, sequence = fields.u64(), fields.u64(), fields.u64()
    cycle = CycleComplete(fields.u64(), fields.u64(), fields.u64(), fields.flag())
    fields.finish()
    return CheckpointEnd(checkpoint, group, sequence, cycle)
