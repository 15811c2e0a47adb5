"""Compaction: the policy and what it costs, merges as I/O programs, and the helper process (M7)."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import NoReturn

import anyio
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulation.disk import SimulatedDisk
from simulation.file_layer import Fail, SimulatedFiles

from support.sorted_runs import encode, numbered, of_newer_format, rows_of_run
from tierlog.journal.manifest.element import RUN_LIST_BYTES_MAX
from tierlog.storage_backends.base.errors import DataCorruption, StoreMismatch, Unavailable
from tierlog.storage_backends.base.files import IoCall, ListFolder, Program, Read, Rename, Sync, Write
from tierlog.storage_backends.files.local import LocalFiles, drive
from tierlog.storage_backends.sorted_runs import merge_helper as helper
from tierlog.storage_backends.sorted_runs.compaction_policy import FAN_OUT, Merge, next_merge
from tierlog.storage_backends.sorted_runs.encoder import BLOCK_BYTES, MERGED_RUN_BYTES_MAX, RUN_BYTES_MAX
from tierlog.storage_backends.sorted_runs.merge import MergeOrder, merge_runs
from tierlog.storage_backends.sorted_runs.rows import Row
from tierlog.storage_backends.sorted_runs.run_entry import RunEntry
from tierlog.storage_backends.sorted_runs.run_files import (
    path_of,
    temporary_path,
    write_run,
)
from tierlog.storage_backends.sorted_runs.run_list import RunList
from tierlog.storage_backends.sorted_runs.summary import RunSummary


def write(folder: Path, name: str, cycle: int, rows: list[Row]) -> RunEntry:
    encoded, data = encode(rows, 256, name)
    run = RunEntry.of(encoded, cycle, cycle)
    drive(write_run(str(folder), run, [data]))
    return run


def order_of(folder: Path, *runs: RunEntry, drop: int = 0, run_bytes_max: int = RUN_BYTES_MAX) -> MergeOrder:
    """``runs`` from new to old, each a generation."""
    return MergeOrder(str(folder), [[run] for run in runs], drop, "merged/1", run_bytes_max)


def rows_of(folder: Path, runs: list[RunEntry]) -> list[Row]:
    return [row for run in runs for row in rows_of_run(run, Path(path_of(str(folder), run)).read_bytes())]


# --- the policy ---------------------------------------------------------------------------------


def entry(first: int, last: int, length: int, first_key: bytes = b"a", last_key: bytes = b"z") -> RunEntry:
    summary = RunSummary(1, 0, first, last, first_key, last_key)
    return RunEntry(f"runs/{first}-{last}-{length}", length, 0, 1, first, last, summary)


def simulate(cycles: int, keys: int, dice: Random) -> tuple[float, int]:
    """Bytes written for each byte of a new row, and the most generations at a time. Every cycle changes 1,000
    rows of 100 bytes; ``keys`` is how many there are (0: every row is a new key)."""
    runs = RunList()
    written = most = 0
    for cycle in range(1, cycles + 1):
        runs = runs.published([entry(cycle, cycle, 100_000 + dice.randrange(20_000))], 0)
        written += runs.runs[0].length
        while (merge := next_merge(runs)) is not None:
            size = sum(run.length for run in merge.runs)
            winner = entry(
                merge.runs[-1].first_cycle, merge.runs[0].last_cycle, min(size, keys * 100 if keys else size)
            )
            written += winner.length
            runs = runs.replaced(merge.runs, [winner])
        most = max(most, len(runs.generations()))
    return written / (cycles * 110_000), most


@pytest.mark.parametrize("keys", [0, 1_000_000, 20_000])
def test_m7_a_row_is_written_at_most_five_times_in_10_000_cycles(keys: int) -> None:
    amplification, generations = simulate(10_000, keys, Random(1))

    assert 1 < amplification <= 5
    assert generations <= 4 * (FAN_OUT - 1) + 1


def test_m7_the_tombstones_of_a_queue_beside_other_rows_have_a_bound() -> None:
    """Merges of everything kept all of them, and left the merges of tiers none to drop. Of each row: version,
    and size; 0 for a tombstone."""
    live, moved = 2000, 200

    def run_of(first: int, last: int, rows: dict[int, tuple[int, int]]) -> RunEntry:
        versions = [version for version, _ in rows.values()]
        tombstones = sum(not size for _, size in rows.values())
        summary = RunSummary(len(rows), tombstones, min(versions), max(versions), b"a", b"z")
        length = sum(70 + size for _, size in rows.values())
        return RunEntry(f"{first}-{last}-{len(rows)}", length, 0, 1, first, last, summary)

    runs, contents, written, most = RunList(), dict[str, dict[int, tuple[int, int]]](), 0, 0
    for cycle in range(1, 1001):
        rows = dict.fromkeys(range(cycle * moved, (cycle + 1) * moved), (cycle, 300))
        rows |= {number - moved: (cycle, 0) for number in rows if cycle > 1}
        rows |= {-number: (cycle, 1000) for number in range(live if cycle == 1 else 0)}
        added = run_of(cycle, cycle, rows)
        runs, contents[added.name] = runs.published([added], 0), rows
        while (merge := next_merge(runs)) is not None:
            merged: dict[int, tuple[int, int]] = {}
            for run in reversed(merge.runs):
                merged |= contents.pop(run.name)
            merged = {
                key: (version, size)
                for key, (version, size) in merged.items()
                if size or version > merge.drop_tombstones_to
            }
            winner = run_of(merge.runs[-1].first_cycle, merge.runs[0].last_cycle, merged)
            runs, contents[winner.name] = merge.applied_to(runs, [winner]), merged
            written += len(merged)
        most = max(most, sum(run.summary.tombstones for run in runs))
    assert most < 3 * (live + moved)
    assert runs.changes_from > 0
    assert written < 5 * 1000 * 2 * moved


def split(run: RunEntry, size: int) -> list[RunEntry]:
    """``run`` as runs of about ``size`` bytes."""
    parts = max(1, round(run.length / size))
    bounds = [b"%05d" % number + run.summary.first_key for number in range(2 * parts)]
    return [
        entry(run.first_cycle, run.last_cycle, run.length // parts, *bounds[2 * number : 2 * number + 2])
        for number in range(parts)
    ]


@pytest.mark.parametrize("key", [b"k" * 60, b"k" * 1000])
def test_m10_runs_grow_so_that_the_run_list_has_room_for_tens_of_gigabytes(key: bytes) -> None:
    """Of runs of 16 MiB it would have room for ten, of those with long keys for less than two."""
    room, cycles, size = RUN_LIST_BYTES_MAX, 800, 4 * RUN_BYTES_MAX
    if len(key) > 100:
        cycles //= 8
    runs, written, largest = RunList(), 0, 0
    for cycle in range(1, cycles + 1):
        runs = runs.published(split(entry(cycle, cycle, size, key, key), RUN_BYTES_MAX), 0)
        assert runs.size <= room
        while (merge := next_merge(runs, list_bytes=room // 2)) is not None:
            first, last = merge.runs[-1].first_cycle, merge.runs[0].last_cycle
            merged = entry(first, last, sum(run.length for run in merge.runs), key, key)
            winners = split(merged, merge.run_bytes(room // 8))
            runs = merge.applied_to(runs, winners)
            written += merged.length
            largest = max(largest, *(run.length for run in winners))
        assert runs.size <= room
    assert sum(run.length for run in runs) == pytest.approx(cycles * size)
    assert RUN_BYTES_MAX < largest <= 2 * MERGED_RUN_BYTES_MAX
    assert written <= 8 * cycles * size


def test_a_run_stays_small_while_few_are_enough_and_never_becomes_too_large_to_be_put() -> None:
    def run_bytes(length: int) -> int:
        return Merge(((entry(1, 1, length),),), 0).run_bytes(1 << 14)

    assert run_bytes(1 << 20) == RUN_BYTES_MAX
    assert RUN_BYTES_MAX < run_bytes(1 << 33) < MERGED_RUN_BYTES_MAX
    assert run_bytes(1 << 40) == MERGED_RUN_BYTES_MAX


@given(st.lists(st.integers(100, 10**7), max_size=80))
def test_a_merge_takes_adjacent_generations_and_ends(lengths: list[int]) -> None:
    runs = RunList([entry(cycle, cycle, length) for cycle, length in enumerate(lengths, 1)])
    merges = 0
    while (merge := next_merge(runs)) is not None:
        taken = [generation[0] for generation in merge.generations]
        assert len(taken) >= FAN_OUT
        assert taken == [
            run for run in runs if taken[-1].first_cycle <= run.first_cycle <= taken[0].last_cycle
        ]
        assert merge.drop_tombstones_to == (taken[0].last_cycle if runs.runs[-1] is taken[-1] else 0)
        size = sum(run.length for run in taken)
        runs = runs.replaced(taken, [entry(taken[-1].first_cycle, taken[0].last_cycle, size)])
        merges += 1
    assert merges <= len(lengths) // (FAN_OUT - 1)


def test_in_a_long_run_list_two_generations_are_merged() -> None:
    runs = RunList([entry(cycle, cycle, length) for cycle, length in enumerate([9000, 500, 90, 50], 1)])

    assert next_merge(runs) is None
    assert next_merge(runs, list_bytes=runs.size) is None
    merge = next_merge(runs, list_bytes=runs.size - 1)
    assert merge is not None
    assert [run.length for run in merge.runs] == [50, 90]
    winner = entry(3, 4, 140)
    assert merge.applied_to(runs, [winner]).runs == (winner, *runs.runs[2:])
    assert merge.applied_to(merge.applied_to(runs, [winner]), [winner]).runs == (winner, *runs.runs[2:])
    apart = RunList([entry(cycle, cycle, 10 ** (5 - cycle)) for cycle in (1, 2, 3)])
    assert next_merge(apart, list_bytes=0) is None


def test_a_smaller_generation_between_others_is_merged_with_them() -> None:
    lengths = [500] * 5 + [50] + [500] * (FAN_OUT - 6)
    runs = [entry(cycle, cycle, length) for cycle, length in enumerate(lengths, 1)]

    merge = next_merge(RunList(runs))

    assert merge is not None
    assert merge.runs == runs[::-1]


def test_m7_runs_that_cannot_be_read_are_left_out_and_part_the_others() -> None:
    """What is merged is adjacent, and its tombstones hide rows of the runs that are left out."""
    runs = RunList([entry(cycle, cycle, 150) for cycle in range(1, 4 * FAN_OUT)])
    middle = next(run.name for run in runs if run.last_cycle == 2 * FAN_OUT)
    left_out = {middle}
    merge = next_merge(runs, left_out=left_out)
    assert merge is not None
    assert [run.last_cycle for run in merge.runs] == list(range(4 * FAN_OUT - 1, 2 * FAN_OUT, -1))
    assert merge.drop_tombstones_to == 0

    older = RunList([run for run in runs if run.last_cycle <= 2 * FAN_OUT])
    merge = next_merge(older, left_out=left_out)
    assert merge is not None
    assert [run.last_cycle for run in merge.runs] == list(range(2 * FAN_OUT - 1, 0, -1))
    assert next_merge(runs, left_out={run.name for run in runs}, list_bytes=0) is None


def test_the_runs_of_one_merge_are_one_generation() -> None:
    parts = [entry(1, 5, 1000, b"a", b"b"), entry(1, 5, 1001, b"c", b"d")]
    younger = [entry(cycle, cycle, 150) for cycle in range(6, 6 + FAN_OUT - 1)]

    assert next_merge(RunList([*parts, *younger])) is None
    merge = next_merge(RunList([*parts, *younger, entry(20, 20, 150)]))

    assert merge == Merge(tuple((run,) for run in (entry(20, 20, 150), *reversed(younger))), 0)


# --- merges -------------------------------------------------------------------------------------

TABLES = st.dictionaries(
    st.binary(min_size=1, max_size=2), st.none() | st.binary(max_size=30), min_size=1, max_size=40
)


@given(st.lists(TABLES, min_size=1, max_size=5), st.integers(0, 5), st.integers(100, 2000))
@pytest.mark.anyio
async def test_m7_a_merge_keeps_the_newest_rows(
    tmp_path_factory: pytest.TempPathFactory, cycles: list[dict[bytes, bytes | None]], drop: int, limit: int
) -> None:
    folder = tmp_path_factory.mktemp("runs")
    newest: dict[bytes, Row] = {}
    runs: list[RunEntry] = []
    for version, table in enumerate(cycles, 1):
        rows = [Row(key, version, table[key]) for key in sorted(table)]
        newest.update({row.key: row for row in rows})
        runs.insert(0, write(folder, f"in/{version}", version, rows))
    dropped = {row.key for row in newest.values() if row.value is None and row.version <= drop}

    merged = drive(merge_runs(order_of(folder, *runs, drop=drop, run_bytes_max=limit)))

    assert rows_of(folder, merged) == [newest[key] for key in sorted(newest) if key not in dropped]
    assert {(run.first_cycle, run.last_cycle) for run in merged} <= {(1, len(cycles))}
    assert all(run.length < limit + 3000 for run in merged)


async def _merged_bytes(folder: Path, run_bytes_max: int) -> list[bytes]:
    folder.mkdir()
    runs = [write(folder, f"in/{c}", c, numbered(200, version=c * 1000, step=c)) for c in (3, 2, 1)]
    merged = drive(merge_runs(order_of(folder, *runs, run_bytes_max=run_bytes_max)))
    return [Path(path_of(str(folder), run)).read_bytes() for run in merged]


def test_a_merge_begins_another_run_at_the_limit(tmp_path: Path) -> None:
    runs = [write(tmp_path, f"in/{cycle}", cycle, numbered(500, version=1000 * cycle)) for cycle in (2, 1)]

    merged = drive(merge_runs(order_of(tmp_path, *runs, run_bytes_max=4000)))

    assert sum(run.summary.rows for run in merged) == 500
    assert len(merged) > 3
    assert max(run.length - run.tail_length for run in merged) < 4000 + BLOCK_BYTES


@pytest.mark.anyio
async def test_the_same_runs_merge_to_the_same_bytes(tmp_path: Path) -> None:
    assert await _merged_bytes(tmp_path / "a", 5000) == await _merged_bytes(tmp_path / "b", 5000)


@pytest.mark.parametrize("winners", [[], [entry(1, FAN_OUT, 1000)]])
def test_m7_dropped_tombstones_are_remembered_even_if_nothing_else_is_left(winners: list[RunEntry]) -> None:
    """From the greatest version of the merged runs on, all changes are there."""
    runs = RunList([entry(cycle, cycle, 100) for cycle in range(1, FAN_OUT + 1)], changes_from=2)
    merge = next_merge(runs)
    assert merge is not None

    merged = merge.applied_to(runs, winners)

    assert (merged.runs, merged.changes_from, merged.records_to) == (tuple(winners), FAN_OUT, FAN_OUT)


def test_nothing_is_left_of_tombstones_only(tmp_path: Path) -> None:
    run = write(tmp_path, "in/1", 1, [Row(b"a", 3, None)])

    assert drive(merge_runs(order_of(tmp_path, run, drop=3))) == []
    assert os.listdir(tmp_path) == [os.path.basename(path_of(str(tmp_path), run))]


# --- the helper process -------------------------------------------------------------------------


def inputs(folder: Path, rows: int = 500) -> MergeOrder:
    old = write(folder, "in/1", 1, numbered(rows))
    new = write(folder, "in/2", 2, numbered(rows, version=10_000, step=2))
    return order_of(folder, new, old)


@pytest.mark.anyio
async def test_the_helper_merges_as_the_program_does(tmp_path: Path) -> None:
    order = inputs(tmp_path)
    expected = drive(merge_runs(order))
    content = Path(path_of(order.folder, expected[0])).read_bytes()
    os.remove(path_of(order.folder, expected[0]))

    assert await helper.merge_in_helper(order, LocalFiles()) == expected
    assert Path(path_of(order.folder, expected[0])).read_bytes() == content


@pytest.mark.anyio
async def test_m7_a_small_merge_starts_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is done before a helper has started: owners that live no longer would never merge."""

    def refuse() -> NoReturn:
        pytest.fail("a process was started")

    monkeypatch.setattr(helper, "_start_helper", refuse)
    order = inputs(tmp_path)
    assert sum(run.length for (run,) in order.generations) <= helper.SMALL_BYTES
    (merged,) = await helper.merge(order, LocalFiles())
    assert merged.summary.rows == 750


