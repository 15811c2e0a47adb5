"""The public types of a transaction, and the names of staged segments (rules T1 to T9,
``docs/protocols/transactions.md``).

A transaction collects bytes in staged segments beside its target, invisible to readers of the target, and
moves chosen ones to the target's end in one step. Its token makes the commit idempotent: a replay after a
lost reply commits nothing twice.
"""

from __future__ import annotations

import re
from enum import Enum

import attrs
from msgspec import Struct

from .errors import InvalidArgument, shown
from .segments import ATTRIBUTE_MAX, ATTRIBUTE_NAME_BYTES_MAX
from .values import Value

TRANSACTION_ID_MAX = 96
PART_NAME_MAX = 64
PARTS_MAX = 16_384
"""The most staged segments in one commit."""
STAGED_MAX = 4 * PARTS_MAX
"""The default for the most staged segments of an open transaction; those of failed attempts stay until it
ends."""
TRANSACTIONS_PAGE_MAX = 256
"""Transactions in one page of a listing. One with more staged segments than fit ends its page."""
LEASE_MIN = 1.0
LEASE_MAX = 30 * 86_400.0
LEASE_DEFAULT = 3_600.0
WRITER_ATTRIBUTE = "txn:"
"""The target's attribute of this prefix plus a token's writer is the newest epoch committed for that
writer."""
_SEPARATOR = "#txn."
_ID = r"[A-Za-z0-9_.:-]+"
_PART = r"[A-Za-z0-9_-]+"


class TransactionState(Enum):
    """The states of a transaction. Only an open one takes appends; the others are final."""

    OPEN = "open"
    """Its staged segments take appends until it is committed, aborted, or its lease expires."""
    COMMITTED = "committed"
    ABORTED = "aborted"


class TransactionToken(Struct, frozen=True):
    """Identifies one commit of one writer. A writer's epochs only rise, and each is committed at most once
    (rule T4).

    In Spark: (query id, batch id), or ``txnAppId`` and ``txnVersion``.
    """

    writer: str
    """1 to 124 printable UTF-8 bytes."""
    epoch: int
    """0 to 2**63 - 1."""

    def __post_init__(self) -> None:
        limit = ATTRIBUTE_NAME_BYTES_MAX - len(WRITER_ATTRIBUTE)
        writer: object = self.writer
        if (
            not isinstance(writer, str)
            or not 0 < len(writer.encode("utf-8", "surrogatepass")) <= limit
            or not writer.isprintable()
        ):
            raise InvalidArgument(
                f"a token's writer is printable text of 1 to {limit} UTF-8 bytes, not {shown(writer)}"
            )
        if type(self.epoch) is not int or not 0 <= self.epoch <= ATTRIBUTE_MAX:
            raise InvalidArgument(
                f"a token's epoch is an integer from 0 to {ATTRIBUTE_MAX}, not {shown(self.epoch)}"
            )

    @property
    def attribute(self) -> str:
        """The target's attribute that guards the commit."""
        return WRITER_ATTRIBUTE + self.writer


class StagedPart(Struct, frozen=True):
    """A staged segment to commit: its name, and its length as acked to its writer."""

    name: str
    length: int


@attrs.frozen(eq=False, repr=False)
class TransactionInfo(Value):
    """A snapshot of one transaction. Everything in it is durable."""

    transaction_id: str
    target: str
    state: TransactionState
    token: TransactionToken | None
    lease: float = attrs.field(validator=attrs.validators.ge(0))
    """Seconds without an append to a staged segment after which an open transaction is aborted."""
    expires_in: float = attrs.field(validator=attrs.validators.ge(0))
    """Seconds until the lease of an open transaction expires without appends, or until the record of an ended
    one does."""
    reason: str
    """Why it was aborted; empty otherwise."""
    offset: int | None
    """Where its bytes begin in the target, once committed; None if that is no longer known."""
    length: int
    """Bytes committed, or staged so far."""
    staged: tuple[StagedPart, ...] = ()
    """The staged segments of an open transaction."""


class TransactionPage(Struct, frozen=True):
    """Transactions, sorted by target and id."""

    transactions: list[TransactionInfo]
    """Perhaps none: a page ends after some thousand that it does not show as well."""
    token: str | None
    """Continues after this page; None if there is nothing more. It stays valid, whatever becomes of the
    transactions or of the process that gave it."""


class CommitResult(Struct, frozen=True):
    """What ``commit_transaction`` did."""

    applied: bool
    """False if this transaction, or the token's epoch, had been committed before; then nothing was done."""
    offset: int | None
    """Where the bytes begin in the target; None if they came with an earlier commit of which only the token
    is known."""
    length: int
    """Bytes that the commit appended."""


def check_transaction_id(transaction_id: object) -> str:
    if (
        not isinstance(transaction_id, str)
        or len(transaction_id) > TRANSACTION_ID_MAX
        or not re.fullmatch(_ID, transaction_id)
    ):
        raise InvalidArgument(
            f"a transaction id is 1 to {TRANSACTION_ID_MAX} letters, digits and . _ - :, not "
            f"{shown(transaction_id)}"
        )
    return transaction_id


def check_lease(lease: object) -> float:
    if isinstance(lease, bool) or not isinstance(lease, int | float) or not LEASE_MIN <= lease <= LEASE_MAX:
        raise InvalidArgument(
            f"a lease is {LEASE_MIN:.0f} to {LEASE_MAX:.0f} seconds ({LEASE_MAX / 86_400:.0f} days), "
            f"not {shown(lease)}"
        )
    return float(lease)


def staged_name(target: str, transaction_id: str, part: object) -> str:
    """The name of a staged segment. It is in the target's container (rule T1)."""
    if not isinstance(part, str) or len(part) > PART_NAME_MAX or not re.fullmatch(_PART, part):
        raise InvalidArgument(
            f"a part's name is 1 to {PART_NAME_MAX} letters, digits, _ and -, not {shown(part)}"
        )
    return f"{target}{_SEPARATOR}{check_transaction_id(transaction_id)}.{part}"


def staged_prefix(target: str, transaction_id: str) -> str:
    """Before the names of all that is staged for a transaction."""
    return f"{target}{_SEPARATOR}{transaction_id}."


def is_staged(name: str) -> bool:
    """Whether ``name`` is the name of a staged segment."""
    return _SEPARATOR in name


def split_staged(name: str) -> tuple[str, str]:
    """(target, transaction id) of a staged segment's name. Part names contain no dot, so the last dot ends
    the id."""
    target, _, rest = name.rpartition(_SEPARATOR)
    return target, rest.rpartition(".")[0]
