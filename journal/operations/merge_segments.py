"""MergeSegments: sealed sources move to the target's tail, with attribute values, as one operation (all or
nothing).

Layout: ``target u64, offset u64, count u16, [source u64, length u64] * count, attribute values``.
"""

from __future__ import annotations

from typing import NamedTuple

from ...storage_backends.base.codec import Decoder, Encoder
from .update_attributes import decode_values, encode_values

TYPE = 7


class MergeSegments(NamedTuple):
    target: int
    offset: int
    """The target's length before the merge: where the first source's bytes begin."""
    sources: tuple[tuple[int, int], ...]
    """(segment id, length) of each source, in order."""
    values: tuple[tuple[str, int], ...]


def encode_sources(out: Encoder, sources: tuple[tuple[int, int], ...]) -> None:
    out.u16(len(sources))
    for source, length in sources:
        out.u64(source).u64(length)


def decode_sources(fields: Decoder) -> tuple[tuple[int, int], ...]:
    return tuple((fields.u64(), fields.u64()) for _ in range(fields.u16()))


def encode(op: MergeSegments) -> bytes:
    out = Encoder().u64(op.target).u64(op.offset)
    encode_sources(out, op.sources)
    encode_values(out, op.values)
    return out.finish()


def decode(view: memoryview, start: int, end: int) -> MergeSegments:
    fields = Decoder(view, start, end)
    target, offset = fields.u64(), fields.u64()
    op = MergeSegments(target, offset, decode_sources(fields), decode_values(fields))
    fields.finish()
    return op