@pytest.mark.anyio
async def test_m7_a_larger_merge_is_the_helpers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = 0
    start_helper = helper._start_helper

    def count() -> subprocess.Popen[bytes]:
        nonlocal started
        started += 1
        return start_helper()

    monkeypatch.setattr(helper, "_start_helper", count)
    order = inputs(tmp_path, rows=4000)
    assert sum(run.length for (run,) in order.generations) > helper.SMALL_BYTES
    (merged,) = await helper.merge(order, LocalFiles())
    assert (merged.summary.rows, started) == (6000, 1)


@pytest.mark.anyio
async def test_the_helper_reports_damage_with_its_place(tmp_path: Path) -> None:
    order = inputs(tmp_path)
    damaged = order.generations[1][0]
    data = bytearray(Path(path_of(order.folder, damaged)).read_bytes())
    data[10] ^= 1
    Path(path_of(order.folder, damaged)).write_bytes(data)

    with pytest.raises(DataCorruption) as caught:
        await helper.merge_in_helper(order, LocalFiles())
    assert (caught.value.file, caught.value.offset) == ("in/1", 0)


@pytest.mark.anyio
async def test_m7_a_missing_file_is_reported_with_its_run(tmp_path: Path) -> None:
    order = inputs(tmp_path)
    os.remove(path_of(order.folder, order.generations[0][0]))

    with pytest.raises(DataCorruption, match="No such file") as caught:
        await helper.merge_in_helper(order, LocalFiles())
    assert caught.value.file == "in/2"


