"""ForgetTransactions: the tombstones of these ended transactions are over (rule T5).

Layout: ``count u32, [target text, id text] * count``.
"""

from __future__ import annotations

from typing import NamedTuple

from ...storage_backends.base.codec import Decoder, Encoder

TYPE = 20


class ForgetTransactions(NamedTuple):
    transactions: tuple[tuple[str, str], ...]
    """(target's name, id) of each: the target itself may be gone."""


def encode(op: ForgetTransactions) -> bytes:
    out = Encoder().u32(len(op.transactions))
    for target, transaction in op.transactions:
        out.text(target).text(transaction)

    return out.finish()


def decode(view: memoryview, start: int, end: int) -> ForgetTransactions:
    fields = Decoder(view, start, end)
    op = ForgetTransactions(tuple((fields.text(), fields.text()) for _ in range(fields.u32())))
    fields.finish()
    return op
