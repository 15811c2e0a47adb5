"""Writes backups of the format before pins, which are still restored: one object for each segment, then the
manifest.

A backup describes long-term storage. Bytes of a segment that are only in the log are left out, and so is what
depends on them. The objects, each whole and durable, come first, then the manifest, conditionally."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from pathlib import Path

import anyio
import attrs

from tierlog import open_store
from tierlog.actors.container.attribute_rows import attributes_prefix
from tierlog.actors.container.attributes import decode_attribute
from tierlog.actors.container.cold_segments import ColdSegments
from tierlog.actors.container.container import Container
from tierlog.actors.container.metadata_store import LoggedMetadataStore
from tierlog.actors.container.segments import SegmentState
from tierlog.actors.container.writer_rows import decode_writer, writers_prefix
from tierlog.actors.folder.paths import check_path, existing_identity
from tierlog.actors.kernel.task_groups import work_through
from tierlog.actors.legacy_rolling.importing import Progress, no_progress
from tierlog.actors.maintenance.backup_objects import (
    OBJECT_BYTES_MAX,
    BackupObject,
    Manifest,
    ReleasedFile,
    SegmentBackup,
)
from tierlog.actors.maintenance.transfer import chunks_of
from tierlog.actors.store.store import SegmentStore
from tierlog.journal.manifest.pin_record import OLD_BACKUPS, old_manifest_name
from tierlog.journal.operations.segment_image import SegmentImage, SegmentStatus, WriterState, encode_image
from tierlog.storage_backends.base.checksum import crc32c
from tierlog.storage_backends.base.chunk_storage import ChunkStorage
from tierlog.storage_backends.base.codec import Encoder
from tierlog.storage_backends.base.errors import (
    InvalidArgument,
    Unavailable,
    Unsupported,
)
from tierlog.storage_backends.base.segments import AttributeName
from tierlog.storage_backends.base.transactions import is_staged
from tierlog.storage_backends.files.local import LocalFiles
from tierlog.storage_backends.segments.records import (
    RELEASED_PREFIX,
    ChunkRecord,
    ReleasedRecord,
    SegmentRecord,
)
from tierlog.storage_backends.segments.records.imported import imported_key
from tierlog.storage_backends.segments.storage import ChunkedSegmentStorage
from tierlog.storage_backends.segments.transaction import decode_record
from tierlog.storage_backends.sorted_runs.rows import Row

_WORKERS = 8
_ATTEMPTS_MAX = 5
_SEGMENT_MAGIC = 0x544C4253  # "TLBS"
_MANIFEST_MAGIC = 0x544C424D  # "TLBM"
_VERSION = 1
_VERSION_WITH_RELEASED = _VERSION_WITH_ATTRIBUTES = 2


@attrs.frozen
class BackupSource:
    """One container: its state and its storage."""

    container: int
    epoch: int
    cold: ColdSegments
    metadata: LoggedMetadataStore
    storage: ChunkedSegmentStorage


@attrs.frozen
class BackupOptions:
    name: str
    store_id: bytes
    created_ms: int
    upgraded: bool


async def back_up_store(
    store: SegmentStore, target: ChunkStorage | None, options: BackupOptions, progress: Progress
) -> Manifest:
    """Back up what is flushed of all segments to ``target``; None: to the store's long-term storage."""

    async def source_of(container: Container) -> BackupSource:
        return BackupSource(
            container.index, container.state.epoch, container.cold, container.metadata, container.storage
        )

    sources = [await store.on_container(index, source_of) for index in range(store.containers)]
    return await create_backup(sources, target or await chunks_of(store), options, progress)