@pytest.mark.anyio
async def test_a_folder_that_cannot_be_written_is_unavailable(tmp_path: Path) -> None:
    order = inputs(tmp_path)
    os.makedirs(temporary_path(order.folder, "merged/1-0000"))

    with pytest.raises(Unavailable, match="on the local disk"):
        await helper.merge_in_helper(order, LocalFiles())


@pytest.mark.anyio
async def test_a_helper_that_dies_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helper, "_PROGRAM", "import os; os.kill(os.getpid(), 9)")

    with pytest.raises(Unavailable, match="status -9"):
        await helper.merge_in_helper(inputs(tmp_path), LocalFiles())


@pytest.mark.anyio
@pytest.mark.parametrize(
    "program",
    ["import tierlog_is_not_here", "print('welcome')", "print('welcome'); " + helper._PROGRAM],
    ids=["cannot import", "other answer", "start file prints"],
)
async def test_m7_a_thread_merges_where_no_helper_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    """It would fail each time, and without merges the table refuses rows in the end."""
    monkeypatch.setattr(helper, "_PROGRAM", program)

    (merged,) = await helper.merge_in_helper(inputs(tmp_path), LocalFiles())
    assert merged.summary.rows == 750


@pytest.mark.anyio
async def test_m7_a_thread_merges_where_the_executable_is_another_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")

    (merged,) = await helper.merge_in_helper(inputs(tmp_path), LocalFiles())
    assert merged.summary.rows == 750


