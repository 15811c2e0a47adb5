"""What is in long-term storage and which segments it belongs to: chunks are listed, laid out and verified.

Everything here is read-only. Each container's snapshot is taken before storage is listed. Because an owner
may collect a chunk meanwhile, whatever is found wrong is checked again with a new snapshot, and only what
remains is reported.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import aclosing, suppress
from enum import Enum
from functools import partial

import attrs

from ...journal.manifest.chain import runs_prefix
from ...storage_backends.base.chunk_storage import ChunkStorage
from ...storage_backends.base.errors import ChunkNotFound, DataCorruption, TierlogError, Unavailable
from ...storage_backends.base.segments import SegmentInfo
from ...storage_backends.segments.records import (
    DEFERRED_WORK_PREFIX,
    RELEASED_PREFIX,
    SEGMENT_PREFIX,
    ChunkRecord,
    DeferredWorkRecord,
    SegmentRecord,
    chunk_key,
    released_names,
)
from ...storage_backends.segments.records.deferred_work import is_of_newer_kind
from ...storage_backends.segments.records.segment import segment_of_key
from ...storage_backends.segments.records.unconfirmed import UnconfirmedRecord
from ...storage_backends.segments.transaction import decode_record
from ...storage_backends.segments.verify import Flaw, find_flaws, flaw_of_length
from ..container.confirmation import unconfirmed_record
from ..container.listed_chain import list_chain, moved_from
from ..container.published_check import OWN_CHAIN
from ..gc.garbage_total import GarbageTotal, count_garbage, list_parts
from ..gc.rules import creator_of, is_run
from ..legacy_rolling.importing import Progress, no_progress
from ..store.read_only import ContainerView, StoreView
from ..store.views import ContainerSnapshot, SegmentView, SnapshotSource, on_snapshot
from .backup_objects import list_old_backups, read_manifest, read_segments
from .backups import kept_names

_ATTEMPTS_MAX = 3
_PAGE = 256
_OWN_CHUNKS = "containers/"
_SYSTEM = "_system/"
_CHUNK_KEY = chunk_key("")


class ChunkUse(Enum):
    REFERENCED = "referenced"
    UNREFERENCED = "unreferenced"
    """A chunk that no segment refers to, a sorted run that no system table refers to, or a released legacy
    file. It was left by a crash, waits for its deletion, or is new. Its owner deletes it, if it is
    confirmed."""
    BACKUP = "backup"
    """A chunk or a sorted run that only backups need."""
    MISSING = "missing"
    """A record refers to it, but it does not exist."""
    SYSTEM = "system"
    """An element of a journal, a sorted run that a table refers to, or an object of a backup."""
    OTHER = "other"
    """Not of this store's layout: a header file, a legacy file that is not imported, or a foreign file."""


@attrs.frozen
class ListedChunk:
    name: str
    length: int
    """Its length in long-term storage; 0 if it is missing."""
    use: ChunkUse
    committed: int = 0
    """Bytes of it that belong to a segment."""
    segment: str = ""
    start: int = 0
    """The segment offset of its first byte."""
    container: int = -1


@attrs.frozen
class ChunkLayout:
    start: int
    length: int
    name: str
    append_starts: int
    """The number of append starts in its record."""


@attrs.frozen
class SegmentLayout:
    """A segment's chain of chunks."""

    info: SegmentInfo
    record: SegmentRecord | None
    """None if nothing of the segment is flushed yet."""
    chunks: tuple[ChunkLayout, ...]


@attrs.frozen
class ChunkProblem:
    container: int
    segment: str
    chunk: str
    message: str
    offset: int = 0


@attrs.frozen
class VerifyReport:
    segments: int
    chunks: int
    bytes: int
    """Committed bytes of these chunks."""
    unreferenced: int
    unreferenced_bytes: int
    problems: tuple[ChunkProblem, ...]

    @property
    def sound(self) -> bool:
        return not self.problems


@attrs.frozen
class ContainerGarbage:
    """What a container refers to no longer, or never did."""

    container: int
    reason: str
    """Why it deletes nothing that it does not know until an operator confirms it (rule G4); else empty."""
    chunks: int
    """The unreferenced objects (``ChunkUse.UNREFERENCED``)."""
    bytes: int
    backups: tuple[str, ...] = ()
    """The backups in long-term storage that need some of them, sorted; a service does not say."""


