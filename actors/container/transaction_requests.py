"""What a container can be asked about transactions: one message per verb, and the two that its own clock asks
(rules T5 and T7).

Owns: the messages. Does not own: their meaning (``transactions.py``).
"""

from __future__ import annotations

from collections.abc import Sequence

from ...journal.operations.transaction_image import TransactionImage
from ...storage_backends.base.transactions import StagedPart, TransactionToken
from .requests import Request


class TransactionRequest(Request):
    """A verb about one transaction; by itself: what is known of it."""

    __slots__ = ("target", "transaction")

    def __init__(self, target: str, transaction: str) -> None:
        self.target = target
        self.transaction = transaction


class BeginTransactionRequest(TransactionRequest):
    __slots__ = ("lease", "token")

    def __init__(self, target: str, transaction: str, token: TransactionToken | None, lease: int) -> None:
        super().__init__(target, transaction)
        self.token = token
        self.lease = lease


class StageSegmentRequest(TransactionRequest):
    __slots__ = ("name", "rolling_size", "staged_max")

    def __init__(self, target: str, transaction: str, name: str, rolling_size: int, staged_max: int) -> None:
        super().__init__(target, transaction)
        self.name = name
        self.rolling_size = rolling_size
        self.staged_max = staged_max


class CommitTransactionRequest(TransactionRequest):
    __slots__ = ("parts", "token")

    def __init__(
        self, target: str, transaction: str, parts: Sequence[StagedPart], token: TransactionToken | None
    ) -> None:
        super().__init__(target, transaction)
        self.parts = parts
        self.token = token


class AbortTransactionRequest(TransactionRequest):
    __slots__ = ("reason",)

    def __init__(self, target: str, transaction: str, reason: str) -> None:
        super().__init__(target, transaction)
        self.reason = reason


class ListTransactionsRequest(Request):
    __slots__ = ("prefix",)

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix


class ExpireTransactionRequest(Request):
    """Internal: abort ``record`` if it is open still and nothing came to it since ``staged`` was seen."""

    __slots__ = ("record", "staged")

    def __init__(self, record: TransactionImage, staged: tuple[int, int]) -> None:
        self.record = record
        self.staged = staged


class ForgetTransactionsRequest(Request):
    """Internal: the tombstones of ``records`` are over."""

    __slots__ = ("records",)

    def __init__(self, records: Sequence[TransactionImage]) -> None:
        self.records = records
