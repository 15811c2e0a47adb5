"""Writers of segments as rows of the system table (rule M20). Sync.

Key of a row: ``y:``, the segment's id in hex, ``:``, and the writer's id in hex. Value: ``first event i64,
last event i64, offset u64``; empty if the writer is expired."""

from __future__ import annotations

import struct

from ...journal.operations.segment_image import WriterState
from ...storage_backends.base.codec import DecodeError
from ...storage_backends.base.errors import DataCorruption
from ...storage_backends.sorted_runs.rows import Row

WRITER_PREFIX = b"y:"
_STATE = struct.Struct(">qqQ")


def writers_prefix(sid: int) -> bytes:
    """Before all writers of a segment."""
    return b"%b%016x:" % (WRITER_PREFIX, sid)


def writer_key(sid: int, writer: bytes) -> bytes:
    return writers_prefix(sid) + writer.hex().encode()


def writer_row(sid: int, writer: bytes, version: int, known: WriterState | None) -> Row:
    """``known`` is None if the writer is expired."""
    return Row(writer_key(sid, writer), version, b"" if known is None else _STATE.pack(*known))


def state_of(value: bytes) -> WriterState | None:
    """The latest events in the value of a row; None if the writer is expired. Raises ``DecodeError``."""
    if not value:
        return None

    if len(value) != _STATE.size:
        raise DecodeError(f"the row of a writer has {len(value)} bytes")
    return WriterState._make(_STATE.unpack(value))


def decode_writer(key: str, value: bytes) -> tuple[bytes, WriterState | None]:
    """The writer of a row, and its latest events; None if it is expired. Raises ``DataCorruption``."""
    try:
        return bytes.fromhex(key[len(writers_prefix(0)) :]), state_of(value)
    except (DecodeError, ValueError) as error:
        raise DataCorruption(f"a row of a writer does not decode: {error}", file=key) from error
