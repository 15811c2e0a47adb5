"""The chunk record: one chunk's exact length, its successor and the checksums of its bytes.

A chunk's record does not contain the chunk's offset in a segment, so a concat never rewrites the records that
it links.

Block k is the bytes ``k * 1 MiB .. (k + 1) * 1 MiB`` of the chunk; each has a CRC32C. The last block's covers
its bytes so far and is continued as the chunk grows, so every committed byte is covered, and a reader
verifies whole blocks (rule S5). Append starts are kept about every 1 MiB, so that readers can split work at
the beginning of an append.

Checksums and starts stay packed as they are stored: a layout cache holds thousands of records, and an int
costs 32 bytes.

Layout: u8 type 2, u8 version 1, text name, u64 length, text next_chunk, blob block CRCs (u32 each), blob
append starts (u64 each); bytes behind are kept.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import pairwise

from msgspec import Struct
from msgspec.structs import replace

from ...base.checksum import BLOCK, Buffer, crc32c
from .header import CHUNK_TYPE, Invariants, broken, expect, text_parts

START_SPACING = 1 << 20
"""Append starts closer than this many bytes to the last one kept are dropped. May change: readers do not rely
on it."""
CHUNK_PREFIX = "c:"
_VERSION = 1
_HEAD = struct.Struct(">BB")
_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")


def chunk_key(name: str) -> str:
    return f"{CHUNK_PREFIX}{name}"


class ChunkRecord(Struct, frozen=True):
    name: str
    length: int = 0
    """Exact: bytes behind it in the chunk are garbage of a write that was never committed (rule S3)."""
    next_chunk: str = ""
    """The name of the chunk that follows in the segment; empty for the last."""
    packed_crcs: bytes = b""
    """The CRC32C of each block, u32 big-endian."""
    packed_starts: bytes = b""
    """Offsets in this chunk at which an append begins, ascending, u64 big-endian."""
    extra: bytes = b""
    """Fields of a newer version, kept as they are."""

    @property
    def key(self) -> str:
        return chunk_key(self.name)

    @property
    def crcs(self) -> Sequence[int]:
        """The CRC32C of each block."""
        return struct.unpack(f">{len(self.packed_crcs) // 4}I", self.packed_crcs)

    @property
    def starts(self) -> Sequence[int]:
        """Offsets in this chunk at which an append begins."""
        return struct.unpack(f">{len(self.packed_starts) // 8}Q", self.packed_starts)

    def grown(self, data: Iterable[Buffer], starts: Sequence[int] = ()) -> ChunkRecord:
        """This record after ``data`` was appended; ``starts`` are offsets in this chunk, ascending."""
        # Only the last, partial block changes; the others stay packed.
        whole = self.length // BLOCK
        last, length = extended_crcs(
            struct.unpack_from(f">{len(self.packed_crcs) // 4 - whole}I", self.packed_crcs, 4 * whole),
            self.length,
            data,
        )
        packed = self.packed_crcs[: 4 * whole] + struct.pack(f">{len(last)}I", *last)
        kept = thinned_starts(self.packed_starts, starts) if starts else self.packed_starts
        return replace(self, length=length, packed_crcs=packed, packed_starts=kept)

    def encode(self) -> bytes:
        head, length, crcs = (
            _HEAD.pack(CHUNK_TYPE, _VERSION),
            _U64.pack(self.length),
            _U32.pack(len(self.packed_crcs)),
        )
        starts = _U32.pack(len(self.packed_starts))
        texts = text_parts(self.name), text_parts(self.next_chunk)
        return b"".join(
            (
                head,
                *texts[0],
                length,
                *texts[1],
                crcs,
                self.packed_crcs,
                starts,
                self.packed_starts,
                self.extra,
            )
        )

    @classmethod
    def decode(cls, data: Buffer) -> ChunkRecord:
        fields = expect(data, CHUNK_TYPE, _VERSION)
        return cls(
            fields.text(), fields.u64(), fields.text(), fields.blob(), fields.blob(), extra=fields.rest()
        )

    def broken(self) -> list[str]:
        """The names of the invariants that this record breaks."""
        return broken(self, CHUNK_INVARIANTS)


def extended_crcs(crcs: Iterable[int], length: int, data: Iterable[Buffer]) -> tuple[list[int], int]:
    """The block checksums and the length after ``data`` follows ``length`` bytes that have ``crcs``."""
    extended = list(crcs)
    for buffer in data:
        view = memoryview(buffer).cast("B")
        while view:
            if length % BLOCK == 0:
                extended.append(0)
            part = view[: BLOCK - length % BLOCK]
            extended[-1] = crc32c(part, extended[-1])
            length += len(part)
            view = view[len(part) :]
    return extended, length


def thinned_starts(packed: bytes, starts: Iterable[int]) -> bytes:
    """``packed`` followed by those ``starts`` that are at least ``START_SPACING`` behind the previous one."""
    kept = [packed]
    least = int.from_bytes(packed[-8:], "big") + START_SPACING if packed else 0
    for start in starts:
        if start >= least:
            kept.append(start.to_bytes(8, "big"))
            least = start + START_SPACING
    return b"".join(kept)


def _has_a_name(r: ChunkRecord) -> bool:
    return bool(r.name)


def _has_bytes(r: ChunkRecord) -> bool:
    return r.length > 0


def _does_not_follow_itself(r: ChunkRecord) -> bool:
    return r.next_chunk != r.name


def _every_block_has_a_checksum(r: ChunkRecord) -> bool:
    return len(r.packed_crcs) == 4 * -(-r.length // BLOCK)


def _starts_ascend_inside(r: ChunkRecord) -> bool:
    if not r.packed_starts:
        return True

    if len(r.packed_starts) % 8:
        return False
    starts = r.starts
    return all(a < b for a, b in pairwise(starts)) and (not starts or starts[-1] < r.length)


CHUNK_INVARIANTS: Invariants[ChunkRecord] = {
    "it has a name": _has_a_name,
    "it has bytes": _has_bytes,
    "it does not follow itself": _does_not_follow_itself,
    "every block has a checksum": _every_block_has_a_checksum,
    "append starts ascend and lie inside": _starts_ascend_inside,
}
