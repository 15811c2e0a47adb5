"""What moves attributes out of a segment's image into rows of the system table (rule M19), of any number.

SpillAttributes: from here on, names that the image does not have are rows; those beyond its first ``keep``
become rows now. For segment 0 it marks a checkpoint that has such rows: earlier code, which would lose them,
refuses it. UpdateAttributeIds: sets attributes that have ids in place of names, which always are rows.

Like all updates both hold results, never conditions. Layouts: ``sid u64, keep u32``; ``sid u64, count u16,
[id 16 bytes, value i64] * count``."""

from __future__ import annotations

from typing import NamedTuple

from ...storage_backends.base.codec import Decoder, Encoder
from ...storage_backends.base.segments import ATTRIBUTE_ID_BYTES
from .operation import operation


@operation(35)
class SpillAttributes(NamedTuple):
    sid: int
    keep: int

    def encode(self) -> bytes:
        return Encoder().u64(self.sid).u32(self.keep).finish()

    @staticmethod
    def decode(fields: Decoder) -> SpillAttributes:
        return SpillAttributes(fields.u64(), fields.u32())


@operation(36)
class UpdateAttributeIds(NamedTuple):
    sid: int
    values: tuple[tuple[bytes, int], ...]

    def encode(self) -> bytes:
        out = Encoder().u64(self.sid).u16(len(self.values))
        for each, value in self.values:
            out.raw(each).i64(value)
        return out.finish()

    @staticmethod
    def decode(fields: Decoder) -> UpdateAttributeIds:
        sid, count = fields.u64(), fields.u16()
        return UpdateAttributeIds(
            sid, tuple((bytes(fields.raw(ATTRIBUTE_ID_BYTES)), fields.i64()) for _ in range(count))
        )
