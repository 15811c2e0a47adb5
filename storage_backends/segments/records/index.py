"""The index record: for a multiple of the index spacing, the chunk that holds that segment offset.

There is one for each multiple above 0 inside a chunk of the segment. A reader computes the key of the
multiple below its offset and walks from that chunk, so it never needs a scan.

Layout: u8 type 3, u8 version 1, u64 segment, u64 offset, text chunk, u64 chunk_start; bytes behind are kept.
"""

from __future__ import annotations

from msgspec import Struct

from ...base.checksum import Buffer
from .header import INDEX_TYPE, Invariants, begin, broken, expect

INDEX_PREFIX = "i:"
_VERSION = 1


def index_key(segment: int, offset: int) -> str:
    return f"{INDEX_PREFIX}{segment:016x}:{offset:016x}"


class IndexRecord(Struct, frozen=True):
    segment: int
    offset: int
    """A multiple of the index spacing, in segment bytes."""
    chunk: str
    """The name of the chunk that holds the byte at ``offset``."""
    chunk_start: int
    """The segment offset of that chunk's first byte."""
    extra: bytes = b""
    """Fields of a newer version, kept as they are."""

    @property
    def key(self) -> str:
        return index_key(self.segment, self.offset)

    def encode(self) -> bytes:
        encoder = (
            begin(INDEX_TYPE, _VERSION)
            .u64(self.segment)
            .u64(self.offset)
            .text(self.chunk)
            .u64(self.chunk_start)
        )
        return encoder.raw(self.extra).finish()

    @classmethod
    def decode(cls, data: Buffer) -> IndexRecord:
        fields = expect(data, INDEX_TYPE, _VERSION)
        return cls(fields.u64(), fields.u64(), fields.text(), fields.u64(), extra=fields.rest())

    def broken(self) -> list[str]:
        """The names of the invariants that this record breaks."""
        return broken(self, INDEX_INVARIANTS)


def _names_a_chunk(r: IndexRecord) -> bool:
    return bool(r.chunk)


def _chunk_starts_before_it(r: IndexRecord) -> bool:
    return 0 <= r.chunk_start <= r.offset and r.offset > 0


INDEX_INVARIANTS: Invariants[IndexRecord] = {
    "it names a chunk": _names_a_chunk,
    "chunk_start <= offset, and the offset is above 0": _chunk_starts_before_it,
}
