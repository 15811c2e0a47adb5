"""The sorted runs of a store's system tables, as its logs name them, or else its journals: what there is, and
whether every byte of their objects and local copies is sound. It is read-only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

import attrs

from ...journal.manifest.chain import ChainProblem, read_owners, runs_prefix
from ...journal.manifest.element import RUN_LIST_BYTES_MAX
from ...storage_backends.base.checksum import crc32c, crc32c_of
from ...storage_backends.base.chunk_storage import ChunkStorage
from ...storage_backends.base.errors import ChunkNotFound, DataCorruption, Unavailable
from ...storage_backends.base.files import Files
from ...storage_backends.sorted_runs.block_cache import BlockCache
from ...storage_backends.sorted_runs.compaction_policy import next_merge
from ...storage_backends.sorted_runs.reader import RunReader, RunSource, StoredRuns
from ...storage_backends.sorted_runs.run_entry import RunEntry
from ...storage_backends.sorted_runs.run_files import file_name, path_of, read_range
from ...storage_backends.sorted_runs.run_list import RunList
from ...storage_backends.sorted_runs.tail import Tail
from ..container.local_disk import run_folder
from ..folder.paths import list_files, run_program
from ..store.read_only import ContainerView, StoreView
from .journal import container_numbers

_READ_BYTES = 4 << 20
"""Bytes of one read: a request for each block would be slow, and one for a whole run would take its size in
memory."""
_WITHOUT_COPY = (
    "put this object back from a copy of long-term storage; what its records describe cannot be read "
    "meanwhile"
)
_DAMAGED_COPY = "an owner replaces the local copy when it reads the damaged part"


@attrs.frozen
class ListedRun:
    container: int
    run: RunEntry
    is_local: bool
    """Whether it has a local copy, of the right length."""


async def list_runs(view: StoreView, container: int | None = None) -> list[ListedRun]:
    """The runs of ``container``, or of all, from new to old. Raises ``InvalidArgument`` for a number too
    high, and what ``ContainerView.snapshot`` raises."""
    found: list[ListedRun] = []
    for index in container_numbers(view, container):
        each = view.containers[index]
        runs = await _named_runs(view, each)
        sizes = await _sizes_of_copies(each)
        found += [_listed(each, run, sizes) for run in runs]
    return found


async def _named_runs(view: StoreView, container: ContainerView) -> RunList:
    if view.has_logs:
        return (await container.snapshot()).state.table.runs

    newest = (await read_owners(view.chunks, container.index)).newest
    return RunList() if newest is None else newest.runs


@attrs.frozen
class Generation:
    """The runs of one cycle, or of one merge."""

    runs: tuple[ListedRun, ...]

    @property
    def cycles(self) -> tuple[int, int]:
        """The first and the last flush cycle whose rows it has."""
        return self.runs[0].run.first_cycle, self.runs[0].run.last_cycle

    @property
    def rows(self) -> int:
        """Tombstones count."""
        return sum(each.run.summary.rows for each in self.runs)

    @property
    def size(self) -> int:
        return sum(each.run.length for each in self.runs)


@attrs.frozen
class TableInfo:
    """A container's system table as of one moment of its log."""

    container: int
    segments: int
    """Live segments, also those that only the runs have."""
    rows: int
    """Rows in memory: those that no run has yet."""
    row_bytes: int
    """Bytes of memory that these rows take, about."""
    generations: tuple[Generation, ...]
    """From new to old."""
    due_runs: int
    """Runs that the next merge takes."""
    due_bytes: int


async def describe_tables(view: StoreView, container: int | None = None) -> list[TableInfo]:
    """The table of ``container``, or all. Raises what ``list_runs`` raises."""
    return [await _describe(view.containers[index]) for index in container_numbers(view, container)]


