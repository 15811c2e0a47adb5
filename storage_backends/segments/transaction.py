"""``MetadataTransaction``: typed records read from a ``ChunkMetadataStore``, changed in memory, committed at
once.

A transaction sees its own buffered writes; others see nothing before ``commit`` returns, and a conflict
changes nothing (rule S6). The invariants of every written record are checked before the commit. Used for one
commit. Cancellation of ``commit`` leaves its outcome unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from ..base.codec import DecodeError
from ..base.errors import DataCorruption
from .metadata_store import ChunkMetadataStore
from .records import (
    DEFERRED_WORK_PREFIX,
    ChunkRecord,
    DeferredWorkKind,
    DeferredWorkRecord,
    IndexRecord,
    Record,
    ReleasedRecord,
    SegmentRecord,
    chunk_key,
    deferred_work_key,
    index_key,
    released_key,
    segment_key,
)

_RECORD_BYTES = 512
"""A record with its key, without checksums and append starts, is about this large at most."""
_DECODED_MAX = 4096
R = TypeVar("R", SegmentRecord, ChunkRecord, IndexRecord, DeferredWorkRecord, ReleasedRecord)


def decode_record(kind: type[R], key: str, value: bytes) -> R:
    """Decode the record of ``key``. Raises ``DataCorruption`` if the bytes are not such a record or break an
    invariant."""
    try:
        record = kind.decode(value)
    except DecodeError as error:
        raise DataCorruption(f"metadata record does not decode: {error}", file=key) from error

    if record.key != key or record.broken():
        raise DataCorruption(
            f"metadata record is not sound: {', '.join(record.broken()) or 'it belongs to ' + record.key}",
            file=key,
        )

    return record


class DecodedRecords:
    """Records that this instance recently committed or decoded, by key and version.

    A version is never used twice, so a record found under a known version need not be decoded and checked
    again. Every read still goes to the store.
    """

    def __init__(self) -> None:
        self._records: dict[str, tuple[int, Record]] = {}

    def get(self, key: str, version: int) -> Record | None:
        known = self._records.get(key)
        return known[1] if known is not None and known[0] == version else None

    def keep(self, key: str, version: int, record: Record) -> None:
        if len(self._records) >= _DECODED_MAX:
            # All at once: to find the least recent would cost each commit more than decoding some again.
            self._records.clear()
        self._records[key] = (version, record)


class MetadataTransaction:
    def __init__(self, store: ChunkMetadataStore, decoded: DecodedRecords | None = None) -> None:
        self._store = store
        self._decoded = decoded or DecodedRecords()
        self._versions: dict[str, int] = {}
        self._records: dict[str, Record | None] = {}
        self._written: set[str] = set()

    async def segment(self, segment: int) -> SegmentRecord | None:
        return await self._get(SegmentRecord, segment_key(segment))

    async def chunk(self, name: str) -> ChunkRecord:
        """The record of a chunk that another record refers to: a missing one is ``DataCorruption``."""
        record = await self.find_chunk(name)
        if record is None:
            raise DataCorruption("a chunk's metadata record is missing", file=name)

        return record

    async def find_chunk(self, name: str) -> ChunkRecord | None:
        """The record of a chunk that may be gone."""
        return await self._get(ChunkRecord, chunk_key(name))

    async def deferred(self, segment: int, kind: DeferredWorkKind) -> DeferredWorkRecord | None:
        return await self._get(DeferredWorkRecord, deferred_work_key(segment, kind))

    async def released(self, name: str) -> ReleasedRecord | None:
        return await self._get(ReleasedRecord, released_key(name))

    async def index(self, segment: int, offset: int) -> IndexRecord | None:
        return await self._get(IndexRecord, index_key(segment, offset))

    async def get(self, key: str) -> tuple[int, bytes] | None:
        """What this transaction has written, else what is stored. The commit does not depend on it."""
        # What a layout reads is not compared at the commit: a walk reads very many records, and none can
        # change while the transaction holds the segment (S12).
        if key not in self._written:
            return await self._store.get(key)

        record = self._records[key]
        return None if record is None else (0, record.encode())

    def put(self, record: Record) -> None:
        """Write ``record`` at the commit. A key that was not read before must be absent then."""
        key = record.key
        self._versions.setdefault(key, 0)
        self._records[key] = record
        self._written.add(key)

    def drop(self, record: Record) -> None:
        """Delete ``record``, which this transaction has read or written, at the commit."""
        key = record.key
        self._records[key] = None
        # What only this transaction has written was never stored: there is nothing to delete.
        if self._versions[key]:
            self._written.add(key)
        else:
            self._written.discard(key)

    @property
    def size(self) -> int:
        """About how many bytes of records the commit writes."""
        records = (self._records[key] for key in self._written)
        return sum(
            _RECORD_BYTES + (len(r.packed_crcs) + len(r.packed_starts) if isinstance(r, ChunkRecord) else 0)
            for r in records
        )

    def written_deferred_work(self) -> dict[str, DeferredWorkRecord | None]:
        """The deferred work that the commit changes, by key; None for one that it removes."""
        found: dict[str, DeferredWorkRecord | None] = {}
        for key in self._written:
            if key.startswith(DEFERRED_WORK_PREFIX):
                record = self._records[key]
                assert record is None or isinstance(record, DeferredWorkRecord)
                found[key] = record
        return found

    async def commit(self) -> int:
        """Make all changes durable and visible, or none, and return the new version. Raises what
        ``ChunkMetadataStore.commit`` raises."""
        return await self.publish(self.checked())

    def checked(self) -> dict[str, bytes | None]:
        """All writes by key, encoded. Raises ``RuntimeError`` for a record that breaks an invariant, which is
        a bug."""
        # Sorted: the order of a set of strings differs from process to process, and a replayed run must log
        # the same bytes.
        return {key: self._encoded(key) for key in sorted(self._written)}

    async def publish(self, writes: Mapping[str, bytes | None]) -> int:
        """Commit the result of ``checked``."""
        # Everything that was read is compared, not only what is written: a decision may rest on a record that
        # stays as it is.
        version = await self._store.commit(self._versions, writes)
        for key in writes:
            record = self._records[key]
            if record is not None:
                self._decoded.keep(key, version, record)
        return version

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
        if found is None:
            # Absence is compared at the commit too: a decision may rest on it.
            self._versions[key], self._records[key] = 0, None
            return None

        version, value = found
        known = self._decoded.get(key, version)
        if isinstance(known, kind):
            record = known
        else:
            record = decode_record(kind, key, value)
            self._decoded.keep(key, version, record)
        self._versions[key], self._records[key] = version, record
        return record
