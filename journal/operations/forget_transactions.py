"""ForgetTransactions: removes the tombstones of ended transactions (rule T5).

Layout: ``count u32, [target text, id text] * count``.
"""

from __future__ import annotations

from typing import NamedTuple

from ...storage_backends.base.codec import Decoder, Encoder
from .operation import operation


@operation(20)
class ForgetTransactions(NamedTuple):
    transactions: tuple[tuple[str, str], ...]
    """(target's name, id) of each; the target itself may have been deleted."""

    def encode(self) -> bytes:
        out = Encoder().u32(len(self.transactions))
        for target, transaction in self.transactions:
            out.text(target).text(transaction)

        return out.finish()

    @staticmethod
    def decode(fields: Decoder) -> ForgetTransactions:
        return ForgetTransactions(tuple((fields.text(), fields.text()) for _ in range(fields.u32())))
