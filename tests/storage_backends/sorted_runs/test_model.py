"""A model test: a table is a dict of rows, through any sequence of commits, cycles, merges, restarts, lost
caches and disks, damaged copies, and readers that stay open (M1 to M7)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import AbstractContextManager
from random import Random
from typing import TypeVar

import attrs
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from simulation.disk import SimulatedDisk
from simulation.file_layer import SimulatedFiles

from support.sorted_runs import reader_of
from tierlog.storage_backends.chunks.memory import MemoryChunkStorage
from tierlog.storage_backends.sorted_runs.compaction import compact
from tierlog.storage_backends.sorted_runs.compaction_policy import next_merge
from tierlog.storage_backends.sorted_runs.local_copies import LocalCopies
from tierlog.storage_backends.sorted_runs.lookup import find_cached, find_rows
from tierlog.storage_backends.sorted_runs.memtable import find_conflict, version_of
from tierlog.storage_backends.sorted_runs.merge import MergeOrder, merge_runs
from tierlog.storage_backends.sorted_runs.put import encode_run, put_run
from tierlog.storage_backends.sorted_runs.reader import StoredRuns
from tierlog.storage_backends.sorted_runs.rows import Row
from tierlog.storage_backends.sorted_runs.run_entry import RunEntry
from tierlog.storage_backends.sorted_runs.run_list import RunList
from tierlog.storage_backends.sorted_runs.scan import KeyRange, PageLimits, scan_rows
from tierlog.storage_backends.sorted_runs.table import Table, TableView

T = TypeVar("T")
KEYS = st.sampled_from([b"a", b"a\0", b"ab", b"abc", b"b", b"b\xff", b"\xff\xff"])
VALUES = st.none() | st.binary(max_size=6)
FOLDER = "/data/runs"


class Tables(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.chunks = MemoryChunkStorage()
        self.run(self.chunks.open())
        self.table = Table()
        self.frozen: dict[bytes, Row] | None = None
        self.model: dict[bytes, Row] = {}
        self.durable: dict[bytes, Row] = {}
        """What the runs hold."""
        self.cycle = self.names = 0
        self.open_views: list[tuple[AbstractContextManager[TableView], TableView, dict[bytes, Row]]] = []
        self.start(SimulatedDisk(Random(1)))

    def run(self, call: Awaitable[T]) -> T:
        async def wait() -> T:
            return await call

        return self.runner.run(wait())

    def start(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self.files = SimulatedFiles(disk, interleave=False)
        self.copies = LocalCopies(self.files, FOLDER, StoredRuns(self.chunks))
        self.run(self.copies.open(list(self.table.runs)))
        self.reader = reader_of(self.copies)

    def new_name(self) -> str:
        self.names += 1
        return f"runs/{self.names}"

    def teardown(self) -> None:
        self.runner.close()

    @rule(writes=st.dictionaries(KEYS, VALUES, min_size=1, max_size=4), guess=st.none() | st.integers(0, 30))
    def commit(self, writes: dict[bytes, bytes | None], guess: int | None) -> None:
        """Conditional on one key's version, if there is a guess."""
        expected = {} if guess is None else {min(writes): guess}
        with self.table.view() as view:
            found = self.run(find_rows(view, self.reader, expected))
        conflict = find_conflict(expected, lambda key: version_of(found.get(key)))
        present = {key: version_of(self.model.get(key)) for key in expected}
        assert (conflict is None) == (present == expected)
        if conflict is not None:
            return

        version = self.table.version + 1
        rows = [Row(key, version, value) for key, value in writes.items()]
        self.table.put(rows)
        self.model.update({row.key: row for row in rows})

    @rule()
    def freeze(self) -> None:
        self.table.freeze_rows()
        self.frozen = dict(self.model)

    @precondition(lambda self: self.frozen is not None)
    @rule(run_bytes_max=st.sampled_from([40, 10_000]))
    def publish(self, run_bytes_max: int) -> None:
        """One cycle: the frozen memtables become runs, locally first."""
        assert self.frozen is not None
        self.durable, self.frozen = self.frozen, None
        rows = self.table.unpublished_rows()
        self.cycle += 1
        runs = []
        while (encoded := self.run(encode_run(self.new_name, rows, run_bytes_max))) is not None:
            run = RunEntry.of(encoded.run, self.cycle, self.cycle)
            self.run(self.copies.add(run, encoded.pieces))
            self.run(put_run(self.chunks, run, encoded.pieces))
            runs.append(run)
        self.table.use(self.table.runs.published(runs, 0))

    @rule(fan_out=st.integers(2, 3), run_bytes_max=st.sampled_from([1, 10_000]))
    def compact(self, fan_out: int, run_bytes_max: int) -> None:
        async def merge_here(order: MergeOrder) -> list[RunEntry]:
            return await self.files.run(merge_runs(attrs.evolve(order, run_bytes_max=run_bytes_max)))

        merge = next_merge(self.table.runs, fan_out)
        if merge is None:
            return

        winners = self.run(compact(merge, self.new_name(), self.copies, merge_here))
        for run in winners:
            self.run(put_run(self.chunks, run, [self.run(self.copies.read_range(run, 0, run.length))]))
        runs = self.table.runs.replaced(merge.runs, winners, merge.drop_tombstones_to)
        assert runs == RunList(runs.runs, runs.changes_from), "the greatest version stays known"
        self.table.use(runs)
        self.run(self.copies.remove(merge.runs))

    @rule()
    def restart(self) -> None:
        """Rows that no run has are lost with the process: the log would have them."""
        self.close_views()
        runs = [RunEntry.decode(run.encode()) for run in self.table.runs]
        self.table = Table(RunList(runs, self.table.runs.changes_from))
        self.frozen = None
        self.model = dict(self.durable)
        self.start(self.disk.crash())

    @rule()
    def lose_the_local_disk(self) -> None:
        self.start(SimulatedDisk(Random(2)))

    @rule()
    def lose_the_cache(self) -> None:
        self.reader = reader_of(self.copies, capacity=400)

    @rule(data=st.data())
    def damage_a_copy(self, data: st.DataObject) -> None:
        if files := self.disk.files_below(FOLDER):
            inode = self.disk.find(data.draw(st.sampled_from(sorted(files))))
            inode.write(data.draw(st.integers(0, len(inode.cache) - 1)), b"\xa5\x5a")
        self.lose_the_cache()

    @rule()
    def begin_reading(self) -> None:
        context = self.table.view()
        self.open_views.append((context, context.__enter__(), dict(self.model)))

    @rule()
    def close_views(self) -> None:
        for context, _, _ in self.open_views:
            context.__exit__(None, None, None)
        self.open_views.clear()

    @invariant()
    def lookups_agree(self) -> None:
        with self.table.view() as view:
            found = self.run(find_rows(view, self.reader, [b"a", b"a\0", b"ab", b"b\xff", b"c"]))
        for key in (b"a", b"a\0", b"ab", b"b\xff", b"c"):
            assert self.live(found.get(key)) == self.live(self.model.get(key))

    @invariant()
    def cached_lookups_agree(self) -> None:
        for key in (b"a", b"a\0", b"ab", b"b\xff", b"c"):
            is_known, row = find_cached(self.table.runs, self.reader, key)
            assert not is_known or self.live(row) == self.live(self.durable.get(key))

    @staticmethod
    def live(row: Row | None) -> Row | None:
        """A tombstone may be dropped; then the key has no row."""
        return None if row is None or row.value is None else row

    @invariant()
    def scans_agree(self) -> None:
        with self.table.view() as now:
            views = [(now, self.model), *((view, model) for _, view, model in self.open_views)]
            for view, model in views:
                page = self.run(scan_rows(view, self.reader, KeyRange(), PageLimits()))
                assert page.rows == [model[key] for key in sorted(model) if model[key].value is not None]


TestTables = Tables.TestCase
TestTables.settings = settings(
    settings.get_profile("short"),
    max_examples=40,
    stateful_step_count=30,
    suppress_health_check=[HealthCheck.too_slow],
)
