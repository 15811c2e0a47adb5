"""The decoders of a log in ledgers: its record and its entries."""

from __future__ import annotations

import struct

import attrs

from fuzz.target import Target
from tierlog.journal.log.bookkeeper_calls import epoch_of
from tierlog.journal.log.bookkeeper_entry import (
    ENTRY_HEADER_BYTES,
    EntryHeader,
    decode_entry,
    encode_entries,
)
from tierlog.journal.log.bookkeeper_record import ListedLedger, LogRecord, decode_record, encode_record
from tierlog.storage_backends.base.checksum import crc32c
from tierlog.storage_backends.base.errors import DataCorruption, StoreMismatch
from tierlog.storage_backends.base.ledger_service import LedgerDescription

LOG_ID = bytes(range(16))
REFUSED = (DataCorruption, StoreMismatch)
_RECORD = LogRecord(7, b"owner-owner-owne", b"opening-opening-", (ListedLedger(3, 1), ListedLedger(9, 20)))
_ENTRIES = [(EntryHeader(7, 5, 3, 4, 5), b"hello"), (EntryHeader(7, 6, 0, 0, 0), b"")]
_CHECKED = ENTRY_HEADER_BYTES - 8
"""Where an entry's checksums begin."""


def _decode(data: bytes) -> tuple[EntryHeader, bytes]:
    header, payload = decode_entry(data, LOG_ID, "entry")
    return header, bytes(payload)


def _encode(found: tuple[EntryHeader, bytes]) -> bytes:
    (entry,) = encode_entries(LOG_ID, found[0], [found[1]])
    return b"".join(entry)


def _decode_body(body: bytes) -> tuple[EntryHeader, bytes]:
    head, payload = body[:_CHECKED], body[_CHECKED:]
    check = crc32c(head)
    return _decode(head + struct.pack(">II", check, crc32c(payload, check)) + payload)


def _encode_body(found: tuple[EntryHeader, bytes]) -> bytes:
    data = _encode(found)
    return data[:_CHECKED] + data[ENTRY_HEADER_BYTES:]


BOOKKEEPER_LOG_TARGETS = [
    Target(
        "BookKeeper log record",
        lambda data: decode_record(data, LOG_ID, "record"),
        [encode_record(LOG_ID, _RECORD), encode_record(LOG_ID, attrs.evolve(_RECORD, ledgers=()))],
        errors=REFUSED,
        encode=lambda record: encode_record(LOG_ID, record),
        checksummed=True,
    ),
    Target(
        "BookKeeper log record behind a right checksum",
        lambda body: decode_record(body + crc32c(body).to_bytes(4), LOG_ID, "record"),
        [encode_record(LOG_ID, _RECORD)[:-4]],
        errors=REFUSED,
        encode=lambda record: encode_record(LOG_ID, record)[:-4],
        canonical=False,  # two bytes are for a later version
    ),
    Target(
        "BookKeeper log entry",
        _decode,
        list(map(_encode, _ENTRIES)),
        errors=REFUSED,
        encode=_encode,
        checksummed=True,
    ),
    Target(
        "BookKeeper log entry behind right checksums",
        _decode_body,
        list(map(_encode_body, _ENTRIES)),
        errors=REFUSED,
        encode=_encode_body,
        canonical=False,  # as above
    ),
    Target(
        "epoch in a ledger's metadata",
        lambda data: epoch_of(LedgerDescription(0, 0, True, {"epoch": data})),
        [b"7", b"2147483647"],
        errors=(),
        encode=lambda epoch: str(epoch).encode(),
        canonical=False,  # anything else is of no owner
    ),
]
