"""Rows of tables as rows of the container's system table (rule M14). Sync.

Key of a row: ``r:``, the table's id in 8 bytes, and the user's key. A deleted table has a mark, ``v:`` and
its id in hex, until its rows are removed (rule M17)."""

from __future__ import annotations

from ...storage_backends.base.codec import hex_number
from ...storage_backends.sorted_runs.rows import Row

_ROW_PREFIX, REMOVAL_PREFIX = b"r:", b"v:"
_SID_BYTES = 8
PREFIX_BYTES = len(_ROW_PREFIX) + _SID_BYTES


def row_prefix(sid: int) -> bytes:
    """Before the user's keys."""
    return _ROW_PREFIX + sid.to_bytes(_SID_BYTES, "big")


def removal_row(sid: int, version: int) -> Row:
    """The table is deleted, and its rows are not."""
    return Row(removal_key(sid), version, b"")


def removal_key(sid: int) -> bytes:
    return b"%b%016x" % (REMOVAL_PREFIX, sid)


def removed_sid(key: bytes) -> int:
    """The id in the key of a mark. Raises ``DecodeError``."""
    return hex_number(key[len(REMOVAL_PREFIX) :].decode("ascii", "replace"))
