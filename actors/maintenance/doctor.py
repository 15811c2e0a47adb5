"""The doctor: what is in a data folder, whether it is sound, and which processes have it open. It is
read-only.

Each container's snapshot is taken first, then its chunks and its chain are listed. If an owner changed the
log meanwhile, the container is examined again, and only what is found each time is reported. A broken
container does not hide the others."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import TypeVar

import attrs

from ...journal.log.local_layout import LogLayout
from ...journal.manifest.chain import element_name, list_elements, read_chain, runs_prefix
from ...journal.manifest.rules import Known
from ...journal.manifest.store_record import STORE_RECORD
from ...storage_backends.base.backups import Backup, is_backup_name
from ...storage_backends.base.errors import (
    DataCorruption,
    InvalidArgument,
    StoreMismatch,
    TierlogError,
    Unavailable,
)
from ...storage_backends.base.files import Close, Files, ListFolder, Open, Program
from ...storage_backends.chunks.cached_blocks import CachedFile, list_files
from ...storage_backends.segments.records import RELEASED_PREFIX, ChunkRecord, released_names
from ...storage_backends.segments.verify import find_flaws, flaw_of_length
from ..container.confirmation import unconfirmed_record
from ..container.listed_chain import list_chain, moved_from, refuse_moved
from ..container.local_disk import run_folder
from ..folder.layout_version import is_upgraded
from ..folder.lock_files import Owner
from ..folder.paths import chunk_cache_folder, live_owners, run_program
from ..legacy_rolling.importing import Progress, no_progress
from ..store.read_only import ContainerView, LogSnapshot, StoreView
from .backups import kept_names, list_backups
from .journal import check_record
from .report import chunk_records, list_lengths, named_runs
from .tables import check_objects

_ATTEMPTS_MAX = 3
"""Examinations of one container. An owner that flushes all the time changes the log during each of them."""
T = TypeVar("T")

_RESTORE = (
    "close the store everywhere, move its wal/ away and keep it, then run `tierlog recover --from-lts`, or, "
    "if that refuses, `tierlog restore NAME` with a backup (`tierlog backup ls`); anything later is lost"
)
RESTORE_FILE = f"put back a copy of this file, which does not change; without one, {_RESTORE}"
"""For the files that describe a folder."""
_ADVICE_REMADE = "remove it (of a link, not what it names): the next opening makes it again, nothing is lost"
_ADVICE_CHUNK = "put the chunk back from a copy of long-term storage; all other bytes can be read meanwhile"
_ADVICE_RECORD = f"segments without problems can be read meanwhile; {_RESTORE}"
_ADVICE_STORAGE = (
    "make sure that the folder and long-term storage are mounted, reachable and readable, then run `tierlog "
    "doctor` again"
)
_ADVICE_BACKUP = (
    "put its record back from a copy of long-term storage, or remove the backup with `tierlog backup rm`; "
    "while it is damaged, nothing is deleted"
)
_ADVICE_NO_BACKUP = "no backup has such a name: remove the object, which nothing needs"
_ADVICE_OBJECT = "put this object back from a copy of long-term storage; nothing else repairs it"
_ADVICE_STORE = "remove this object: the journals are this store's, and the next opening creates it again"
_WITHOUT_COPY = (
    "put this object back from a copy of long-term storage. Without one, and if no other folder of this "
    "store is in use, remove it; "
)
_ADVICE_HEAD = (
    f"{_WITHOUT_COPY}then open this folder once with `tierlog serve --adopt`, and confirm the container with "
    f"`tierlog gc sweep --confirm`. Reads and appends go on meanwhile"
)
_ADVICE_INTENT = (
    f"{_WITHOUT_COPY}the next opening creates it again from this folder's log. Reads and appends go on "
    f"meanwhile"
)
_ADVICE_OLDER = (
    "nothing is lost: only the newest element is needed, and the container deletes this one after its next "
    "opening or flush"
)
_ADVICE_FOREIGN = (
    "put this object back from a copy of long-term storage. The log of this folder does not know it: go on "
    "with the folder of this store that was used last"
)


@attrs.frozen
class Problem:
    """Something that is wrong."""

    message: str
    advice: str
    file: str = ""
    """Empty if it is not about one file."""
    offset: int = 0


@attrs.frozen
class ContainerReport:
    """The contents of one container. Numbers are 0 if its log cannot be read."""

    index: int
    epoch: int = 0
    log_files: int = 0
    log_bytes: int = 0
    log_allocated_bytes: int = 0
    """Bytes of the disk blocks that the log's folder holds, also those allocated ahead."""
    groups: int = 0
    """Groups in the log that are not truncated."""
    segments: int = 0
    bytes: int = 0
    """Readable bytes of all segments."""
    unflushed_bytes: int = 0
    """Readable bytes that are only in the log."""
    chunks_referenced: int = 0
    chunks_on_storage: int = 0
    chunks_unreferenced: int = 0
    """Objects that nothing refers to (``ChunkUse.UNREFERENCED``)."""
    chunks_missing: int = 0
    element: int = 0
    """The number of the newest element of its chain; 0 if there is none."""
    unconfirmed: str = ""
    """Why the container deletes no chunk until an operator confirms it; empty if it does (rule G4)."""
    problems: tuple[Problem, ...] = ()