async def _describe(container: ContainerView) -> TableInfo:
    state = (await container.snapshot()).state
    sizes = await _sizes_of_copies(container)
    due = next_merge(state.table.runs, list_bytes=RUN_LIST_BYTES_MAX // 2)
    merged = due.runs if due is not None else []
    return TableInfo(
        container.index,
        state.live_segments,
        state.table.rows,
        state.table.memory,
        tuple(
            Generation(tuple(_listed(container, run, sizes) for run in generation))
            for generation in state.table.runs.generations()
        ),
        len(merged),
        sum(run.length for run in merged),
    )


def _listed(container: ContainerView, run: RunEntry, sizes: Mapping[str, int]) -> ListedRun:
    return ListedRun(container.index, run, sizes.get(file_name(run)) == run.length)


@attrs.frozen
class RunProblem:
    run: RunEntry
    name: str
    """The name of the object, or the path of the local copy."""
    message: str
    advice: str
    offset: int = 0


@attrs.frozen
class TableReport:
    runs: int
    problems: tuple[ChainProblem, ...]
    """Each names an object, or the path of a local copy, and what to do."""


async def verify_runs(view: StoreView, container: int | None = None, *, deep: bool = True) -> TableReport:
    """Read all runs and their local copies; without ``deep``, only a listing. What an owner merges meanwhile
    is left out. Raises what ``list_runs`` raises, and ``Unavailable`` if long-term storage does not
    answer."""
    count, problems = 0, list[RunProblem]()
    for index in container_numbers(view, container):
        each = view.containers[index]
        runs = await _named_runs(view, each)
        count += len(runs)
        found = await check_objects(view, each, runs, deep=deep)
        if deep:
            found += await _check_copies(each, runs)
        # An owner may have merged a run while it was read.
        if found and view.has_logs and await each.refresh():
            kept = (await each.snapshot()).state.table.runs.runs
            found = [problem for problem in found if problem.run in kept]
        problems += found
    return TableReport(
        count,
        tuple(ChainProblem(each.name, f"{each.message}; {each.advice}", each.offset) for each in problems),
    )


async def check_objects(
    view: StoreView, container: ContainerView, runs: Iterable[RunEntry], *, deep: bool
) -> list[RunProblem]:
    """What is wrong with the objects of ``runs``: those that are missing or have another length, and, if
    ``deep``, those with a damaged byte. Raises ``Unavailable`` if long-term storage does not answer."""
    # One listing, not a request for each run.
    lengths = {info.name: info.length async for info in view.chunks.list(runs_prefix(container.index))}
    problems = []
    for run in runs:
        length = lengths.get(run.name)
        if length is None:
            message, offset = "the run is missing", 0
        elif length != run.length:
            message, offset = f"the run has {length} bytes, not {run.length}", min(length, run.length)
        elif deep and (error := await object_damage(run, view.chunks)):
            message, offset = error.reason, error.offset
        else:
            continue

        problems.append(RunProblem(run, run.name, message, await _advice(container, run), offset))
    return problems


async def object_damage(run: RunEntry, chunks: ChunkStorage) -> DataCorruption | None:
    """What is wrong with the object of a run, every byte of which is read. Raises ``Unavailable``."""
    try:
        return await _damage(run, StoredRuns(chunks))
    except Unavailable as error:
        if isinstance(error.__cause__, ChunkNotFound):
            return DataCorruption("the run is missing", file=run.name)  # deleted since it was listed
        raise


async def _advice(container: ContainerView, run: RunEntry) -> str:
    folder = run_folder(container.folder)
    with suppress(FileNotFoundError):
        if await _damage(run, _Copies(container.files, folder)) is None:
            return f"put the bytes of its local copy {path_of(folder, run)} back under this name"

    return _WITHOUT_COPY


async def _check_copies(container: ContainerView, runs: Iterable[RunEntry]) -> list[RunProblem]:
    folder = run_folder(container.folder)
    sizes = await _sizes_of_copies(container)
    problems = []
    for run in runs:
        # A copy of another length is never read: an owner fetches the run again.
        if sizes.get(file_name(run)) == run.length:
            error = None
            with suppress(FileNotFoundError):  # A merge has replaced it.
                error = await _damage(run, _Copies(container.files, folder))
            if error is not None:
                problems.append(
                    RunProblem(run, path_of(folder, run), error.reason, _DAMAGED_COPY, error.offset)
                )
    return problems


async def _sizes_of_copies(container: ContainerView) -> dict[str, int]:
    """The sizes of the files in the folder of local copies, by name."""
    folder = run_folder(container.folder)
    entries = await run_program(container.files, list_files(folder), folder)
    return {entry.name: entry.size for entry in entries}


async def _damage(run: RunEntry, source: RunSource) -> DataCorruption | None:
    """What is wrong with the run, every byte of which is read. Raises what ``source`` raises."""
    # Without a cache: every byte must come from the source.
    reader = RunReader(source, BlockCache[Tail | bytes](0))
    try:
        tail = await reader.tail(run)
        first = crc = 0
        while first < tail.blocks:
            end = first + 1
            while end < tail.blocks and tail.offsets[end + 1] - tail.offsets[first] <= _READ_BYTES:
                end += 1
            crc = crc32c_of(await reader.blocks(run, tail, first, end), crc)
            first = end
        crc = crc32c(await source.read_range(run, run.length - run.tail_length, run.tail_length), crc)
        if crc != run.crc:
            return DataCorruption(
                f"the run has the checksum {crc:08x}, and the manifest names {run.crc:08x}", file=run.name
            )
    except DataCorruption as error:
        return error

    return None


class _Copies(RunSource):
    """Reads local copies only."""

    def __init__(self, files: Files, folder: str) -> None:
        self._files = files
        self._folder = folder

    async def read_range(self, run: RunEntry, offset: int, length: int) -> bytes:
        path = path_of(self._folder, run)
        try:
            return await self._files.run(read_range(path, offset, length))
        except FileNotFoundError:
            raise  # Not damage: a merge has replaced the run, or nothing was fetched yet.
        except OSError as error:
            # As damage, which is reported for this run; the others are still checked.
            raise DataCorruption(f"it cannot be read: {error}", file=path) from error
