"""The objects of a backup: one for each segment, and the manifest that makes them a backup.

A backup is metadata: which chunks make which segment, with lengths and checksums. The chunks are not copied.
The manifest is written last; without it there is no backup.

Layouts: segment ``magic u32, version u8, container u32, unflushed u64, image blob (SegmentImage), chunks u32
[start u64, record blob], CRC32C u32``, with version 2 and ``attributes u32 [is id u8, name blob, value i64]``
before the checksum if it has attributes beside those of its image; manifest ``magic u32, version u8, store id
16 bytes, created u64, epochs u32 [u64] (one a container), upgraded u8, segments u64, chunks u64, bytes u64,
unflushed u64, staged u64, imported u32 [name text], objects u32 [name text, length u64, CRC32C u32], CRC32C
u32``. A manifest with released files has version 2, and ``released u32 [container u32, record blob]`` before
its checksum; one without them has version 1, so that older code can restore it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeVar

import attrs

from ...journal.operations.segment_image import SegmentImage, decode_image, encode_image
from ...storage_backends.base.checksum import Buffer, crc32c
from ...storage_backends.base.codec import DecodeError, Decoder, Encoder
from ...storage_backends.base.errors import DataCorruption, InvalidArgument
from ...storage_backends.base.segments import AttributeName, check_attribute_name
from ...storage_backends.segments.chain import Chain
from ...storage_backends.segments.records import ChunkRecord, ReleasedRecord

T = TypeVar("T")
_MANIFEST = "/manifest"
_SEGMENT_MAGIC = 0x544C4253  # "TLBS"
_MANIFEST_MAGIC = 0x544C424D  # "TLBM"
_VERSION = 1
_VERSION_WITH_RELEASED = _VERSION_WITH_ATTRIBUTES = 2
_EPOCH_MAX = (1 << 63) - 1
OBJECT_BYTES_MAX = 1 << 30
"""Of an object. It is held in memory whole."""
_BACKUP = re.compile(r"[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,99}")


def check_backup_name(name: str) -> str:
    """``name`` if a backup can have it; otherwise raises ``InvalidArgument``."""
    if not _BACKUP.fullmatch(name):
        raise InvalidArgument(
            f"a backup's name has 1 to 100 letters, digits, '.', '_' and '-' and does not begin with '.'; "
            f"{name[:40]!r} is not one"
        )
    return name


def manifest_name(backup: str) -> str:
    return f"{BACKUPS}{backup}{_MANIFEST}"


def object_name(backup: str, number: int) -> str:
    return f"{BACKUPS}{backup}/{number:08d}.segment"


def backup_of(name: str) -> str | None:
    """The name of the backup if the object ``name`` is its manifest, else None."""
    inside = name.removeprefix(BACKUPS)
    return inside.removesuffix(_MANIFEST) if name.startswith(BACKUPS) and inside.endswith(_MANIFEST) else None


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


def _sealed(out: Encoder) -> bytes:
    body = out.finish()
    if len(body) + 4 > OBJECT_BYTES_MAX:
        raise InvalidArgument(
            f"an object of a backup would have {len(body) + 4} bytes, and may have {OBJECT_BYTES_MAX}: there "
            f"are too many segments, or one has too many chunks"
        )
    return body + crc32c(body).to_bytes(4, "big")


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
