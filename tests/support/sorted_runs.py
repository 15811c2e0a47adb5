"""Runs and tables for tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise

import attrs

from tierlog.storage_backends.base.chunk_storage import ChunkStorage
from tierlog.storage_backends.sorted_runs.block import rows_of_block
from tierlog.storage_backends.sorted_runs.block_cache import BlockCache
from tierlog.storage_backends.sorted_runs.encoder import EncodedRun, RunEncoder
from tierlog.storage_backends.sorted_runs.part_checksum import part_checksum
from tierlog.storage_backends.sorted_runs.put import encode_run, put_run
from tierlog.storage_backends.sorted_runs.reader import RunReader, RunSource, StoredRuns
from tierlog.storage_backends.sorted_runs.rows import Row
from tierlog.storage_backends.sorted_runs.run_entry import RunEntry
from tierlog.storage_backends.sorted_runs.run_list import RunList
from tierlog.storage_backends.sorted_runs.table import Table, TableView
from tierlog.storage_backends.sorted_runs.tail import decode_tail
from tierlog.storage_backends.sorted_runs.trailer import FORMAT_VERSION, Trailer


def encode(rows: Iterable[Row], block_bytes: int = 64, name: str = "runs/1") -> tuple[EncodedRun, bytes]:
    """A run, by default of small blocks, and its bytes."""
    encoder = RunEncoder(name, block_bytes)
    pieces = []
    for row in rows:
        encoder.add(row)
        pieces += encoder.take()
    run = encoder.finish()
    return run, b"".join([*pieces, *encoder.take()])


def entry_of(
    rows: Sequence[Row], name: str = "runs/1", cycle: int = 1, block_bytes: int = 64
) -> tuple[RunEntry, bytes]:
    run, data = encode(rows, block_bytes, name)
    return RunEntry.of(run, cycle, cycle), data


def rows_of_run(run: RunEntry, data: bytes) -> list[Row]:
    """All rows, tombstones too."""
    tail = decode_tail(data[-run.tail_length :], run.name, run.length)
    return [row for start, end in pairwise(tail.offsets) for row in rows_of_block(data[start:end])]


def of_newer_format(run: RunEntry, data: bytes) -> bytes:
    """A run whose trailer, with a right checksum, has another format version."""
    _, length = Trailer.decode(data, run.name, run.length)
    newer = bytearray(data[-length:-4])
    newer[-8:-6] = (FORMAT_VERSION + 1).to_bytes(2, "big")
    checksum = part_checksum(newer, run.name, run.length - length)
    return data[:-length] + newer + checksum.to_bytes(4, "big")


def numbered(count: int, version: int = 1, step: int = 1) -> list[Row]:
    return [Row(b"key/%06d" % (n * step), version + n, b"value %d" % n) for n in range(count)]


def reader_of(source: RunSource, capacity: int = 1 << 20) -> RunReader:
    return RunReader(source, BlockCache(capacity))


@attrs.frozen
class Read:
    name: str
    offset: int
    length: int


class WatchedRuns(StoredRuns):
    """Runs in chunk storage; which ranges were read."""

    def __init__(self, chunks: ChunkStorage) -> None:
        super().__init__(chunks)
        self.reads: list[Read] = []

    async def read_range(self, run: RunEntry, offset: int, length: int) -> bytes:
        self.reads.append(Read(run.name, offset, length))
        return await super().read_range(run, offset, length)


@attrs.define
class TableWorld:
    """A table whose runs go to one chunk storage."""

    chunks: ChunkStorage
    table: Table = attrs.field(factory=Table)
    source: WatchedRuns = attrs.field(init=False)
    reader: RunReader = attrs.field(init=False)
    cycle: int = 0

    def __attrs_post_init__(self) -> None:
        self.source = WatchedRuns(self.chunks)
        self.reader = reader_of(self.source)

    def put(self, key: bytes, value: bytes | None) -> int:
        version = self.table.version + 1
        self.table.put([Row(key, version, value)])
        return version

    async def flush(self) -> RunEntry | None:
        """One cycle: the memtable becomes a run."""
        self.cycle += 1
        self.table.freeze_rows()
        encoded = await encode_run(lambda: f"runs/{self.cycle}", self.table.unpublished_rows())
        if encoded is None:
            return None

        run = RunEntry.of(encoded.run, self.cycle, self.cycle)
        await put_run(self.chunks, run, encoded.pieces)
        self.table.use(self.table.runs.published([run], 0))
        return run

    def capture(self) -> TableView:
        """What the table holds, for a test that changes nothing meanwhile."""
        with self.table.view() as view:
            return view

    def reopen(self) -> None:
        """Forget everything but the manifest: what is in memory was flushed."""
        self.table = Table(RunList([RunEntry.decode(run.encode()) for run in self.table.runs]))
        self.forget_cache()

    def forget_cache(self, capacity: int = 1 << 20) -> None:
        self.reader = reader_of(self.source, capacity)
        self.source.reads.clear()


@asynccontextmanager
async def opened(chunks: ChunkStorage) -> AsyncIterator[ChunkStorage]:
    await chunks.open()
    try:
        yield chunks
    finally:
        await chunks.close()
