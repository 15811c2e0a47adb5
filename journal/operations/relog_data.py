"""RelogData: logs unflushed bytes a second time, so that a segment that cannot be flushed does not pin the
log's oldest groups (rule F4).

It changes only where recovery finds the bytes. Without data it notes, behind the begin of a checkpoint, the
highest segment id that the log has used (rule C7). Layout: ``sid u64, offset u64, data to the end``.
"""

from __future__ import annotations

from typing import NamedTuple

from ...storage_backends.base.checksum import Buffer
from ...storage_backends.base.codec import Decoder, Encoder
from .operation import operation


@operation(11)
class RelogData(NamedTuple):
    sid: int
    offset: int
    data: Buffer

    def encode(self) -> bytes:
        return Encoder().u64(self.sid).u64(self.offset).raw(self.data).finish()

    @staticmethod
    def decode(fields: Decoder) -> RelogData:
        sid, offset = fields.u64(), fields.u64()
        return RelogData(sid, offset, fields.raw(fields.remaining))
