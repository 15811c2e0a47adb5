"""A container's open transactions: one immutable record for each, and its staged segments (rules T1 to T9).
Those that ended are rows of the system table (rule M21).

Checkpoints keep the records. The maps beside them are derived from the records and from the names of staged
segments, and are never persisted. An impossible change raises ``ValueError``: only a damaged log leads to it
(rule C5).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TypeAlias

from ...journal.operations.abort_transaction import AbortTransaction
from ...journal.operations.begin_transaction import BeginTransaction
from ...journal.operations.commit_transaction import CommitTransaction
from ...journal.operations.transaction_image import TransactionImage, TransactionStatus
from ...storage_backends.base.errors import InvalidArgument, TransactionEnded, TransactionNotFound
from ...storage_backends.base.sorted_dict import SortedDict
from ...storage_backends.base.transactions import WRITER_ATTRIBUTE, is_staged, split_staged

Key: TypeAlias = tuple[str, str]
"""(target's name, transaction id)."""
TARGET_DELETED = "its target was deleted"
"""Why a transaction was aborted whose target was deleted or merged."""


class TransactionTable:
    def __init__(self) -> None:
        self.records: SortedDict[Key, TransactionImage] = SortedDict()
        self.open_of: dict[int, dict[str, None]] = {}
        """Target's segment id -> ids of its open transactions."""
        self._staged: dict[Key, dict[str, int]] = {}
        """Staged segments: name -> segment id, in the order in which they were made."""
        self.ends = 0
        """How many ends are remembered, those too that a later one has replaced."""

    def records_from(self, start: Key) -> Iterator[TransactionImage]:
        """The records from ``start`` on, sorted."""
        for key in chain.from_iterable(self.records.runs_from(start)):
            if key >= start:
                yield self.records[key]

    def staged(self, record: TransactionImage) -> dict[str, int]:
        """Its staged segments: name -> segment id."""
        return self._staged.get((record.target, record.id), {})

    def abort_of(self, record: TransactionImage, reason: str) -> AbortTransaction:
        """The abort of an open transaction, which deletes all that it staged."""
        return AbortTransaction(record.sid, record.id, reason, tuple(self.staged(record).values()))

    def aborts_with_target(self, target: str, sid: int) -> list[AbortTransaction]:
        """The aborts that precede the end of a target, in the same group (rule T8)."""
        return [
            self.abort_of(self.records[target, transaction], TARGET_DELETED)
            for transaction in self.open_of.get(sid, ())
        ]

    # --- changes ---------------------------------------------------------------------------------

    def restore(self, record: TransactionImage) -> None:
        """Recovery: add the record of an open transaction."""
        key = (record.target, record.id)
        if key in self.records:
            raise ValueError(f"transaction {key} is in the table already")

        self.records[key] = record
        self.open_of.setdefault(record.sid, {})[record.id] = None

    def begin(self, target: str, op: BeginTransaction) -> TransactionImage:
        if is_staged(target):
            raise ValueError(f"a begin of {op.id!r} on {target!r}")

        record = begun(target, op)
        self.restore(record)
        return record

    def stage(self, name: str, sid: int) -> int:
        """A segment with a staged name was created. Returns the id of the target."""
        key = split_staged(name)
        if key not in self.records:
            raise ValueError(f"{name!r} is staged for a transaction that is not open")

        self._staged.setdefault(key, {})[name] = sid
        return self.records[key].sid

    def commit(self, target: str, op: CommitTransaction) -> TransactionImage:
        """The record as of its end, which leaves the table."""
        record = self._remove(target, op.target, op.id)
        length = sum(length for _, length in op.sources)
        for name, epoch in op.values:
            record = record._replace(token=(name.removeprefix(WRITER_ATTRIBUTE), epoch))
        return record._replace(status=TransactionStatus.COMMITTED, offset=op.offset, length=length)

    def abort(self, target: str, op: AbortTransaction) -> TransactionImage:
        """The record as of its end, which leaves the table if it was there (rule T6)."""
        known = (target, op.id) in self.records
        record = self._remove(target, op.target, op.id) if known else never_begun(target, op)
        return record._replace(status=TransactionStatus.ABORTED, reason=op.reason)

    def _remove(self, target: str, sid: int, transaction: str) -> TransactionImage:
        key = target, transaction
        record = self.records.get(key)
        if record is None or record.sid != sid:
            raise ValueError(f"transaction {transaction!r} on {target!r} is not open")

        del self.records[key]
        self._staged.pop(key, None)
        ids = self.open_of[sid]
        del ids[transaction]
        # Its presence means that the target has open transactions (``ContainerState.unname``).
        if not ids:
            del self.open_of[sid]
        return record


def begun(target: str, op: BeginTransaction) -> TransactionImage:
    """The record that ``op`` makes."""
    return TransactionImage(op.target, target, op.id, TransactionStatus.OPEN, op.token, op.lease)


def never_begun(target: str, op: AbortTransaction) -> TransactionImage:
    """The record of an abort without a begin, or one that overtook it (rule T6)."""
    return TransactionImage(op.target, target, op.id, TransactionStatus.ABORTED, None, 0, op.reason)


# --- refusals -----------------------------------------------------------------------------------


def refuse_staged(name: str, hint: str) -> None:
    """Only its transaction changes a staged segment (rule T1)."""
    if is_staged(name):
        raise InvalidArgument(f"{name!r} is the name of a transaction's staged segment: {hint}")


def ended(record: TransactionImage) -> TransactionEnded:
    """The refusal of a verb that needs an open transaction (rule T5)."""
    state = record.status.name.lower()
    why = f": {record.reason}" if record.reason else ""
    return TransactionEnded(
        f"transaction {record.id!r} on {record.target!r} was {state}{why}", segment=record.target, state=state
    )


def unknown(target: str, transaction: str) -> TransactionNotFound:
    return TransactionNotFound(
        f"no transaction {transaction!r} on {target!r} is known: it never began, or was forgotten",
        segment=target,
    )
