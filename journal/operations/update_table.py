"""The records of tables: CreateTable gives a name a new segment id, of a table; UpdateTable puts and removes
rows.

The sequence of an update becomes the version of all its rows; its conditions were checked when it was
decided.

Layouts: ``sid u64, name text``; ``sid u64, writer length u8, [writer bytes, first event number i64, event
count u32], count u32, [key blob, present u8, (value blob)] * count``.
"""

from __future__ import annotations

from typing import NamedTuple

from ...storage_backends.base.codec import Decoder, Encoder
from .operation import operation


@operation(32)
class CreateTable(NamedTuple):
    sid: int
    name: str

    def encode(self) -> bytes:
        return Encoder().u64(self.sid).text(self.name).finish()

    @staticmethod
    def decode(fields: Decoder) -> CreateTable:
        return CreateTable(fields.u64(), fields.text())


@operation(33)
class UpdateTable(NamedTuple):
    sid: int
    writer: bytes
    """1 to 64 bytes, or empty for an update without a writer."""
    first_event: int
    event_count: int
    """How many event numbers this update carries, from ``first_event`` on; 0 without a writer."""
    rows: tuple[tuple[bytes, bytes | None], ...]
    """(key, value); None removes the key. No key twice."""

    def encode(self) -> bytes:
        out = Encoder().u64(self.sid).u8(len(self.writer))
        if self.writer:
            out.raw(self.writer).i64(self.first_event).u32(self.event_count)
        out.u32(len(self.rows))
        for key, value in self.rows:
            out.blob(key).optional_blob(value)
        return out.finish()

    @staticmethod
    def decode(fields: Decoder) -> UpdateTable:
        sid, writer = fields.u64(), bytes(fields.raw(fields.u8()))
        first, count = (fields.i64(), fields.u32()) if writer else (0, 0)
        rows = tuple((fields.blob(), fields.optional_blob()) for _ in range(fields.u32()))
        return UpdateTable(sid, writer, first, count, rows)
