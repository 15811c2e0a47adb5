"""Compaction: the policy and what it costs, merges as I/O programs, and the helper process (M7)."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from random import Random

import anyio
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulation.disk import SimulatedDisk
from simulation.file_layer import Fail, SimulatedFiles

from support.sorted_runs import encode, numbered, of_newer_format, reader_of
from tierlog.storage_backends.base.errors import DataCorruption, StoreMismatch, Unavailable
from tierlog.storage_backends.base.files import IoCall, Read, Rename, Sync, Write
from tierlog.storage_backends.files.local import LocalFiles, drive
from tierlog.storage_backends.sorted_runs import merge_helper as helper
from tierlog.storage_backends.sorted_runs.compaction_policy import FAN_OUT, Merge, next_merge
from tierlog.storage_backends.sorted_runs.encoder import BLOCK_BYTES, RUN_BYTES_MAX
from tierlog.storage_backends.sorted_runs.merge import MergeOrder, merge_runs
from tierlog.storage_backends.sorted_runs.reader import RunSource
from tierlog.storage_backends.sorted_runs.rows import VERSION_MAX, Row
from tierlog.storage_backends.sorted_runs.run_entry import RunEntry
from tierlog.storage_backends.sorted_runs.run_files import (
    path_of,
    read_range,
    temporary_path,
    write_run,
)
from tierlog.storage_backends.sorted_runs.run_list import RunList
from tierlog.storage_backends.sorted_runs.scan import KeyRange, PageLimits, scan_changes
from tierlog.storage_backends.sorted_runs.summary import RunSummary
from tierlog.storage_backends.sorted_runs.table import Table, TableView


class Files(RunSource):
    """Runs in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def read_range(self, run: RunEntry, offset: int, length: int) -> bytes:
        return drive(read_range(path_of(str(self.folder), run), offset, length))


def write(folder: Path, name: str, cycle: int, rows: list[Row]) -> RunEntry:
    encoded, data = encode(rows, 256)
    run = RunEntry.of(name, encoded, cycle, cycle)
    drive(write_run(str(folder), run, [data]))
    return run


def order_of(folder: Path, *runs: RunEntry, drop: int = 0, run_bytes_max: int = RUN_BYTES_MAX) -> MergeOrder:
    """``runs`` from new to old, each a generation."""
    return MergeOrder(str(folder), [[run] for run in runs], drop, "merged/1", run_bytes_max)


async def rows_of(folder: Path, runs: list[RunEntry]) -> list[Row]:
    """All rows, tombstones too."""
    view = TableView((), RunList(runs), 1 << 60)
    limits = PageLimits(1_000_000, 1 << 30)
    return (await scan_changes(view, reader_of(Files(folder)), KeyRange(), limits, 0)).rows


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
        runs = runs.replaced((), [entry(cycle, cycle, 100_000 + dice.randrange(20_000))])
        written += runs.runs[0].length
        while (merge := next_merge(runs, 0)) is not None:
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


@given(st.lists(st.integers(100, 10**7), max_size=80))
def test_a_merge_takes_adjacent_generations_and_ends(lengths: list[int]) -> None:
    runs = RunList([entry(cycle, cycle, length) for cycle, length in enumerate(lengths, 1)])
    merges = 0
    while (merge := next_merge(runs, 7)) is not None:
        taken = [generation[0] for generation in merge.generations]
        assert len(taken) >= FAN_OUT
        assert taken == [
            run for run in runs if taken[-1].first_cycle <= run.first_cycle <= taken[0].last_cycle
        ]
        assert merge.drop_tombstones_to == (min(7, taken[0].last_cycle) if runs.runs[-1] is taken[-1] else 0)
        size = sum(run.length for run in taken)
        runs = runs.replaced(taken, [entry(taken[-1].first_cycle, taken[0].last_cycle, size)])
        merges += 1
    assert merges <= len(lengths) // (FAN_OUT - 1)


def test_a_smaller_generation_between_others_is_merged_with_them() -> None:
    lengths = [500] * 5 + [50] + [500] * (FAN_OUT - 6)
    runs = [entry(cycle, cycle, length) for cycle, length in enumerate(lengths, 1)]

    merge = next_merge(RunList(runs), 0)

    assert merge is not None
    assert merge.runs == runs[::-1]


def test_the_runs_of_one_merge_are_one_generation() -> None:
    parts = [entry(1, 5, 1000, b"a", b"b"), entry(1, 5, 1001, b"c", b"d")]
    younger = [entry(cycle, cycle, 150) for cycle in range(6, 6 + FAN_OUT - 1)]

    assert next_merge(RunList([*parts, *younger]), 0) is None
    merge = next_merge(RunList([*parts, *younger, entry(20, 20, 150)]), 0)

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

    assert await rows_of(folder, merged) == [newest[key] for key in sorted(newest) if key not in dropped]
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


def test_m7_dropped_tombstones_are_remembered_even_if_nothing_else_is_left() -> None:
    table = Table(RunList([entry(cycle, cycle, 100) for cycle in range(1, FAN_OUT + 1)], changes_from=2))
    merge = next_merge(table.runs, 8)
    assert merge is not None

    table.compact(merge, [])

    with table.view() as view:
        assert len(view.runs) == 0
        assert (view.has_changes_since(8), view.has_changes_since(7)) == (True, False)


def test_m7_changes_after_the_merged_runs_are_complete() -> None:
    """Also for a caller without a reader of changes, who gives the greatest version."""
    table = Table(RunList([entry(cycle, cycle, 100) for cycle in range(1, FAN_OUT + 1)]))
    merge = next_merge(table.runs, VERSION_MAX)
    assert merge is not None

    table.compact(merge, [entry(1, FAN_OUT, 1000)])

    with Table(table.runs).view() as view:
        assert view.version == FAN_OUT
        assert (view.has_changes_since(FAN_OUT), view.has_changes_since(FAN_OUT - 1)) == (True, False)


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

    assert await helper.merge(order, LocalFiles()) == expected
    assert Path(path_of(order.folder, expected[0])).read_bytes() == content


