"""CreateSegment: gives a name a new segment id. Layout: ``sid u64, rolling size u64, name text``."""

from __future__ import annotations

from typing import NamedTuple

from ...storage_backends.base.codec import Decoder, Encoder
from .operation import operation


@operation(2)
class CreateSegment(NamedTuple):
    sid: int
    name: str
    rolling_size: int
    """Bytes after which a new chunk is started in long-term storage."""

    def encode(self) -> bytes:
        return Encoder().u64(self.sid).u64(self.rolling_size).text(self.name).finish()

    @staticmethod
    def decode(fields: Decoder) -> CreateSegment:
        sid, rolling_size = fields.u64(), fields.u64()
        return CreateSegment(sid, fields.text(), rolling_size)