@attrs.frozen
class _Position:
    segment: str
    start: int


_UNKNOWN = _Position("", 0)


@attrs.frozen
class ChunkIndex:
    """The chunks in one container's metadata, and where they are in segments."""

    records: dict[str, ChunkRecord]
    positions: dict[str, _Position]
    released: frozenset[str]
    """Legacy files that no segment needs any more (rule S19)."""
    runs: frozenset[str]
    """The sorted runs that its table refers to."""
    kept: frozenset[str]
    """What backups need."""
    problems: tuple[ChunkProblem, ...]


async def pages_of_chunks(
    view: StoreView, prefix: str = "", indexes: Sequence[ChunkIndex] | None = None
) -> AsyncGenerator[list[ListedChunk], None]:
    """The objects in long-term storage whose names begin with ``prefix``, and the chunks that are missing
    there, sorted by name, in pages. Close the generator if you leave it early. ``indexes``: of all
    containers, if they are known."""
    known: dict[str, ListedChunk] = {}
    released, runs, kept = set[str](), set[str](), set[str]()
    for container in view.containers:
        index = await _newest_index(view, container) if indexes is None else indexes[container.index]
        released |= index.released
        runs |= index.runs
        kept |= index.kept
        for name, record in index.records.items():
            at = index.positions.get(name, _UNKNOWN)
            known[name] = ListedChunk(
                name, 0, ChunkUse.MISSING, record.length, at.segment, at.start, container.index
            )

    missing = deque(sorted(name for name in known if name.startswith(prefix)))
    page: list[ListedChunk] = []
    async with aclosing(view.chunks.list(prefix)) as listed:
        async for info in listed:
            while missing and missing[0] < info.name:
                page.append(known[missing.popleft()])
            if missing and missing[0] == info.name:
                found = known[missing.popleft()]
                page.append(attrs.evolve(found, length=info.length, use=ChunkUse.REFERENCED))
            else:
                page.append(ListedChunk(info.name, info.length, _use_of(info.name, released, runs, kept)))
            if len(page) >= _PAGE:
                yield page
                page = []
    yield [*page, *(known[name] for name in missing)]


def _use_of(
    name: str, released: AbstractSet[str], runs: AbstractSet[str], kept: AbstractSet[str]
) -> ChunkUse:
    if name in kept and name not in runs:
        return ChunkUse.BACKUP
    if is_run(name) and name not in runs:
        return ChunkUse.UNREFERENCED
    if name.startswith(_SYSTEM):
        return ChunkUse.SYSTEM
    return ChunkUse.UNREFERENCED if creator_of(name) is not None or name in released else ChunkUse.OTHER


async def segment_layout(view: StoreView, name: str) -> SegmentLayout:
    """A segment's chunks in order. Raises ``SegmentNotFound``, ``WrongSegmentKind`` for a table,
    ``DataCorruption`` if its chain is broken."""
    container = view.containers[view.container_of(name)]
    snapshot = await container.snapshot()
    segment = (await snapshot.find(name)).of_kind(is_table=False)
    info = segment.info(container.index, snapshot.state.history)
    if not segment.has_record:
        return SegmentLayout(info, None, ())

    record = await snapshot.storage.info(segment.sid)
    chain = await snapshot.storage.chunks(segment.sid)
    chunks = tuple(ChunkLayout(start, chunk.length, chunk.name, len(chunk.starts)) for start, chunk in chain)
    return SegmentLayout(info, record, chunks)


async def verify(
    view: SegmentView[SnapshotSource],
    names: Sequence[str] = (),
    *,
    deep: bool = True,
    progress: Progress = no_progress,
) -> VerifyReport:
    """Read the committed bytes of the segments ``names``, or of all, and verify every checksum. Without
    ``deep`` only a listing is read. Raises ``SegmentNotFound`` for an unknown name, and ``WrongSegmentKind``
    for that of a table."""
    return (await verify_and_index(view, names, deep=deep, progress=progress))[0]


