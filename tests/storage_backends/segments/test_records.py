"""Persisted records: golden bytes, round trips, decoders that meet anything, and invariants by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tierlog.storage_backends.base.checksum import crc32c
from tierlog.storage_backends.base.codec import DecodeError
from tierlog.storage_backends.base.errors import DataCorruption
from tierlog.storage_backends.segments.records import (
    BLOCK,
    ChunkRecord,
    DeferredWorkKind,
    DeferredWorkRecord,
    IndexRecord,
    Record,
    ReleasedRecord,
    SegmentRecord,
    released_names,
)
from tierlog.storage_backends.segments.records.claim import ClaimRecord, claim_key, epoch_of_key
from tierlog.storage_backends.segments.records.deferred_work import is_of_newer_kind
from tierlog.storage_backends.segments.records.imported import ImportedRecord
from tierlog.storage_backends.segments.records.unconfirmed import Reason, UnconfirmedRecord
from tierlog.storage_backends.segments.transaction import decode_record

SEGMENT = SegmentRecord(
    0x1_0000_0002,
    300,
    120,
    "c/first",
    "c/last",
    100,
    200,
    2,
    sealed=True,
    owner_epoch=7,
    rolling_size=1 << 20,
)
CHUNK = ChunkRecord(
    "c/first", 100, "c/last", bytes.fromhex("01020304"), bytes.fromhex("00000000000000000000000000000050")
)
INDEX = IndexRecord(0x1_0000_0002, 128, "c/first", 100)
DEFERRED_WORK = DeferredWorkRecord(
    DeferredWorkKind.SPLICE, 0x1_0000_0003, 0x1_0000_0002, 300, 90, 64, 350, "c/next", 0, 7
)
RELEASED = ReleasedRecord("app/old$offset.0", 300)

GOLDEN: Sequence[tuple[Record, str, str]] = [
    (
        SEGMENT,
        "s:0000000100000002",
        ("0101" "0000000100000002" "000000000000012c" "0000000000000078" "0007632f6669727374"
        "0006632f6c617374"
        "0000000000000064" "00000000000000c8" "0000000000000002" "01" "0000000000000007" "0000000000100000"),
    ),
    (
        CHUNK,
        "c:c/first",
        ("0201" "0007632f6669727374" "0000000000000064" "0006632f6c617374" "00000004" "01020304"
        "00000010" "0000000000000000" "0000000000000050"),
    ),
    (
        DEFERRED_WORK,
        "d:0000000100000003:splice",
        ("0401" "03" "0000000100000003" "0000000100000002" "000000000000012c" "000000000000005a"
        "0000000000000040" "000000000000015e" "0006632f6e657874" "0000000000000000" "0000000000000007"),
    ),
    (RELEASED, "x:app/old$offset.0", ("0601" "00106170702f6f6c64246f66667365742e30" "000000000000012c")),
    (INDEX, "i:0000000100000002:0000000000000080", ("0301" "0000000100000002"
     "0000000000000080" "0007632f6669727374" "0000000000000064")),
]  # fmt: skip


@pytest.mark.parametrize(("record", "key", "golden"), GOLDEN)
def test_the_persisted_form_does_not_change(record: Record, key: str, golden: str) -> None:
    """A change of these bytes is a new format version: keep this test, add another."""
    assert record.broken() == []
    assert record.key == key
    assert record.encode().hex() == golden
    assert type(record).decode(bytes.fromhex(golden)) == record


@pytest.mark.parametrize(
    ("record", "golden"),
    [
        (ClaimRecord(b"O" * 16), "0701" + "4f" * 16),
        (ClaimRecord(b"O" * 16, storage_claimed=True), "0701" + "4f" * 16 + "01"),
        (UnconfirmedRecord(Reason.ADOPTED, "h:/p"), "0801020004683a2f70"),
    ],
)
def test_w8_g4_the_records_of_an_ownership_do_not_change(
    record: ClaimRecord | UnconfirmedRecord, golden: str
) -> None:
    newer = bytes.fromhex(golden) + b"newer"
    assert record.encode().hex() == golden
    assert type(record).decode(bytes.fromhex(golden)) == record
    assert type(record).decode(newer).encode() == newer
    assert epoch_of_key(claim_key(0x1F)) == 0x1F


def test_g4_a_reason_of_newer_code_is_refused() -> None:
    with pytest.raises(DecodeError, match="Reason at 2 is 9"):
        UnconfirmedRecord.decode(b"\x08\x01\x09\0\0")


@pytest.mark.parametrize("record", [SEGMENT, CHUNK, INDEX, DEFERRED_WORK, RELEASED])
def test_a_damaged_record_does_not_decode(record: Record) -> None:
    data = record.encode()
    for damaged in (data[:-1], b"", bytes([9]) + data[1:], data[:1] + b"\2" + data[2:]):
        with pytest.raises(DecodeError):
            type(record).decode(damaged)


def test_c2_a_record_under_another_key_is_corruption() -> None:
    assert decode_record(SegmentRecord, SEGMENT.key, SEGMENT.encode()) == SEGMENT
    with pytest.raises(DataCorruption, match="belongs to"):
        decode_record(SegmentRecord, "s:0000000000000003", SEGMENT.encode())


@pytest.mark.parametrize("record", [SEGMENT, CHUNK, INDEX, DEFERRED_WORK, RELEASED])
@given(extra=st.binary(min_size=1, max_size=40))
def test_s6_what_a_newer_version_added_survives_a_rewrite(record: Any, extra: bytes) -> None:
    """Older code changes the fields that it knows, and no other byte."""
    newer = type(record).decode(record.encode() + extra)
    assert newer.broken() == []
    assert newer != record

    change: dict[str, Any] = {"chunk": "c/other"}
    if isinstance(record, SegmentRecord | DeferredWorkRecord):
        change = {"owner_epoch": 99}
    if isinstance(record, ReleasedRecord):
        change = {"length": 301}
    if isinstance(record, ChunkRecord):
        change = {"next_chunk": "c/other"}
    assert replace(newer, **change).encode() == replace(record, **change).encode() + extra


def test_what_a_newer_version_added_to_a_taken_name_is_kept_rule_s6() -> None:
    taken = ImportedRecord(0x1_0000_0002)
    newer = ImportedRecord.decode(taken.encode() + b"more")
    assert (taken.encode().hex(), newer.segment, newer.encode()) == (
        "05010000000100000002",
        taken.segment,
        taken.encode() + b"more",
    )
    with pytest.raises(DecodeError):
        ImportedRecord.decode(taken.encode()[:-1])


@pytest.mark.parametrize("kind", range(8))
def test_deferred_work_of_an_unknown_kind_is_of_a_newer_version(kind: int) -> None:
    """0 is none: a record that says so is damaged, and so is one of another type."""
    data = DEFERRED_WORK.encode()
    assert is_of_newer_kind(data[:2] + bytes([kind]) + data[3:]) == (kind > max(DeferredWorkKind))
    assert not is_of_newer_kind(b"\1" + data[1:2] + bytes([kind]) + data[3:])
    assert not is_of_newer_kind(data[:2])


@given(flags=st.integers(0, 255), sealed=st.booleans())
def test_s6_unknown_flag_bits_survive_a_rewrite(flags: int, sealed: bool) -> None:
    at = SEGMENT.encode().index(b"\x01\0\0\0\0\0\0\0\x07")
    data = bytearray(SEGMENT.encode())
    data[at] = flags
    changed = replace(SegmentRecord.decode(data), sealed=sealed, length=301).encode()

    assert changed[at] == flags & ~1 | sealed
    assert SegmentRecord.decode(data).sealed is bool(flags & 1)


def test_s6_a_chunk_that_grows_keeps_what_a_newer_version_added() -> None:
    newer = ChunkRecord.decode(ChunkRecord("a").grown([b"abc"]).encode() + b"new")

    assert newer.grown([b"def"]).encode() == ChunkRecord("a").grown([b"abcdef"]).encode() + b"new"


def test_s19_released_files_are_found_by_their_keys() -> None:
    keys = [CHUNK.key, "x:b/x:y", SEGMENT.key, "x:a", "o:x:c"]
    assert released_names(keys) == ["a", "b/x:y"]
    assert ReleasedRecord("b/x:y", 1).key == keys[1]


def test_deferred_work_of_an_unknown_kind_does_not_decode() -> None:
    data = bytearray(DEFERRED_WORK.encode())
    data[2] = 99
    with pytest.raises(DecodeError, match="DeferredWorkKind at 2 is 99"):
        DeferredWorkRecord.decode(bytes(data))


EMPTY = SegmentRecord(1, 50, 50, "", "", 50, 50, 0)
ONE = SegmentRecord(1, 50, 10, "a", "a", 0, 0, 1)


@pytest.mark.parametrize(
    ("record", "changes"),
    [
        (SEGMENT, {"owner_epoch": -1}),
        (SEGMENT, {"start_offset": 99}),
        (SEGMENT, {"start_offset": 301}),
        (SEGMENT, {"last_chunk_start": 99}),
        (SEGMENT, {"last_chunk_start": 300}),
        (SEGMENT, {"chunk_count": 1}),
        (SEGMENT, {"chunk_count": 102}),
        (SEGMENT, {"first_chunk": ""}),
        (SEGMENT, {"last_chunk": ""}),
        (SEGMENT, {"rolling_size": 0}),
        (EMPTY, {"start_offset": 49}),
        (EMPTY, {"first_chunk_start": 49}),
        (EMPTY, {"last_chunk_start": 49}),
        (EMPTY, {"chunk_count": 1}),
        (ONE, {"chunk_count": 2}),
        (ONE, {"last_chunk_start": 1}),
        (CHUNK, {"name": ""}),
        (CHUNK, {"length": 0}),
        (CHUNK, {"length": BLOCK + 1}),
        (CHUNK, {"next_chunk": "c/first"}),
        (CHUNK, {"packed_crcs": b""}),
        (CHUNK, {"packed_starts": bytes(9)}),
        (CHUNK, {"packed_starts": bytes(16)}),
        (CHUNK, {"packed_starts": (100).to_bytes(8, "big")}),
        (DEFERRED_WORK, {"segment": -1}),
        (DEFERRED_WORK, {"index_offset": 91}),
        (DEFERRED_WORK, {"position": 299}),
        (DEFERRED_WORK, {"position": 391}),
        (DEFERRED_WORK, {"target": DEFERRED_WORK.segment}),
        (replace(DEFERRED_WORK, kind=DeferredWorkKind.DELETE, chunks=3), {"chunks": 0}),
        (replace(DEFERRED_WORK, kind=DeferredWorkKind.DELETE, chunks=3), {"chunk": ""}),
        (replace(DEFERRED_WORK, kind=DeferredWorkKind.ADOPT, chunks=3), {"chunks": 0}),
        (RELEASED, {"name": ""}),
        (RELEASED, {"length": 0}),
        (INDEX, {"chunk": ""}),
        (INDEX, {"chunk_start": 129}),
        (INDEX, {"offset": 0, "chunk_start": 0}),
    ],
)
def test_every_invariant_notices_its_breach(record: Record, changes: dict[str, Any]) -> None:
    assert record.broken() == []
    assert replace(record, **changes).broken() != []


@given(st.lists(st.integers(0, 3 * BLOCK // 2), min_size=1, max_size=4))
def test_s5_block_checksums_do_not_depend_on_how_the_bytes_arrived(sizes: list[int]) -> None:
    data = bytes(range(251)) * (sum(sizes) // 251 + 1)
    data = data[: sum(sizes)]
    record, at = ChunkRecord("a"), 0
    for size in sizes:
        part = data[at : at + size]
        record, at = record.grown([part[: size // 2], bytearray(part[size // 2 :])]), at + size

    assert record.length == len(data)
    assert list(record.crcs) == [crc32c(data[start : start + BLOCK]) for start in range(0, len(data), BLOCK)]


def test_s5_append_starts_are_kept_about_every_mib() -> None:
    record = ChunkRecord("a").grown([bytes(3 * BLOCK)], [0, 10, BLOCK - 1, BLOCK, BLOCK + 5, 2 * BLOCK + 7])
    record = record.grown([bytes(BLOCK)], [3 * BLOCK, 3 * BLOCK + 7])

    assert list(record.starts) == [0, BLOCK, 2 * BLOCK + 7, 3 * BLOCK + 7]
    assert record.broken() == []
