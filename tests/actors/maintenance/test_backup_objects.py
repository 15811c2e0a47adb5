"""The objects of a backup: what is written is read, and damage is never taken for another backup."""

from __future__ import annotations

import attrs
import pytest

from support.old_backups import encode_manifest, encode_segment, object_name
from tierlog.actors.maintenance.backup_objects import (
    BackupObject,
    Manifest,
    ReleasedFile,
    SegmentBackup,
    backup_of,
    decode_manifest,
    decode_segment,
)
from tierlog.journal.manifest.pin_record import old_manifest_name
from tierlog.journal.operations.segment_image import SegmentImage, SegmentStatus, WriterState
from tierlog.storage_backends.base.backups import check_backup_name
from tierlog.storage_backends.base.checksum import crc32c
from tierlog.storage_backends.base.errors import DataCorruption, InvalidArgument
from tierlog.storage_backends.segments.records import ChunkRecord, ReleasedRecord

IMAGE = SegmentImage(
    7,
    SegmentStatus.LIVE,
    True,
    30,
    12,
    10,
    "app/e",
    (("a", 1),),
    ((b"w", WriterState(1, 2, 20)),),
    (b"x",),
)
CHUNKS = tuple((start, ChunkRecord(f"c{start}").grown([bytes(10)], [0])) for start in (10, 20))
SEGMENT = SegmentBackup(3, 5, IMAGE, CHUNKS)
MANIFEST = Manifest(
    b"s" * 16, 1_700_000_000_000, (4, 5), True, 1, 2, 20, 5, 1, ("app/old",), (BackupObject("o", 99, 7),)
)
RELEASED = attrs.evolve(MANIFEST, released=(ReleasedFile(1, ReleasedRecord("app/old$offset.0", 300)),))


def test_the_manifests_persisted_form_does_not_change() -> None:
    """Without released files it is what older code wrote and reads; with them older code refuses it, for it
    would lose them (rule S19)."""
    version, released = (
        4,
        bytes.fromhex("00000001000000010000001c060100106170702f6f6c64246f66667365742e30000000000000012c"),
    )
    before, after = encode_manifest(MANIFEST)[:-4], encode_manifest(RELEASED)[:-4]
    assert before.hex() == (
        "544c424d" "01" "73737373737373737373737373737373" "0000018bcfe56800" "00000002"
        "0000000000000004" "0000000000000005" "01"
        "0000000000000001" "0000000000000002" "0000000000000014" "0000000000000005" "0000000000000001"
        "00000001" "00076170702f6f6c64" "00000001" "00016f" "0000000000000063" "00000007"
    )  # fmt: skip
    assert after == before[:version] + b"\2" + before[version + 1 :] + released


def test_an_epoch_without_room_for_later_owners_is_refused() -> None:
    with pytest.raises(DataCorruption, match="leaves no room for later owners"):
        decode_manifest(encode_manifest(attrs.evolve(MANIFEST, epochs=(1, (1 << 64) - 1))), "m")


@pytest.mark.parametrize(
    "released", [(), (ReleasedFile(2, ReleasedRecord("f", 1)),), (ReleasedFile(0, ReleasedRecord("f", 0)),)]
)
def test_released_files_that_cannot_be_are_refused(released: tuple[ReleasedFile, ...]) -> None:
    whole = encode_manifest(attrs.evolve(MANIFEST, released=released))
    body = whole[:4] + b"\2" + whole[5:-4] + (b"" if released else bytes(4))
    with pytest.raises(DataCorruption, match="released files are damaged"):
        decode_manifest(body + crc32c(body).to_bytes(4, "big"), "m")


@pytest.mark.parametrize(
    "broken, reason",
    [
        (attrs.evolve(SEGMENT, chunks=CHUNKS[:1]), "does not end"),
        (attrs.evolve(SEGMENT, chunks=((10, CHUNKS[0][1]), (20, CHUNKS[0][1]))), "there twice"),
        (attrs.evolve(SEGMENT, chunks=((11, CHUNKS[0][1]), CHUNKS[1])), "gap"),
        (attrs.evolve(SEGMENT, image=IMAGE._replace(start_offset=5)), "first_chunk_start <= start_offset"),
    ],
)
def test_chunks_that_are_no_segment_are_refused(broken: SegmentBackup, reason: str) -> None:
    with pytest.raises(DataCorruption, match=reason):
        decode_segment(encode_segment(broken), "o")


def test_an_object_of_another_kind_or_version_is_refused() -> None:
    body = encode_segment(SEGMENT)[:-4]
    newer = body[:4] + b"\x03" + body[5:]
    with pytest.raises(DataCorruption, match="version 3"):
        decode_segment(newer + crc32c(newer).to_bytes(4, "big"), "o")
    with pytest.raises(DataCorruption, match="magic"):
        decode_manifest(encode_segment(SEGMENT), "m")


def test_objects_are_named_by_their_backup() -> None:
    assert old_manifest_name("b") == "_system/backups/b/manifest"
    assert object_name("b", 17) == "_system/backups/b/00000017.segment"
    assert (backup_of(old_manifest_name("b")), backup_of(object_name("b", 1)), backup_of("x/manifest")) == (
        "b",
        None,
        None,
    )


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "a b", "x" * 101])
def test_a_name_that_is_no_backups_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgument):
        check_backup_name(name)
