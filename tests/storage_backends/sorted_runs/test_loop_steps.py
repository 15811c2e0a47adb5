"""No step of the event loop takes more than 5 ms, whatever the size of a table (M3, M5, M7)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from anyio.lowlevel import checkpoint

from support.chunked import world_of
from support.loop_steps import LongestSteps
from support.sorted_runs import entry_of, numbered, reader_of
from tierlog.storage_backends.chunks.filesystem import FileSystemChunkStorage
from tierlog.storage_backends.chunks.memory import MemoryChunkStorage
from tierlog.storage_backends.files.local import LocalFiles
from tierlog.storage_backends.sorted_runs import merge_helper
from tierlog.storage_backends.sorted_runs.compaction import compact
from tierlog.storage_backends.sorted_runs.compaction_policy import Merge
from tierlog.storage_backends.sorted_runs.encoder import RUN_BYTES_MAX
from tierlog.storage_backends.sorted_runs.local_copies import LocalCopies
from tierlog.storage_backends.sorted_runs.lookup import find_rows
from tierlog.storage_backends.sorted_runs.memtable import Memtable
from tierlog.storage_backends.sorted_runs.merge import MergeOrder
from tierlog.storage_backends.sorted_runs.put import encode_run, put_run
from tierlog.storage_backends.sorted_runs.reader import StoredRuns
from tierlog.storage_backends.sorted_runs.rows import Row
from tierlog.storage_backends.sorted_runs.run_entry import RunEntry
from tierlog.storage_backends.sorted_runs.run_list import RunList
from tierlog.storage_backends.sorted_runs.scan import KeyRange, PageLimits, scan_rows
from tierlog.storage_backends.sorted_runs.table import Table, TableView

ACTIVE = 25_000


def rows(count: int) -> Iterator[Row]:
    return (Row(b"g/%016x" % number, number + 1, bytes(60)) for number in range(count))


async def one_life(folder: Path, longest: LongestSteps) -> None:
    chunks = FileSystemChunkStorage(LocalFiles(), str(folder / "lts"), world_of(1))
    await chunks.open()
    copies = LocalCopies(LocalFiles(), str(folder / "runs"), StoredRuns(chunks))
    await copies.open(())
    table = Table()
    table.put(rows(ACTIVE))
    with longest.of("freeze"):
        table.freeze_rows()
    (frozen,) = table.frozen

    entries = []
    with longest.of("encode"):
        for cycle, source in ((1, rows(1 << 30)), (2, frozen.newest_rows())):
            encoded = await encode_run(f"runs/{cycle}".format, source)
            assert encoded is not None
            run = RunEntry.of(encoded.run, cycle, cycle)
            await copies.add(run, encoded.pieces)
            await put_run(chunks, run, encoded.pieces)
            entries.append(run)
    assert entries[0].length > RUN_BYTES_MAX

    view = TableView((), RunList(entries), 1 << 60)
    reader = reader_of(copies, 64 << 20)
    with longest.of("tails"):
        for entry in entries:
            await reader.tail(entry)
    with longest.of("look up"):
        assert len(await find_rows(view, reader, [b"g/%016x" % (97 * n) for n in range(200)])) == 200
    with longest.of("scan"):
        page = await scan_rows(view, reader, KeyRange(), PageLimits(20_000, 1 << 30))
        assert len(page.rows) == 20_000

    async def in_the_helper(order: MergeOrder) -> list[RunEntry]:
        return await merge_helper.merge(order, LocalFiles())

    with longest.of("compact"):
        merged = await compact(Merge(((entries[1],), (entries[0],)), 0), "merged", copies, in_the_helper)
    assert sum(run.summary.rows for run in merged) == entries[0].summary.rows


@pytest.mark.anyio
@pytest.mark.one_loop
async def test_no_step_of_the_loop_is_long(tmp_path: Path) -> None:
    longest = LongestSteps({"freeze": 0.0005})
    for attempt in longest.attempts():
        await one_life(tmp_path / str(attempt), longest)


@pytest.mark.anyio
@pytest.mark.one_loop
async def test_a_lookup_of_any_number_of_keys_gives_the_loop_turns() -> None:
    chunks = MemoryChunkStorage()
    await chunks.open()
    runs = []
    for cycle in range(1, 6):
        run, data = entry_of(numbered(400, version=1000 * cycle, step=cycle), f"runs/{cycle}", cycle, 8 << 10)
        await put_run(chunks, run, [data])
        runs.append(run)
    view = TableView((Memtable(),), RunList(runs), 1 << 60)
    keys = [b"key/%06d" % number for number in range(20_000)]
    reader = reader_of(StoredRuns(chunks))
    longest = LongestSteps()
    for _ in longest.attempts():
        with longest.of("look up"):
            await checkpoint()  # asyncio records no step that began before
            found = await find_rows(view, reader, keys)
        assert len(found) > 1000
