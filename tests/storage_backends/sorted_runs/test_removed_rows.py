"""The space of removed rows: when all runs are merged for it, and what that costs (M7)."""

from __future__ import annotations

import pytest

from tierlog.storage_backends.sorted_runs.compaction_policy import Merge, next_merge
from tierlog.storage_backends.sorted_runs.run_entry import RunEntry
from tierlog.storage_backends.sorted_runs.run_list import RunList
from tierlog.storage_backends.sorted_runs.summary import RunSummary

MIB = 1 << 20


def of_rows(first: int, last: int, rows: dict[int, int | None]) -> RunEntry:
    """A run of ``rows``, whose values have so many bytes; None are tombstones."""
    length = sum(size or 16 for size in rows.values())
    tombstones = sum(size is None for size in rows.values())
    summary = RunSummary(len(rows), tombstones, first, last, b"a", b"z")
    return RunEntry(f"runs/{first}-{last}-{length}", length, 0, 1, first, last, summary)


class RowsByRun:
    """What runs hold, merged as the policy says."""

    def __init__(self) -> None:
        self.runs = RunList()
        self.held: dict[RunEntry, dict[int, int | None]] = {}
        self.published = self.merged = 0

    def publish(self, cycle: int, rows: dict[int, int | None]) -> None:
        run = of_rows(cycle, cycle, rows)
        self.held[run] = rows
        self.runs = self.runs.published([run], 0)
        self.published += run.length
        while (merge := next_merge(self.runs)) is not None:
            kept: dict[int, int | None] = {}
            for run in reversed(merge.runs):  # the newest last
                kept |= self.held.pop(run)
            if merge.drop_tombstones_to:
                kept = {key: size for key, size in kept.items() if size is not None}
            first, last = merge.runs[-1].first_cycle, merge.runs[0].last_cycle
            added = [of_rows(first, last, kept)] if kept else []
            self.held.update(dict.fromkeys(added, kept))
            self.merged += sum(run.length for run in added)
            self.runs = merge.applied_to(self.runs, added)

    @property
    def size(self) -> int:
        return sum(run.length for run in self.runs)


@pytest.mark.parametrize("others", [0, 300])
def test_m7_the_space_of_removed_rows_returns_after_some_cycles(others: int) -> None:
    """As of a table that was deleted: its tombstones were a generation too small for a merge with others."""
    table = RowsByRun()
    table.publish(1, dict.fromkeys(range(200 + others), 64 << 10))
    table.publish(2, dict.fromkeys(range(200), None))
    version = table.runs.changes_from
    for cycle in range(3, 20):
        table.publish(cycle, {1000: 100})

    assert table.size < others * (64 << 10) + 10_000
    assert table.runs.changes_from == version, "the changes are complete as before"


def test_m7_rows_that_come_and_go_are_not_written_more_often() -> None:
    """A queue of 1,000 rows beside a table of as many: what is written, and what is left."""
    table = RowsByRun()
    live: dict[int, int | None] = {-key: 10_000 for key in range(1, 1001)}
    table.publish(1, dict(live))
    most = 0
    for cycle in range(2, 300):
        added: dict[int, int | None] = {1000 * cycle + key: 1000 for key in range(1000)}
        table.publish(cycle, added | {1000 * (cycle - 1) + key: None for key in range(1000) if cycle > 2})
        most = max(most, table.size)

    assert (table.published + table.merged) / table.published < 5
    assert most < 5 * 10 * MIB


def test_m7_small_rows_that_come_and_go_hardly_write_large_ones_again() -> None:
    """No more than 4 MiB for each cycle."""
    table = RowsByRun()
    table.publish(1, {-key: MIB for key in range(1, 201)})
    for cycle in range(2, 400):
        added: dict[int, int | None] = {200 * cycle + key: 100 for key in range(200)}
        table.publish(cycle, added | {200 * (cycle - 1) + key: None for key in range(200) if cycle > 2})

    assert table.merged < 5 * MIB * 400


def test_m7_removed_rows_are_not_merged_with_what_cannot_be_read() -> None:
    runs = [of_rows(1, 1, dict.fromkeys(range(200), MIB)), of_rows(12, 12, dict.fromkeys(range(200), None))]
    grown = RunList([*runs, of_rows(60, 60, {1: 5})])

    assert next_merge(RunList(runs)) is None, "too soon for so many bytes"
    assert next_merge(grown) == Merge(tuple((run,) for run in grown), 0)
    assert next_merge(grown, left_out={runs[0].name}) is None
