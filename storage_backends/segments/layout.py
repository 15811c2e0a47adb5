"""Where a segment's bytes lie, for readers: a cache of segment and chunk records in front of the record
store.

Transactions do not use it, so a stale layout can never be committed. A commit discards the layouts of its
segments when it returns. A layout enters the cache before it is loaded, so one that was loaded before a
commit cannot enter after it. A reader that holds a discarded layout goes on with it; if something that it
names is gone, it raises ``LayoutChanged`` and the reader starts over, unless nothing was committed in
between: that is corruption.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from typing import Protocol

from sortedcontainers import SortedDict

from ..base.errors import DataCorruption, SegmentNotFound
from .metadata_store import ChunkMetadataStore
from .records import ChunkRecord, IndexRecord, SegmentRecord, chunk_key, index_key, segment_key
from .transaction import decode_record

ENTRIES_MAX = 4096
"""Entries of one segment; beyond this every second one is dropped and the stride doubles."""
_STRIDE = 16


class LayoutChanged(Exception):
    """A record or chunk that the layout names is gone: truncated or deleted in the meantime, or lost.
    ``name`` is the chunk's."""

    def __init__(self, name: str, reason: str = "a chunk's metadata record is missing") -> None:
        super().__init__(reason)
        self.name = name


class Readable(Protocol):
    """A record store, or a transaction with buffered changes."""

    async def get(self, key: str) -> tuple[int, bytes] | None: ...


class SparseIndex:
    """Where every so many chunks of one segment begin: for segments whose chunks are small against the
    spacing of the persisted index records.

    A chunk never moves inside its segment and its name is never used again, so an entry stays true over every
    commit until its chunk leaves the chain. Then its record is gone, and the walk that notices drops the
    entry. So the index outlives layouts, which each commit discards.
    """

    def __init__(self, limit: int = ENTRIES_MAX) -> None:
        self._limit = limit
        self._starts: list[int] = []
        self._names: list[str] = []
        self.stride = _STRIDE
        """A walk adds an entry after this many chunks."""

    def __len__(self) -> int:
        return len(self._starts)

    def below(self, offset: int) -> tuple[int, str] | None:
        """(segment offset, name) of the nearest indexed chunk that begins at or before ``offset``."""
        index = bisect_right(self._starts, offset)
        return (self._starts[index - 1], self._names[index - 1]) if index else None

    def put(self, start: int, name: str) -> None:
        index = bisect_left(self._starts, start)
        if index < len(self._starts) and self._starts[index] == start:
            self._names[index] = name
            return

        self._starts.insert(index, start)
        self._names.insert(index, name)
        if len(self._starts) > self._limit:
            # Every second one, so that the rest stays evenly spread.
            del self._starts[1::2], self._names[1::2]
            self.stride *= 2

    def drop(self, start: int) -> None:
        """Remove the entry of the chunk that began at ``start``."""
        index = bisect_left(self._starts, start)
        if index < len(self._starts) and self._starts[index] == start:
            del self._starts[index], self._names[index]


