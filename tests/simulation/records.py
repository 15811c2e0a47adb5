"""The metadata records of one container, checked against each other: every segment is a whole chain of
chunks, and there is nothing else.

What a delete, a truncation or a splice leaves to be done is recorded as deferred work: a chunk or an index
record that no segment needs must be in one (rule S11).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from support.published_rows import check_rows
from support.table_rows import published_rows, records_of
from tierlog.actors.container.attribute_rows import ATTRIBUTE_PREFIX
from tierlog.actors.container.container import Container
from tierlog.actors.container.ended_rows import end_of_key, ended_key
from tierlog.actors.container.left_rows import MARK_PREFIX
from tierlog.actors.container.segment_rows import NO_RECORD, encode_image_row, image_key, load_of_row
from tierlog.actors.container.state import RESIDENT_PREFIXES, ContainerState
from tierlog.actors.container.writer_rows import WRITER_PREFIX
from tierlog.journal.operations.segment_image import SegmentStatus, decode_image
from tierlog.journal.operations.transaction_image import TransactionStatus, decode_transaction
from tierlog.storage_backends.segments.records.chunk import ChunkRecord, chunk_key
from tierlog.storage_backends.segments.records.deferred_work import (
    DEFERRED_WORK_PREFIX,
    DeferredWorkKind,
    DeferredWorkRecord,
)
from tierlog.storage_backends.segments.records.index import IndexRecord
from tierlog.storage_backends.segments.records.released import (
    RELEASED_PREFIX,
    ReleasedRecord,
    released_key,
    released_names,
)
from tierlog.storage_backends.segments.records.segment import (
    SEGMENT_PREFIX,
    SegmentRecord,
    segment_key,
    segment_of_key,
)
from tierlog.storage_backends.sorted_runs.rows import Row

Entries = Mapping[str, tuple[int, bytes]]
CHUNK_PREFIX = chunk_key("")
INDEX_PREFIX = "i:"
OWN_CHUNKS = "containers/"
_SHRINKING = (
    DeferredWorkKind.DELETE,
    DeferredWorkKind.SPLICE,
    DeferredWorkKind.TRUNCATE,
    DeferredWorkKind.ADOPT,
)
"""Kinds of deferred work that take index records out."""
_COUNTED = (DeferredWorkKind.DELETE, DeferredWorkKind.ADOPT)
"""Kinds of deferred work that say how many chunk records are left."""


def segment_records(entries: Entries) -> list[SegmentRecord]:
    return [
        SegmentRecord.decode(value) for key, (_, value) in entries.items() if key.startswith(SEGMENT_PREFIX)
    ]


def deferred_work_records(entries: Entries) -> list[DeferredWorkRecord]:
    """What metadata operations left to be done (rule S11)."""
    return [
        DeferredWorkRecord.decode(value)
        for key, (_, value) in entries.items()
        if key.startswith(DEFERRED_WORK_PREFIX)
    ]


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


def unfinished(entries: Entries, loose_chunks: int) -> list[str]:
    """Deferred work that an owner runs by itself, and the records of files that it deletes by itself."""
    pending = [
        work.key
        for work in deferred_work_records(entries)
        if work.kind is not DeferredWorkKind.DEFRAG or work.chunks >= loose_chunks
    ]
    marks = (key for key in entries if key.startswith(MARK_PREFIX.decode()))
    return [*pending, *map(released_key, released_names(entries)), *marks]


def _deferred_chunks(entries: Entries) -> Iterator[tuple[DeferredWorkRecord, str]]:
    """The chunks of deleted segments whose records are still there, and of segments to be that were laid so
    far."""
    for work in deferred_work_records(entries):
        name = work.chunk if work.kind in _COUNTED else ""
        left = work.chunks if work.kind is DeferredWorkKind.ADOPT else len(entries)
        while name and left and (entry := entries.get(chunk_key(name))) is not None:
            yield work, name
            name, left = ChunkRecord.decode(entry[1]).next_chunk, left - 1


def broken_records(container: Container) -> Iterator[str]:
    """A sentence for each thing that is wrong."""
    state, entries = container.state, records_of(container)
    resident = {
        key: entry
        for key, entry in entries.items()
        if key.startswith(RESIDENT_PREFIXES)
        and (not key.startswith(SEGMENT_PREFIX) or segment_of_key(key) in state.segments)
    }
    if dict(state.resident) != resident:
        yield f"resident are {sorted(state.resident)}, the table has {sorted(resident)}"
    reached: dict[str, int] = {}
    for record in segment_records(entries):
        yield from _broken_segment(state, entries, record)
        for offset, chunk in chain(entries, record):
            yield from (f"chunk {chunk.name}: {name}" for name in chunk.broken())
            if chunk.name in reached:
                yield (
                    f"chunk {chunk.name} is in the chains of {reached[chunk.name]:#x} and {record.segment:#x}"
                )
            reached[chunk.name] = record.segment
            if chunk.name == record.last_chunk and offset != record.last_chunk_start:
                yield (
                    f"segment {record.segment:#x}: the last chunk starts at {offset}, not at "
                    f"{record.last_chunk_start}"
                )
    for work, name in _deferred_chunks(entries):
        if name in reached:
            yield f"chunk {name} is in the chain of {reached[name]:#x} and in {work.key}"
        reached[name] = work.segment
    for work in deferred_work_records(entries):
        yield from _broken_work(entries, work)
    for key in entries:
        if key.startswith(CHUNK_PREFIX) and key[len(CHUNK_PREFIX) :] not in reached:
            yield f"{key} is in no segment's chain"

    yield from _broken_indexes(entries)
    yield from _broken_releases(entries)
    yield from _broken_segment_rows(state, entries)
    yield from _broken_spilled(state, entries)
    yield from _broken_ends(state, entries)


def _broken_ends(state: ContainerState, entries: Entries) -> Iterator[str]:
    """Each ended transaction is found by its end, and each end is counted; open ones are in memory too (rule
    M21)."""
    ends = [(end_of_key(key.encode()), version) for key, (version, _) in entries.items() if key[:2] == "h:"]
    if len(ends) != state.transactions.ends:
        yield f"{state.transactions.ends} ends of transactions are counted, there are {len(ends)}"
    indexed = {(ended_key(end.target, end.id).decode(), version) for end, version in ends}
    open_ones = {ended_key(*key).decode(): record for key, record in state.transactions.records.items()}
    for key, (version, value) in entries.items():
        if not key.startswith("t:"):
            continue
        record = decode_transaction(value)
        if record.status is TransactionStatus.OPEN:
            if record != open_ones.pop(key, None):
                yield f"{key} is the row of an open transaction, and that is not in memory"
        elif (key, version) not in indexed:
            yield f"{key} at {version} is in no index: it would be remembered for ever"
    yield from (f"{key} is an open transaction without a row" for key in open_ones)


def _broken_spilled(state: ContainerState, entries: Entries) -> Iterator[str]:
    """Rows of attributes and of writers are of a segment, or of a removed one that has a mark (rule M17)."""
    owners = {key[2:] for key in entries if key.startswith(("g:", MARK_PREFIX.decode()))}
    owners.update(f"{sid:016x}" for sid in state.segments.ids())
    for key in entries:
        if key.startswith((ATTRIBUTE_PREFIX.decode(), WRITER_PREFIX.decode())) and key[2:18] not in owners:
            yield f"{key} is of no segment"


def _broken_segment(state: ContainerState, entries: Entries, record: SegmentRecord) -> Iterator[str]:
    yield from (f"segment {record.segment:#x}: {name}" for name in record.broken())
    chunks = list(chain(entries, record))
    end = chunks[-1][0] + chunks[-1][1].length if chunks else record.first_chunk_start
    if (len(chunks), end) != (record.chunk_count, record.length):
        yield (
            f"segment {record.segment:#x} says {record.chunk_count} chunks up to {record.length}, its "
            f"chain has {len(chunks)} up to {end}"
        )

    if chunks and (chunks[-1][1].name != record.last_chunk or chunks[-1][1].next_chunk):
        yield (
            f"segment {record.segment:#x}: its chain ends with {chunks[-1][1]}, not with {record.last_chunk}"
        )

    if record.owner_epoch > state.epoch:
        yield (
            f"segment {record.segment:#x} was committed by epoch {record.owner_epoch}, the owner's is "
            f"{state.epoch}"
        )

    if record.segment not in state.segments and image_key(record.segment).decode() not in entries:
        yield f"there is a record of segment {record.segment:#x}, which the container does not know"


def _broken_segment_rows(state: ContainerState, entries: Entries) -> Iterator[str]:
    """Rule M13: each name has a row, and each image that did not change since the runs before."""
    segments = state.segments
    rows = {key[2:]: int.from_bytes(value, "big") for key, (_, value) in entries.items() if key[:2] == "n:"}
    if state.live_segments != len(rows):
        yield f"{state.live_segments} live segments are counted, there are {len(rows)}"
    images = {key: entry for key, entry in entries.items() if key.startswith("g:")}
    names = {name: segments.sid_of(name) for name in segments.names()}
    in_memory = {name: sid for name, sid in rows.items() if sid in segments}
    if in_memory != names:
        yield f"the segments in memory are {names}, the table has {in_memory}"
    for name, sid in rows.items():
        if sid not in segments:
            yield from _broken_cold(name, sid, entries, images.pop(image_key(sid).decode(), None))
    for sid in segments.ids():
        key, image = image_key(sid).decode(), segments.versioned_image(sid)
        row = images.pop(key, None)
        assert image is not None
        segment, is_captured = segments.by_id[sid], state.cut is not None and sid in state.cut
        if sid not in segments.unpublished and not is_captured and state.is_published(segment):
            expected = encode_image_row(image[1], *state.find_segment_record(sid))
            if row is None or row[1] != expected:
                yield f"the image of segment {sid:#x} is {expected!r}, the table has {row}"
    for key in images:
        yield f"{key} is there, and its segment is not"


def _broken_cold(name: str, sid: int, entries: Entries, entry: tuple[int, bytes] | None) -> Iterator[str]:
    """Rule M4: what is cold is idle, and the runs have all of it."""
    if entry is None:
        yield f"segment {name!r}, {sid:#x}, is not in memory, and has no image"
        return

    load, record = load_of_row(Row(image_key(sid), *entry)), entries.get(segment_key(sid))
    if load is None or (load.record_version, load.record) != (record or NO_RECORD):
        yield f"segment {name!r}, {sid:#x}, is cold with {load}, and its record is {record}"
        return

    image = decode_image(load.image)
    if (image.sid, image.name, image.status, *image.merges) != (sid, name, SegmentStatus.LIVE):
        yield f"segment {name!r}, {sid:#x}, has the image {image}"
    if (SegmentRecord.decode(load.record).length if record else 0) != image.length:
        yield f"segment {name!r}, {sid:#x}, is cold with {image.length} bytes, and its record is {record}"


def _broken_work(entries: Entries, work: DeferredWorkRecord) -> Iterator[str]:
    yield from (f"{work.key}: {name}" for name in work.broken())
    is_there = segment_key(work.segment) in entries
    settled = (
        work.kind is DeferredWorkKind.ADOPT and not work.chunk
    )  # of a segment that came, and may be gone since
    if not settled and is_there != (work.kind in (DeferredWorkKind.TRUNCATE, DeferredWorkKind.DEFRAG)):
        yield f"{work.key} is there, and the segment is {'too' if is_there else 'not'}"

    left = sum(1 for other, _ in _deferred_chunks(entries) if other == work)
    if work.kind in _COUNTED and left != work.chunks:
        yield f"{work.key} says that {work.chunks} chunks are left, there are {left}"


def _broken_releases(entries: Entries) -> Iterator[str]:
    """A file is part of a segment or released, and only what a container did not make needs a record of that
    (rule S19)."""
    for key, (_, value) in entries.items():
        if not key.startswith(RELEASED_PREFIX):
            continue

        record = ReleasedRecord.decode(value)
        yield from (f"{key}: {name}" for name in record.broken())
        if record.key != key:
            yield f"{key} is the record of {record.name}"
        if chunk_key(record.name) in entries:
            yield f"{key} is there, and {record.name} is part of a segment"
        if record.name.startswith(OWN_CHUNKS):
            yield f"{key} is there, and a listing finds {record.name}"


def _broken_indexes(entries: Entries) -> Iterator[str]:
    starts = {
        (record.segment, chunk.name): offset
        for record in segment_records(entries)
        for offset, chunk in chain(entries, record)
    }
    ends = {(work.segment, work.kind): work.index_offset for work in deferred_work_records(entries)}
    firsts = {record.segment: record.first_chunk_start for record in segment_records(entries)}
    for key, (_, value) in entries.items():
        if not key.startswith(INDEX_PREFIX):
            continue

        index = IndexRecord.decode(value)
        yield from (f"{key}: {name}" for name in index.broken())
        gone = [ends.get((index.segment, kind), index.offset + 1) for kind in _SHRINKING]
        if min(gone) <= index.offset < firsts.get(index.segment, index.offset + 1):
            continue  # deferred work will take it, and no reader asks for it

        if starts.get((index.segment, index.chunk)) != index.chunk_start:
            yield (
                f"{key} says that {index.chunk} starts at {index.chunk_start}: it is at "
                f"{starts.get((index.segment, index.chunk))}"
            )


def broken_publication(container: Container) -> Iterator[str]:
    """What is inconsistent in the rows that the runs of a container have, which are all that a boot from
    long-term storage alone has (rule F10)."""
    published = check_rows(published_rows(container).values(), container.state.table.runs, container.index)
    yield from (f"{found.segment}: {found.message}" for found in published.inconsistencies)
