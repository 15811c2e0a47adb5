"""Local copies: reads without long-term storage, damage, a failing disk, power loss at every call (M6)."""

from __future__ import annotations

import errno
import os
import shutil
from functools import partial
from pathlib import Path
from random import Random

import anyio
import pytest
from msgspec.structs import replace
from simulation.disk import Keep, SimulatedDisk
from simulation.file_layer import Fail, SimulatedFiles

from support.chunked import world_of
from support.power_loss import ends_before_power_loss
from support.scripted_chunks import Hang, ScriptedChunks
from support.sorted_runs import WatchedRuns, encode, entry_of, numbered, reader_of
from tierlog.storage_backends.base.errors import (
    DataCorruption,
    OutcomeUnknown,
    StorageFull,
    TierlogError,
    Unavailable,
)
from tierlog.storage_backends.base.files import IoCall, Open, Read, Rename, Write
from tierlog.storage_backends.chunks.filesystem import FileSystemChunkStorage
from tierlog.storage_backends.chunks.memory import MemoryChunkStorage
from tierlog.storage_backends.files.local import LocalFiles
from tierlog.storage_backends.sorted_runs import parts
from tierlog.storage_backends.sorted_runs.compaction import compact
from tierlog.storage_backends.sorted_runs.compaction_policy import Merge
from tierlog.storage_backends.sorted_runs.local_copies import LocalCopies
from tierlog.storage_backends.sorted_runs.lookup import find_row
from tierlog.storage_backends.sorted_runs.merge import MergeOrder, merge_runs
from tierlog.storage_backends.sorted_runs.put import put_run
from tierlog.storage_backends.sorted_runs.reader import StoredRuns
from tierlog.storage_backends.sorted_runs.rows import Row
from tierlog.storage_backends.sorted_runs.run_entry import RunEntry
from tierlog.storage_backends.sorted_runs.run_files import file_name
from tierlog.storage_backends.sorted_runs.run_list import RunList
from tierlog.storage_backends.sorted_runs.scan import KeyRange, Page, PageLimits, scan_rows
from tierlog.storage_backends.sorted_runs.table import TableView
from tierlog.storage_backends.sorted_runs.tail import decode_tail

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]
RUN, DATA = entry_of(numbered(50), "system/runs/1")
OTHER, OTHER_DATA = entry_of(numbered(50, version=100), "system/runs/2", 2)
KEY = b"key/000007"


async def find(copies: LocalCopies, run: RunEntry = RUN) -> Row | None:
    """Through an empty cache."""
    return await find_row(TableView((), RunList([run]), 1 << 60), reader_of(copies), KEY)


async def every_row(copies: LocalCopies) -> Page:
    return await scan_rows(
        TableView((), RunList([RUN]), 1 << 60), reader_of(copies), KeyRange(), PageLimits()
    )


async def whole(copies: LocalCopies, run: RunEntry) -> bytes:
    return await copies.read_range(run, 0, run.length)


async def remote(*runs: tuple[RunEntry, bytes]) -> WatchedRuns:
    chunks = MemoryChunkStorage()
    await chunks.open()
    for run, data in runs:
        await put_run(chunks, run, [data])
    return WatchedRuns(chunks)


async def opened(folder: Path, source: WatchedRuns, *runs: RunEntry) -> LocalCopies:
    copies = LocalCopies(LocalFiles(), str(folder / "runs"), source)
    await copies.open(runs)
    return copies


async def test_m6_a_local_copy_serves_while_long_term_storage_is_empty(tmp_path: Path) -> None:
    source = await remote()
    copies = await opened(tmp_path, source)
    await copies.add(RUN, [DATA[:100], DATA[100:]])

    assert (await find(copies)) is not None
    again = await opened(tmp_path, source, RUN)
    assert (await find(again)) is not None
    assert source.reads == []
    assert os.stat(tmp_path / "runs" / file_name(RUN)).st_mode & 0o777 == 0o600
    assert again.statistics().copy_bytes == RUN.length


