"""The records of a log in a bucket: golden bytes, damage, other logs and newer formats."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tierlog.journal.log.s3_register import S3Register, decode_s3_register, encode_s3_register
from tierlog.journal.log.s3_slot import (
    FENCE_BYTES,
    SLOT_HEADER_BYTES,
    SlotHeader,
    SlotKind,
    decode_slot,
    encode_slot,
    payload_of,
)
from tierlog.storage_backends.base.checksum import crc32c
from tierlog.storage_backends.base.errors import DataCorruption, StoreMismatch

LOG_ID = bytes(range(16))
GOLDEN = Path(__file__).resolve().parents[2] / "golden"
REGISTER = S3Register(7, b"owner-owner-owne", b"opening-opening-", b"put-put-put-put-", 19)
GROUP = SlotHeader(SlotKind.GROUP, 20, 7, b"put-put-put-put-", 18, 21, 5, 3, 4, 5)
FENCE = SlotHeader(SlotKind.FENCE, 3, 7, b"put-put-put-put-", 3, 19, 3)


def stored(header: SlotHeader, *payload: bytes) -> bytes:
    return b"".join(encode_slot(LOG_ID, header, payload))


def test_the_register_has_its_golden_bytes() -> None:
    golden = bytes.fromhex((GOLDEN / "s3_register_v1.hex").read_text())

    assert encode_s3_register(LOG_ID, REGISTER) == golden
    assert decode_s3_register(golden, LOG_ID, "place") == REGISTER


def test_slots_have_their_golden_bytes() -> None:
    group, fence = map(bytes.fromhex, (GOLDEN / "s3_slot_v1.hex").read_text().split())

    assert stored(GROUP, b"he", b"llo") == group
    assert stored(FENCE) == fence
    assert len(fence) == FENCE_BYTES
    assert decode_slot(group, LOG_ID, 20, len(group), "place") == GROUP
    assert decode_slot(fence, LOG_ID, 3, len(fence), "place") == FENCE
    assert bytes(payload_of(group, "place")) == b"hello"


def test_every_damaged_byte_and_every_cut_is_corruption_with_its_place() -> None:
    register, group = encode_s3_register(LOG_ID, REGISTER), stored(GROUP, b"hello")
    for at in range(len(register)):
        for damaged in (register[:at], flipped(register, at)):
            with pytest.raises(DataCorruption) as caught:
                decode_s3_register(damaged, LOG_ID, "s3://b/register")
            assert caught.value.file == "s3://b/register"
    for at in range(len(group)):
        for damaged in (group[:at], flipped(group, at)):
            with pytest.raises(DataCorruption) as caught:
                decode_slot(damaged, LOG_ID, 20, len(damaged), "s3://b/g")
                payload_of(damaged, "s3://b/g")
            assert caught.value.file == "s3://b/g"


def test_what_is_anothers_is_refused() -> None:
    group = stored(GROUP, b"hello")

    with pytest.raises(StoreMismatch, match="belongs to log"):
        decode_s3_register(encode_s3_register(bytes(16), REGISTER), LOG_ID, "place")
    with pytest.raises(DataCorruption, match="is slot 20"):
        decode_slot(group, LOG_ID, 21, len(group), "place")
    with pytest.raises(DataCorruption, match="of log"):
        decode_slot(group, bytes(16), 20, len(group), "place")


def test_a_newer_format_is_no_damage() -> None:
    body = bytearray(encode_s3_register(LOG_ID, REGISTER)[:-4]) + b"more"
    struct.pack_into(">H", body, 4, 2)
    with pytest.raises(StoreMismatch, match="use a newer tierlog"):
        decode_s3_register(bytes(body) + crc32c(bytes(body)).to_bytes(4), LOG_ID, "place")

    group = bytearray(stored(GROUP, b"hello"))
    struct.pack_into(">H", group, 4, 2)
    struct.pack_into(">I", group, SLOT_HEADER_BYTES - 8, crc32c(bytes(group[: SLOT_HEADER_BYTES - 8])))
    with pytest.raises(StoreMismatch, match="use a newer tierlog"):
        decode_slot(bytes(group), LOG_ID, 20, len(group), "place")


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]
