"""DeleteSegment: the name is free again; the id's chunks become garbage once a flush cycle has recorded it
(rule F2).

Layout: ``sid u64``.
"""

from __future__ import annotations

from typing import NamedTuple

from ...storage_backends.base.codec import Decoder, Encoder

TYPE = 5


class DeleteSegment(NamedTuple):
    sid: int


def encode(op: DeleteSegment) -> bytes:
    return Encoder().u64(op.sid).finish()


def decode(view: memoryview, start: int, end: int) -> DeleteSegment:
    fields = Decoder(view, start, end)
    op = DeleteSegment(fields.u64())
    fields.finish()
    return op
