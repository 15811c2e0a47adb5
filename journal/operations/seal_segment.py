"""SealSegment: the segment takes no more appends. Layout: ``sid u64``."""

from __future__ import annotations

from typing import NamedTuple

from ...storage_backends.base.codec import Decoder, Encoder
from .operation import operation


@operation(3)
class SealSegment(NamedTuple):
    sid: int

    def encode(self) -> bytes:
        return Encoder().u64(self.sid).finish()

    @staticmethod
    def decode(fields: Decoder) -> SealSegment:
        return SealSegment(fields.u64())
