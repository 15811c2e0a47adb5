"""BeginTransaction: a target gets an open transaction. Layout: ``target u64, lease u64, id text, token``."""

from __future__ import annotations

from typing import NamedTuple

from ...storage_backends.base.codec import Decoder, Encoder
from .transaction_image import Token, decode_token, encode_token

TYPE = 17


class BeginTransaction(NamedTuple):
    target: int
    id: str
    token: Token | None
    lease: int
    """Milliseconds without an append after which it is aborted (rule T7)."""


def encode(op: BeginTransaction) -> bytes:
    out = Encoder().u64(op.target).u64(op.lease).text(op.id)
    encode_token(out, op.token)
    return out.finish()


def decode(view: memoryview, start: int, end: int) -> BeginTransaction:
    fields = Decoder(view, start, end)
    target, lease, transaction = fields.u64(), fields.u64(), fields.text()
    op = BeginTransaction(target, transaction, decode_token(fields), lease)
    fields.finish()
    return op
