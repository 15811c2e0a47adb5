"""MergeSegments: moves sealed sources to the target's tail and sets attributes, all or nothing.

Layout: ``target u64, offset u64, count u16, [source u64, length u64] * count, attribute values``.
"""

from __future__ import annotations

from typing import NamedTuple

from ...storage_backends.base.codec import Decoder, Encoder
from .operation import operation
from .update_attributes import decode_values, encode_values


@operation(7)
class MergeSegments(NamedTuple):
    target: int
    offset: int
    """The target's length before the merge: where the first source's bytes begin."""
    sources: tuple[tuple[int, int], ...]
    """(segment id, length) of each source, in order."""
    values: tuple[tuple[str, int], ...]

    def encode(self) -> bytes:
        out = Encoder().u64(self.target).u64(self.offset)
        encode_sources(out, self.sources)
        encode_values(out, self.values)
        return out.finish()

    @staticmethod
    def decode(fields: Decoder) -> MergeSegments:
        target, offset = fields.u64(), fields.u64()
        return MergeSegments(target, offset, decode_sources(fields), decode_values(fields))


def encode_sources(out: Encoder, sources: tuple[tuple[int, int], ...]) -> None:
    out.u16(len(sources))
    for source, length in sources:
        out.u64(source).u64(length)


def decode_sources(fields: Decoder) -> tuple[tuple[int, int], ...]:
    return tuple((fields.u64(), fields.u64()) for _ in range(fields.u16()))
