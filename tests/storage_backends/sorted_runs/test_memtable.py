"""The memtable and conditions of commits: versions that open readers see, freezing, memory (M1, M5)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierlog.storage_backends.sorted_runs import put
from tierlog.storage_backends.sorted_runs.memtable import (
    ROW_MEMORY,
    SLICE_KEYS,
    Memtable,
    find_conflict,
    newest_rows,
    version_of,
)
from tierlog.storage_backends.sorted_runs.rows import ABSENT, Row
from tierlog.storage_backends.sorted_runs.run_list import RunList
from tierlog.storage_backends.sorted_runs.table import Table

LATEST = 1 << 60


def test_the_newest_row_of_a_key_is_found_and_the_older_one_is_gone() -> None:
    memtable = Memtable()
    memtable.put(Row(b"a", 1, b"one"))
    memtable.put(Row(b"a", 2, b"two"))

    assert memtable.find(b"a", LATEST) == Row(b"a", 2, b"two")
    assert memtable.find(b"a", 1) is None
    assert memtable.memory == ROW_MEMORY + 4


def test_rows_that_an_open_reader_sees_stay_until_it_closes() -> None:
    memtable = Memtable()
    memtable.put(Row(b"a", 1, b"one"))
    memtable.begin_reading(2)
    for version in (3, 4, 5):
        memtable.put(Row(b"a", version, b"later"))

    assert memtable.find(b"a", 2) == Row(b"a", 1, b"one")
    assert memtable.memory == 2 * (ROW_MEMORY + 1) + 8  # neither 3 nor 4 is visible to anyone

    memtable.end_reading(2)
    memtable.put(Row(b"a", 6, None))

    assert memtable.find(b"a", 5) is None
    assert memtable.memory == ROW_MEMORY + 1


def test_a_reader_of_the_newer_row_does_not_keep_the_older_one() -> None:
    memtable = Memtable()
    memtable.put(Row(b"a", 1, b""))
    memtable.begin_reading(1)
    memtable.put(Row(b"a", 2, b""))
    memtable.begin_reading(2)
    memtable.end_reading(1)
    memtable.put(Row(b"a", 3, b""))

    assert memtable.find(b"a", 2) == Row(b"a", 2, b"")
    assert memtable.find(b"a", 1) is None


def test_a_version_never_goes_back() -> None:
    memtable = Memtable()
    memtable.put(Row(b"a", 2, b""))

    with pytest.raises(RuntimeError, match="version 2 follows 2"):
        memtable.put(Row(b"a", 2, b""))


def test_a_frozen_memtable_takes_no_rows_and_another_one_does() -> None:
    table = Table()
    table.put([Row(b"a", 1, b"one")])
    table.freeze_rows()
    (frozen,) = table.frozen
    table.put([Row(b"a", 2, b"two")])

    with pytest.raises(RuntimeError, match="frozen"):
        frozen.put(Row(b"b", 3, b""))
    assert list(frozen.newest_rows()) == [Row(b"a", 1, b"one")]
    with table.view() as view:
        assert view.find_in_memory(b"a") == Row(b"a", 2, b"two")


def test_an_empty_memtable_is_not_frozen() -> None:
    table = Table()
    table.freeze_rows()
    assert table.frozen == ()
    table.put([Row(b"a", 1, b"")])
    for _ in range(2):
        table.freeze_rows()
        assert len(table.frozen) == 1


def test_frozen_memtables_become_one_run_of_their_newest_rows() -> None:
    table = Table()
    table.put([Row(b"a", 1, b"recorded")])
    table.freeze_rows()
    table.put([Row(b"b", 2, b"")])
    table.freeze_rows()
    table.put([Row(b"b", 3, None), Row(b"c", 4, b"")])

    table.use(RunList(changes_from=1))
    table.freeze_rows()
    assert list(table.unpublished_rows()) == [
        Row(b"b", 3, None),
        None,
        Row(b"c", 4, b""),
    ]


@pytest.mark.anyio
async def test_m10_rows_that_newer_ones_replace_give_the_loop_turns_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Eight memtables may wait with the same keys: an eighth of their rows become the run."""
    table, turns = Table(), 0
    for memtable in range(8):
        table.put(Row(b"%04d" % number, memtable * 1024 + number + 1, b"") for number in range(1024))
        table.freeze_rows()

    async def count() -> None:
        nonlocal turns
        turns += 1

    monkeypatch.setattr(put, "checkpoint", count)
    rows = newest_rows(table.frozen)
    encoded = await put.encode_run(lambda: "runs/1", rows)
    assert encoded is not None
    assert (encoded.run.summary.rows, turns) == (1024, 8 * 1024 // 256)
    assert await put.encode_run(lambda: "runs/1", rows) is None


def test_rows_that_replay_finds_clean_are_released_with_the_last_of_them() -> None:
    table = Table()
    table.put([Row(b"a", 1, b"")])
    table.put([Row(b"b", 2, b"")])

    table.use(RunList(changes_from=1))
    assert table.rows == 2
    table.use(RunList(changes_from=2))
    assert table.rows == 0
    table.use(RunList(changes_from=9))
    assert table.version == 9


@given(
    st.lists(st.sampled_from([b"a", b"b", b"c", b"d"]), max_size=9), st.integers(0, 10), st.integers(0, 10)
)
def test_m8_a_memtable_that_replay_divides_is_as_if_it_had_been_frozen_there(
    keys: list[bytes], first: int, second: int
) -> None:
    table, newest = Table(), {}
    for version, key in enumerate(keys, 1):
        newest[key] = Row(key, version, b"")
        table.put([newest[key]])
    memory = table.memory

    for version in sorted((first, second)):
        runs = RunList(rows_to=version, records_to=version)
        list(table.divide(runs))
        assert not list(table.divide(runs)), "there is nothing left to move"
    assert {key: table.find_in_memory(key) for key in newest} == newest
    assert table.memory == memory
    table.freeze_rows()
    for end in sorted((first, second)):
        table.use(RunList(rows_to=end, records_to=end))
        rows = [row for row in table.unpublished_rows() if row is not None]
        assert rows == sorted(row for row in newest.values() if row.version > end)


def test_m8_clean_rows_leave_memory_in_steps_of_bounded_length() -> None:
    table = Table()
    table.put(Row(b"%04d" % number, number, b"") for number in range(1, 3001))
    table.use(RunList(changes_from=2990))

    assert len(list(table.divide(RunList(changes_from=2990)))) > 3000 // SLICE_KEYS
    assert table.rows == 10
    steps = 1
    while table.free():
        steps += 1
    assert steps > 2900 // SLICE_KEYS


def test_m5_a_closed_view_keeps_no_rows() -> None:
    table = Table()
    for version in (1, 2, 3):
        with table.view():
            table.put([Row(b"a", version, b"")])

    table.put([Row(b"a", 4, b"")])

    assert table.memory == ROW_MEMORY + 1


def test_m5_rows_count_as_memory_until_they_are_published() -> None:
    table = Table()
    table.put([Row(b"a", 1, b"one")])
    table.freeze_rows()
    table.put([Row(b"b", 2, None)])

    assert table.memory == 2 * ROW_MEMORY + len(b"aoneb")
    table.use(RunList(changes_from=1))
    assert table.memory == ROW_MEMORY + len(b"b")


READERS = st.lists(st.integers(0, 20), max_size=4)


@given(st.lists(st.tuples(st.sampled_from([b"a", b"b"]), st.booleans()), max_size=20), READERS)
def test_each_reader_sees_what_was_there_when_it_began(
    writes: list[tuple[bytes, bool]], at: list[int]
) -> None:
    memtable = Memtable()
    model: dict[bytes, Row] = {}
    seen: dict[int, dict[bytes, Row]] = {}
    for version, (key, is_tombstone) in enumerate(writes, 1):
        if version - 1 in at:
            memtable.begin_reading(version - 1)
            seen[version - 1] = dict(model)
        row = Row(key, version, None if is_tombstone else b"%d" % version)
        memtable.put(row)
        model[key] = row

    kept = {row for rows in (*seen.values(), model) for row in rows.values()}
    assert memtable.memory == sum(ROW_MEMORY + len(row.key) + len(row.value or b"") for row in kept)
    for reader, rows in {**seen, LATEST: model}.items():
        assert {row.key: row for row in memtable.batch(b"", None, reader, 9)[0]} == rows
        assert all(memtable.find(key, reader) == rows.get(key) for key in (b"a", b"b"))


@pytest.mark.parametrize(
    "expected, conflict",
    [
        ({}, None),
        ({b"live": 7, b"gone": ABSENT, b"never": ABSENT}, None),
        ({b"live": 6}, (b"live", 6, 7)),
        ({b"live": ABSENT}, (b"live", ABSENT, 7)),
        ({b"live": 7, b"never": 3}, (b"never", 3, ABSENT)),
        ({b"gone": 9}, (b"gone", 9, ABSENT)),
    ],
)
def test_m1_a_commit_is_conditional_on_versions(
    expected: dict[bytes, int], conflict: tuple[bytes, int, int] | None
) -> None:
    rows = {b"live": Row(b"live", 7, b""), b"gone": Row(b"gone", 9, None)}

    assert find_conflict(expected, lambda key: version_of(rows.get(key))) == conflict


def test_f10_of_rows_that_were_held_back_recovery_keeps_the_newest() -> None:
    """A checkpoint has those of older memtables first, and resident ones once more."""
    table = Table(RunList(rows_to=9, records_to=9, held=(7,)))
    for version in (5, 3, 8, 8):
        table.put_held([Row(b"c:chunk", version, b"%d" % version)])
    assert table.find_in_memory(b"c:chunk") == Row(b"c:chunk", 8, b"8")
    assert table.rows == 1