@pytest.mark.anyio
async def test_m7_the_helper_imports_from_the_places_that_this_process_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python ignores entries that are no strings, and relative ones follow the working directory."""
    (tmp_path / "imported_by_the_helper.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, "", tmp_path])
    monkeypatch.setattr(
        helper,
        "_PROGRAM",
        f"import os; os.chdir('/'); {helper._PROGRAM}".replace(
            "from {module}", "import imported_by_the_helper; from {module}"
        ),
    )
    monkeypatch.setattr(helper, "merge_here", refused)

    assert len(await helper.merge_in_helper(inputs(tmp_path), LocalFiles())) == 1


async def refused(order: MergeOrder, files: LocalFiles) -> NoReturn:
    pytest.fail("a thread merged")


@pytest.mark.anyio
async def test_a_helper_may_complain_at_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than a pipe holds, as with ``PYTHONVERBOSE``."""
    monkeypatch.setattr(
        helper, "_PROGRAM", f"import sys; sys.stderr.write('x' * 1_000_000); {helper._PROGRAM}"
    )

    assert len(await helper.merge_in_helper(inputs(tmp_path), LocalFiles())) == 1


@pytest.mark.anyio
async def test_a_run_of_a_newer_format_is_reported_as_such(tmp_path: Path) -> None:
    order = inputs(tmp_path)
    run = order.generations[0][0]
    path = Path(path_of(order.folder, run))
    path.write_bytes(of_newer_format(run, path.read_bytes()))

    with pytest.raises(StoreMismatch, match="format 3"):
        await helper.merge_in_helper(order, LocalFiles())


