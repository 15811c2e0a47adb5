"""Join: one new chunk replaces several adjacent chunks, or the end of one (rules S4, S8, S10).

The bytes are copied through memory, or joined inside the storage and then read back. Either way each byte
passes here once, is verified against its source's checksums and contributes to the new ones, so damage never
gets new checksums.

Order: the new chunk's name is tracked, its bytes become durable, one commit exchanges the records, the old
chunks are released. Readers find either layout. After a cancellation or crash before the commit the old
layout stands and the new chunk is tracked garbage.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import attrs
from msgspec import structs

from ...base.checksum import Buffer, crc32c
from ...base.chunk_storage import ChunkRange
from ...base.errors import BadChunkOffset, ChunkNotFound, DataCorruption, OutcomeUnknown
from ..context import StorageContext
from ..defrag_rules import joins_inside
from ..records import BLOCK, ChunkRecord, SegmentRecord
from ..records.chunk import extended_crcs, thinned_starts
from ..segment_transaction import SegmentTransaction

COPY_BYTES = 4 * BLOCK
"""The largest read, and about the size of one append to the new chunk."""


@attrs.frozen(eq=False, repr=False)
class Source:
    """A chunk without its first ``skip`` bytes."""

    record: ChunkRecord
    skip: int = 0

    @property
    def length(self) -> int:
        return self.record.length - self.skip

    @property
    def range(self) -> ChunkRange:
        return ChunkRange(self.record.name, self.skip, self.length)


async def replace(
    txn: SegmentTransaction,
    segment: SegmentRecord,
    before: ChunkRecord | None,
    start: int,
    sources: Sequence[Source],
) -> SegmentRecord:
    """Replace ``sources`` by one new chunk, which begins at segment offset ``start``. ``before`` is the chunk
    in front of them."""
    first, last = sources[0], sources[-1]
    chunk = structs.replace(await _make_chunk(txn, start, sources), next_chunk=last.record.next_chunk)
    for source in sources:
        await txn.drop_chunk(source.record)
    # Its name is new, so this conflicts with nothing; the sources were read, so a change of theirs does (S6).
    txn.metadata.put(chunk)
    # From where the first source begins: its skipped bytes may have index records.
    await txn.drop_index(txn.id, start - first.skip, start + chunk.length)
    txn.grow_index(chunk.name, start, start, start + chunk.length)
    segment = txn.update(segment, chunk_count=segment.chunk_count - len(sources) + 1)
    if before is None:
        segment = txn.update(segment, first_chunk=chunk.name, first_chunk_start=start)
    else:
        txn.metadata.put(structs.replace(before, next_chunk=chunk.name))
    if not chunk.next_chunk:
        segment = txn.update(segment, last_chunk=chunk.name, last_chunk_start=start)
    return segment


async def _make_chunk(txn: SegmentTransaction, start: int, sources: Sequence[Source]) -> ChunkRecord:
    context = txn.context
    # Before the new chunk is named: a missing source costs no name.
    check = _Check([(source, await _head(context, source)) for source in sources])
    able = context.chunks.capabilities
    inside = joins_inside(
        [source.length for source in sources], context.options.defrag, append=able.append, concat=able.concat
    )
    name = await txn.name_chunk(start)
    try:
        await (_join_inside if inside else _copy)(context, name, sources, check)
    except DataCorruption:
        # The transaction may go on without this join, so its commit has to release the new chunk.
        txn.discard(name)
        raise

    # From here on the new chunk is durable. Until the commit it is tracked garbage, whatever ends the
    # transaction.
    context.chunks_created += 1
    context.bytes_joined += check.length
    return check.record(name)


async def _head(context: StorageContext, source: Source) -> bytes:
    """The skipped bytes of the source's first block, which its checksum covers too."""
    first = source.skip // BLOCK * BLOCK
    return (
        b"" if first == source.skip else await _read(context, source.record.name, first, source.skip - first)
    )


