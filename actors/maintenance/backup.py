"""Taking a backup: one object for each segment, then the manifest.

Owns: what of a segment is kept, and the order of the objects. Does not own: whether the store is flushed
before (who asks for the backup does that), where the objects go, nor their bytes (``objects.py``).

A backup says what long-term storage has. A segment with bytes that are only in the log is kept as far as it
is flushed, and what could claim more than that is not kept: a writer whose latest append may lie behind the
flushed end counts as expired, so that its next append is told (``UnknownWriter``) instead of being taken for
a repeat. Its attributes are as they were, hence may be ahead of its bytes. Transactions are left out, and the
staged segments of open ones; flushed and quiet, a store loses nothing else.

Ordering (rule S16): objects first, each whole and durable, then the manifest, conditionally. Cancellation and
crash: without the manifest there is no backup, and the next one of the same name removes what was left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from ...journal.operations.segment_image import SegmentImage, SegmentStatus, WriterState
from ...storage_backends.base.checksum import crc32c
from ...storage_backends.base.chunk_storage import ChunkStorage
from ...storage_backends.base.errors import ChunkNotFound, InvalidArgument, Unavailable
from ...storage_backends.base.transactions import is_staged
from ...storage_backends.segments.records import (
    ChunkRecord,
    ReleasedRecord,
    SegmentRecord,
    released_key,
    released_names,
)
from ...storage_backends.segments.records.imported import imported_key
from ...storage_backends.segments.storage import ChunkedSegmentStorage
from ...storage_backends.segments.transaction import decode_record
from ..container.segments import SegmentState
from ..container.state import ContainerState
from ..kernel.task_groups import work_through
from .backup_objects import (
    BACKUPS,
    BackupObject,
    Manifest,
    ReleasedFile,
    SegmentBackup,
    backup_of,
    encode_manifest,
    encode_segment,
    manifest_name,
    object_name,
)

_WORKERS = 8
_LOOKS_MAX = 5
Progress = Callable[[int, int], None]
"""Called with (bytes whose chunks were noted, bytes found) since the last call."""


@attrs.frozen
class BackupSource:
    """One container: its state, and its records in long-term storage."""

    container: int
    epoch: int
    state: ContainerState
    storage: ChunkedSegmentStorage


@attrs.frozen
class BackupOptions:
    name: str
    store_id: bytes
    created_ms: int
    upgraded: bool


async def create_backup(
    sources: Sequence[BackupSource],
    target: ChunkStorage,
    terms: BackupOptions,
    progress: Progress = lambda done, found: None,
) -> Manifest:
    """Write the backup ``terms.name`` to ``target``. ``InvalidArgument`` if there is one of that name."""
    if await target.exists(manifest_name(terms.name)):
        raise InvalidArgument(f"there is a backup {terms.name!r} already: choose another name")

    await _clear(target, terms.name)
    backups = await _Taking(sources, target, terms.name, progress).run()
    manifest = _manifest(sources, terms, backups)
    await target.create_with_content(manifest_name(terms.name), [encode_manifest(manifest)])
    return manifest


async def _clear(target: ChunkStorage, name: str) -> None:
    """Remove the objects of a backup that has no manifest, hence is none."""
    for left in [info.name async for info in target.list(f"{BACKUPS}{name}/")]:
        await target.delete(left)


def _manifest(
    sources: Sequence[BackupSource],
    terms: BackupOptions,
    backups: Sequence[tuple[BackupObject, SegmentBackup]],
) -> Manifest:
    prefix = imported_key("")
    return Manifest(
        terms.store_id,
        terms.created_ms,
        tuple(source.epoch for source in sources),
        terms.upgraded,
        len(backups),
        sum(len(backup.chunks) for _, backup in backups),
        sum(chunk.length for _, backup in backups for _, chunk in backup.chunks),
        sum(backup.unflushed for _, backup in backups),
        sum(is_staged(name) for source in sources for name in source.state.segments.names("")),
        tuple(
            key.removeprefix(prefix)
            for source in sources
            for key in sorted(source.state.metadata)
            if key.startswith(prefix)
        ),
        tuple(written for written, _ in backups),
        tuple(released for source in sources for released in _released(source)),
    )


def _released(source: BackupSource) -> list[ReleasedFile]:
    metadata = source.state.metadata
    keys = map(released_key, released_names(metadata))
    return [
        ReleasedFile(source.container, decode_record(ReleasedRecord, key, metadata[key][1])) for key in keys
    ]


class _Taking:
    """The objects of one backup, written several at a time."""

    def __init__(
        self, sources: Sequence[BackupSource], target: ChunkStorage, name: str, progress: Progress
    ) -> None:
        self._target = target
        self._name = name
        self._progress = progress
        self._wanted = [(source, name) for source in sources for name in source.state.segments.listed("")]
        self._done: dict[int, tuple[BackupObject, SegmentBackup]] = {}

    async def run(self) -> list[tuple[BackupObject, SegmentBackup]]:
        await work_through(enumerate(self._wanted), _WORKERS, self._keep)
        return [self._done[number] for number in sorted(self._done)]

    async def _keep(self, wanted: tuple[int, tuple[BackupSource, str]]) -> None:
        number, (source, name) = wanted
        backup = await _read(source, name)
        if backup is None:
            return  # deleted meanwhile

        size = sum(chunk.length for _, chunk in backup.chunks)
        self._progress(0, size)
        data, file = encode_segment(backup), object_name(self._name, number)
        await self._target.create_with_content(file, [data])
        self._done[number] = BackupObject(file, len(data), crc32c(data)), backup
        self._progress(size, 0)


async def _read(source: BackupSource, name: str) -> SegmentBackup | None:
    """The segment and its chain at one commit."""
    for _ in range(_LOOKS_MAX):
        segment = source.state.segments.find(name)
        if segment is None:
            return None

        record = await source.storage.info(segment.sid) if segment.has_record else None
        chain = [] if record is None else await source.storage.chunks(segment.sid)
        if record is None or await source.storage.info(segment.sid) == record:
            return segment_backup(source.container, segment, record, chain)

    raise Unavailable(f"segment {name!r} changes too fast to be looked at: try again")


def segment_backup(
    container: int,
    segment: SegmentState,
    record: SegmentRecord | None,
    chunks: Sequence[tuple[int, ChunkRecord]],
) -> SegmentBackup:
    """What is kept of a segment that long-term storage knows by ``record``."""
    length, start = (0, 0) if record is None else (record.length, record.start_offset)
    image = SegmentImage(
        segment.sid,
        SegmentStatus.LIVE,
        record is not None and record.sealed,
        length,
        start,
        segment.rolling_size if record is None else record.rolling_size,
        segment.name,
        tuple(segment.attributes.items()),
        *_writers(segment, length),
        (),
    )
    live = tuple((at, chunk) for at, chunk in chunks if at + chunk.length > start)
    return SegmentBackup(container, segment.length - length, image, live)


def _writers(
    segment: SegmentState, length: int
) -> tuple[tuple[tuple[bytes, WriterState], ...], tuple[bytes, ...]]:
    """The writers whose latest append is flushed for sure, and those that count as expired."""
    if segment.length == length:
        return tuple(segment.writers.items()), tuple(segment.expired)

    # The append that the flushed end lies in began last before it: whose it is cannot be told, so its writer
    # is not trusted.
    last = max((state.offset for state in segment.writers.values() if state.offset < length), default=-1)
    kept = tuple((writer, state) for writer, state in segment.writers.items() if state.offset < last)
    lost = tuple(writer for writer, state in segment.writers.items() if state.offset >= last)
    return kept, (*segment.expired, *lost)


async def list_backups(storage: ChunkStorage) -> list[str]:
    """The names of the backups in ``storage``, sorted."""
    names = [backup_of(info.name) async for info in storage.list(BACKUPS)]
    return sorted(name for name in names if name is not None)


async def read_object(storage: ChunkStorage, name: str) -> bytes:
    """A whole object; ``InvalidArgument`` if it is missing."""
    try:
        length = (await storage.info(name)).length
        return await storage.read(name, 0, length)
    except ChunkNotFound as error:
        raise InvalidArgument(f"there is no {name} in the backup's storage") from error
