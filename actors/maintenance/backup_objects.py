"""Backups of the format before pins, which are still restored: one object for each segment, and the manifest
that makes them a backup.

Such a backup is metadata: which chunks make which segment, with lengths and checksums. The chunks are not
copied. The manifest was written last; without it there is no backup (rule S16).

Layouts: segment ``magic u32, version u8, container u32, unflushed u64, image blob (SegmentImage), chunks u32
[start u64, record blob], CRC32C u32``, with version 2 and ``attributes u32 [is id u8, name blob, value i64]``
before the checksum if it has attributes beside those of its image; manifest ``magic u32, version u8, store id
16 bytes, created u64, epochs u32 [u64] (one a container), upgraded u8, segments u64, chunks u64, bytes u64,
unflushed u64, staged u64, imported u32 [name text], objects u32 [name text, length u64, CRC32C u32], CRC32C
u32``. A manifest with released files has version 2, and ``released u32 [container u32, record blob]`` before
its checksum; one without them has version 1, so that older code can restore it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import attrs

from ...journal.manifest.pin_record import OLD_BACKUPS, old_manifest_name
from ...journal.operations.segment_image import SegmentImage, decode_image
from ...storage_backends.base.checksum import Buffer, crc32c
from ...storage_backends.base.chunk_storage import ChunkStorage
from ...storage_backends.base.codec import DecodeError, Decoder
from ...storage_backends.base.errors import BackupNotFound, ChunkNotFound, DataCorruption
from ...storage_backends.base.names import container_of
from ...storage_backends.base.segments import AttributeName, check_attribute_name
from ...storage_backends.segments.chain import Chain
from ...storage_backends.segments.records import ChunkRecord, ReleasedRecord

T = TypeVar("T")
_SEGMENT_MAGIC = 0x544C4253  # "TLBS"
_MANIFEST_MAGIC = 0x544C424D  # "TLBM"
_VERSION = 1
_VERSION_WITH_RELEASED = _VERSION_WITH_ATTRIBUTES = 2
_EPOCH_MAX = (1 << 63) - 1
OBJECT_BYTES_MAX = 1 << 30
"""Of an object. It is held in memory whole."""
_BACKUPS_SHOWN = 5


def backup_of(name: str) -> str | None:
    """The name of the backup if the object ``name`` is its manifest, else None."""
    backup = name.removeprefix(OLD_BACKUPS).partition("/")[0]
    return backup if name == old_manifest_name(backup) else None


@attrs.frozen
class SegmentBackup:
    """One segment as far as it is flushed."""

    container: int
    unflushed: int
    """Bytes that only the log had; a restore loses them."""
    image: SegmentImage
    """Length, start and seal are those of the record."""
    chunks: tuple[tuple[int, ChunkRecord], ...]
    """(offset in the segment, record) of each chunk that holds bytes from the start on."""
    attributes: tuple[tuple[AttributeName, int], ...] = ()
    """Those that are not in the image (rule M19)."""

    @property
    def chain(self) -> Chain:
        image = self.image
        return Chain(image.length, image.start_offset, image.sealed, image.rolling_size, self.chunks)


@attrs.frozen
class BackupObject:
    """The manifest's entry for a segment's object."""

    name: str
    length: int
    crc: int


@attrs.frozen
class ReleasedFile:
    """A legacy file that a container had released and not yet deleted (rule S19)."""

    container: int
    record: ReleasedRecord


@attrs.frozen
class Manifest:
    store_id: bytes
    created_ms: int
    """Wall time, for display."""
    epochs: tuple[int, ...]
    """Each container's epoch; the restored store continues above it."""
    upgraded: bool
    """Whether the store's layout was upgraded, which cannot be undone."""
    segments: int
    chunks: int
    bytes: int
    """Bytes of all chunks: what a restore can read."""
    unflushed: int
    """Bytes that only the logs had."""
    staged: int
    """Staged segments of open transactions, which are left out."""
    imported: tuple[str, ...]
    """Names that were imported from the legacy layout."""
    objects: tuple[BackupObject, ...]
    released: tuple[ReleasedFile, ...] = ()


def decode_segment(data: Buffer, name: str) -> SegmentBackup:
    """Raises ``DataCorruption`` with the object's name for anything else but a whole, sound object."""
    return _decoded(
        data, name, _SEGMENT_MAGIC, {_VERSION: _segment, _VERSION_WITH_ATTRIBUTES: _segment_with_attributes}
    )


def _segment(fields: Decoder) -> SegmentBackup:
    container, unflushed, image = fields.u32(), fields.u64(), decode_image(fields.blob())
    chunks = tuple((fields.u64(), ChunkRecord.decode(fields.blob())) for _ in range(fields.u32()))
    backup = SegmentBackup(container, unflushed, image, chunks)
    if reasons := [*backup.chain.broken(), *(reason for _, chunk in chunks for reason in chunk.broken())]:
        raise DecodeError(f"segment {image.name!r} is damaged: {', '.join(reasons)}")
    return backup


