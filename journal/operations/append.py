"""Append: bytes at a segment's tail, with the writer's event numbers if it has any (rule C3).

Layout: ``sid u64, offset u64, writer length u8, [writer bytes, first event number i64, event count u32], data
to the end``. This is the hot record: it decodes into a plain tuple with one ``unpack`` and one slice.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from ...storage_backends.base.checksum import Buffer
from ...storage_backends.base.codec import DecodeError

TYPE = 1
_HEAD = struct.Struct(">QQB")
_EVENTS = struct.Struct(">qI")
HEAD_BYTES = _HEAD.size
"""The fields before the data, without a writer."""


class Append(NamedTuple):
    sid: int
    offset: int
    """The segment offset of the first byte of ``data``."""
    data: Buffer
    writer: bytes
    """1 to 64 bytes, or empty for an append without a writer."""
    first_event: int
    event_count: int
    """How many event numbers this append carries, from ``first_event`` on; 0 without a writer."""


def encode_head(sid: int, offset: int, writer: bytes, first_event: int, event_count: int) -> bytes:
    """Everything before the data, so that large data is never copied to be framed."""
    if not writer:
        return _HEAD.pack(sid, offset, 0)

    return _HEAD.pack(sid, offset, len(writer)) + writer + _EVENTS.pack(first_event, event_count)


def decode(view: memoryview, start: int, end: int) -> Append:
    try:
        sid, offset, writer_length = _HEAD.unpack_from(view, start)
        start += HEAD_BYTES
        if not writer_length:
            if start > end:
                raise DecodeError(f"append ends inside its head at {end}")

            return Append(sid, offset, view[start:end], b"", 0, 0)

        writer = bytes(view[start : start + writer_length])
        first, count = _EVENTS.unpack_from(view, start + writer_length)
    except struct.error as error:
        raise DecodeError(f"append at {start} is cut short") from error

    start += writer_length + 12
    if start > end:
        raise DecodeError(f"append ends inside its head at {end}")

    return Append(sid, offset, view[start:end], writer, first, count)