@attrs.frozen
class StoreReport:
    folder: str
    store_id: str
    created_ms: int
    """Wall time, for display."""
    owners: tuple[Owner, ...]
    """The processes that have the folder open now."""
    containers: tuple[ContainerReport, ...]
    deep: bool
    """Whether the checksums of all chunks were verified."""
    backups: tuple[Backup, ...] = ()
    """Those in long-term storage."""
    folder_problems: tuple[Problem, ...] = ()
    """Problems of files that belong to no container."""
    cached_chunks: int = 0
    """Chunks in the local chunk cache, if that is in the data folder."""
    cached_bytes: int = 0
    """Bytes of disk that they take."""

    @property
    def problems(self) -> list[Problem]:
        """All of them."""
        found = [problem for container in self.containers for problem in container.problems]
        # Each once: long-term storage that does not answer is a problem of all containers.
        return list(dict.fromkeys([*self.folder_problems, *found]))

    @property
    def sound(self) -> bool:
        return not self.problems


async def examine(
    view: StoreView, files: Files, *, deep: bool = False, progress: Progress = no_progress
) -> StoreReport:
    """Examine a store. Broken containers are in the report; errors that make the whole folder unreadable are
    raised. ``deep`` verifies the checksums of all chunks."""
    # One after the other: each holds the records of a whole container in memory.
    containers = [
        await _examine(view, container, progress if deep else None) for container in view.containers
    ]
    owners = await live_owners(files, view.folder)
    store = view.identity
    problems = await _record_problems(view, any(each.element for each in containers))
    try:
        await is_upgraded(files, view.folder)  # an opening reads the file, a view does not
    except TierlogError as error:
        problems.append(_problem(error, RESTORE_FILE))
    cached = await _cached_files(files, chunk_cache_folder(view.folder, "", store))
    backups, found = await _backups(view)
    return StoreReport(
        view.folder.path,
        store.store_id.hex(),
        store.created_ms,
        tuple(owners),
        tuple(containers),
        deep,
        backups,
        (*problems, *found),
        len(cached),
        sum(file.size for file in cached),
    )


async def _cached_files(files: Files, folder: str) -> Sequence[CachedFile]:
    """The local chunk cache is no part of the store: what cannot be listed is no problem."""
    try:
        return (await files.run(list_files(folder)))[0]
    except OSError:
        return ()


async def _backups(view: StoreView) -> tuple[tuple[Backup, ...], list[Problem]]:
    """The backups, and what is wrong with them."""
    try:
        backups = await list_backups(view.chunks, is_copy=False)
    except TierlogError:
        return (), []  # it does not answer: the containers' chunks are listed there too

    damaged = [each for each in backups if each.problem]
    return tuple(backups), [
        Problem(
            f"backup {each.name} cannot be restored: {each.problem}",
            _ADVICE_BACKUP if is_backup_name(each.name) else _ADVICE_NO_BACKUP,
        )
        for each in damaged
    ]


