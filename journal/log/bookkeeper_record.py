"""The record of a log in ledgers: who owns it, and which ledgers it has (rule B1). No I/O.

Layout, big-endian: magic, format version, 0 (2), log id (16), epoch (8), owner id (16), opening (16), number
of ledgers (4), per ledger: id (8), first group (8); CRC32C of all before. Magic, version and a CRC at the end
are in every version.
"""

from __future__ import annotations

import struct
from itertools import pairwise

import attrs

from ...storage_backends.base.checksum import crc32c
from ...storage_backends.base.codec import DecodeError, Decoder, Encoder
from ...storage_backends.base.errors import DataCorruption, StoreMismatch
from ...storage_backends.base.ids import EPOCH_MAX

FORMAT_VERSION = 1
LEDGERS_MAX = 8192
"""A log with so many goes on in its last one: a record of ZooKeeper must stay small."""
_MAGIC = 0x544C_4252  # "TLBR"
_ENVELOPE = struct.Struct(">IH")
_CRC = struct.Struct(">I")


@attrs.frozen
class ListedLedger:
    id: int
    first: int
    """The number of its first group; of the next one, if it has none."""


@attrs.frozen
class LogRecord:
    epoch: int
    owner: bytes
    """16 bytes that identify the store's opening, as in a local register."""
    opening: bytes
    """16 bytes, drawn by each opening of the log."""
    ledgers: tuple[ListedLedger, ...]
    """In order; the last one is the owner's."""


def encode_record(log_id: bytes, record: LogRecord) -> bytes:
    out = Encoder().u32(_MAGIC).u16(FORMAT_VERSION).u16(0).raw(log_id)
    out.u64(record.epoch).raw(record.owner).raw(record.opening).u32(len(record.ledgers))
    for ledger in record.ledgers:
        out.u64(ledger.id).u64(ledger.first)
    body = out.finish()
    return body + _CRC.pack(crc32c(body))


def decode_record(data: bytes, log_id: bytes, place: str) -> LogRecord:
    """Raises ``DataCorruption`` if it is damaged, ``StoreMismatch`` if it is another log's or has a newer
    format."""
    end = len(data) - _CRC.size
    if end < _ENVELOPE.size or crc32c(data[:end]) != _CRC.unpack_from(data, end)[0]:
        raise DataCorruption("the log's record is damaged", file=place)

    magic, version = _ENVELOPE.unpack_from(data)
    # After the checksum: damage must not be reported as a newer format.
    if magic == _MAGIC and version > FORMAT_VERSION:
        raise StoreMismatch(
            f"{place} has format {version}, this version reads up to {FORMAT_VERSION}: use a newer tierlog"
        )
    try:
        if magic != _MAGIC:
            raise DecodeError("it is of another kind")
        found_id, record = _decode_body(Decoder(data, _ENVELOPE.size, end))
    except DecodeError as error:
        raise DataCorruption(f"this is no log's record: {error}", file=place) from error
    if found_id != log_id:
        raise StoreMismatch(f"{place} belongs to log {found_id.hex()}, not to {log_id.hex()}")
    return record


def _decode_body(body: Decoder) -> tuple[bytes, LogRecord]:
    body.u16()
    log_id, epoch = bytes(body.raw(16)), body.u64()
    owner, opening, count = bytes(body.raw(16)), bytes(body.raw(16)), body.u32()
    if epoch > EPOCH_MAX or count > LEDGERS_MAX:
        raise DecodeError(f"epoch {epoch} and {count} ledgers")
    ledgers = tuple(ListedLedger(body.u64(), body.u64()) for _ in range(count))
    body.finish()
    if any(ledger.first < 1 for ledger in ledgers) or any(
        before.first > after.first for before, after in pairwise(ledgers)
    ):
        raise DecodeError("its ledgers are not in order")
    return log_id, LogRecord(epoch, owner, opening, ledgers)
