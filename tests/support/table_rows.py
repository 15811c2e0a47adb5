"""The records of a container's system table, without waiting: those in memory, and those of runs out of their
local copies."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from weakref import WeakKeyDictionary

import attrs
from simulation.file_layer import SimulatedFiles

from support.sorted_runs import rows_of_run
from tierlog.actors.container.container import Container
from tierlog.actors.container.local_disk import RunFolder
from tierlog.actors.container.metadata_store import LoggedMetadataStore
from tierlog.actors.container.operations.import_segment import (
    ImportRequest,
    decide_import,
    look_up_import,
)
from tierlog.actors.container.requests import Request
from tierlog.actors.container.state import ContainerState
from tierlog.journal.manifest.chain import runs_prefix
from tierlog.journal.operations.import_segment import ImportSegment
from tierlog.storage_backends.base.checksum import crc32c
from tierlog.storage_backends.chunks.memory import MemoryChunkStorage
from tierlog.storage_backends.sorted_runs.block_cache import BlockCache
from tierlog.storage_backends.sorted_runs.merge import MergeOrder
from tierlog.storage_backends.sorted_runs.merge_helper import merge_here
from tierlog.storage_backends.sorted_runs.put import encode_run, put_run
from tierlog.storage_backends.sorted_runs.reader import RunReader, RunSource, StoredRuns
from tierlog.storage_backends.sorted_runs.rows import Row
from tierlog.storage_backends.sorted_runs.run_entry import RunEntry
from tierlog.storage_backends.sorted_runs.run_files import path_of
from tierlog.testing.faulty_chunk_storage import Call, Fault, FaultKind

RUNS = runs_prefix(0)
Records = dict[str, tuple[int, bytes]]
_seen: WeakKeyDictionary[Container, tuple[object, Records]] = WeakKeyDictionary()


class SimulatedRuns(RunFolder, frozen=True):
    stored: Callable[[str], bytes] | None = None
    """The content of a run in long-term storage, for tests that lose local copies."""


def simulated_runs(
    files: SimulatedFiles, path: str, stored: Callable[[str], bytes] | None = None
) -> SimulatedRuns:
    """A folder whose runs are merged on the simulated disk."""

    async def merge(order: MergeOrder) -> list[RunEntry]:
        return await merge_here(order, files)

    return SimulatedRuns(files, path, merge, stored=stored)


class _NoRuns(RunSource):
    async def read_range(self, run: RunEntry, offset: int, length: int) -> bytes:
        raise AssertionError(f"{run.name} is read, and no run was published")


NO_RUNS = RunReader(_NoRuns(), BlockCache(0))


def store_of(state: ContainerState) -> LoggedMetadataStore:
    """Reads the records of a state without runs."""

    async def refuse(request: Request, size: int) -> object:
        raise AssertionError(f"{request} is sent to a state that only reads")

    return LoggedMetadataStore(state, refuse, NO_RUNS)


async def decided_import(state: ContainerState, request: ImportRequest) -> tuple[ImportSegment, int]:
    """An import that is looked up and decided at once."""
    await look_up_import(state, store_of(state), request)
    op, sid = decide_import(state, request)
    assert op is not None
    assert sid is not None
    return op, sid


@attrs.define
class RunsInMemory:
    """Publishes all rows of a state as a run, at once and without a chain."""

    state: ContainerState
    chunks: MemoryChunkStorage = attrs.field(factory=MemoryChunkStorage)
    reader: RunReader = attrs.field(init=False)
    cycles: int = 0

    def __attrs_post_init__(self) -> None:
        self.reader = RunReader(StoredRuns(self.chunks), BlockCache(1 << 20))

    async def publish(self) -> None:
        table = self.state.table
        table.freeze_rows()
        table.freeze_records()
        encoded = await encode_run(lambda: f"runs/{self.cycles + 1}", table.unpublished_rows())
        if encoded is not None:
            self.cycles += 1
            run = RunEntry.of(encoded.run, self.cycles, self.cycles)
            await put_run(self.chunks, run, encoded.pieces)
            table.use(table.runs.published([run], 0))


def records_of(container: Container) -> Records:
    """All records, in the order of keys. The result is shared: do not change it."""
    table = container.state.table
    moment = table.version, table.runs
    known = _seen.get(container)
    if known is None or known[0] != moment:
        known = _seen[container] = moment, _records(container.state, published_rows(container))
    return known[1]


def published_rows(container: Container) -> dict[bytes, Row]:
    """The newest row of each key in the runs: what long-term storage alone has."""
    rows: dict[bytes, Row] = {}
    for run in container.state.table.runs:
        _add(rows, _decoded(run, _Content(container.disk.runs, run)))
    return rows


def records_in_memory(state: ContainerState) -> Records:
    """The records of a state that has no runs."""
    assert not state.table.runs.runs
    return _records(state, {})


def write_record(state: ContainerState, key: str, value: bytes | None) -> None:
    """As a commit would, without one."""
    state.sequence = max(state.sequence, state.table.version) + 1
    state.write_records([(key, value)])


def _records(state: ContainerState, rows: dict[bytes, Row]) -> Records:
    with state.table.view() as view:
        for memtable in reversed(view.memtables):
            _add(rows, list(memtable.newest_rows()))
    return {
        # Keys of rows of tables need not be text.
        key.decode(errors="surrogateescape"): (row.version, row.value)
        for key, row in sorted(rows.items())
        if row.value is not None
    }


def _add(rows: dict[bytes, Row], more: list[Row]) -> None:
    for row in more:
        if row.key not in rows or rows[row.key].version < row.version:
            rows[row.key] = row


class _Content:
    """The bytes of a run's local copy, read if they are needed. All are equal: a run never changes."""

    def __init__(self, folder: RunFolder, run: RunEntry) -> None:
        self._folder: RunFolder | None = folder
        self._run = run

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Content)

    def __hash__(self) -> int:
        return 0

    def read(self) -> bytes:
        """Once: the cache keeps this object, which must not keep the whole world of a seed."""
        folder, self._folder = self._folder, None
        assert folder is not None
        path, files = path_of(folder.path, self._run), folder.files
        if not isinstance(files, SimulatedFiles):
            return Path(path).read_bytes()

        data = files.disk.content(path) if files.disk.exists(path) else b""
        if crc32c(data) != self._run.crc and isinstance(folder, SimulatedRuns) and folder.stored:
            return folder.stored(self._run.name)
        return data


@lru_cache(maxsize=4096)
def _decoded(run: RunEntry, content: _Content) -> list[Row]:
    return rows_of_run(run, content.read())


# --- faults of long-term storage: scripts of FaultyChunkStorage


def at_runs(kind: FaultKind, call: Call) -> Fault | None:
    is_put = call.verb == "create_with_content" and call.name.startswith(RUNS)
    return Fault(kind) if is_put else None


fail_runs = partial(at_runs, FaultKind.BEFORE)
lose_the_answers_of_runs = partial(at_runs, FaultKind.AFTER)
fill_up = partial(at_runs, FaultKind.FULL)


def fail_merged_runs(call: Call) -> Fault | None:
    return fail_runs(call) if call.name.endswith("-0000") else None
