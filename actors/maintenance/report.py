"""What lies in long-term storage and what it is to a store: listed, laid out, verified. It looks and never
touches.

Owns: ``list_chunks``, ``lay_out``, ``verify`` and their answers. Does not own: how they are shown (``cli/``),
nor the soundness of anything but chunks (``doctor.py``).

Order: each container's snapshot is taken before storage is listed. A living owner may collect a chunk
meanwhile, so what is found wrong is looked at again with a new snapshot, and only what stays is told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from enum import Enum

import attrs

from ...journal.operations.segment_image import SegmentStatus
from ...storage_backends.base.errors import ChunkNotFound, DataCorruption, TierlogError
from ...storage_backends.base.segments import SegmentInfo
from ...storage_backends.segments.records import ChunkRecord, SegmentRecord, chunk_key, released_names
from ...storage_backends.segments.transaction import decode_record
from ...storage_backends.segments.verify import Flaw, find_flaws
from ..store.read_only import ContainerSnapshot, ContainerView, StoreView

_LOOKS_MAX = 3
_OWN_CHUNKS = "containers/"
_SYSTEM = "_system/"
Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes found to do) since the last call."""


class ChunkUse(Enum):
    REFERENCED = "referenced"
    UNREFERENCED = "unreferenced"
    """Left by a crash, or by a cycle under way, or a file of the legacy layout that was released; its owner
    collects it."""
    MISSING = "missing"
    """A record names it, and it is not there."""
    SYSTEM = "system"
    """A claim of an owner, or an object of a backup."""
    OTHER = "other"
    """Not of this layout: a header file, a file of the legacy layout that is not imported, or a stranger."""


@attrs.frozen
class ListedChunk:
    name: str
    length: int
    """On storage; 0 if it is missing."""
    use: ChunkUse
    committed: int = 0
    """Bytes of it that are part of a segment."""
    segment: str = ""
    start: int = 0
    """The segment offset of its first byte."""
    container: int = -1


@attrs.frozen
class LaidOutChunk:
    start: int
    length: int
    name: str
    append_starts: int
    """How many append starts are kept for it."""


@attrs.frozen
class Layout:
    """A segment's chain, as long-term storage's records say it."""

    info: SegmentInfo
    record: SegmentRecord | None
    """None if nothing of the segment was flushed yet."""
    chunks: tuple[LaidOutChunk, ...]


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
    """Committed bytes that were to be read."""
    unreferenced: int
    unreferenced_bytes: int
    problems: tuple[ChunkProblem, ...]

    @property
    def sound(self) -> bool:
        return not self.problems


@attrs.frozen
class _Place:
    segment: str
    start: int


@attrs.frozen
class _Known:
    """What one container's records say of chunks."""

    records: dict[str, ChunkRecord]
    places: dict[str, _Place]
    released: frozenset[str]
    """Files of the legacy layout that no segment needs any more (rule S19)."""
    problems: tuple[ChunkProblem, ...]


async def list_chunks(view: StoreView, prefix: str = "") -> list[ListedChunk]:
    """Every object in long-term storage whose name begins with ``prefix``, and every chunk that a record
    names, sorted by name."""
    known: dict[str, ListedChunk] = {}
    released: set[str] = set()
    for container in view.containers:
        snapshot = await container.snapshot()
        found = await _known(container.index, snapshot)
        released |= found.released
        for name, record in found.records.items():
            place = found.places.get(name, _Place("", 0))
            known[name] = ListedChunk(
                name, 0, ChunkUse.MISSING, record.length, place.segment, place.start, container.index
            )

    async for info in view.chunks.list(prefix):
        if info.name in known:
            known[info.name] = attrs.evolve(known[info.name], length=info.length, use=ChunkUse.REFERENCED)
        else:
            known[info.name] = ListedChunk(info.name, info.length, _use_of(info.name, released))
    return sorted(
        (each for each in known.values() if each.name.startswith(prefix)), key=lambda each: each.name
    )


def _use_of(name: str, released: AbstractSet[str]) -> ChunkUse:
    if name.startswith(_SYSTEM):
        return ChunkUse.SYSTEM
    return ChunkUse.UNREFERENCED if name.startswith(_OWN_CHUNKS) or name in released else ChunkUse.OTHER


