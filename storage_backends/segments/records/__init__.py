"""The persisted records of chunked segments: one record, its key, layout and invariants per file.

Every record starts with its type byte and its format version byte. Types are permanent: 1 segment, 2 chunk, 3
index, 4 deferred work, 5 imported, 6 released, 7 claim, 8 unconfirmed. A rewrite by older code loses nothing:
a record keeps the bytes behind the fields that it knows and the flag bits that it does not (rule S6). Keys
contain the segment id or a chunk's name, never a segment's name (rule C2).
"""

from __future__ import annotations

from .chunk import BLOCK, ChunkRecord, chunk_key
from .deferred_work import DEFERRED_WORK_PREFIX, DeferredWorkKind, DeferredWorkRecord, deferred_work_key
from .imported import ImportedRecord, imported_key
from .index import IndexRecord, index_key
from .released import RELEASED_PREFIX, ReleasedRecord, released_key, released_names
from .segment import SEGMENT_PREFIX, SegmentRecord, segment_key, segment_of_key

Record = SegmentRecord | ChunkRecord | IndexRecord | DeferredWorkRecord | ReleasedRecord

__all__ = [
    "BLOCK",
    "DEFERRED_WORK_PREFIX",
    "RELEASED_PREFIX",
    "SEGMENT_PREFIX",
    "ChunkRecord",
    "DeferredWorkKind",
    "DeferredWorkRecord",
    "ImportedRecord",
    "IndexRecord",
    "Record",
    "ReleasedRecord",
    "SegmentRecord",
    "chunk_key",
    "deferred_work_key",
    "imported_key",
    "index_key",
    "released_key",
    "released_names",
    "segment_key",
    "segment_of_key",
]
