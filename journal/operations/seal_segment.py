"""SealSegment: nothing is appended to the segment any more. Layout: ``sid u64``."""

from __future__ import annotations

from typing import NamedTuple

from ...storage_backends.base.codec import Decoder, Encoder

TYPE = 3


class SealSegment(NamedTuple):
    sid: int


def encode(op: SealSegment) -> bytes:
    return Encoder().u64(op.sid).finish()


def decode(view: memoryview, start: int, end: int) -> SealSegment:
    fields = Decoder(view, start, end)
    op = SealSegment(fields.u64())
    fields.finish()
    return op