async def _join_inside(context: StorageContext, name: str, sources: Sequence[Source], check: _Check) -> None:
    size = sum(source.length for source in sources)
    try:
        length = await context.chunks.concat(name, [source.range for source in sources])
    except (ChunkNotFound, BadChunkOffset) as missing:
        raise DataCorruption(
            "a chunk is missing from storage, or shorter than what was committed", file=missing.chunk
        ) from missing

    _expect(name, length, size)
    # S8: joined inside the storage, the bytes are read back once, or damage would get new checksums.
    for offset in range(0, size, COPY_BYTES):
        check.feed(await _read(context, name, offset, min(COPY_BYTES, size - offset)))


async def _copy(context: StorageContext, name: str, sources: Sequence[Source], check: _Check) -> None:
    """Appends piece by piece if the storage can, else creates the chunk, at most one rolling size, in one
    call."""
    # A chunk that cannot grow takes all of its bytes in one call, which the rolling size bounds.
    limit = COPY_BYTES if context.chunks.capabilities.append else sum(source.length for source in sources)
    length = 0
    async with aclosing(_batches(context, sources, check, limit)) as batches:
        async for batch in batches:
            end = length + sum(map(len, batch))
            grown = (
                context.chunks.write(name, length, batch)
                if length
                else context.chunks.create_with_content(name, batch)
            )
            _expect(name, await grown, end)
            length = end


async def _batches(
    context: StorageContext, sources: Sequence[Source], check: _Check, limit: int
) -> AsyncGenerator[list[bytes], None]:
    """The verified bytes of the sources, about ``limit`` at a time."""
    batch: list[bytes] = []
    for source in sources:
        for offset in range(source.skip, source.record.length, COPY_BYTES):
            data = await _read(
                context, source.record.name, offset, min(COPY_BYTES, source.record.length - offset)
            )
            check.feed(data)
            batch.append(data)
            if sum(map(len, batch)) >= limit:
                yield batch
                batch = []
    if batch:
        yield batch


async def _read(context: StorageContext, name: str, offset: int, size: int) -> bytes:
    try:
        data = await context.chunks.read(name, offset, size)
    except ChunkNotFound as missing:
        raise DataCorruption(f"a chunk is missing from storage: {missing}", file=name) from missing

    if len(data) != size:
        raise DataCorruption(
            f"the chunk is shorter than {offset + size} bytes", file=name, offset=offset + len(data)
        )

    return data


def _expect(name: str, length: int, expected: int) -> None:
    if length != expected:
        raise OutcomeUnknown(f"chunk {name} has {length} bytes after {expected} were written to it")


class _Check:
    """Verifies the sources' bytes block by block and computes the new chunk's checksums."""

    def __init__(self, sources: Sequence[tuple[Source, bytes]]) -> None:
        self.length = 0
        self._crcs: Sequence[int] = ()
        self._left = list(sources)
        self._sources = [source for source, _ in sources]
        self._at = self._value = 0
        self._begin_source()

    def feed(self, data: Buffer) -> None:
        view = memoryview(data)
        self._crcs, self.length = extended_crcs(self._crcs, self.length, [view])
        while view:
            record = self._left[0][0].record
            size = min(BLOCK - self._at % BLOCK, record.length - self._at)
            part, view = view[:size], view[size:]
            self._at, self._value = self._at + len(part), crc32c(part, self._value)
            if len(part) == size:
                self._end_block(record)

    def record(self, name: str) -> ChunkRecord:
        """The new chunk's record, after all bytes were fed."""
        assert not self._left
        base, starts = 0, b""
        for source in self._sources:
            starts = thinned_starts(
                starts, [base + start - source.skip for start in source.record.starts if start >= source.skip]
            )
            base += source.length
        return ChunkRecord(name, self.length, "", struct.pack(f">{len(self._crcs)}I", *self._crcs), starts)

    def _end_block(self, record: ChunkRecord) -> None:
        block = (self._at - 1) // BLOCK
        if self._value != record.crcs[block]:
            message = "the bytes of a block do not match their checksum; it is not copied"
            raise DataCorruption(message, file=record.name, offset=block * BLOCK)

        self._value = 0
        if self._at == record.length:
            self._left.pop(0)
            self._begin_source()

    def _begin_source(self) -> None:
        if self._left:
            source, head = self._left[0]
            self._at, self._value = source.skip, crc32c(head)
