"""The records of one container's long-term storage against themselves: every segment a whole chain of chunks, nothing beside them.

Pure: it reads the metadata entries that an owner holds in memory. Does not own: what the chunks themselves hold
(``storage_invariants.py``).
"""

from __future__ import annotations

from collections.abc import Iterator

from ...actors.container.state import ContainerState
from ...storage_backends.chunked.records.chunk import ChunkRecord, chunk_key
from ...storage_backends.chunked.records.index import IndexRecord
from ...storage_backends.chunked.records.segment import SEGMENT_PREFIX, SegmentRecord

Entries = dict[str, tuple[int, bytes]]
CHUNK_PREFIX = chunk_key("")
INDEX_PREFIX = "i:"


def segment_records(entries: Entries) -> list[SegmentRecord]:
    return [SegmentRecord.decode(value) for key, (_, value) in entries.items() if key.startswith(SEGMENT_PREFIX)]


def chain(entries: Entries, record: SegmentRecord) -> Iterator[tuple[int, ChunkRecord]]:
    """The segment's chunks with their offsets in it, as far as they are linked."""
    offset, name = record.first_chunk_start, record.first_chunk
    for _ in range(len(entries)):
        entry = entries.get(chunk_key(name)) if name else None
        if entry is None:
            return

        chunk = ChunkRecord.decode(entry[1])
        yield offset, chunk
        offset, name = offset + chunk.length, chunk.next_chunk


def broken_records(state: ContainerState) -> Iterator[str]:
    """A sentence for each thing that is wrong."""
    entries = state.metadata
    reached: dict[str, int] = {}
    for record in segment_records(entries):
        yield from _broken_segment(state, record)
        for offset, chunk in chain(entries, record):
            yield from (f"chunk {chunk.name}: {name}" for name in chunk.broken())
            if chunk.name in reached:
                yield f"chunk {chunk.name} is in the chains of {reached[chunk.name]:#x} and {record.segment:#x}"
            reached[chunk.name] = record.segment
            if chunk.name == record.last_chunk and offset != record.last_chunk_start:
                yield f"segment {record.segment:#x}: the last chunk starts at {offset}, not at {record.last_chunk_start}"
    for key in entries:
        if key.startswith(CHUNK_PREFIX) and key[len(CHUNK_PREFIX) :] not in reached:
            yield f"{key} is in no segment's chain"

    yield from _broken_indexes(entries)


def _broken_segment(state: ContainerState, record: SegmentRecord) -> Iterator[str]:
    yield from (f"segment {record.segment:#x}: {name}" for name in record.broken())
    chunks = list(chain(state.metadata, record))
    end = chunks[-1][0] + chunks[-1][1].length if chunks else record.first_chunk_start
    if (len(chunks), end) != (record.chunk_count, record.length):
        yield f"segment {record.segment:#x} says {record.chunk_count} chunks up to {record.length}, its chain has {len(chunks)} up to {end}"

    if chunks and (chunks[-1][1].name != record.last_chunk or chunks[-1][1].next_chunk):
        yield f"segment {record.segment:#x}: its chain ends with {chunks[-1][1]}, not with {record.last_chunk}"

    if record.owner_epoch > state.epoch:
        yield f"segment {record.segment:#x} was committed by epoch {record.owner_epoch}, the owner's is {state.epoch}"

    if record.segment not in state.segments.by_id and record.segment not in state.segments.evicted:
        yield f"there is a record of segment {record.segment:#x}, which the container does not know"


def _broken_indexes(entries: Entries) -> Iterator[str]:
    starts = {(record.segment, chunk.name): offset for record in segment_records(entries) for offset, chunk in chain(entries, record)}
    for key, (_, value) in entries.items():
        if not key.startswith(INDEX_PREFIX):
            continue

        index = IndexRecord.decode(value)
        yield from (f"{key}: {name}" for name in index.broken())
        if starts.get((index.segment, index.chunk)) != index.chunk_start:
            yield f"{key} says that {index.chunk} starts at {index.chunk_start}: it is at {starts.get((index.segment, index.chunk))}"
