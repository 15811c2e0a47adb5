"""RelogData: unflushed bytes said again at the log's tail, so that a segment that cannot be flushed does not
pin the log (rule F4).

It changes nothing but where the bytes can be found. Layout: ``sid u64, offset u64, data to the end``.
"""

from __future__ import annotations

from typing import NamedTuple

from ...storage_backends.base.checksum import Buffer
from ...storage_backends.base.codec import Decoder, Encoder

TYPE = 11


class RelogData(NamedTuple):
    sid: int
    offset: int
    data: Buffer


def encode(op: RelogData) -> bytes:
    return Encoder().u64(op.sid).u64(op.offset).raw(op.data).finish()


def decode(view: memoryview, start: int, end: int) -> RelogData:
    fields = Decoder(view, start, end)
    sid, offset = fields.u64(), fields.u64()
    return RelogData(sid, offset, fields.raw(fields.remaining))
