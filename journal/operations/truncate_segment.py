"""TruncateSegment: readers no longer see the bytes before ``offset``. Layout: ``sid u64, offset u64``."""

from __future__ import annotations

from typing import NamedTuple

from ...storage_backends.base.codec import Decoder, Encoder
from .operation import operation


@operation(4)
class TruncateSegment(NamedTuple):
    sid: int
    offset: int

    def encode(self) -> bytes:
        return Encoder().u64(self.sid).u64(self.offset).finish()

    @staticmethod
    def decode(fields: Decoder) -> TruncateSegment:
        return TruncateSegment(fields.u64(), fields.u64())
