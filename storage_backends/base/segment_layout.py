"""The public types of a segment's layout: which chunks of long-term storage have its bytes, for readers that
fetch them there themselves.

Names and numbers are checked when a value is made, also when one is decoded from an answer: a reader opens
files and objects of these names, and none may lie outside the storage."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise

from msgspec import Struct

from .checksum import BLOCK
from .chunk_storage import check_chunk_name
from .errors import InvalidArgument

LAYOUT_CHUNKS_MAX = 1_000
"""The most chunks of one answer."""
LAYOUT_BLOCKS_MAX = 1 << 16
"""The most checksums of one answer: those of 64 GiB."""


class StoragePlace(Struct, frozen=True):
    """Where a store's chunks are, without credentials."""

    store: str = ""
    """The id of the store in hex. The object ``_system/store`` of the same storage has it too."""
    location: str = ""
    """The absolute path of a folder, as the owner of the segment sees it, or ``s3://BUCKET/PREFIX``; empty if
    no other process can reach the storage."""
    endpoint: str = ""
    """The URL of the S3 service; empty: AWS, or what the environment says."""
    region: str = ""
    """The region of the bucket; empty: that of the environment."""


class ChunkExtent(Struct, frozen=True):
    """Consecutive whole blocks of one chunk."""

    start: int
    """The offset in the segment of the chunk's first byte."""
    chunk: str
    length: int
    """Bytes of the chunk that are the segment's. There may be more, which are not."""
    block: int
    """The index of the first block in ``crcs``: it begins at ``block`` MiB of the chunk."""
    crcs: bytes
    """The CRC32C of each block of 1 MiB, u32 big-endian; the chunk's last block ends at ``length``."""

    def __post_init__(self) -> None:
        check_chunk_name(self.chunk)
        count, rest = divmod(len(self.crcs), 4)
        if (
            min(self.start, self.block) < 0
            or not count
            or rest
            or self.begin >= self.start + self.length
            or (self.block + count - 1) * BLOCK >= self.length
        ):
            raise InvalidArgument(f"the extent of chunk {self.chunk} is none: {(self.length, self.block)}")

    @property
    def begin(self) -> int:
        """The offset in the segment of its first block."""
        return self.start + self.block * BLOCK

    @property
    def end(self) -> int:
        """The offset in the segment behind its last block."""
        return self.start + min(self.length, (self.block + len(self.crcs) // 4) * BLOCK)

    def checksums(self) -> Sequence[int]:
        return struct.unpack(f">{len(self.crcs) // 4}I", self.crcs)


class SegmentLayout(Struct, frozen=True):
    """The chunks that have a range of a segment's flushed bytes."""

    segment_id: int
    """Never reused: a segment that was deleted and created again has another id."""
    epoch: int
    """The epoch of the owner that answered."""
    start_offset: int
    """The first byte of the segment that can be read."""
    flushed_length: int
    """Bytes behind it are not in long-term storage yet: read them from the store."""
    extents: tuple[ChunkExtent, ...]
    """In order and without a gap, of whole blocks: the first one may begin before the range, and the last one
    end behind it. None if no byte of the range can be read from long-term storage."""
    next_start: int | None
    """Where the next page begins; None if this one reaches the end of the range or of what is flushed. It is
    an offset in the segment, so it stays valid."""
    valid_for: float
    """Seconds, counted from before the call, for which no chunk of this answer is deleted. After that, or
    where one is missing, ask again."""
    place: StoragePlace

    def __post_init__(self) -> None:
        if any(before.end != after.begin for before, after in pairwise(self.extents)):
            raise InvalidArgument("the extents of a layout do not follow each other without a gap")