async def create_backup(
    sources: Sequence[BackupSource],
    target: ChunkStorage,
    options: BackupOptions,
    progress: Progress = no_progress,
) -> Manifest:
    """Write the backup ``options.name`` to ``target``. Raises ``InvalidArgument`` if there is one of that
    name, and ``Unsupported`` if there is a table.

    ``progress`` counts the bytes of the chunks that the backup describes.
    """
    name = options.name
    if await target.exists(old_manifest_name(name)):
        raise InvalidArgument(f"there is already a backup {name!r}: choose another name")

    # Objects without a manifest are left over from a backup that was not finished.
    # Listed first: what a listing yields while objects are deleted is not defined.
    for left in [info.name async for info in target.list(f"{OLD_BACKUPS}{name}/")]:
        await target.delete(left)

    segments: list[tuple[BackupSource, str]] = []
    staged = 0
    for source in sources:
        async with aclosing(source.cold.pages()) as pages:
            async for page in pages:
                segments += ((source, segment) for segment, _ in page if not is_staged(segment))
                staged += sum(is_staged(segment) for segment, _ in page)
    # By number: they are finished in any order, and a manifest has that of the segments.
    written: dict[int, tuple[BackupObject, SegmentBackup]] = {}

    async def write(item: tuple[int, tuple[BackupSource, str]]) -> None:
        number, (source, segment) = item
        backup = await _read(source, segment)
        if backup is None:
            return  # deleted meanwhile

        data, file = encode_segment(backup), object_name(name, number)
        await target.create_with_content(file, [data])
        written[number] = BackupObject(file, len(data), crc32c(data)), backup
        # Without a total: the sizes are found as the work proceeds.
        progress(sum(chunk.length for _, chunk in backup.chunks), 0)

    await work_through(enumerate(segments), _WORKERS, write)
    manifest = await _manifest(sources, options, [written[number] for number in sorted(written)], staged)
    # S16: this makes it a backup.
    await target.create_with_content(old_manifest_name(name), [encode_manifest(manifest)])
    return manifest


async def _manifest(
    sources: Sequence[BackupSource],
    options: BackupOptions,
    backups: Sequence[tuple[BackupObject, SegmentBackup]],
    staged: int,
) -> Manifest:
    prefix = imported_key("")
    chunks = [chunk for _, backup in backups for _, chunk in backup.chunks]
    return Manifest(
        store_id=options.store_id,
        created_ms=options.created_ms,
        epochs=tuple(source.epoch for source in sources),
        upgraded=options.upgraded,
        segments=len(backups),
        chunks=len(chunks),
        bytes=sum(chunk.length for chunk in chunks),
        unflushed=sum(backup.unflushed for _, backup in backups),
        staged=staged,
        imported=tuple(
            [key.removeprefix(prefix) for source in sources for key in await source.metadata.scan(prefix)]
        ),
        objects=tuple(each for each, _ in backups),
        released=tuple([released for source in sources for released in await _released(source)]),
    )


async def _released(source: BackupSource) -> list[ReleasedFile]:
    records = await source.metadata.records(RELEASED_PREFIX)
    return [
        ReleasedFile(source.container, decode_record(ReleasedRecord, key, value))
        for key, (_, value) in records.items()
    ]


async def _read(source: BackupSource, name: str) -> SegmentBackup | None:
    """The segment and its chain as of one commit; None if it was deleted. Raises ``Unsupported`` for a
    table."""
    for _ in range(_ATTEMPTS_MAX):
        segment = await source.cold.find(name)
        if segment is None:
            return None
        if segment.is_table:
            raise Unsupported(
                f"{name!r} is a table, and backups do not have the rows of tables: close the store and copy "
                f"its folder and its long-term storage instead"
            )

        record = await source.storage.info(segment.sid) if segment.has_record else None
        chain = [] if record is None else await source.storage.chunks(segment.sid)
        # A flush or a truncation may have committed between the two reads: then they describe no state that
        # ever was.
        if record is None or await source.storage.info(segment.sid) == record:
            writers = await _all_writers(source, segment)
            backup = segment_backup(source.container, segment, record, chain, writers)
            if not segment.has_attribute_rows:
                return backup
            return attrs.evolve(backup, attributes=await _attribute_rows(source, segment.sid))

    raise Unavailable(
        f"segment {name!r} changes too fast for a backup: try again when there are fewer flushes"
    )


async def _all_writers(source: BackupSource, segment: SegmentState) -> Mapping[bytes, WriterState | None]:
    """The latest events of the segment's writers as of the call; None for expired ones."""
    # Memory first: rows of writers that came back are old. The scan's view is of this step too.
    known: dict[bytes, WriterState | None] = {**segment.writers, **segment.expired}
    if segment.has_writer_rows:
        rows = await source.metadata.records(writers_prefix(segment.sid).decode())
        for key, (_, value) in rows.items():
            known.setdefault(*decode_writer(key, value))
    return known