async def _record_problems(view: StoreView, is_claimed: bool) -> list[Problem]:
    """The problems of ``_system/store``. ``is_claimed``: a log and its journal in long-term storage agree, so
    that the storage is this store's, whatever the record has."""
    try:
        await check_record(view, is_needed=is_claimed)
    except (DataCorruption, StoreMismatch) as error:
        advice = _ADVICE_STORE if is_claimed else _ADVICE_OBJECT
        message = error.reason if isinstance(error, DataCorruption) else str(error)
        return [Problem(message, advice, f"{view.chunk_location}/{STORE_RECORD}")]
    except TierlogError:
        return []  # it does not answer: the containers' chunks are listed there too

    return []


def _advice_log(container: int) -> str:
    """The logs of the other containers have what they did not flush (rule R11). An older copy of this one
    would be refused: long-term storage knows of a newer one."""
    return (
        f"the other containers can be read meanwhile; close the store everywhere, then run `tierlog recover "
        f"--from-lts --container {container}`, which moves this log away and leaves those of the others; "
        f"anything later in this container is lost. If that refuses, move wal/ away and keep it, then run "
        f"`tierlog restore NAME` with a backup (`tierlog backup ls`); anything later in all of them is lost"
    )


async def _examine(view: StoreView, container: ContainerView, verify: Progress | None) -> ContainerReport:
    report = ContainerReport(container.index)
    found: set[Problem] | None = None
    for _ in range(_ATTEMPTS_MAX):
        try:
            snapshot = await container.snapshot()
        except TierlogError as error:
            return _with_log(
                attrs.evolve(report, problems=(_problem(error, _advice_log(container.index)),)), container
            )

        report = await _Examination(view, container, snapshot, verify).run()
        # Only those of every attempt: an owner at work makes others come and go.
        found = set(report.problems).intersection(report.problems if found is None else found)
        report = attrs.evolve(report, problems=tuple(each for each in report.problems if each in found))
        if not found or not await container.refresh():
            break  # else an owner has changed the log meanwhile: the problems may be none
    return _with_log(report, container)


def _with_log(report: ContainerReport, container: ContainerView) -> ContainerReport:
    sizes = [entry.size for entry in container.log_files if entry.name.endswith(".wal")]
    allocated = sum(entry.allocated for entry in container.log_files)
    return attrs.evolve(report, log_files=len(sizes), log_bytes=sum(sizes), log_allocated_bytes=allocated)


def _problem(error: TierlogError, advice: str) -> Problem:
    if isinstance(error, DataCorruption):
        return Problem(error.reason, advice, error.file, error.offset)

    # Not damaged: a missing permission and a mismatch contain their own advice, others may pass.
    if isinstance(error, (InvalidArgument, StoreMismatch)):
        return Problem(str(error), "")
    return Problem(str(error), _ADVICE_STORAGE if isinstance(error, Unavailable) else advice)


def _check_reserve(folder: str) -> Program[None]:
    """An opening replaces it, and a view does not need it."""
    with suppress(FileNotFoundError):
        yield Close((yield Open(LogLayout(folder).reserve)))


def _check_run_folder(folder: str) -> Program[None]:
    runs = run_folder(folder)
    try:
        yield ListFolder(runs)
    except FileNotFoundError:
        pass
    except NotADirectoryError as error:
        raise DataCorruption("this is not a folder", file=runs, offset=0) from error


