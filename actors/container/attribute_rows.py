"""Attributes of segments as rows of the system table (rule M19). Sync.

Key of a row: ``a:``, the segment's id in hex, and ``:`` with the name, or ``#`` with the attribute's id in
hex. Value: ``i64``."""

from __future__ import annotations

import struct

from ...storage_backends.base.codec import DecodeError
from ...storage_backends.base.segments import AttributeName
from ...storage_backends.sorted_runs.rows import Row

ATTRIBUTE_PREFIX = b"a:"
_NAME, _ID = b":", b"#"
_VALUE = struct.Struct(">q")
_HEAD_BYTES = len(ATTRIBUTE_PREFIX) + 16


def attributes_prefix(sid: int) -> bytes:
    """Before all attributes of a segment."""
    return b"%b%016x" % (ATTRIBUTE_PREFIX, sid)


def attribute_key(sid: int, name: AttributeName) -> bytes:
    """The key of an attribute, or the prefix of the keys of those that begin with ``name``."""
    tail = _NAME + name.encode() if isinstance(name, str) else _ID + name.hex().encode()
    return attributes_prefix(sid) + tail


def attribute_row(sid: int, name: AttributeName, version: int, value: int) -> Row:
    return Row(attribute_key(sid, name), version, _VALUE.pack(value))


def name_of_key(key: bytes) -> AttributeName:
    """Raises ``DecodeError``."""
    kind, name = key[_HEAD_BYTES : _HEAD_BYTES + 1], key[_HEAD_BYTES + 1 :]
    try:
        if kind == _NAME:
            return name.decode()
        if kind == _ID:
            return bytes.fromhex(name.decode())
    except ValueError as error:
        raise DecodeError(f"the key of an attribute's row is damaged: {error}") from error
    raise DecodeError(f"an attribute is of no kind that this code knows: {kind!r}")


def value_of(row: Row | None) -> int | None:
    """The value in an attribute's row; None without a row. Raises ``DecodeError``."""
    if row is None or row.value is None:
        return None

    if len(row.value) != _VALUE.size:
        raise DecodeError(f"the row of an attribute has {len(row.value)} bytes")
    value: int = _VALUE.unpack(row.value)[0]
    return value