async def verify_and_index(
    view: SegmentView[SnapshotSource],
    names: Sequence[str] = (),
    *,
    deep: bool = True,
    progress: Progress = no_progress,
) -> tuple[VerifyReport, list[ChunkIndex]]:
    """As ``verify``; also the index of each container, which is expensive to make."""
    wanted = set(names)
    # Before anything is read, which may take hours: a misspelt name fails at once.
    for name in names:
        snapshot = await view.containers[view.container_of(name)].snapshot()
        (await snapshot.find(name)).of_kind(is_table=False)

    verified = [
        await _verify_repeatedly(view, container, wanted, deep, progress) for container in view.containers
    ]
    reports = [report for report, _ in verified]
    total = VerifyReport(
        sum(each.segments for each in reports),
        sum(each.chunks for each in reports),
        sum(each.bytes for each in reports),
        sum(each.unreferenced for each in reports),
        sum(each.unreferenced_bytes for each in reports),
        tuple(problem for each in reports for problem in each.problems),
    )
    return total, [index for _, index in verified]


async def _verify_repeatedly(
    view: SegmentView[SnapshotSource],
    container: SnapshotSource,
    wanted: set[str],
    deep: bool,
    progress: Progress,
) -> tuple[VerifyReport, ChunkIndex]:
    agreed: set[ChunkProblem] | None = None
    for _ in range(_ATTEMPTS_MAX - 1):
        try:
            report, index = await _verify(view, container, wanted, deep, progress)
        except (DataCorruption, Unavailable):
            # An owner may have deleted a run that the snapshot is read from.
            if not await container.refresh():
                raise
            continue

        report, agreed = _agreed(report, agreed)
        if not agreed or not await container.refresh():
            return report, index
    report, index = await _verify(view, container, wanted, deep, progress)
    return _agreed(report, agreed)[0], index


def _agreed(report: VerifyReport, before: set[ChunkProblem] | None) -> tuple[VerifyReport, set[ChunkProblem]]:
    """``report`` with those of its problems that were found ``before`` too: an owner at work makes others
    come and go. What two snapshots refer to, and a listing between them lacks, is missing."""
    found = set(report.problems)
    found = found if before is None else found & before
    return attrs.evolve(report, problems=tuple(each for each in report.problems if each in found)), found


async def _verify(
    view: SegmentView[SnapshotSource],
    container: SnapshotSource,
    wanted: set[str],
    deep: bool,
    progress: Progress,
) -> tuple[VerifyReport, ChunkIndex]:
    index = await _index_chunks(view.chunks, container.index, await container.snapshot())
    records = [
        record
        for name, record in index.records.items()
        if not wanted or (name in index.positions and index.positions[name].segment in wanted)
    ]
    size = sum(record.length for record in records)
    progress(0, size)
    problems = [problem for problem in index.problems if not wanted or problem.segment in wanted]
    lengths = {} if deep else await list_lengths(view.chunks, container.index, index.records)
    for record in records:
        if deep:
            flaws = await _flaws(view, record, progress)
        else:
            flaw = flaw_of_length(record, lengths.get(record.name))
            flaws = [] if flaw is None else [flaw]
        segment = index.positions.get(record.name, _UNKNOWN).segment
        problems += [
            ChunkProblem(container.index, segment, record.name, flaw.message, flaw.offset) for flaw in flaws
        ]
    unreferenced = GarbageTotal(0, 0)
    # Garbage belongs to no segment.
    if not wanted:
        unreferenced = await _unreferenced(view, container.index, index, {})
    segments = {index.positions[record.name].segment for record in records if record.name in index.positions}
    report = VerifyReport(
        len(segments), len(records), size, unreferenced.chunks, unreferenced.bytes, tuple(problems)
    )
    return report, index


async def garbage_of(
    view: StoreView, container: ContainerView, needed: Mapping[str, AbstractSet[str]]
) -> ContainerGarbage:
    """What nothing refers to, and whether the container is unconfirmed, also in a moved folder that was not
    opened yet. ``needed``: as ``chunks_of_backups``. Raises ``StoreMismatch`` if another folder has claimed
    long-term storage, or if the log is lost (rule R11)."""
    record = await find_unconfirmed(view, container)
    index, needing = await _newest_index(view, container), set[str]()
    total = await _unreferenced(view, container.index, index, needed, needing)
    reason = "" if record is None else record.explanation
    return ContainerGarbage(container.index, reason, total.chunks, total.bytes, tuple(sorted(needing)))