async def _attribute_rows(source: BackupSource, sid: int) -> tuple[tuple[AttributeName, int], ...]:
    """The attributes that are not in the segment's image."""
    records = await source.metadata.records(attributes_prefix(sid).decode())
    rows = (Row(key.encode(), version, value) for key, (version, value) in records.items())
    return tuple(decode_attribute(row) for row in rows)


def segment_backup(
    container: int,
    segment: SegmentState,
    record: SegmentRecord | None,
    chunks: Sequence[tuple[int, ChunkRecord]],
    writers: Mapping[bytes, WriterState | None],
) -> SegmentBackup:
    """The backup of a segment with this record; None: nothing of it is flushed. ``writers``: all of its
    writers, None for expired ones."""
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
        *_writers(segment, length, writers),
    )
    # Chunks before the start may be deleted at any time, so a restore must not need them.
    live = tuple((at, chunk) for at, chunk in chunks if at + chunk.length > start)
    unflushed = segment.length - max(length, segment.start_offset)
    return SegmentBackup(container, unflushed, image, live)


def _writers(
    segment: SegmentState, length: int, writers: Mapping[bytes, WriterState | None]
) -> tuple[tuple[tuple[bytes, WriterState], ...], tuple[bytes, ...]]:
    """The writers whose latest append is certainly flushed, and those that count as expired."""
    known = {writer: state for writer, state in writers.items() if state is not None}
    if segment.length != length:
        # The last append that began before the flushed end may reach beyond it, so its writer counts as
        # expired.
        last = max((state.offset for state in known.values() if state.offset < length), default=-1)
        known = {writer: state for writer, state in known.items() if state.offset < last}
    return tuple(known.items()), tuple(writer for writer in writers if writer not in known)


def encode_segment(backup: SegmentBackup) -> bytes:
    out = (
        Encoder()
        .u32(_SEGMENT_MAGIC)
        .u8(_VERSION_WITH_ATTRIBUTES if backup.attributes else _VERSION)
        .u32(backup.container)
        .u64(backup.unflushed)
        .blob(encode_image(backup.image))
    )
    out.u32(len(backup.chunks))
    for start, chunk in backup.chunks:
        out.u64(start).blob(chunk.encode())
    if backup.attributes:
        out.u32(len(backup.attributes))
    for name, value in backup.attributes:
        is_id = isinstance(name, bytes)
        out.u8(is_id).blob(name if isinstance(name, bytes) else name.encode()).i64(value)
    return _sealed(out)


def encode_manifest(manifest: Manifest) -> bytes:
    version = _VERSION_WITH_RELEASED if manifest.released else _VERSION
    out = (
        Encoder()
        .u32(_MANIFEST_MAGIC)
        .u8(version)
        .raw(manifest.store_id)
        .u64(manifest.created_ms)
        .u32(len(manifest.epochs))
    )
    for epoch in manifest.epochs:
        out.u64(epoch)
    out.u8(manifest.upgraded).u64(manifest.segments).u64(manifest.chunks).u64(manifest.bytes).u64(
        manifest.unflushed
    ).u64(manifest.staged)
    out.u32(len(manifest.imported))
    for name in manifest.imported:
        out.text(name)
    out.u32(len(manifest.objects))
    for each in manifest.objects:
        out.text(each.name).u64(each.length).u32(each.crc)
    if manifest.released:
        out.u32(len(manifest.released))
    for released in manifest.released:
        out.u32(released.container).blob(released.record.encode())
    return _sealed(out)


def _sealed(out: Encoder) -> bytes:
    body = out.finish()
    if len(body) + 4 > OBJECT_BYTES_MAX:
        raise InvalidArgument(
            f"an object of a backup would have {len(body) + 4} bytes, and may have {OBJECT_BYTES_MAX}: there "
            f"are too many segments, or one has too many chunks"
        )
    return body + crc32c(body).to_bytes(4, "big")


def object_name(backup: str, number: int) -> str:
    return f"{OLD_BACKUPS}{backup}/{number:08d}.segment"


def old_backup(folder: Path, name: str) -> None:
    """As an earlier version made it."""

    async def make() -> None:
        identity = await existing_identity(LocalFiles(), check_path(folder))
        async with open_store(folder) as store:
            await store.flush()
            options = BackupOptions(name, identity.store_id, 1_700_000_000_000, upgraded=False)
            await back_up_store(store, None, options, no_progress)

    anyio.run(make)
