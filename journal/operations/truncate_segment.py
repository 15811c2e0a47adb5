"""TruncateSegment: bytes before ``offset`` are gone for readers. Layout: ``sid u64, offset u64``."""

from __future__ import annotations

from typing import NamedTuple

from ...storage_backends.base.codec import Decoder, Encoder

TYPE = 4


class TruncateSegment(NamedTuple):
    sid: int
    offset: int


def encode(op: TruncateSegment) -> bytes:
    return Encoder().u64(op.sid).u64(op.offset).finish()


def decode(view: memoryview, start: int, end: int) -> TruncateSegment:
    fields = Decoder(view, start, end)
    op = TruncateSegment(fields.u64(), fields.u64())
    fields.finish()
    return op