@pytest.mark.anyio
@pytest.mark.parametrize("failing", [Write, Sync, Rename, Read])
async def test_a_merge_that_fails_closes_its_files(failing: type[IoCall]) -> None:
    is_broken = False

    def fail(index: int, call: IoCall) -> Fail | None:
        return Fail(OSError(errno.EIO, "scripted")) if is_broken and isinstance(call, failing) else None

    disk = SimulatedDisk(Random(1))
    files = SimulatedFiles(disk, fail)
    runs = []
    disk.make_folder("/runs")
    for cycle in (2, 1):
        encoded, data = encode(numbered(500, version=1000 * cycle), name=f"in/{cycle}")
        runs.append(RunEntry.of(encoded, cycle, cycle))
        await files.run(write_run("/runs", runs[-1], [data]))
    is_broken = True

    with pytest.raises((OSError, DataCorruption), match="scripted"):
        await files.run(merge_runs(MergeOrder("/runs", [[run] for run in runs], 0, "merged/1", 1000)))
    assert [disk.find(path).handles for path in disk.files_below("/runs")] == [0] * len(
        disk.files_below("/runs")
    )


@pytest.mark.anyio
async def test_a_cancelled_merge_ends_its_helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The helper writes its number and would wait forever."""
    pid = tmp_path / "pid"
    waiting = f"import os, time; os.mkfifo({str(pid)!r}); open({str(pid)!r}, 'w').write(str(os.getpid())); "
    monkeypatch.setattr(helper, "_PROGRAM", f"{waiting}time.sleep(1000)")
    os.makedirs(tmp_path / "runs")
    order = inputs(tmp_path / "runs")
    numbers: list[int] = []
    async with anyio.create_task_group() as group:
        group.start_soon(helper.merge_in_helper, order, LocalFiles())
        while not pid.exists():
            await anyio.sleep(0.01)
        numbers.append(int(await anyio.to_thread.run_sync(pid.read_text)))
        group.cancel_scope.cancel()

    with pytest.raises(ProcessLookupError):
        os.kill(numbers[0], 0)


@pytest.mark.anyio
async def test_m7_a_helper_that_ends_while_its_merge_is_cancelled_is_waited_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """asyncio reported it as an unknown process if a signal came between its end and the watcher's turn."""
    waitpid = os.waitpid

    def late(pid: int, options: int) -> tuple[int, int]:
        """As if the thread that waits for a process got its turn late, after the process has ended."""
        if not options:
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            helpers.append(pid)
            ended.set()
            cancelled.wait()
        return waitpid(pid, options)

    helpers: list[int] = []
    ended, cancelled = threading.Event(), threading.Event()
    monkeypatch.setattr(os, "waitpid", late)
    monkeypatch.setattr(helper, "_PROGRAM", "pass")
    # asyncio's children are killed after their input was closed; here the helper has ended before.
    async with anyio.create_task_group() as group:
        group.start_soon(helper.merge_in_helper, inputs(tmp_path), LocalFiles())
        await anyio.to_thread.run_sync(ended.wait)
        # Behind the signal: whoever waits in a thread has its turn then.
        threading.Timer(0.05, cancelled.set).start()
        group.cancel_scope.cancel()

    assert group.cancel_scope.cancelled_caught
    assert caplog.messages == []
    # Not any child: tests before may have left some.
    with pytest.raises(ChildProcessError):
        waitpid(helpers[0], os.WNOHANG)


