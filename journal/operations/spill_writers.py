"""SpillWriters: writers of a segment leave its image and are rows of the system table from now on (rule M20).

Layout: ``sid u64, count u32, [length u8, writer bytes] * count``."""

from __future__ import annotations

from typing import NamedTuple

from ...storage_backends.base.codec import Decoder, Encoder
from .expire_writers import decode_writer, encode_writer
from .operation import operation


@operation(37)
class SpillWriters(NamedTuple):
    sid: int
    writers: tuple[bytes, ...]

    def encode(self) -> bytes:
        out = Encoder().u64(self.sid).u32(len(self.writers))
        for writer in self.writers:
            encode_writer(out, writer)
        return out.finish()

    @staticmethod
    def decode(fields: Decoder) -> SpillWriters:
        sid, count = fields.u64(), fields.u32()
        return SpillWriters(sid, tuple(decode_writer(fields) for _ in range(count)))
