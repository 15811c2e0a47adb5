"""The record of a lease, where leases are objects (rules D3 and D4). No I/O.

Layout, big-endian: magic, format version, 1 if it is held and 0 if it was released (2), lease id (16), put id
(16), duration in milliseconds (4), length of the holder's name (2), the name in UTF-8, CRC32C of all before.
Magic, version and a CRC at the end are in every version.
"""

from __future__ import annotations

import struct

import attrs

from ...storage_backends.base.checksum import crc32c
from ...storage_backends.base.errors import DataCorruption, StoreMismatch

FORMAT_VERSION = 1
HOLDER_BYTES_MAX = 256
DURATION_MAX = 86_400.0
"""Seconds."""
_MAGIC = 0x544C_4C45  # "TLLE"
_FIELDS = struct.Struct(">IHH16s16sIH")
_CRC = struct.Struct(">I")
_ENVELOPE = struct.Struct(">IH")


@attrs.frozen
class LeaseRecord:
    held: bool
    lease_id: bytes
    """16 bytes, drawn when the lease is taken."""
    put_id: bytes
    """16 bytes, drawn for each put: no two have the same bytes, hence the same version."""
    duration_ms: int
    holder: str
    """For messages."""


def lease_name(name: str) -> str:
    """The record that the lease is in."""
    return f"leases/{name}"


def encode_lease(lease: LeaseRecord) -> bytes:
    name = lease.holder.encode()
    head = (_MAGIC, FORMAT_VERSION, int(lease.held), lease.lease_id, lease.put_id, lease.duration_ms)
    body = _FIELDS.pack(*head, len(name)) + name
    return body + _CRC.pack(crc32c(body))


def decode_lease(data: bytes, place: str) -> LeaseRecord:
    """Raises ``DataCorruption`` if it is damaged, ``StoreMismatch`` if it has a newer format."""
    end = len(data) - _CRC.size
    if end < _ENVELOPE.size or crc32c(data[:end]) != _CRC.unpack_from(data, end)[0]:
        raise DataCorruption("the lease is damaged", file=place)

    magic, version = _ENVELOPE.unpack_from(data)
    # After the checksum: damage must not be reported as a newer format.
    if magic == _MAGIC and version > FORMAT_VERSION:
        raise StoreMismatch(
            f"{place} has format {version}, this version reads up to {FORMAT_VERSION}: use a newer tierlog"
        )
    if magic != _MAGIC or version != FORMAT_VERSION or end < _FIELDS.size:
        raise DataCorruption("this is no lease", file=place)
    _, _, held, lease_id, put_id, duration_ms, size = _FIELDS.unpack_from(data)
    name = data[_FIELDS.size : end]
    if held > 1 or size != len(name) or size > HOLDER_BYTES_MAX or duration_ms > DURATION_MAX * 1000:
        raise DataCorruption("this is no lease", file=place)
    try:
        return LeaseRecord(bool(held), lease_id, put_id, duration_ms, name.decode())
    except UnicodeDecodeError as error:
        raise DataCorruption("the lease's holder is no text", file=place) from error