@pytest.mark.anyio
async def test_m7_a_cancelled_merge_in_a_thread_ends_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A close waited for its end, which is hours away in a large table."""
    reads: list[bool] = []

    def endless(order: MergeOrder, is_cancelled: Callable[[], bool]) -> Program[list[RunEntry]]:
        yield ListFolder(order.folder)
        while not is_cancelled():
            reads.append(True)
        yield from merge_runs(order, is_cancelled)
        raise AssertionError("a cancelled merge goes on")

    monkeypatch.setattr(helper, "merge_runs", endless)
    order = inputs(tmp_path)
    async with anyio.create_task_group() as group:
        group.start_soon(helper.merge_here, order, LocalFiles())
        while not reads:
            await anyio.sleep(0.001)
        group.cancel_scope.cancel()
    assert group.cancel_scope.cancelled_caught
    assert not any("merged" in name for name in os.listdir(order.folder))


def test_a_helper_ends_with_its_parent() -> None:
    """Its input ends while its merge would go on forever."""
    program = (
        f"import sys, time; sys.path[:] = {sys.path!r}; "
        f"from {helper.__package__} import merge_helper as helper; "
        f"helper.drive = lambda program: time.sleep(1000); helper.main()"
    )
    run = RunEntry.of(encode(numbered(1))[0], 1, 1)
    order = MergeOrder("/nowhere", [[run]], 0, "merged/1")
    request = msgspec.msgpack.encode(order)
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as child:
        assert child.stdin is not None
        child.stdin.write(len(request).to_bytes(8, "big") + request)
        child.stdin.close()

        assert child.wait() == 1


SCRIPT = """
import anyio, sys
from tierlog.storage_backends.files.local import LocalFiles
from tierlog.storage_backends.sorted_runs import merge_helper as helper
from tierlog.storage_backends.sorted_runs.merge import MergeOrder
from tierlog.storage_backends.sorted_runs.run_entry import RunEntry

