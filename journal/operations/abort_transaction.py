"""AbortTransaction: a transaction ends, its staged segments are deleted, and the reason is kept (rule T6).

Layout: ``target u64, id text, reason text, dropped u32, [sid u64] * dropped``.
"""

from __future__ import annotations

from typing import NamedTuple

from ...storage_backends.base.codec import Decoder, Encoder
from .operation import operation


@operation(19)
class AbortTransaction(NamedTuple):
    target: int
    id: str
    reason: str
    dropped: tuple[int, ...]
    """All its staged segments."""

    def encode(self) -> bytes:
        out = Encoder().u64(self.target).text(self.id).text(self.reason)
        encode_dropped(out, self.dropped)
        return out.finish()

    @staticmethod
    def decode(fields: Decoder) -> AbortTransaction:
        return AbortTransaction(fields.u64(), fields.text(), fields.text(), decode_dropped(fields))


def encode_dropped(out: Encoder, sids: tuple[int, ...]) -> None:
    out.u32(len(sids))
    for sid in sids:
        out.u64(sid)


def decode_dropped(fields: Decoder) -> tuple[int, ...]:
    return tuple(fields.u64() for _ in range(fields.u32()))