class _Examination:
    """One examination of a container's snapshot and of its chunks and chain in long-term storage."""

    def __init__(
        self, view: StoreView, container: ContainerView, snapshot: LogSnapshot, verify: Progress | None
    ) -> None:
        self._view = view
        self._container = container
        self._index = container.index
        self._snapshot = snapshot
        self._verify = verify
        self._problems: list[Problem] = []
        self._unconfirmed = unconfirmed_record(snapshot.state.resident)

    async def run(self) -> ContainerReport:
        found = await self._records()
        if found is None:
            # The names and images of cold segments are in the same runs: what is wrong with these is said.
            problems = tuple(self._problems)
            return attrs.evolve(await self._counts(), problems=problems)

        records, errors = found
        self._problems += [_problem(error, _ADVICE_RECORD) for error in errors.values()]
        await self._check_chains()
        folder = self._container.folder
        files = self._container.files
        await self._attempt(run_program(files, _check_reserve(folder), folder), _ADVICE_REMADE)
        files = files.lane("log", nofollow_root=folder)  # as an opening
        await self._attempt(run_program(files, _check_run_folder(folder), folder), _ADVICE_REMADE)
        report = attrs.evolve(await self._counts(), chunks_referenced=len(records))
        lengths = await self._attempt(self._list_chunks(records), _ADVICE_STORAGE)
        # Else long-term storage does not answer, which is one problem and not one for each chunk.
        if lengths is not None:
            kept = await self._attempt(kept_names(self._view.chunks, self._snapshot), _ADVICE_STORAGE) or ()
            runs = await self._attempt(self._list_unnamed_runs(), _ADVICE_STORAGE) or set[str]()
            await self._attempt(self._check_runs(deep=self._verify is not None), _ADVICE_STORAGE)
            self._check_lengths(records, lengths)
            if self._verify is not None:
                # Missing and short ones are reported by their lengths already.
                await self._verify_chunks(
                    [r for r in records.values() if lengths.get(r.name, 0) >= r.length], self._verify
                )
            newest = await self._attempt(self._check_chain(), _ADVICE_STORAGE) or 0
            if self._verify is not None:
                await self._attempt(self._check_older_elements(newest), _ADVICE_STORAGE)
            report = attrs.evolve(
                report,
                chunks_on_storage=len(lengths),
                chunks_unreferenced=len((lengths.keys() | runs) - records.keys() - set(kept)),
                chunks_missing=len(records.keys() - lengths.keys()),
                element=newest,
            )
        unconfirmed = "" if self._unconfirmed is None else self._unconfirmed.explanation
        return attrs.evolve(report, unconfirmed=unconfirmed, problems=tuple(self._problems))

    async def _counts(self) -> ContainerReport:
        opened = self._snapshot.opened
        report = ContainerReport(self._index, epoch=opened.epoch, groups=len(opened.groups))
        return await self._attempt(self._count_segments(report), _ADVICE_STORAGE) or report

    async def _count_segments(self, report: ContainerReport) -> ContainerReport:
        async with aclosing(self._snapshot.cold.live()) as pages:
            async for page in pages:
                size = sum(segment.length - segment.start_offset for segment in page)
                unflushed = sum(s.length - max(s.flushed, s.start_offset) for s in page)
                report = attrs.evolve(
                    report,
                    segments=report.segments + len(page),
                    bytes=report.bytes + size,
                    unflushed_bytes=report.unflushed_bytes + unflushed,
                )
        return report

    async def _attempt(self, step: Awaitable[T], advice: str) -> T | None:
        """The step's result, or None after its error was added to the problems."""
        try:
            return await step
        except TierlogError as error:
            self._problems.append(_problem(error, advice))
            return None

    async def _check_runs(self, *, deep: bool) -> None:
        runs = self._snapshot.state.table.runs
        self._problems += [
            Problem(each.message, each.advice, f"{self._view.chunk_location}/{each.name}", each.offset)
            for each in await check_objects(self._view, self._container, runs, deep=deep)
        ]

    async def _records(self) -> tuple[dict[str, ChunkRecord], dict[str, DataCorruption]] | None:
        """As ``chunk_records``; None if they cannot be read, because of problems that were added."""
        try:
            return await chunk_records(self._snapshot)
        except TierlogError as error:
            # Records are read from sorted runs. Which of these is damaged, and where, only a full read shows.
            await self._attempt(self._check_runs(deep=True), _ADVICE_STORAGE)
            if not self._problems:
                self._problems.append(_problem(error, _ADVICE_STORAGE))
            return None

    async def _check_chains(self) -> None:
        """Every segment's record leads to the records of all its chunks."""
        storage = self._snapshot.storage
        for sid in await storage.list():
            await self._attempt(storage.chunks(sid), _ADVICE_RECORD)

    async def _list_chunks(self, records: Mapping[str, ChunkRecord]) -> dict[str, int]:
        """The lengths of the container's chunks on storage, by name."""
        released = released_names(await self._snapshot.metadata.scan(RELEASED_PREFIX))
        return await list_lengths(self._view.chunks, self._index, {*records, *released})

    async def _list_unnamed_runs(self) -> set[str]:
        listed = {info.name async for info in self._view.chunks.list(runs_prefix(self._index))}
        return listed - named_runs(self._snapshot)

    def _check_lengths(self, records: dict[str, ChunkRecord], lengths: dict[str, int]) -> None:
        for name, record in records.items():
            flaw = flaw_of_length(record, lengths.get(name))
            if flaw is not None:
                self._add_chunk_problem(flaw.message, name, flaw.offset)

    def _add_chunk_problem(self, message: str, name: str, offset: int) -> None:
        self._problems.append(Problem(message, _ADVICE_CHUNK, f"{self._view.chunk_location}/{name}", offset))

    async def _check_chain(self) -> int:
        """The newest element is the one that the log knows (rule J6)."""
        known = self._snapshot.state.manifest.known
        try:
            listed = await list_chain(self._view.chunks, self._index)
        except DataCorruption as error:
            await self._add_damaged_element(error, known)
            return 0

        # E2: also of a log that is from before the move, which nobody can adopt.
        await refuse_moved(self._view.chunks, self._index, listed.newest)
        try:
            listed.check(known, self._view.identity.store_id, self._index, is_empty=self._snapshot.is_empty)
        except Unavailable as error:
            self._problems.append(Problem(str(error), ""))
            return 0

        if self._unconfirmed is None:
            # G4: its first opening notes it.
            manifest = self._snapshot.state.manifest
            self._unconfirmed = moved_from(manifest, listed, self._view.fingerprint)
        return listed.position.n

    async def _check_older_elements(self, newest: int) -> None:
        """Check the elements below the newest one. ``newest`` is 0 if that one cannot be read or does not
        fit, which was reported."""
        chain = await read_chain(self._view.chunks, self._index)
        reported = {problem.file for problem in self._problems}
        for each in chain.problems:
            file = f"{self._view.chunk_location}/{each.name}"
            if file not in reported:
                advice = _ADVICE_OLDER if newest else _ADVICE_OBJECT
                self._problems.append(Problem(each.message, advice, file, each.offset))

    async def _add_damaged_element(self, error: DataCorruption, known: Known) -> None:
        """What can be done without a copy depends on what the log knows: without its newest element the
        chain was put back, and can be adopted (rule J6), unless nothing is left of it."""
        numbers = await list_elements(self._view.chunks, self._index)
        advice = _ADVICE_FOREIGN
        if known.intent is not None and error.file == element_name(self._index, known.intent.n):
            advice = _ADVICE_INTENT
        elif error.file == element_name(self._index, known.base.n):
            advice = _ADVICE_HEAD if len(numbers) > 1 else _ADVICE_OBJECT
        file = f"{self._view.chunk_location}/{error.file}"
        self._problems.append(Problem(error.reason, advice, file, error.offset))

    async def _verify_chunks(self, records: list[ChunkRecord], progress: Progress) -> None:
        progress(0, sum(record.length for record in records))
        for record in records:
            await self._attempt(self._verify_chunk(record, progress), _ADVICE_CHUNK)

    async def _verify_chunk(self, record: ChunkRecord, progress: Progress) -> None:
        for flaw in await find_flaws(self._view.chunks, record, lambda done: progress(done, 0)):
            self._add_chunk_problem(flaw.message, record.name, flaw.offset)