async def unreferenced_names(view: StoreView, container: ContainerView) -> list[str]:
    """The names of what nothing refers to in the container's part of long-term storage, sorted."""
    index = await _newest_index(view, container)
    known = index.records.keys() | index.runs | index.kept
    prefixes = [_own_chunks(container.index), runs_prefix(container.index)]
    async with aclosing(list_parts(view.chunks, prefixes, _PAGE)) as parts:
        return sorted(
            [info.name async for part in parts for info in part if _may_be_garbage(info.name, known)]
        )


def _may_be_garbage(name: str, known: AbstractSet[str]) -> bool:
    """As for the collector: what has another name is no chunk or run of this store."""
    return name not in known and creator_of(name) is not None


async def find_unconfirmed(view: StoreView, container: ContainerView) -> UnconfirmedRecord | None:
    """The record that the container is unconfirmed, also if only its next opening would write it. Raises
    ``StoreMismatch`` if another folder has claimed long-term storage."""
    snapshot = await container.snapshot()
    manifest = snapshot.state.manifest
    listed = await list_chain(view.chunks, container.index)
    listed.check_store(view.identity.store_id)
    if listed.continues(manifest.known):
        record = unconfirmed_record(snapshot.state.resident)
        # The first opening of a moved folder writes its record (G4), and there may have been none yet.
        return record or moved_from(manifest, listed, view.fingerprint)

    # An owner may have gone on since the snapshot: it has opened the folder, and its record is in the log.
    await container.refresh()
    newer = await container.snapshot()
    known = newer.state.manifest.known
    listed.check_between(
        manifest.known, known, view.identity.store_id, container.index, is_empty=newer.is_empty
    )
    return unconfirmed_record(newer.state.resident)


async def chunks_of_backups(view: StoreView) -> dict[str, set[str]]:
    """The names of the chunks of the backups in long-term storage that an earlier version made, with those of
    the backups. A damaged one cannot be restored, and needs none."""
    needed: dict[str, set[str]] = {}
    for backup in await list_old_backups(view.chunks):
        with suppress(DataCorruption):
            for segment in await read_segments(view.chunks, await read_manifest(view.chunks, backup)):
                for _, chunk in segment.chunks:
                    needed.setdefault(chunk.name, set()).add(backup)
    return needed


async def _flaws(view: SegmentView[SnapshotSource], record: ChunkRecord, progress: Progress) -> list[Flaw]:
    try:
        return await find_flaws(view.chunks, record, lambda done: progress(done, 0))
    except TierlogError as error:
        return [Flaw(f"the chunk cannot be read: {error}")]


async def list_lengths(chunks: ChunkStorage, container: int, names: Iterable[str]) -> dict[str, int]:
    """The lengths of all chunks of the container, and of those of ``names`` that are imported files."""
    prefix = _own_chunks(container)
    listed = {info.name: info.length async for info in chunks.list(prefix)}
    lengths = {name: length for name, length in listed.items() if creator_of(name) is not None}
    for name in names:
        if name in listed:
            lengths[name] = listed[name]
        elif not name.startswith(prefix):  # an imported file, which keeps its name
            with suppress(ChunkNotFound):
                lengths[name] = (await chunks.info(name)).length
    return lengths


def _own_chunks(container: int) -> str:
    return f"{_OWN_CHUNKS}{container:04d}/"


async def _unreferenced(
    view: SegmentView[SnapshotSource],
    container: int,
    index: ChunkIndex,
    needed: Mapping[str, AbstractSet[str]],
    needing: set[str] | None = None,
) -> GarbageTotal:
    """What ``ChunkUse.UNREFERENCED`` is of the container. ``needing`` receives those who need some of it."""
    released = sorted(index.released - index.records.keys() - index.kept)

    async def garbage_among(names: Sequence[str]) -> list[str]:
        known = index.records.keys() | index.runs | index.kept
        found = [name for name in names if _may_be_garbage(name, known)]
        if needing is not None:
            needing.update(*(needed.get(name, ()) for name in found))
        return found

    total = await count_garbage(
        view.chunks, [_own_chunks(container), runs_prefix(container)], garbage_among, released
    )
    if needing is not None:
        needing.update(*(needed.get(name, ()) for name in released))
    return total


