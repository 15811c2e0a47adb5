"""Bugs in transactions: what is committed twice, half, or not at all, and what a late writer can still do.

Left out on purpose: a target that goes without its open transactions, and a second begin of one id. The state
refuses both at once.
"""

from __future__ import annotations

from .mutant import Edit, Mutant, mutant

_TRANSACTIONS = "actors/container/transactions.py"
_TABLE = "actors/container/transaction_table.py"
_LEASES = "actors/container/leases.py"
_STATE = "actors/container/state.py"
_SEGMENTS = "actors/container/segments.py"

TRANSACTIONS: tuple[Mutant, ...] = (
    Mutant(
        "token-not-checked-at-commit",
        "a replay of a committed batch under another transaction id is committed a second time",
        "T4",
        (
            Edit(
                _TRANSACTIONS,
                "        return _superseded(state, record, token), CommitResult(False, None, 0)\n",
                "        pass\n",
            ),
            Edit(
                _TRANSACTIONS,
                "token.epoch, AttributeUpdateKind.REPLACE_IF_GREATER)",
                "token.epoch, AttributeUpdateKind.REPLACE)",
            ),
        ),
    ),
    mutant(
        "token-not-set-by-the-commit",
        "a driver that asks whether its batch is committed is told to write it again",
        "T4",
        _TRANSACTIONS,
        "    updates = () if token is None else (",
        "    updates = () if token is None or token.epoch >= 0 else (",
    ),
    mutant(
        "part-lengths-not-checked",
        "bytes that a second attempt appended after its task had reported are committed with it",
        "T3",
        _TRANSACTIONS,
        "        if segment.length != part.length:\n",
        "        if segment.length < part.length:\n",
    ),
    mutant(
        "parts-committed-in-the-order-they-were-made",
        "the bytes of a transaction are in another order than its driver asked for",
        "T2",
        _TRANSACTIONS,
        "record.id, tuple(sources), ",
        "record.id, tuple(sorted(sources)), ",
    ),
    mutant(
        "commit-into-a-sealed-segment",
        "a segment that was sealed for ever grows by a commit",
        "T8",
        _TRANSACTIONS,
        "    if target.sealed:\n",
        "    if target.sealed and not request.parts:\n",
    ),
    mutant(
        "losing-attempts-are-kept",
        "what a commit does not take stays behind, and can be appended to",
        "T2, T9",
        _TRANSACTIONS,
        "tuple(left.values()), values)",
        "(), values)",
    ),
    mutant(
        "superseded-transaction-stays-open",
        "what was staged under an epoch that is committed already is never dropped",
        "T9",
        _TRANSACTIONS,
        "    if record is None or record.status is not TransactionStatus.OPEN:\n        return None\n",
        "    if record is None or record.status is not TransactionStatus.OPEN or token is not None:\n       "
        " return None\n",
    ),
    mutant(
        "abort-of-a-committed-one-says-aborted",
        "a driver is told that its batch was aborted although it is in the segment, and writes it again",
        "T6",
        _TRANSACTIONS,
        "        return None, _info(state, record)\n\n    aborted =",
        "        return None, _info(state, record._replace(status=TransactionStatus.ABORTED))\n\n    "
        "aborted =",
    ),
    mutant(
        "abort-before-begin-is-not-remembered",
        "an abort that overtook its begin does nothing, and the transaction stays open",
        "T6",
        _TRANSACTIONS,
        "        return op, _info(state, unbegun(request.target, op))\n",
        "        return None, _info(state, unbegun(request.target, op))\n",
    ),
    mutant(
        "transactions-of-an-earlier-segment-count",
        "a new segment refuses transactions because a deleted one of its name had them",
        "T8",
        _TABLE,
        "(sid is not None and sid != record.sid)",
        "(sid is not None and sid != record.sid and record.status is TransactionStatus.OPEN)",
    ),
    mutant(
        "tombstone-forgotten-at-once",
        "a zombie's begin after the commit opens a new transaction",
        "T5",
        _LEASES,
        "self._ended[key] = (record, now + self._tombstone)",
        "self._ended[key] = (record, now)",
    ),
    mutant(
        "tombstones-are-kept-for-ever",
        "a container remembers every transaction that it ever had",
        "T5, T9",
        _LEASES,
        "self._ended[key] = (record, now + self._tombstone)",
        "self._ended[key] = (record, now + self._tombstone + 1e9)",
    ),
    mutant(
        "tombstones-not-in-checkpoints",
        "after a recovery a late writer of an ended transaction is not told",
        "T5, C7",
        _STATE,
        "dict(self.transactions.records))",
        '{key: record for key, record in self.transactions.records.items() if record.status.name == "OPEN"})',
    ),
    mutant(
        "staged-segments-forget-their-transaction-in-recovery",
        "after a recovery from a checkpoint the parts of an open transaction cannot be committed",
        "T1, C7",
        _STATE,
        "        if not segment.is_gone and is_staged(segment.name):\n",
        "        if segment.is_gone and is_staged(segment.name):\n",
    ),
    mutant(
        "lease-not-renewed-by-appends",
        "a transaction is aborted while its tasks write",
        "T7",
        _LEASES,
        "watch.staged, watch.deadline = seen, now + watch.record.lease / 1000",
        "watch.staged = seen",
    ),
    mutant(
        "lease-ends-early",
        "a transaction is aborted before the time that its driver was granted",
        "T7",
        _LEASES,
        "self._seen(record), now + record.lease / 1000)",
        "self._seen(record), now + record.lease / 2000)",
    ),
    mutant(
        "leases-never-end",
        "what a driver that died had staged is kept for ever",
        "T7, T9",
        _LEASES,
        "now + record.lease / 1000)\n        self._look_again(watch, now)\n",
        "now + record.lease / 1000)\n",
    ),
    mutant(
        "expiry-without-a-log-record",
        "a transaction that its owner ended is open again after a recovery",
        "T7",
        _TRANSACTIONS,
        '    return abort_of(state, record, f"its lease',
        '    state._apply[AbortTransaction](abort_of(state, record, "over"))\n'
        '    return None, True\n    return abort_of(state, record, f"its lease',
    ),
    mutant(
        "staged-names-are-listed",
        "a listing shows segments that nobody may use, and that vanish",
        "T1",
        _SEGMENTS,
        "        return names if is_staged(prefix) else [",
        "        return names if is_staged(prefix) or prefix else [",
    ),
)
