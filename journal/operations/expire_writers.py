"""ExpireWriters: drops the state of writers; their next append fails with ``UnknownWriter`` (rule C3).

Layout: ``sid u64, count u32, [length u8, writer bytes] * count``.
"""

from __future__ import annotations

from typing import NamedTuple

from ...storage_backends.base.codec import Decoder, Encoder
from .operation import operation


@operation(8)
class ExpireWriters(NamedTuple):
    sid: int
    writers: tuple[bytes, ...]

    def encode(self) -> bytes:
        out = Encoder().u64(self.sid).u32(len(self.writers))
        for writer in self.writers:
            encode_writer(out, writer)

        return out.finish()

    @staticmethod
    def decode(fields: Decoder) -> ExpireWriters:
        sid, count = fields.u64(), fields.u32()
        return ExpireWriters(sid, tuple(decode_writer(fields) for _ in range(count)))


def encode_writer(out: Encoder, writer: bytes) -> None:
    out.u8(len(writer)).raw(writer)


def decode_writer(fields: Decoder) -> bytes:
    return bytes(fields.raw(fields.u8()))
