"""The record and the entries of a log in ledgers: golden bytes, damage, other logs and newer formats."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierlog.journal.log import bookkeeper_entry
from tierlog.journal.log.bookkeeper_entry import (
    PART_BYTES,
    EntryHeader,
    decode_entry,
    encode_entries,
    parts_of,
)
from tierlog.journal.log.bookkeeper_record import ListedLedger, LogRecord, decode_record, encode_record
from tierlog.storage_backends.base.checksum import crc32c
from tierlog.storage_backends.base.errors import DataCorruption, StoreMismatch

LOG_ID = bytes(range(16))
GOLDEN = Path(__file__).resolve().parents[2] / "golden"
RECORD = LogRecord(7, b"owner-owner-owne", b"opening-opening-", (ListedLedger(3, 1), ListedLedger(9, 20)))
HEADER = EntryHeader(7, 5, 3, 4, 5)


def entry(header: EntryHeader, *payload: bytes) -> bytes:
    (only,) = encode_entries(LOG_ID, header, payload)
    return b"".join(only)


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def test_the_record_has_its_golden_bytes() -> None:
    golden = bytes.fromhex((GOLDEN / "bookkeeper_record_v1.hex").read_text())

    assert encode_record(LOG_ID, RECORD) == golden
    assert decode_record(golden, LOG_ID, "place") == RECORD


def test_an_entry_has_its_golden_bytes() -> None:
    golden = bytes.fromhex((GOLDEN / "bookkeeper_entry_v1.hex").read_text())

    assert entry(HEADER, b"he", b"llo") == golden
    header, payload = decode_entry(golden, LOG_ID, "place")
    assert (header, bytes(payload)) == (HEADER, b"hello")


def test_every_damaged_byte_and_every_cut_is_corruption_with_its_place() -> None:
    record, group = encode_record(LOG_ID, RECORD), entry(HEADER, b"hello")
    for at in range(len(record)):
        for damaged in (record[:at], flipped(record, at)):
            with pytest.raises(DataCorruption) as caught:
                decode_record(damaged, LOG_ID, "zookeeper://a/log")
            assert caught.value.file == "zookeeper://a/log"
    for at in range(len(group)):
        for damaged in (group[:at], flipped(group, at)):
            with pytest.raises(DataCorruption) as caught:
                decode_entry(damaged, LOG_ID, "ledger 3 entry 0")
            assert caught.value.file == "ledger 3 entry 0"


def test_what_belongs_to_another_log_is_refused() -> None:
    with pytest.raises(StoreMismatch):
        decode_record(encode_record(LOG_ID, RECORD), b"f" * 16, "place")
    with pytest.raises(DataCorruption, match="of log"):
        decode_entry(entry(HEADER, b"hello"), b"f" * 16, "place")


def test_a_newer_format_is_no_corruption(monkeypatch: pytest.MonkeyPatch) -> None:
    newer = bytearray(encode_record(LOG_ID, RECORD)[:-4])
    newer[4:6] = (2).to_bytes(2, "big")
    with pytest.raises(StoreMismatch, match="newer tierlog"):
        decode_record(bytes(newer) + crc32c(newer).to_bytes(4, "big"), LOG_ID, "place")
    with monkeypatch.context() as patch:
        patch.setattr(bookkeeper_entry, "FORMAT_VERSION", 2)
        group = entry(HEADER, b"hello")
    with pytest.raises(StoreMismatch, match="newer tierlog"):
        decode_entry(group, LOG_ID, "place")


@pytest.mark.parametrize(
    "wrong",
    [
        attrs.evolve(RECORD, ledgers=(ListedLedger(3, 20), ListedLedger(9, 1))),
        attrs.evolve(RECORD, ledgers=(ListedLedger(3, 0),)),
        attrs.evolve(RECORD, epoch=1 << 40),
    ],
    ids=["order", "first", "epoch"],
)
def test_a_record_that_no_owner_writes_is_corruption(wrong: LogRecord) -> None:
    with pytest.raises(DataCorruption):
        decode_record(encode_record(LOG_ID, wrong), LOG_ID, "place")


@given(st.lists(st.integers(0, 2 * PART_BYTES + 1), max_size=3))
def test_b3_a_group_is_split_into_as_few_parts_as_it_needs(sizes: Sequence[int]) -> None:
    payload = [bytes([at]) * size for at, size in enumerate(sizes)]
    header = EntryHeader(1, 2, 0, 0, sum(sizes))
    found = [decode_entry(b"".join(each), LOG_ID, "") for each in encode_entries(LOG_ID, header, payload)]

    assert len(found) == parts_of(sum(sizes)) == max(1, -(-sum(sizes) // PART_BYTES))
    assert [part.part for part, _ in found] == list(range(len(found)))
    assert b"".join(bytes(each) for _, each in found) == b"".join(payload)
