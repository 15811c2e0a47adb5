"""TransactionImage: what a checkpoint keeps of one transaction, open or ended. It is not an operation;
``CheckpointPart`` carries it.

Staged segments are not listed: their names contain target and transaction (rule T1).

Layout: ``target sid u64, target text, id text, state u8, token, lease u64, reason text, offset u64, length
u64``; a token is ``given u8 [writer text, epoch i64]``.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple, TypeAlias

from ...storage_backends.base.codec import Decoder, Encoder

Token: TypeAlias = tuple[str, int]
"""(writer, epoch)."""
OFFSET_UNKNOWN = (1 << 64) - 1
"""The offset of a transaction that is not committed."""


class TransactionStatus(IntEnum):
    OPEN = 1
    COMMITTED = 2
    ABORTED = 3


class TransactionImage(NamedTuple):
    sid: int
    """The target's segment id: a later segment of the same name is another target (rule T8)."""
    target: str
    id: str
    status: TransactionStatus
    token: Token | None
    lease: int
    """Milliseconds."""
    reason: str = ""
    """Why it was aborted."""
    offset: int = OFFSET_UNKNOWN
    """Where its bytes begin in the target; valid once it is committed."""
    length: int = 0
    """Committed bytes."""


def encode_token(out: Encoder, token: Token | None) -> None:
    out.u8(token is not None)
    if token is not None:
        out.text(token[0]).i64(token[1])


def decode_token(fields: Decoder) -> Token | None:
    return (fields.text(), fields.i64()) if fields.flag() else None


def encode_transaction(image: TransactionImage) -> bytes:
    out = Encoder().u64(image.sid).text(image.target).text(image.id).u8(image.status)
    encode_token(out, image.token)
    return out.u64(image.lease).text(image.reason).u64(image.offset).u64(image.length).finish()


def decode_transaction(data: bytes) -> TransactionImage:
    fields = Decoder(data)
    image = TransactionImage(
        fields.u64(),
        fields.text(),
        fields.text(),
        fields.member(TransactionStatus),
        decode_token(fields),
        fields.u64(),
        fields.text(),
        fields.u64(),
        fields.u64(),
    )
    fields.finish()
    return image
