"""DeleteSegment: frees the name. The segment's chunks become garbage with the next complete flush cycle (rule
F2).

Layout: ``sid u64``.
"""

from __future__ import annotations

from typing import NamedTuple

from ...storage_backends.base.codec import Decoder, Encoder
from .operation import operation


@operation(5)
class DeleteSegment(NamedTuple):
    sid: int

    def encode(self) -> bytes:
        return Encoder().u64(self.sid).finish()

    @staticmethod
    def decode(fields: Decoder) -> DeleteSegment:
        return DeleteSegment(fields.u64())
