"""What a removed segment leaves in the system table: rows of a table, of attributes and of writers. Sync.

It has a mark, ``v:`` and its id in hex, until these rows are removed (rule M17)."""

from __future__ import annotations

from ...storage_backends.base.codec import hex_number
from ...storage_backends.sorted_runs.rows import Row
from .attribute_rows import attributes_prefix
from .table_rows import row_prefix
from .writer_rows import writers_prefix

MARK_PREFIX = b"v:"


def mark_key(sid: int) -> bytes:
    return b"%b%016x" % (MARK_PREFIX, sid)


def mark_row(sid: int, version: int) -> Row:
    """The segment is removed, and its rows are not."""
    return Row(mark_key(sid), version, b"")


def marked_sid(key: bytes) -> int:
    """The id in the key of a mark. Raises ``DecodeError``."""
    return hex_number(key[len(MARK_PREFIX) :].decode("ascii", "replace"))


def left_prefixes(sid: int) -> tuple[bytes, ...]:
    """Before the keys of all rows that belong to the segment alone."""
    return row_prefix(sid), attributes_prefix(sid), writers_prefix(sid)
