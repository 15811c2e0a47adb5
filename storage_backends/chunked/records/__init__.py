"""The persisted records of chunked segments: one record, its key, layout and invariants per file.

Every record starts with its type byte and its format version byte. Types are permanent: 1 segment, 2 chunk, 3 index.
Keys carry the segment id or a chunk's name, never a segment's name (rule C2).
"""

from __future__ import annotations

from .chunk import BLOCK, ChunkRecord, chunk_key
from .index import IndexRecord, index_key
from .segment import SEGMENT_PREFIX, SegmentRecord, segment_key, segment_of_key

Record = SegmentRecord | ChunkRecord | IndexRecord

__all__ = [
    "BLOCK",
    "SEGMENT_PREFIX",
    "ChunkRecord",
    "IndexRecord",
    "Record",
    "SegmentRecord",
    "chunk_key",
    "index_key",
    "segment_key",
    "segment_of_key",
]
