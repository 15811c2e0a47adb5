"""AbortTransaction: a transaction is over, its staged segments are deleted, and the reason is remembered
(rule T6).

Layout: ``target u64, id text, reason text, dropped u32, [sid u64] * dropped``.
"""

from __future__ import annotations

from typing import NamedTuple

from ...storage_backends.base.codec import Decoder, Encoder

TYPE = 19


class AbortTransaction(NamedTuple):
    target: int
    id: str
    reason: str
    dropped: tuple[int, ...]
    """All its staged segments."""


def encode_dropped(out: Encoder, sids: tuple[int, ...]) -> None:
    out.u32(len(sids))
    for sid in sids:
        out.u64(sid)


def decode_dropped(fields: Decoder) -> tuple[int, ...]:
    return tuple(fields.u64() for _ in range(fields.u32()))


def encode(op: AbortTransaction) -> bytes:
    out = Encoder().u64(op.target).text(op.id).text(op.reason)
    encode_dropped(out, op.dropped)
    return out.finish()


def decode(view: memoryview, start: int, end: int) -> AbortTransaction:
    fields = Decoder(view, start, end)
    op = AbortTransaction(fields.u64(), fields.text(), fields.text(), decode_dropped(fields))
    fields.finish()
    return op
