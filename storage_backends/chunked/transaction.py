"""``MetadataTransaction``: typed records read through a ``ChunkMetadataStore``, changed in memory, committed at once.

Owns: the versions of everything it has read, the buffered records, and the check of every written record's invariants before the
commit. Does not own: what the records mean to a segment (``segment_transaction.py``). Reading your own buffered writes is
guaranteed; nothing is visible to others before ``commit`` returns, and a conflict changes nothing (rule S6). Records are frozen,
so none can leak a change.

Cancellation: of a read, harmless; of ``commit``, the outcome is unknown. It is used for one commit.
"""

from __future__ import annotations

from typing import TypeVar

from ..base.codec import DecodeError
from ..base.errors import DataCorruption
from .metadata_store import ChunkMetadataStore
from .records import ChunkRecord, IndexRecord, Record, SegmentRecord, chunk_key, index_key, segment_key

R = TypeVar("R", SegmentRecord, ChunkRecord, IndexRecord)


def decode_record(kind: type[R], key: str, value: bytes) -> R:
    """The record of ``key``; ``DataCorruption`` if the stored bytes are not one, or break an invariant."""
    try:
        record = kind.decode(value)
    except DecodeError as error:
        raise DataCorruption(f"metadata record does not decode: {error}", file=key) from error

    if record.key != key or record.broken():
        raise DataCorruption(f"metadata record is not sound: {', '.join(record.broken()) or 'it belongs to ' + record.key}", file=key)

    return record


class MetadataTransaction:
    def __init__(self, store: ChunkMetadataStore) -> None:
        self._store = store
        self._versions: dict[str, int] = {}
        self._records: dict[str, Record | None] = {}
        self._written: set[str] = set()

    async def segment(self, segment: int) -> SegmentRecord | None:
        return await self._get(SegmentRecord, segment_key(segment))

    async def chunk(self, name: str) -> ChunkRecord:
        """The record of a chunk that another record refers to: a missing one is ``DataCorruption``."""
        record = await self._get(ChunkRecord, chunk_key(name))
        if record is None:
            raise DataCorruption("a chunk's metadata record is missing", file=name)

        return record

    async def index(self, segment: int, offset: int) -> IndexRecord | None:
        return await self._get(IndexRecord, index_key(segment, offset))

    def put(self, record: Record) -> None:
        """Write ``record`` at the commit. A key that was not read before must be absent then: what is created is new."""
        self._versions.setdefault(record.key, 0)
        self._records[record.key] = record
        self._written.add(record.key)

    def drop(self, record: Record) -> None:
        """Delete ``record``, read or written by this transaction before, at the commit."""
        self._records[record.key] = None
        if self._versions[record.key]:
            self._written.add(record.key)
        else:
            self._written.discard(record.key)

    async def commit(self) -> int:
        """Make all changes durable and visible, or none; returns the new version. Errors as in ``ChunkMetadataStore.commit``."""
        writes = {key: self._encoded(key) for key in sorted(self._written)}
        return await self._store.commit(self._versions, writes)

    def _encoded(self, key: str) -> bytes | None:
        record = self._records[key]
        if record is None:
            return None

        if names := record.broken():
            raise RuntimeError(f"refusing to commit an unsound record {record!r}: {', '.join(names)}")

        return record.encode()

    async def _get(self, kind: type[R], key: str) -> R | None:
        if key in self._versions:
            buffered = self._records[key]
            assert buffered is None or isinstance(buffered, kind)
            return buffered

        found = await self._store.get(key)
        self._versions[key], record = (0, None) if found is None else (found[0], decode_record(kind, key, found[1]))
        self._records[key] = record
        return record