async def _newest_index(view: StoreView, container: ContainerView) -> ChunkIndex:
    """As of a new snapshot, if an owner has deleted a run that the last one is read from."""
    return await on_snapshot(container, partial(_index_chunks, view.chunks, container.index))


async def _index_chunks(chunks: ChunkStorage, container: int, snapshot: ContainerSnapshot) -> ChunkIndex:
    records, errors = await chunk_records(snapshot)
    problems = [
        ChunkProblem(container, "", key.removeprefix(_CHUNK_KEY), error.reason)
        for key, error in errors.items()
    ]
    names = {sid: name async for page in snapshot.cold.pages() for name, sid in page}
    positions: dict[str, _Position] = {}
    for key, (_, value) in (await snapshot.metadata.records(SEGMENT_PREFIX)).items():
        segment = names.get(segment_of_key(key), f"(id {key.removeprefix(SEGMENT_PREFIX)})")
        try:
            chain = decode_record(SegmentRecord, key, value)
        except DataCorruption as error:
            problems.append(ChunkProblem(container, segment, "", error.reason))
        else:
            # The chunks behind a break still have records, which are verified without a position.
            found = _walk(chain, segment, records, positions)
            problems += [ChunkProblem(container, segment, name, message) for name, message in found]
    # The chunks of a segment whose chain is broken would all seem to belong to none.
    if not problems:
        left = {name: record for name, record in records.items() if name not in positions}
        problems += [
            ChunkProblem(container, "", name, "it belongs to no segment, and to no deferred work")
            for name in await _unowned(snapshot, left)
        ]
    released = frozenset(released_names(await snapshot.metadata.scan(RELEASED_PREFIX)))
    kept = await kept_names(chunks, snapshot)
    runs = frozenset(named_runs(snapshot))
    return ChunkIndex(records, positions, released, runs, kept, tuple(problems))


def _walk(
    chain: SegmentRecord, segment: str, records: Mapping[str, ChunkRecord], positions: dict[str, _Position]
) -> Iterator[tuple[str, str]]:
    """Enter the chunks of a segment into ``positions``, also those that a truncation has not removed yet.
    Yields what is wrong, with the chunk's name."""
    name, start = chain.first_chunk, chain.first_chunk_start
    for _ in range(chain.chunk_count):
        record = records.get(name)
        if record is None:
            yield name, "the chain of chunks is broken: this one has no record"
            return

        other = positions.setdefault(name, _Position(segment, start)).segment
        if other != segment:
            yield name, f"it belongs to segment {other} too"
            return

        name, start = record.next_chunk, start + record.length
    if name or start != chain.length:
        yield chain.last_chunk, f"the chain of chunks is broken: it ends at {start}, not at {chain.length}"


async def _unowned(snapshot: ContainerSnapshot, left: dict[str, ChunkRecord]) -> Iterable[str]:
    """Those of ``left``, which are in no segment, that deferred work does not name either."""
    if left:
        for key, (_, value) in (await snapshot.metadata.records(DEFERRED_WORK_PREFIX)).items():
            if is_of_newer_kind(value):
                return ()  # nobody here can say which chunks it names

            work = decode_record(DeferredWorkRecord, key, value)
            name = work.chunk if work.kind in OWN_CHAIN else ""
            for _ in range(work.chunks):
                record = left.pop(name, None)
                name = "" if record is None else record.next_chunk
    return left


def named_runs(snapshot: ContainerSnapshot) -> set[str]:
    """The sorted runs that the container's table refers to, or will."""
    manifest = snapshot.state.manifest
    # Those of the intent too: its element may exist, and then they count.
    return {run.name for run in (*manifest.runs, *manifest.intended_runs)}


async def chunk_records(
    snapshot: ContainerSnapshot,
) -> tuple[dict[str, ChunkRecord], dict[str, DataCorruption]]:
    """The records of all chunks by chunk name, and what is wrong with the others by metadata key."""
    records: dict[str, ChunkRecord] = {}
    errors: dict[str, DataCorruption] = {}
    for key, (_, value) in (await snapshot.metadata.records(_CHUNK_KEY)).items():
        try:
            record = decode_record(ChunkRecord, key, value)
        except DataCorruption as error:
            errors[key] = error
        else:
            records[record.name] = record
    return records, errors