print("begun", flush=True)
order = MergeOrder({folder!r}, [[RunEntry.decode(bytes.fromhex(run))] for run in {runs!r}], 0, "merged/1")
async def main():
    print(len(await helper.merge_in_helper(order, LocalFiles())), flush=True)
{run}
"""

LOOPS = {
    "asyncio": "anyio.run(main)",
    "uvloop": "anyio.run(main, backend_options={'use_uvloop': True})",
    "trio": "anyio.run(main, backend='trio')",
    "thread": "import threading; t = threading.Thread(target=anyio.run, args=(main,)); t.start(); t.join()",
}


@pytest.mark.parametrize("loop", LOOPS)
def test_m7_a_program_without_a_main_guard_runs_once(tmp_path: Path, loop: str) -> None:
    order = inputs(tmp_path)
    runs = [generation[0].encode().hex() for generation in order.generations]
    script = tmp_path / "embedding.py"
    script.write_text(SCRIPT.format(folder=order.folder, runs=runs, run=LOOPS[loop]))

    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "begun\n1\n", "")


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("attribute", "value"), [("executable", ""), ("executable", "/upgraded/python"), ("frozen", True)]
)
async def test_m7_without_an_interpreter_a_thread_merges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attribute: str, value: object
) -> None:
    """If merges failed, the run list would be full one day, and appends refused."""
    monkeypatch.setattr(sys, attribute, value, raising=False)
    order = inputs(tmp_path)

    (merged,) = await helper.merge_in_helper(order, LocalFiles())

    assert merged.summary.rows == 750
    os.makedirs(temporary_path(order.folder, "merged/1-0000"))
    with pytest.raises(Unavailable, match="on the local disk"):
        await helper.merge_in_helper(order, LocalFiles())
