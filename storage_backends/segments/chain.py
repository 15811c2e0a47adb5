"""All records of one segment, made at once: what an import or a restore commits. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from .records import ChunkRecord, IndexRecord, Record, SegmentRecord

_RECORD_BYTES = 96
"""About the size of a record and its key without names, checksums and starts."""


class ChunkRecords(NamedTuple):
    """The records of one chunk."""

    start: int
    """The segment offset of its first byte."""
    chunk: ChunkRecord
    multiples: list[IndexRecord]
    """The index records that point to it."""

    @property
    def size(self) -> int:
        """About the bytes that these records take in a transaction."""
        chunk, name = self.chunk, len(self.chunk.name.encode())
        own = (
            2 * name
            + len(chunk.next_chunk.encode())
            + len(chunk.packed_crcs)
            + len(chunk.packed_starts)
            + _RECORD_BYTES
        )
        return own + len(self.multiples) * (name + _RECORD_BYTES)


class Chain(Struct, frozen=True, eq=False):
    """A segment's layout, without its id and owner."""

    length: int
    start_offset: int
    sealed: bool
    rolling_size: int
    chunks: tuple[tuple[int, ChunkRecord], ...]
    """(segment offset of its first byte, record) of each chunk in order, without a gap. ``next_chunk`` is
    ignored."""

    def records(self, segment: int, epoch: int, spacing: int) -> list[Record]:
        """The records of the segment with that id. ``spacing``: bytes between index records."""
        records = list(self.chunk_records(segment, spacing))
        index = [record for each in records for record in each.multiples]
        return [self.segment_record(segment, epoch), *(each.chunk for each in records), *index]

    def segment_record(self, segment: int, epoch: int) -> SegmentRecord:
        first = self.chunks[0] if self.chunks else None
        last = self.chunks[-1] if self.chunks else None
        return SegmentRecord(
            segment,
            length=self.length,
            start_offset=self.start_offset,
            first_chunk=first[1].name if first else "",
            last_chunk=last[1].name if last else "",
            first_chunk_start=first[0] if first else self.length,
            last_chunk_start=last[0] if last else self.length,
            chunk_count=len(self.chunks),
            sealed=self.sealed,
            owner_epoch=epoch,
            rolling_size=self.rolling_size,
        )

    def chunk_records(self, segment: int, spacing: int) -> Iterator[ChunkRecords]:
        """Each chunk's records, linked to the next."""
        for start, chunk in _linked(self.chunks):
            yield ChunkRecords(start, chunk, _index(segment, start, chunk, spacing))

    def broken(self) -> list[str]:
        """Why these chunks do not make a segment; empty if they do."""
        ends = [start + chunk.length for start, chunk in self.chunks]
        starts = [start for start, _ in self.chunks]
        found = [] if starts[1:] == ends[:-1] else ["the chunks do not follow each other without a gap"]
        if ends and ends[-1] != self.length:
            found.append("the last chunk does not end where the segment ends")
        names = {chunk.name for _, chunk in self.chunks}
        if len(names) < len(self.chunks):
            found.append("a chunk is there twice")
        # Under any id, and without index records: only the records' own invariants count.
        return found + [reason for record in self.records(1, 1, 1 << 62) for reason in record.broken()]


def _linked(chunks: Sequence[tuple[int, ChunkRecord]]) -> Iterator[tuple[int, ChunkRecord]]:
    nexts = chain((chunk.name for _, chunk in chunks[1:]), ("",))
    # Without chunks there is still one name, hence not strict.
    for (start, chunk), name in zip(chunks, nexts, strict=False):
        yield start, replace(chunk, next_chunk=name)


def _index(segment: int, start: int, chunk: ChunkRecord, spacing: int) -> list[IndexRecord]:
    # None at 0: the segment's record names its first chunk.
    first = max(spacing, -(-start // spacing) * spacing)
    return [
        IndexRecord(segment, offset, chunk.name, start)
        for offset in range(first, start + chunk.length, spacing)
    ]
