"""Append: bytes at a segment's tail, with the writer's event numbers if it has any (rule C3).

Layout: ``sid u64, offset u64, writer length u8, [writer bytes, first event number i64, event count u32], data
to the end``. This is the hot record: it decodes into a plain tuple with one ``unpack`` and one slice, and a
group encodes only its head and references the data.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from ...storage_backends.base.checksum import Buffer
from ...storage_backends.base.codec import DecodeError
from . import operation

TYPE = 1
_FIELDS = struct.Struct(">QQB")
_EVENTS = struct.Struct(">qI")
FIELDS_BYTES, _EVENTS_SIZE = _FIELDS.size, _EVENTS.size
_PLAIN_HEAD = struct.Struct(">BIQQB")
PLAIN_HEAD_BYTES = _PLAIN_HEAD.size
pack_plain_head = _PLAIN_HEAD.pack
"""``pack_plain_head(TYPE, FIELDS_BYTES + size, sid, offset, 0)``: ``encode_head`` without a writer, for the
hottest path, where one more call of Python counts."""
new_tuple = tuple.__new__
"""``new_tuple(Append, fields)`` on the hot paths: the constructor of a named tuple is a Python function."""


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

    def encode(self) -> bytes:
        return _encode_fields(self) + bytes(self.data)


def _encode_fields(op: Append) -> bytes:
    """The body up to the data."""
    fields = _FIELDS.pack(op.sid, op.offset, len(op.writer))
    return fields + op.writer + _EVENTS.pack(op.first_event, op.event_count) if op.writer else fields


def encode_head(op: Append, data_size: int) -> bytes:
    """Type, length and the body up to the data; the caller writes the data right behind it."""
    sid, offset, _, writer, _, _ = op
    if not writer:  # the hot path: one pack instead of two and a join
        return pack_plain_head(TYPE, FIELDS_BYTES + data_size, sid, offset, 0)

    fields = _encode_fields(op)
    return operation.HEAD.pack(TYPE, len(fields) + data_size) + fields


def _decode(view: memoryview, start: int, end: int) -> Append:
    try:
        sid, offset, writer_length = _FIELDS.unpack_from(view, start)
        start += FIELDS_BYTES
        if not writer_length:
            if start > end:
                raise DecodeError(f"append ends inside its head at {end}")

            # A view: replay reads every unflushed byte, and most are only put into the cache as they are.
            return new_tuple(Append, (sid, offset, view[start:end], b"", 0, 0))

        writer = bytes(view[start : start + writer_length])
        first, count = _EVENTS.unpack_from(view, start + writer_length)
    except struct.error as error:
        raise DecodeError(f"append at {start} is cut short") from error

    start += writer_length + _EVENTS_SIZE
    if start > end:
        raise DecodeError(f"append ends inside its head at {end}")

    return new_tuple(Append, (sid, offset, view[start:end], writer, first, count))


operation.register(TYPE, Append, _decode)