class Layout:
    """One segment at one commit. Chunk records are loaded on demand."""

    def __init__(
        self, store: Readable, segment: int, spacing: int, sparse: SparseIndex | None = None
    ) -> None:
        self._store = store
        self._id = segment
        self._spacing = spacing
        self._record: SegmentRecord | None = None
        self._version = 0
        self._sparse = SparseIndex() if sparse is None else sparse
        self._chunks: SortedDict[int, ChunkRecord] = SortedDict()

    def __len__(self) -> int:
        """Chunk records held."""
        return len(self._chunks)

    @property
    def segment(self) -> SegmentRecord:
        assert self._record is not None
        return self._record

    async def load(self) -> None:
        """Read the segment record once; ``SegmentNotFound`` if there is none."""
        if self._record is not None:
            return

        found = await self._store.get(segment_key(self._id))
        if found is None:
            raise SegmentNotFound(
                f"segment {self._id:016x} has no record in tier 2", segment=f"{self._id:016x}"
            )

        # Concurrent reads may load it twice, and all must see one commit: the first counts.
        if self._record is None:
            self._version, self._record = (
                found[0],
                decode_record(SegmentRecord, segment_key(self._id), found[1]),
            )

    async def is_current(self) -> bool:
        """Whether nothing has been committed to the segment since this layout was loaded."""
        found = await self._store.get(segment_key(self._id))
        # No version is used twice (S6), also not after a delete, so an equal one is the same commit.
        return found is not None and found[0] == self._version

    def drop_chunks(self) -> None:
        """Free the memory of the chunk records."""
        self._chunks.clear()

    async def locate(self, offset: int) -> tuple[int, ChunkRecord]:
        """(segment offset of its first byte, record) of the chunk that holds ``offset``, which lies in
        ``first_chunk_start .. length``."""
        start, name = self.segment.first_chunk_start, self.segment.first_chunk
        index = self._chunks.bisect_right(offset)
        if index:
            start, known = self._chunks.peekitem(index - 1)
            if offset < start + known.length:
                return start, known
            start, name = start + known.length, known.next_chunk
        start, name = await self._shortcut(start, name, offset)
        # The sparse index is only in memory and may be empty: it shortens the walk, and no result depends on
        # it.
        while (entry := self._sparse.below(offset)) is not None and entry[0] > start:
            try:
                return await self._walk(*entry, offset)
            except LayoutChanged as gone:
                # If the entry's own chunk has left the chain, the next lower entry may do. Another missing
                # chunk means that this layout is outdated.
                if gone.name != entry[1]:
                    raise
                self._sparse.drop(entry[0])
        return await self._walk(start, name, offset)

    async def _shortcut(self, start: int, name: str, offset: int) -> tuple[int, str]:
        """The chunk nearest below ``offset`` that the segment or an index record names, if it is nearer than
        ``start``.

        The index of a concatenated part may not exist yet (rule S11): then lower multiples are tried, in
        doubling steps.
        """
        # Reads near the end, which are the most frequent, need no index.
        if offset >= self.segment.last_chunk_start:
            return self.segment.last_chunk_start, self.segment.last_chunk

        multiple, back = offset // self._spacing * self._spacing, self._spacing
        while multiple > start:
            key = index_key(self._id, multiple)
            found = await self._store.get(key)
            if found is not None:
                index = decode_record(IndexRecord, key, found[1])
                return max((start, name), (index.chunk_start, index.chunk))
            # Doubling: a part without an index costs a few reads, however long it is, and a longer walk.
            multiple, back = multiple - back, back * 2
        return start, name

    async def _walk(self, start: int, name: str, offset: int) -> tuple[int, ChunkRecord]:
        """Follow the chain to the chunk that holds ``offset``. Only its record is kept; every so many others
        get an entry in the sparse index."""
        walked = 0
        while name:
            found = await self._store.get(chunk_key(name))
            if found is None:
                raise LayoutChanged(name)

            record = decode_record(ChunkRecord, chunk_key(name), found[1])
            if offset < start + record.length:
                self._chunks[start] = record
                return start, record
            start, name, walked = start + record.length, record.next_chunk, walked + 1
            if name and walked % self._sparse.stride == 0:
                self._sparse.put(start, name)
        raise DataCorruption(
            f"the chunks of segment {self._id:016x} end at {start}, before offset {offset}",
            file=segment_key(self._id),
        )


class LayoutCache:
    """Layouts by segment id, least recently used first."""

    def __init__(self, store: ChunkMetadataStore, spacing: int, segments_max: int, chunks_max: int) -> None:
        self._store = store
        self._spacing = spacing
        self._segments_max = segments_max
        self._chunks_max = chunks_max
        self._layouts: OrderedDict[int, Layout] = OrderedDict()
        self._sparse: OrderedDict[int, SparseIndex] = OrderedDict()

    def __len__(self) -> int:
        return len(self._layouts)

    @property
    def chunk_count(self) -> int:
        return sum(map(len, self._layouts.values()))

    async def open(self, segment: int) -> Layout:
        """The segment's layout, from the cache or loaded now; ``SegmentNotFound``."""
        layout = self._layouts.get(segment)
        if layout is None:
            # In the cache before it is loaded: a commit during the load discards it, so that no later read
            # gets it.
            layout = self._layouts[segment] = Layout(
                self._store, segment, self._spacing, self.sparse_index(segment)
            )
        self._layouts.move_to_end(segment)
        try:
            await layout.load()
        except SegmentNotFound:
            self.discard(segment)
            self._sparse.pop(segment, None)
            raise
        if len(self._layouts) > self._segments_max:
            self.trim()  # here too: reads at a segment's end never load a chunk record
        return layout

    def sparse_index(self, segment: int) -> SparseIndex:
        """The segment's sparse index, which outlives its layouts."""
        index = self._sparse.setdefault(segment, SparseIndex())
        self._sparse.move_to_end(segment)
        if len(self._sparse) > self._segments_max:
            self._sparse.popitem(last=False)
        return index

    def discard(self, segment: int) -> None:
        self._layouts.pop(segment, None)

    def trim(self) -> None:
        """Evict the least recently used until both bounds hold. Called after a read that loaded records or
        added a segment."""
        entries = sum(map(len, self._sparse.values()))
        while len(self._sparse) > self._segments_max or (
            entries > self._chunks_max and len(self._sparse) > 1
        ):
            entries -= len(self._sparse.popitem(last=False)[1])
        chunks = self.chunk_count
        while len(self._layouts) > self._segments_max or (
            chunks > self._chunks_max and len(self._layouts) > 1
        ):
            _, dropped = self._layouts.popitem(last=False)
            chunks -= len(dropped)
        # Only the layout of the last read is left, and it alone is too large.
        if chunks > self._chunks_max:
            for layout in self._layouts.values():
                layout.drop_chunks()