async def test_without_a_copy_long_term_storage_serves(tmp_path: Path) -> None:
    source = await remote((RUN, DATA))
    copies = await opened(tmp_path, source, RUN)

    assert (await find(copies)) is not None
    assert (copies.statistics().local_reads, copies.statistics().remote_reads) == (0, 2)


async def test_a_copy_is_fetched_once(tmp_path: Path) -> None:
    source = await remote((RUN, DATA))
    copies = await opened(tmp_path, source, RUN)

    await copies.fetch(RUN)
    await copies.fetch(RUN)

    assert [read.length for read in source.reads] == [RUN.length]
    assert await whole(copies, RUN) == DATA


@pytest.mark.parametrize("part", [1000, RUN.length // 4, RUN.length - 1])
async def test_m5_a_large_run_is_read_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    monkeypatch.setattr(parts, "_PART_BYTES", part)
    monkeypatch.setattr(parts, "_SLICE_BYTES", 700)
    source = await remote((RUN, DATA))
    copies = await opened(tmp_path, source, RUN)

    assert b"".join(await copies.read_pieces(RUN)) == DATA
    await copies.fetch(RUN)

    assert [(read.offset, read.length) for read in source.reads] == 2 * [
        (start, min(part, RUN.length - start)) for start in range(0, RUN.length, part)
    ]
    assert await whole(copies, RUN) == DATA
    await put_run(source._chunks, RUN, [DATA])
    await source._chunks.delete(RUN.name)
    await source._chunks.create_with_content(RUN.name, [DATA, b"x"])
    with pytest.raises(DataCorruption, match="another object"):
        await put_run(source._chunks, RUN, [DATA])


async def test_a_damaged_remote_run_is_not_copied(tmp_path: Path) -> None:
    source = await remote()
    await source._chunks.create_with_content(RUN.name, [DATA[:-1] + b"x"])
    copies = await opened(tmp_path, source)

    with pytest.raises(DataCorruption):
        await copies.fetch(RUN)
    assert not list((tmp_path / "runs").iterdir())


@pytest.mark.parametrize("change", ["cut", "longer"])
async def test_a_copy_of_another_length_is_removed_at_the_start(tmp_path: Path, change: str) -> None:
    source = await remote((RUN, DATA))
    copies = await opened(tmp_path, source)
    await copies.add(RUN, [DATA])
    path = tmp_path / "runs" / file_name(RUN)
    path.write_bytes(DATA[:-1] if change == "cut" else DATA + b"x")

    again = await opened(tmp_path, source, RUN)

    assert (await find(again)) is not None
    assert not path.exists()


@pytest.mark.parametrize("at", [3, RUN.length - 3], ids=["block", "tail"])
async def test_m6_a_damaged_copy_is_replaced_from_long_term_storage(tmp_path: Path, at: int) -> None:
    copies = await opened(tmp_path, await remote((RUN, DATA)))
    await copies.add(RUN, [DATA])
    path = tmp_path / "runs" / file_name(RUN)
    path.write_bytes(DATA[:at] + bytes((DATA[at] ^ 1,)) + DATA[at + 1 :])

    rows = [row.key for row in (await every_row(copies)).rows]

    assert rows == [row.key for row in numbered(50)]
    assert copies.statistics().damaged == 1
    assert path.read_bytes() == DATA


async def test_a_damaged_copy_serves_its_other_parts_while_long_term_storage_is_away(tmp_path: Path) -> None:
    copies = await opened(tmp_path, await remote())
    await copies.add(RUN, [DATA])
    (tmp_path / "runs" / file_name(RUN)).write_bytes(b"\xff" + DATA[1:])

    with pytest.raises(Unavailable):
        await every_row(copies)
    assert (await find(copies)) is not None


async def test_where_a_damaged_copy_cannot_be_replaced_long_term_storage_serves() -> None:
    is_full = False

    def fail(index: int, call: IoCall) -> Fail | None:
        return Fail(OSError(errno.ENOSPC, "full")) if is_full and isinstance(call, Write) else None

    disk = SimulatedDisk(Random(1))
    copies = LocalCopies(SimulatedFiles(disk, fail), FOLDER, await remote((RUN, DATA)))
    await copies.open([])
    await copies.add(RUN, [DATA])
    disk.find(f"{FOLDER}/{file_name(RUN)}").write(0, b"\xff")
    is_full = True

    assert len((await every_row(copies)).rows) == 50
    assert copies.statistics().copies == 0


async def test_damage_of_both_is_reported(tmp_path: Path) -> None:
    source = await remote()
    await source._chunks.create_with_content(RUN.name, [DATA[:-1] + b"x"])
    copies = await opened(tmp_path, source)
    await copies.add(RUN, [DATA])
    (tmp_path / "runs" / file_name(RUN)).write_bytes(bytes(len(DATA)))

    with pytest.raises(DataCorruption) as caught:
        await find(copies)
    assert caught.value.file == RUN.name


async def test_a_file_that_vanished_is_read_from_long_term_storage(tmp_path: Path) -> None:
    copies = await opened(tmp_path, await remote((RUN, DATA)))
    await copies.add(RUN, [DATA])
    os.remove(tmp_path / "runs" / file_name(RUN))

    assert (await find(copies)) is not None
    assert copies.statistics().copies == 0
    await copies.fetch(RUN)
    assert copies.statistics().copies == 1


async def test_what_the_manifest_does_not_name_is_removed(tmp_path: Path) -> None:
    source = await remote()
    copies = await opened(tmp_path, source)
    for run, data in ((RUN, DATA), (OTHER, OTHER_DATA)):
        await copies.add(run, [data])
    for name in (".tmp-system+runs+3", "notes.txt"):
        (tmp_path / "runs" / name).write_bytes(b"x")

    again = await opened(tmp_path, source, OTHER)

    assert set(os.listdir(tmp_path / "runs")) == {file_name(OTHER), "notes.txt"}, "others' files stay"
    await again.remove([OTHER])
    assert os.listdir(tmp_path / "runs") == ["notes.txt"]
    with pytest.raises(Unavailable, match="missing"):
        await find(again, OTHER)


async def test_m6_a_folder_that_was_removed_is_made_again(tmp_path: Path) -> None:
    """It has copies only, so that nobody hesitates. Nothing was published until the next opening."""
    copies = await opened(tmp_path, await remote((RUN, DATA)))
    for attempt in (partial(copies.add, RUN, [DATA]), partial(copies.check_room, 0)):
        await copies.add(OTHER, [OTHER_DATA])
        shutil.rmtree(tmp_path / "runs")
        with pytest.raises(Unavailable, match="No such file"):
            await attempt()
        await attempt()


# --- a failing disk -----------------------------------------------------------------------------

FOLDER = "/data/runs"


@pytest.mark.parametrize(
    "number, error", [(errno.ENOSPC, StorageFull), (errno.EIO, Unavailable)], ids=["full", "failing"]
)
async def test_a_copy_that_cannot_be_written_is_refused(number: int, error: type[TierlogError]) -> None:
    def fail(index: int, call: IoCall) -> Fail | None:
        return Fail(OSError(number, os.strerror(number))) if isinstance(call, Write) else None

    copies = LocalCopies(SimulatedFiles(SimulatedDisk(Random(1)), fail), FOLDER, await remote())
    await copies.open([])

    with pytest.raises(error):
        await copies.add(RUN, [DATA])
    with pytest.raises(Unavailable, match="missing"):
        await find(copies)


@pytest.mark.parametrize("kind", [Read, Open])
async def test_a_disk_that_cannot_be_read_leaves_long_term_storage(kind: type[IoCall]) -> None:
    broken = False

    def fail(index: int, call: IoCall) -> Fail | None:
        return Fail(OSError(errno.EIO, "broken")) if broken and isinstance(call, kind) else None

    copies = LocalCopies(SimulatedFiles(SimulatedDisk(Random(1)), fail), FOLDER, await remote((RUN, DATA)))
    await copies.open([])
    await copies.add(RUN, [DATA])
    broken = True

    assert (await find(copies)) is not None
    assert copies.statistics().copies == 1  # it may have been too many open files


async def publish(copies: LocalCopies, chunks: MemoryChunkStorage) -> None:
    """Two cycles and their merge, each run locally first."""
    for run, data in ((RUN, DATA), (OTHER, OTHER_DATA)):
        await copies.add(run, [data])
        await put_run(chunks, run, [await whole(copies, run)])
    order = MergeOrder(FOLDER, [[OTHER], [RUN]], 0, "system/runs/3")
    (merged,) = await copies._files.run(merge_runs(order))
    copies.note_written(merged)
    await put_run(chunks, merged, [await whole(copies, merged)])
    await copies.remove([RUN, OTHER])


_MERGED, MERGED_DATA = encode(numbered(50, version=100), 8 << 10, "system/runs/3-0000")
MERGED = RunEntry.of(_MERGED, 1, 2)
LIVE_BEFORE = ((RUN, DATA), (OTHER, OTHER_DATA))
LIVE_LAST = ((MERGED, MERGED_DATA),)
"""The runs of the manifest, before the merge and after it."""


async def crash_at(call: int, keep: Keep) -> bool:
    """Lose power at the ``call``-th I/O, then do the same again with the same names. Returns whether it had
    ended before."""
    disk = SimulatedDisk(Random(call))
    chunks = MemoryChunkStorage()
    await chunks.open()

    async def work(files: SimulatedFiles) -> None:
        copies = LocalCopies(files, FOLDER, StoredRuns(chunks))
        await copies.open([])
        await publish(copies, chunks)

    ended = await ends_before_power_loss(disk, call, work)
    before = {info.name: await chunks.read(info.name, 0, info.length) async for info in chunks.list("")}
    copies = LocalCopies(SimulatedFiles(disk.crash(keep)), FOLDER, StoredRuns(chunks))
    known = {run.name: (run, data) for run, data in (LIVE_LAST if MERGED.name in before else LIVE_BEFORE)}
    await copies.open([run for run, _ in known.values()])
    for name in known.keys() & before.keys():  # what was put was durable here before
        run, data = known[name]
        assert before[name] == await whole(copies, run) == data
    assert copies.statistics().remote_reads == 0
    await copies.remove([run for run, _ in known.values()])
    await publish(copies, chunks)
    after = {info.name: await chunks.read(info.name, 0, info.length) async for info in chunks.list("")}
    assert before.items() <= after.items()
    assert after == {run.name: data for run, data in (*LIVE_BEFORE, *LIVE_LAST)}
    assert copies.statistics().copies == 1
    return ended


@pytest.mark.parametrize("keep", ["none", "all", "random"])
async def test_m2_after_power_loss_at_every_call_the_same_bytes_are_put(keep: Keep) -> None:
    call, ended = 0, False
    while not ended:
        ended = await crash_at(call, keep)
        call += 1


MERGE = Merge(((OTHER,), (RUN,)), 0)


async def merge_locally(order: MergeOrder) -> list[RunEntry]:
    return await LocalFiles().run(merge_runs(order))


async def with_both(folder: Path, source: WatchedRuns) -> LocalCopies:
    copies = await opened(folder, source)
    for run, data in ((RUN, DATA), (OTHER, OTHER_DATA)):
        await copies.add(run, [data])
    return copies


@pytest.mark.parametrize("damaged", [(RUN,), (RUN, OTHER)], ids=["one", "both"])
async def test_m7_a_merge_replaces_damaged_inputs(tmp_path: Path, damaged: tuple[RunEntry, ...]) -> None:
    copies = await with_both(tmp_path, await remote((RUN, DATA), (OTHER, OTHER_DATA)))
    for run in damaged:
        path = tmp_path / "runs" / file_name(run)
        path.write_bytes(b"\xff" + path.read_bytes()[1:])

    merged = await compact(MERGE, "system/runs/3", copies, merge_locally)

    assert merged == [MERGED]
    assert await whole(copies, MERGED) == MERGED_DATA
    assert copies.statistics().damaged == len(damaged)


async def test_m7_a_merge_replaces_a_copy_with_blocks_of_an_older_run(tmp_path: Path) -> None:
    """Each is sound, and was right in another file. No row of it is merged."""
    older, older_data = entry_of(numbered(50, version=50), "system/runs/0")
    assert (older.length, older.tail_length) == (OTHER.length, OTHER.tail_length)
    copies = await with_both(tmp_path, await remote((RUN, DATA), (OTHER, OTHER_DATA)))
    stale = older_data[: -OTHER.tail_length] + OTHER_DATA[-OTHER.tail_length :]
    (tmp_path / "runs" / file_name(OTHER)).write_bytes(stale)

    assert await compact(MERGE, "system/runs/3", copies, merge_locally) == [MERGED]
    assert await whole(copies, MERGED) == MERGED_DATA
    assert await whole(copies, OTHER) == OTHER_DATA


async def test_m7_a_merge_replaces_a_copy_with_exchanged_blocks(tmp_path: Path) -> None:
    copies = await with_both(tmp_path, await remote((RUN, DATA), (OTHER, OTHER_DATA)))
    first, second, end = decode_tail(OTHER_DATA[-OTHER.tail_length :], OTHER.name, OTHER.length).offsets[:3]
    assert second - first == end - second
    exchanged = OTHER_DATA[second:end] + OTHER_DATA[:second] + OTHER_DATA[end:]
    (tmp_path / "runs" / file_name(OTHER)).write_bytes(exchanged)

    assert await compact(MERGE, "system/runs/3", copies, merge_locally) == [MERGED]
    assert await whole(copies, OTHER) == OTHER_DATA


async def test_a_merge_of_runs_that_are_damaged_everywhere_is_refused(tmp_path: Path) -> None:
    source = await remote((OTHER, OTHER_DATA))
    await source._chunks.create_with_content(RUN.name, [b"\xff" + DATA[1:]])
    copies = await opened(tmp_path, source)

    with pytest.raises(DataCorruption) as caught:
        await compact(MERGE, "system/runs/3", copies, merge_locally)
    assert caught.value.file == RUN.name


async def test_a_merge_fetches_what_is_not_here(tmp_path: Path) -> None:
    source = await remote((RUN, DATA), (OTHER, OTHER_DATA))
    copies = await opened(tmp_path, source)

    merged = await compact(MERGE, "system/runs/3", copies, merge_locally)

    assert merged == [MERGED]
    assert {read.length for read in source.reads} == {RUN.length, OTHER.length}


@pytest.mark.parametrize("is_known", [False, True], ids=["found by the merge", "found by a lookup"])
async def test_m7_a_merge_fetches_an_input_whose_file_vanished(tmp_path: Path, is_known: bool) -> None:
    copies = await with_both(tmp_path, await remote((RUN, DATA), (OTHER, OTHER_DATA)))
    os.remove(tmp_path / "runs" / file_name(RUN))

    async def merge(order: MergeOrder) -> list[RunEntry]:
        try:
            return await merge_locally(order)
        except DataCorruption:
            if is_known:
                await find(copies)
            raise

    assert await compact(MERGE, "system/runs/3", copies, merge) == [MERGED]
    assert (tmp_path / "runs" / file_name(RUN)).read_bytes() == DATA


@pytest.mark.parametrize("kind", ["FIFO", "link", "unreadable link"])
async def test_m7_a_merge_fetches_an_input_whose_file_became_something_else(
    tmp_path: Path, kind: str
) -> None:
    copies = await with_both(tmp_path, await remote((RUN, DATA), (OTHER, OTHER_DATA)))
    path = tmp_path / "runs" / file_name(RUN)
    if kind == "FIFO":
        path.unlink()
        os.mkfifo(path)
    else:
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere" if kind == "link" else path)

    assert await compact(MERGE, "system/runs/3", copies, merge_locally) == [MERGED]
    assert (path.is_symlink(), path.read_bytes()) == (False, DATA)


async def test_m7_a_folder_with_the_name_of_a_copy_is_reported_and_reads_go_on(tmp_path: Path) -> None:
    copies = await with_both(tmp_path, await remote((RUN, DATA), (OTHER, OTHER_DATA)))
    path = tmp_path / "runs" / file_name(RUN)
    path.unlink()
    path.mkdir()
    for attempt in (copies, LocalCopies(LocalFiles(), str(tmp_path / "runs"), copies)):
        await attempt.open([RUN, OTHER])
        with pytest.raises(DataCorruption, match="remove it") as caught:
            await compact(MERGE, "system/runs/3", attempt, merge_locally)
        assert caught.value.file == RUN.name
        await find(attempt)


async def test_m7_a_merge_fetches_an_input_with_a_bad_sector() -> None:
    """The file is on the disk, and reading it fails until it is written anew."""
    bad: set[str] = set()

    def fail(index: int, call: IoCall) -> Fail | None:
        if isinstance(call, Rename):
            bad.discard(call.target)
        is_bad = isinstance(call, Open) and call.path in bad
        return Fail(OSError(errno.EIO, "bad sector")) if is_bad else None

    files = SimulatedFiles(SimulatedDisk(Random(1)), fail)
    copies = LocalCopies(files, FOLDER, await remote((RUN, DATA)))
    await copies.open([])
    for run, data in ((RUN, DATA), (OTHER, OTHER_DATA)):
        await copies.add(run, [data])
    bad.add(f"{FOLDER}/{file_name(RUN)}")

    async def merge(order: MergeOrder) -> list[RunEntry]:
        return await files.run(merge_runs(order))

    assert await compact(MERGE, "system/runs/3", copies, merge) == [MERGED]


async def test_m7_a_merge_ends_on_a_disk_that_damages_what_it_stores(tmp_path: Path) -> None:
    source = await remote((RUN, DATA), (OTHER, OTHER_DATA))
    copies = await with_both(tmp_path, source)
    merges = 0

    async def damage_and_merge(order: MergeOrder) -> list[RunEntry]:
        nonlocal merges
        merges += 1
        assert merges < 10
        (tmp_path / "runs" / file_name(RUN)).write_bytes(b"\xff" + DATA[1:])
        return await merge_locally(order)

    with pytest.raises(DataCorruption, match="check the local disk") as caught:
        await compact(MERGE, "system/runs/3", copies, damage_and_merge)

    assert caught.value.file == RUN.name
    assert merges == 2
    assert [read.length for read in source.reads] == [RUN.length]


async def test_m5_lookups_over_a_damaged_copy_fetch_the_run_once(tmp_path: Path) -> None:
    source = await remote((RUN, DATA))
    copies = await opened(tmp_path, source)
    await copies.add(RUN, [DATA])
    reader = reader_of(copies)
    tail = await reader.tail(RUN)
    (tmp_path / "runs" / file_name(RUN)).write_bytes(bytes(tail.offsets[-1]) + DATA[tail.offsets[-1] :])
    view = TableView((), RunList([RUN]), 1 << 60)
    found: list[Row | None] = []

    async def look_up(key: bytes) -> None:
        found.append(await find_row(view, reader, key))

    async with anyio.create_task_group() as group:
        for row in numbered(50):
            group.start_soon(look_up, row.key)

    assert {row.key for row in found if row} == {row.key for row in numbered(50)}
    assert [read.length for read in source.reads] == [RUN.length]
    assert copies.statistics().damaged == 1


async def test_m5_whole_runs_are_fetched_one_at_a_time(tmp_path: Path) -> None:
    runs = [
        entry_of(numbered(50, version=100 * cycle), f"system/runs/{cycle}", cycle) for cycle in range(1, 5)
    ]
    chunks = ScriptedChunks()
    await chunks.open()
    copies = LocalCopies(LocalFiles(), str(tmp_path / "runs"), StoredRuns(chunks))
    await copies.open([])
    for run, data in runs:
        await put_run(chunks, run, [data])
    for run, data in runs[:2]:  # two that must be replaced, two that are not here
        await copies.add(run, [data])
    hangs = [Hang() for _ in runs]
    chunks.plan("read", *hangs)

    async with anyio.create_task_group() as group:
        for (run, _), ask in zip(
            runs, (copies.replace_damaged, copies.replace_damaged, copies.fetch, copies.fetch), strict=True
        ):
            group.start_soon(ask, run)
        for number, hang in enumerate(hangs, 1):
            while chunks.count("read") < number:
                await anyio.wait_all_tasks_blocked()
            assert chunks.count("read") == number
            hang.release.set()

    assert copies.statistics().copies == 4


async def test_m6_copies_of_runs_that_no_manifest_names_yet_stay(tmp_path: Path) -> None:
    """A cycle ends, and an earlier merge's inputs go, between a merge and its put."""
    copies = await with_both(tmp_path, await remote())
    merged = await compact(MERGE, "system/runs/3", copies, merge_locally)

    await copies.remove([RUN, OTHER])

    assert await whole(copies, merged[0]) == MERGED_DATA
    assert os.listdir(tmp_path / "runs") == [file_name(MERGED)]


async def test_m6_a_copy_that_is_removed_while_it_is_replaced_does_not_return(tmp_path: Path) -> None:
    chunks = ScriptedChunks()
    await chunks.open()
    await put_run(chunks, RUN, [DATA])
    copies = LocalCopies(LocalFiles(), str(tmp_path / "runs"), StoredRuns(chunks))
    await copies.open([])
    await copies.add(RUN, [DATA])
    hang = Hang()
    chunks.plan("read", hang)

    async with anyio.create_task_group() as group:
        group.start_soon(copies.replace_damaged, RUN)
        await anyio.wait_all_tasks_blocked()
        await copies.remove([RUN])
        hang.release.set()

    assert os.listdir(tmp_path / "runs") == []


async def crash_of_a_put(call: int, keep: Keep) -> bool:
    """Lose power at the ``call``-th I/O of a put into long-term storage on a file system, and put again.
    Returns whether the put had ended before."""
    disk = SimulatedDisk(Random(call))

    async def work(files: SimulatedFiles) -> None:
        chunks = FileSystemChunkStorage(files, "/lts", world_of(1))
        await chunks.open()
        await put_run(chunks, RUN, [DATA])

    ended = await ends_before_power_loss(disk, call, work)
    chunks = FileSystemChunkStorage(SimulatedFiles(disk.crash(keep)), "/lts", world_of(2))
    await chunks.open()
    is_there = await chunks.exists(RUN.name)
    assert is_there or not ended
    run = RUN
    try:
        await put_run(chunks, run, [DATA])
    except OutcomeUnknown:
        assert is_there
        run = replace(RUN, name="system/runs/1-again")
        await put_run(chunks, run, [DATA])
    assert await chunks.read(run.name, 0, run.length + 1) == DATA
    return ended


@pytest.mark.parametrize("keep", ["none", "all", "random"])
async def test_m2_a_put_is_whole_or_absent_after_power_loss_at_every_call(keep: Keep) -> None:
    call, ended = 0, False
    while not ended:
        ended = await crash_of_a_put(call, keep)
        call += 1