@pytest.mark.anyio
async def test_the_helper_reports_damage_with_its_place(tmp_path: Path) -> None:
    order = inputs(tmp_path)
    damaged = order.generations[1][0]
    data = bytearray(Path(path_of(order.folder, damaged)).read_bytes())
    data[10] ^= 1
    Path(path_of(order.folder, damaged)).write_bytes(data)

    with pytest.raises(DataCorruption) as caught:
        await helper.merge(order, LocalFiles())
    assert (caught.value.file, caught.value.offset) == ("in/1", 0)


@pytest.mark.anyio
async def test_m7_a_missing_file_is_reported_with_its_run(tmp_path: Path) -> None:
    order = inputs(tmp_path)
    os.remove(path_of(order.folder, order.generations[0][0]))

    with pytest.raises(DataCorruption, match="No such file") as caught:
        await helper.merge(order, LocalFiles())
    assert caught.value.file == "in/2"


@pytest.mark.anyio
async def test_a_folder_that_cannot_be_written_is_unavailable(tmp_path: Path) -> None:
    order = inputs(tmp_path)
    os.makedirs(temporary_path(order.folder, "merged/1-0000"))

    with pytest.raises(Unavailable, match="on the local disk"):
        await helper.merge(order, LocalFiles())


@pytest.mark.anyio
async def test_a_helper_that_dies_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helper, "_PROGRAM", "import os; os.kill(os.getpid(), 9)")

    with pytest.raises(Unavailable, match="status -9"):
        await helper.merge(inputs(tmp_path), LocalFiles())


@pytest.mark.anyio
async def test_a_helper_that_cannot_import_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helper, "_PROGRAM", "import tierlog_is_not_here")

    with pytest.raises(Unavailable, match="tierlog_is_not_here"):
        await helper.merge(inputs(tmp_path), LocalFiles())


@pytest.mark.anyio
async def test_a_helper_may_complain_at_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than a pipe holds, as with ``PYTHONVERBOSE``."""
    monkeypatch.setattr(
        helper, "_PROGRAM", f"import sys; sys.stderr.write('x' * 1_000_000); {helper._PROGRAM}"
    )

    assert len(await helper.merge(inputs(tmp_path), LocalFiles())) == 1


@pytest.mark.anyio
async def test_an_answer_of_another_program_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(helper, "_PROGRAM", "print('welcome')")

    with pytest.raises(Unavailable, match="welcome"):
        await helper.merge(inputs(tmp_path), LocalFiles())


@pytest.mark.anyio
async def test_a_run_of_a_newer_format_is_reported_as_such(tmp_path: Path) -> None:
    order = inputs(tmp_path)
    path = Path(path_of(order.folder, order.generations[0][0]))
    path.write_bytes(of_newer_format(path.read_bytes()))

    with pytest.raises(StoreMismatch, match="format 2"):
        await helper.merge(order, LocalFiles())


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
        encoded, data = encode(numbered(500, version=1000 * cycle))
        runs.append(RunEntry.of(f"in/{cycle}", encoded, cycle, cycle))
        await files.run(write_run("/runs", runs[-1], [data]))
    is_broken = True

    with pytest.raises((OSError, DataCorruption), match="scripted"):
        await files.run(merge_runs(MergeOrder("/runs", [[run] for run in runs], 0, "merged/1", 1000)))
    assert [disk.find(path).handles for path in disk.files_below("/runs")] == [0] * len(
        disk.files_below("/runs")
    )


@pytest.mark.anyio
async def test_a_cancelled_merge_ends_its_helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The helper writes its number and would wait for ever."""
    pid = tmp_path / "pid"
    waiting = f"import os, time; os.mkfifo({str(pid)!r}); open({str(pid)!r}, 'w').write(str(os.getpid())); "
    monkeypatch.setattr(helper, "_PROGRAM", f"{waiting}time.sleep(1000)")
    os.makedirs(tmp_path / "runs")
    order = inputs(tmp_path / "runs")
    numbers: list[int] = []
    async with anyio.create_task_group() as group:
        group.start_soon(helper.merge, order, LocalFiles())
        while not pid.exists():
            await anyio.sleep(0.01)
        numbers.append(int(await anyio.to_thread.run_sync(pid.read_text)))
        group.cancel_scope.cancel()

    with pytest.raises(ProcessLookupError):
        os.kill(numbers[0], 0)


def test_a_helper_ends_with_its_parent() -> None:
    """Its input ends while its merge would go on for ever."""
    program = (
        f"import sys, time; sys.path[:] = {sys.path!r}; "
        f"from {helper.__package__} import merge_helper as helper; "
        f"helper.drive = lambda program: time.sleep(1000); helper.main()"
    )
    run = RunEntry.of("in/1", encode(numbered(1))[0], 1, 1)
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
    print(len(await helper.merge(order, LocalFiles())), flush=True)
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
@pytest.mark.parametrize("attribute", ["executable", "frozen"])
async def test_without_an_interpreter_a_thread_merges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attribute: str
) -> None:
    if attribute == "executable":
        monkeypatch.setattr(sys, "executable", "")
    else:
        monkeypatch.setattr(sys, "frozen", True, raising=False)
    order = inputs(tmp_path)

    (merged,) = await helper.merge(order, LocalFiles())

    assert merged.summary.rows == 750
    os.makedirs(temporary_path(order.folder, "merged/1-0000"))
    with pytest.raises(Unavailable, match="on the local disk"):
        await helper.merge(order, LocalFiles())
