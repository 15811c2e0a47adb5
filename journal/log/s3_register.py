"""The register of a log in a bucket: who owns it, and where it begins (rules L1 and L7). No I/O.

Layout, big-endian, 92 bytes: magic, format version, 0 (2), log id (16), epoch (8), owner id (16), opening
(16), put id (16), low (8), CRC32C of all before. Magic, version and a CRC at the end are in every version.
"""

from __future__ import annotations

import struct

import attrs

from ...storage_backends.base.checksum import crc32c
from ...storage_backends.base.errors import DataCorruption, StoreMismatch
from ...storage_backends.base.ids import EPOCH_MAX

FORMAT_VERSION = 1
_MAGIC = 0x544C_4F52  # "TLOR"
_FIELDS = struct.Struct(">IHH16sQ16s16s16sQ")
_CRC = struct.Struct(">I")
_ENVELOPE = struct.Struct(">IH")
REGISTER_BYTES = _FIELDS.size + _CRC.size
REGISTER_BYTES_MAX = 4096
"""Of any version."""


@attrs.frozen
class S3Register:
    epoch: int
    owner: bytes
    """16 bytes that identify the store's opening, as in a local register."""
    opening: bytes
    """16 bytes, drawn by each opening of the log. The epoch alone does not identify an owner: if a raise had
    no effect, the next opener takes the same number."""
    put_id: bytes
    """16 bytes, drawn for each put of the register: no two have the same bytes, hence the same version."""
    low: int
    """The slot at which readers begin."""


def encode_s3_register(log_id: bytes, register: S3Register) -> bytes:
    each = register
    fields = (_MAGIC, FORMAT_VERSION, 0, log_id, each.epoch, each.owner, each.opening, each.put_id, each.low)
    body = _FIELDS.pack(*fields)
    return body + _CRC.pack(crc32c(body))


def decode_s3_register(data: bytes, log_id: bytes, place: str) -> S3Register:
    """Raises ``DataCorruption`` if it is damaged, ``StoreMismatch`` if it is another log's or has a newer
    format."""
    end = len(data) - _CRC.size
    if end < _ENVELOPE.size or crc32c(data[:end]) != _CRC.unpack_from(data, end)[0]:
        raise DataCorruption("the register is damaged", file=place)

    magic, version = _ENVELOPE.unpack_from(data)
    # After the checksum: damage must not be reported as a newer format.
    if magic == _MAGIC and version > FORMAT_VERSION:
        raise StoreMismatch(
            f"{place} has format {version}, this version reads up to {FORMAT_VERSION}: use a newer tierlog"
        )
    if magic != _MAGIC or len(data) != REGISTER_BYTES:
        raise DataCorruption("this is no register", file=place)
    _, _, _, found_id, epoch, owner, opening, put_id, low = _FIELDS.unpack_from(data)
    if found_id != log_id:
        raise StoreMismatch(f"{place} belongs to log {found_id.hex()}, not to {log_id.hex()}")
    if low < 1 or epoch > EPOCH_MAX:
        raise DataCorruption(f"epoch {epoch} and slot {low} are no register's", file=place)
    return S3Register(epoch, owner, opening, put_id, low)
