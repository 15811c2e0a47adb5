"""CreateSegment: a name gets a new segment id. Layout: ``sid u64, rolling size u64, name text``."""

from __future__ import annotations

from typing import NamedTuple

from ...storage_backends.base.codec import Decoder, Encoder

TYPE = 2


class CreateSegment(NamedTuple):
    sid: int
    name: str
    rolling_size: int
    """Bytes after which a new chunk is started in long-term storage."""


def encode(op: CreateSegment) -> bytes:
    return Encoder().u64(op.sid).u64(op.rolling_size).text(op.name).finish()


def decode(view: memoryview, start: int, end: int) -> CreateSegment:
    fields = Decoder(view, start, end)
    sid, rolling_size = fields.u64(), fields.u64()
    op = CreateSegment(sid, fields.text(), rolling_size)
    fields.finish()
    return op
