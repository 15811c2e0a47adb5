"""The segment record: a segment in long-term storage, as of its last commit.

Length, start and seal flag are in one record, so that one commit changes them together (rule F1). ``length``
is exact (rule S3): bytes of chunks past it do not exist.

Layout: u8 type 1, u8 version 1, u64 segment, u64 length, u64 start_offset, text first_chunk, text last_chunk,
u64 first_chunk_start, u64 last_chunk_start, u64 chunk_count, u8 flags (bit 0: sealed), u64 owner_epoch, u64
rolling_size; unknown flag bits and bytes behind are kept.
"""

from __future__ import annotations

import struct

from msgspec import Struct

from ...base.checksum import Buffer
from ...base.codec import DecodeError, hex_number
from .header import SEGMENT_TYPE, Invariants, broken, expect, text_parts

SEGMENT_PREFIX = "s:"
_VERSION = 1
_SEALED = 1
_HEAD = struct.Struct(">BBQQQ")
_NUMBERS = struct.Struct(">QQQ")
_TAIL = struct.Struct(">QQQBQQ")


def segment_key(segment: int) -> str:
    return f"{SEGMENT_PREFIX}{segment:016x}"


def segment_of_key(key: str) -> int:
    """The segment id in a key of ``segment_key``. Raises ``DecodeError`` for any other key."""
    if not key.startswith(SEGMENT_PREFIX):
        raise DecodeError(f"{key[:40]!r} is not the key of a segment record")
    return hex_number(key[len(SEGMENT_PREFIX) :])


class SegmentRecord(Struct, frozen=True):
    segment: int
    """The segment id (rule C2)."""
    length: int = 0
    """The offset after the last byte; truncated bytes count."""
    start_offset: int = 0
    """The first byte that can be read."""
    first_chunk: str = ""
    """The name of the first chunk; empty if there is none (nothing written, or truncated at its end)."""
    last_chunk: str = ""
    first_chunk_start: int = 0
    """The segment offset of the first chunk's first byte; ``length`` if there is no chunk."""
    last_chunk_start: int = 0
    chunk_count: int = 0
    sealed: bool = False
    owner_epoch: int = 0
    """The epoch of the owner that committed last."""
    rolling_size: int = 128 << 20
    """Bytes at which a chunk is full."""
    flags: int = 0
    """Unknown flag bits, kept as they are."""
    extra: bytes = b""
    """Fields of a newer version, kept as they are."""

    @property
    def key(self) -> str:
        return segment_key(self.segment)

    def encode(self) -> bytes:
        head = _HEAD.pack(SEGMENT_TYPE, _VERSION, self.segment, self.length, self.start_offset)
        flags = self.flags | (_SEALED if self.sealed else 0)
        # Packed at once: this record is written with each commit.
        tail = _TAIL.pack(
            self.first_chunk_start,
            self.last_chunk_start,
            self.chunk_count,
            flags,
            self.owner_epoch,
            self.rolling_size,
        )
        return b"".join((head, *text_parts(self.first_chunk), *text_parts(self.last_chunk), tail, self.extra))

    @classmethod
    def decode(cls, data: Buffer) -> SegmentRecord:
        fields = expect(data, SEGMENT_TYPE, _VERSION)
        segment, length, start = fields.unpacked(_NUMBERS)
        first, last = fields.text(), fields.text()
        first_start, last_start, chunks, flags, epoch, rolling = fields.unpacked(_TAIL)
        return cls(
            segment,
            length,
            start,
            first,
            last,
            first_start,
            last_start,
            chunks,
            bool(flags & _SEALED),
            epoch,
            rolling,
            flags=flags & ~_SEALED,
            extra=fields.rest(),
        )

    def broken(self) -> list[str]:
        """The names of the invariants that this record breaks."""
        return broken(self, SEGMENT_INVARIANTS)


def _nothing_is_negative(r: SegmentRecord) -> bool:
    return (
        min(r.length, r.start_offset, r.first_chunk_start, r.last_chunk_start, r.chunk_count, r.owner_epoch)
        >= 0
    )


def _start_lies_in_the_chunks(r: SegmentRecord) -> bool:
    return r.first_chunk_start <= r.start_offset <= r.length


def _chunk_starts_are_ordered(r: SegmentRecord) -> bool:
    return r.first_chunk_start <= r.last_chunk_start <= r.length


def _first_and_last_come_together(r: SegmentRecord) -> bool:
    return bool(r.first_chunk) == bool(r.last_chunk)


def _without_chunks_all_offsets_are_equal(r: SegmentRecord) -> bool:
    offsets = {r.length, r.start_offset, r.first_chunk_start, r.last_chunk_start}
    return bool(r.first_chunk) or (len(offsets) == 1 and r.chunk_count == 0)


def _one_chunk_is_first_and_last(r: SegmentRecord) -> bool:
    one = bool(r.first_chunk) and r.first_chunk == r.last_chunk
    return one == (r.chunk_count == 1) and (not one or r.first_chunk_start == r.last_chunk_start)


def _several_chunks_start_apart(r: SegmentRecord) -> bool:
    # Each chunk has a byte at least.
    return r.chunk_count < 2 or r.first_chunk_start + r.chunk_count - 1 <= r.last_chunk_start


def _the_last_chunk_has_bytes(r: SegmentRecord) -> bool:
    return not r.last_chunk or r.last_chunk_start < r.length


def _a_chunk_can_hold_a_byte(r: SegmentRecord) -> bool:
    return r.rolling_size >= 1


SEGMENT_INVARIANTS: Invariants[SegmentRecord] = {
    "nothing is negative": _nothing_is_negative,
    "first_chunk_start <= start_offset <= length": _start_lies_in_the_chunks,
    "first_chunk_start <= last_chunk_start <= length": _chunk_starts_are_ordered,
    "first and last chunk come together": _first_and_last_come_together,
    "without chunks all offsets are equal and the count is 0": _without_chunks_all_offsets_are_equal,
    "a count of 1 means that first is last, and starts there": _one_chunk_is_first_and_last,
    "several chunks start at different offsets": _several_chunks_start_apart,
    "the last chunk has bytes": _the_last_chunk_has_bytes,
    "the rolling size is at least 1": _a_chunk_can_hold_a_byte,
}
