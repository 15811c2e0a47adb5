"""ExpireWriters: the state of these writers is forgotten on purpose; their next append fails as
``UnknownWriter`` (rule C3).

Layout: ``sid u64, count u32, [length u8, writer bytes] * count``.
"""

from __future__ import annotations

from typing import NamedTuple

from ...storage_backends.base.codec import Decoder, Encoder

TYPE = 8


class ExpireWriters(NamedTuple):
    sid: int
    writers: tuple[bytes, ...]


def encode_writer(out: Encoder, writer: bytes) -> None:
    out.u8(len(writer)).raw(writer)


def decode_writer(fields: Decoder) -> bytes:
    return bytes(fields.raw(fields.u8()))


def encode(op: ExpireWriters) -> bytes:
    out = Encoder().u64(op.sid).u32(len(op.writers))
    for writer in op.writers:
        encode_writer(out, writer)

    return out.finish()


def decode(view: memoryview, start: int, end: int) -> ExpireWriters:
    fields = Decoder(view, start, end)
    sid, count = fields.u64(), fields.u32()
    op = ExpireWriters(sid, tuple(decode_writer(fields) for _ in range(count)))
    fields.finish()
    return op
