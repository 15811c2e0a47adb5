"""The persisted records of chunked segments: one record, its key, layout and invariants per file.

Every record starts with its type byte and its format version byte. Types are permanent: 1 segment, 2 chunk, 3
index, 4 deferred work, 5 imported, 6 released, 7 claim, 8 unconfirmed. A rewrite by older code loses nothing:
a record keeps the bytes behind the fields that it knows and the flag bits that it does not (rule S6). Keys
contain the segment id or a chunk's name, never a segment's name (rule C2).
"""

from __future__ import annotations

from ...base.checksum import BLOCK
from .chunk import CHUNK_PREFIX, ChunkRecord, chunk_key
from .deferred_work import DEFERRED_WORK_PREFIX, DeferredWorkKind, DeferredWorkRecord, deferred_work_key
from .imported import IMPORTED_PREFIX, ImportedRecord, imported_key
from .index import INDEX_PREFIX, IndexRecord, index_key
from .released import RELEASED_PREFIX, ReleasedRecord, released_key, released_names
from .segment import SEGMENT_PREFIX, SegmentRecord, segment_key, segment_of_key

_PREFIXES = (
    SEGMENT_PREFIX,
    CHUNK_PREFIX,
    INDEX_PREFIX,
    DEFERRED_WORK_PREFIX,
    IMPORTED_PREFIX,
    RELEASED_PREFIX,
)
_STORAGE_KEYS = tuple(prefix.encode() for prefix in _PREFIXES)

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
    "is_storage_key",
    "released_key",
    "released_names",
    "segment_key",
    "segment_of_key",
]


def is_storage_key(key: bytes) -> bool:
    """Whether it is the key of a record that says what long-term storage has of a segment."""
    return key.startswith(_STORAGE_KEYS)
