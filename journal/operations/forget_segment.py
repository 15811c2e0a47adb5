"""ForgetSegment: a deleted segment has no record in long-term storage any more, so its id leaves the
container's tables.

Layout: ``sid u64``.
"""

from __future__ import annotations

from typing import NamedTuple

from ...storage_backends.base.codec import Decoder, Encoder

TYPE = 10


class ForgetSegment(NamedTuple):
    sid: int


def encode(op: ForgetSegment) -> bytes:
    return Encoder().u64(op.sid).finish()


def decode(view: memoryview, start: int, end: int) -> ForgetSegment:
    fields = Decoder(view, start, end)
    op = ForgetSegment(fields.u64())
    fields.finish()
    return op
