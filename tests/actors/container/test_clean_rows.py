"""Which rows the runs have, and when rows may have left memory: two numbers of the run list."""

from __future__ import annotations

import pytest

from support.container_parts import NAME, Parts
from tierlog.actors.container.closures import is_record
from tierlog.actors.container.operations.cold import UnloadRequest
from tierlog.actors.container.operations.metadata import CommitMetadataRequest
from tierlog.actors.container.operations.transactions import ForgetTransactionsRequest
from tierlog.actors.container.snapshot import is_clean
from tierlog.journal.manifest.element import SEGMENTS
from tierlog.journal.operations.load_segment import UnloadSegments
from tierlog.storage_backends.segments.records import (
    chunk_key,
    deferred_work_key,
    imported_key,
    index_key,
    released_key,
    segment_key,
)
from tierlog.storage_backends.segments.records.deferred_work import DeferredWorkKind
from tierlog.storage_backends.sorted_runs.rows import Row
from tierlog.storage_backends.sorted_runs.run_list import RunList
from tierlog.storage_backends.sorted_runs.table import Table

RUNS = RunList(rows_to=10, records_to=20)
RECORDS = [
    segment_key(7),
    chunk_key("c"),
    index_key(7, 1 << 20),
    deferred_work_key(7, DeferredWorkKind.DELETE),
    released_key("app/old$offset.0"),
    imported_key("app/old"),
    "g:7",
]
OTHERS = ["n:app/a", "a:7", "y:7", "v:7", "t:app/a", "h:7", "r:7", "w:7", "u:", "p:"]


@pytest.mark.parametrize("key", RECORDS)
def test_records_of_long_term_storage_are_clean_up_to_the_end_of_the_cycle(key: str) -> None:
    assert is_record(key.encode())
    assert is_clean(RUNS, Row(key.encode(), 20, b"value"))
    assert not is_clean(RUNS, Row(key.encode(), 21, b"value"))


@pytest.mark.parametrize("key", OTHERS)
def test_all_other_rows_are_clean_up_to_its_cut(key: str) -> None:
    assert not is_record(key.encode())
    assert is_clean(RUNS, Row(key.encode(), 10, b"value"))
    assert not is_clean(RUNS, Row(key.encode(), 11, b"value"))


def test_rows_of_a_checkpoint_that_the_runs_lack_are_dirty() -> None:
    parts = Parts()
    state = parts.state
    state.table.use(RUNS)
    for key in ("s:0000000000000007", "n:app/a"):
        for version in (10, 11, 20, 21):
            state.restore_row(Row(f"{key}{version}".encode(), version, b""))
    with state.table.view() as view:
        dirty = [row.key for row in view.dirty_rows() if row is not None]
    assert dirty == [b"s:000000000000000721", b"n:app/a11", b"n:app/a20", b"n:app/a21"]


def test_a_memtable_stays_until_the_runs_have_all_of_its_rows() -> None:
    table = Table()
    table.put([Row(b"n:app/a", 11, b"")])
    table.freeze_rows()
    table.put_records([Row(b"s:7", 20, b"")])
    table.freeze_records()
    table.use(RUNS)
    assert (table.rows, table.version, table.is_dirty) == (1, 20, True)
    table.use(RunList(rows_to=20))
    assert (table.rows, table.is_dirty) == (0, False)


@pytest.mark.parametrize(("seen", "is_known"), [(10, False), (19, False), (20, True)])
def test_m9_a_commit_is_looked_up_again_if_records_have_left_memory_since(seen: int, is_known: bool) -> None:
    parts = Parts()
    parts.state.sequence = 30
    parts.state.table.use(RUNS)
    answer = parts.decide(CommitMetadataRequest({"c:new": 0}, {"c:new": b"x"}, seen))
    assert (answer is not None) is is_known


@pytest.mark.parametrize(("records_to", "is_known"), [(10, False), (19, False), (20, True)])
def test_m21_ends_are_looked_up_again_if_rows_have_left_memory_since(records_to: int, is_known: bool) -> None:
    parts = Parts()
    parts.state.table.use(RUNS)
    assert parts.decide(ForgetTransactionsRequest([], records_to)) is is_known


def test_m5_a_segment_stays_in_memory_until_its_image_is_as_of_a_cut() -> None:
    parts = Parts()
    segment = parts.create()
    parts.flush(NAME, length=0)
    touched, end = segment.touched, parts.state.sequence + 9
    request = UnloadRequest([segment.sid])
    parts.state.table.use(RunList(schema=SEGMENTS, rows_to=touched - 1, records_to=end))
    assert parts.operations(request) == ([], None)
    parts.state.table.use(RunList(schema=SEGMENTS, rows_to=touched, records_to=end))
    assert parts.operations(request) == ([UnloadSegments((segment.sid,))], None)