async def lay_out(view: StoreView, name: str) -> Layout:
    """A segment's chunks in order. ``SegmentNotFound``, ``DataCorruption`` if its chain is broken."""
    container = view.containers[view.container_of(name)]
    snapshot = await container.snapshot()
    segment = snapshot.find(name)
    if not segment.has_record:
        return Layout(segment.info(container.index), None, ())

    record = await snapshot.storage.info(segment.sid)
    chain = await snapshot.storage.chunks(segment.sid)
    laid = tuple(LaidOutChunk(start, chunk.length, chunk.name, len(chunk.starts)) for start, chunk in chain)
    return Layout(segment.info(container.index), record, laid)


async def verify(
    view: StoreView, names: Sequence[str] = (), *, progress: Progress = lambda done, found: None
) -> VerifyReport:
    """Read all committed bytes, of the segments ``names`` or of all, and compare every checksum.
    ``SegmentNotFound`` for a name."""
    wanted = set(names)
    for name in names:
        (await view.containers[view.container_of(name)].snapshot()).find(name)

    reports = [await _verify_settled(view, container, wanted, progress) for container in view.containers]
    return VerifyReport(
        sum(each.segments for each in reports),
        sum(each.chunks for each in reports),
        sum(each.bytes for each in reports),
        sum(each.unreferenced for each in reports),
        sum(each.unreferenced_bytes for each in reports),
        tuple(problem for each in reports for problem in each.problems),
    )


async def _verify_settled(
    view: StoreView, container: ContainerView, wanted: set[str], progress: Progress
) -> VerifyReport:
    for _ in range(_LOOKS_MAX - 1):
        report = await _verify(view, container, wanted, progress)
        if not report.problems or not await container.refresh():
            return report
    return await _verify(view, container, wanted, progress)


async def _verify(
    view: StoreView, container: ContainerView, wanted: set[str], progress: Progress
) -> VerifyReport:
    known = await _known(container.index, await container.snapshot())
    records = [
        r
        for name, r in known.records.items()
        if not wanted or (name in known.places and known.places[name].segment in wanted)
    ]
    size = sum(record.length for record in records)
    progress(0, size)
    problems = [problem for problem in known.problems if not wanted or problem.segment in wanted]
    for record in records:
        place = known.places.get(record.name, _Place("", 0))
        flaws = await _flaws(view, record, progress)
        problems += [
            ChunkProblem(container.index, place.segment, record.name, flaw.message, flaw.offset)
            for flaw in flaws
        ]
    loose = [] if wanted else await _loose(view, container.index, known)
    segments = {known.places[record.name].segment for record in records if record.name in known.places}
    return VerifyReport(len(segments), len(records), size, len(loose), sum(loose), tuple(problems))


async def _flaws(view: StoreView, record: ChunkRecord, progress: Progress) -> list[Flaw]:
    try:
        return await find_flaws(view.chunks, record, lambda done: progress(done, 0))
    except TierlogError as error:
        return [Flaw(f"the chunk cannot be read: {error}")]


async def _loose(view: StoreView, container: int, known: _Known) -> list[int]:
    """The lengths of the container's chunks that no record names, and of the files that it released and that
    are still there."""
    lengths = [
        info.length
        async for info in view.chunks.list(f"{_OWN_CHUNKS}{container:04d}/")
        if info.name not in known.records
    ]
    for name in sorted(known.released - known.records.keys()):
        with suppress(ChunkNotFound):
            lengths.append((await view.chunks.info(name)).length)
    return lengths


async def _known(container: int, snapshot: ContainerSnapshot) -> _Known:
    problems: list[ChunkProblem] = []
    records: dict[str, ChunkRecord] = {}
    prefix = chunk_key("")
    for key, (_, value) in snapshot.state.metadata.items():
        if key.startswith(prefix):
            try:
                record = decode_record(ChunkRecord, key, value)
            except DataCorruption as error:
                problems.append(ChunkProblem(container, "", key.removeprefix(prefix), error.reason))
            else:
                records[record.name] = record

    places: dict[str, _Place] = {}
    for sid in await snapshot.storage.list():
        name = _name_of(snapshot, sid)
        try:
            places |= {chunk.name: _Place(name, start) for start, chunk in await snapshot.storage.chunks(sid)}
        except TierlogError as error:
            file = error.file if isinstance(error, DataCorruption) else ""
            problems.append(ChunkProblem(container, name, file, f"the chain of chunks is broken: {error}"))
    return _Known(records, places, frozenset(released_names(snapshot.state.metadata)), tuple(problems))


def _name_of(snapshot: ContainerSnapshot, sid: int) -> str:
    """A segment's name; an id for one that is on its way out, or into another."""
    segment = snapshot.state.segments.get(sid)
    return (
        segment.name if segment is not None and segment.status is SegmentStatus.LIVE else f"(id {sid:016x})"
    )