def _segment_with_attributes(fields: Decoder) -> SegmentBackup:
    backup = _segment(fields)
    attributes = tuple((_attribute(fields), fields.i64()) for _ in range(fields.u32()))
    return attrs.evolve(backup, attributes=attributes)


def _attribute(fields: Decoder) -> AttributeName:
    is_id, name = fields.flag(), fields.blob()
    found = name if is_id else name.decode()
    check_attribute_name(found)
    return found


def decode_manifest(data: Buffer, name: str) -> Manifest:
    """Raises ``DataCorruption`` with the object's name for anything else but a whole, sound object."""
    return _decoded(
        data, name, _MANIFEST_MAGIC, {_VERSION: _manifest, _VERSION_WITH_RELEASED: _manifest_with_released}
    )


def _manifest(fields: Decoder) -> Manifest:
    store_id, created = bytes(fields.raw(16)), fields.u64()
    epochs = tuple(fields.u64() for _ in range(fields.u32()))
    upgraded = fields.flag()
    counts = fields.u64(), fields.u64(), fields.u64(), fields.u64(), fields.u64()
    imported = tuple(fields.text() for _ in range(fields.u32()))
    objects = tuple(BackupObject(fields.text(), fields.u64(), fields.u32()) for _ in range(fields.u32()))
    if not 1 <= len(epochs) <= 1024 or len(objects) != counts[0]:
        raise DecodeError(
            f"{len(epochs)} containers and {len(objects)} objects for {counts[0]} segments do not match"
        )
    if max(epochs) > _EPOCH_MAX:
        raise DecodeError(f"the epoch {max(epochs)} leaves no room for later owners")
    return Manifest(store_id, created, epochs, upgraded, *counts, imported, objects)


def _manifest_with_released(fields: Decoder) -> Manifest:
    manifest = _manifest(fields)
    released = tuple(
        ReleasedFile(fields.u32(), ReleasedRecord.decode(fields.blob())) for _ in range(fields.u32())
    )
    if not released or any(
        each.container >= len(manifest.epochs) or each.record.broken() for each in released
    ):
        raise DecodeError(f"its {len(released)} released files are damaged")
    return attrs.evolve(manifest, released=released)


def _decoded(data: Buffer, name: str, magic: int, decoders: Mapping[int, Callable[[Decoder], T]]) -> T:
    """Decode with the decoder of the object's version."""
    view = memoryview(data)
    if len(view) < 9 or crc32c(view[:-4]) != int.from_bytes(view[-4:], "big"):
        raise DataCorruption("an object of the backup is damaged", file=name)

    fields = Decoder(view[:-4])
    try:
        found, version = fields.u32(), fields.u8()
        if found != magic or version not in decoders:
            raise DecodeError(
                f"magic {found:#x} and version {version} are unknown to this version of tierlog"
            )

        value = decoders[version](fields)
        fields.finish()
    except (DecodeError, ValueError) as error:
        raise DataCorruption(f"an object of the backup does not decode: {error}", file=name) from error

    return value


async def list_old_backups(storage: ChunkStorage) -> list[str]:
    """The names of the backups in ``storage``, sorted."""
    names = [backup_of(info.name) async for info in storage.list(OLD_BACKUPS)]
    return sorted(name for name in names if name is not None)


async def read_manifest(storage: ChunkStorage, name: str) -> Manifest:
    """The manifest of the backup ``name``. Raises ``BackupNotFound``."""
    file = old_manifest_name(name)
    if not await storage.exists(file):
        known = await list_old_backups(storage)
        others = f"the latest are {', '.join(known[-_BACKUPS_SHOWN:])}" if known else "there are none"
        raise BackupNotFound(f"there is no backup {name!r}: {others}")

    return decode_manifest(await read_object(storage, file), file)


async def read_segments(storage: ChunkStorage, manifest: Manifest) -> list[SegmentBackup]:
    """The segments of a backup. Raises ``DataCorruption`` if an object is missing or damaged."""
    segments = []
    for each in manifest.objects:
        data = await read_object(storage, each.name)
        if len(data) != each.length or crc32c(data) != each.crc:
            raise DataCorruption("an object of the backup differs from its manifest", file=each.name)
        segment = decode_segment(data, each.name)
        if segment.container != container_of(segment.image.name, len(manifest.epochs)):
            raise DataCorruption(
                f"segment {segment.image.name!r} cannot be in container {segment.container}", file=each.name
            )
        segments.append(segment)
    return segments


async def read_object(storage: ChunkStorage, name: str) -> bytes:
    """A whole object of a backup. Raises ``DataCorruption`` if it is missing."""
    try:
        length = (await storage.info(name)).length
        if length > OBJECT_BYTES_MAX:
            raise DataCorruption(f"an object of the backup has {length} bytes: too many", file=name)
        return await storage.read(name, 0, length)
    except ChunkNotFound as error:
        raise DataCorruption("an object of the backup is missing", file=name) from error
