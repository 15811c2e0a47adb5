"""BeginTransaction: opens a transaction on a target. Layout: ``target u64, lease u64, id text, token``."""

from __future__ import annotations

from typing import NamedTuple

from ...storage_backends.base.codec import Decoder, Encoder
from .operation import operation
from .transaction_image import Token, decode_token, encode_token


@operation(17)
class BeginTransaction(NamedTuple):
    target: int
    id: str
    token: Token | None
    lease: int
    """Milliseconds without an append after which the transaction is aborted (rule T7)."""

    def encode(self) -> bytes:
        out = Encoder().u64(self.target).u64(self.lease).text(self.id)
        encode_token(out, self.token)
        return out.finish()

    @staticmethod
    def decode(fields: Decoder) -> BeginTransaction:
        target, lease, transaction = fields.u64(), fields.u64(), fields.text()
        return BeginTransaction(target, transaction, decode_token(fields), lease)
