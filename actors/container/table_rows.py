"""Rows of tables as rows of the container's system table (rule M14). Sync.

Key of a row: ``r:``, the table's id in 8 bytes, and the user's key."""

from __future__ import annotations

_ROW_PREFIX = b"r:"
_SID_BYTES = 8
PREFIX_BYTES = len(_ROW_PREFIX) + _SID_BYTES


def row_prefix(sid: int) -> bytes:
    """Before the user's keys."""
    return _ROW_PREFIX + sid.to_bytes(_SID_BYTES, "big")
