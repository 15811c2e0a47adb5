"""The identity of a write: its transaction and its token (rule T4), the same in every task, attempt and
replay.

A batch writer is created once for each job and pickled to all its tasks, so a random id drawn there names the
job. A stream's writer is created again for each micro-batch and once more for its commit, so its identity
comes from the task's local properties. These are internals of Spark. Where one is missing the write fails,
because a replay could not be recognized."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import attrs

from ..storage_backends.base.errors import InvalidArgument, Unsupported
from ..storage_backends.base.segments import ATTRIBUTE_MAX
from ..storage_backends.base.transactions import (
    TransactionInfo,
    TransactionState,
    TransactionToken,
    check_transaction_id,
)
from .options import Options

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
RUN_ID = "spark.jobGroup.id"
"""The local properties of a micro-batch's tasks."""
_UUID = re.compile(r"[0-9a-fA-F-]{1,36}")


@attrs.frozen
class Identity:
    """``transaction_id`` identifies this try of the write, the token (if any) the write itself."""

    target: str
    transaction_id: str
    token: TransactionToken | None
    lease: float


def batch_identity(
    options: Options, target: str, new_id: Callable[[], str], known: Callable[[], Iterable[TransactionInfo]]
) -> Identity:
    """``known`` returns the transactions of the target; it is called only if the user named the write."""
    token = None
    if options.txn_app_id is not None and options.txn_version is not None:
        token = TransactionToken(options.txn_app_id, options.txn_version)
    name = f"spark-{new_id()}" if options.txn_id is None else next_try(options.txn_id, target, known())
    return Identity(target, name, token, options.txn_lease)


def next_try(name: str, target: str, known: Iterable[TransactionInfo]) -> str:
    """The transaction of the user's ``txnId``: the committed one if there is one, else the open one, else a
    new one.

    Tries are numbered, so a failed write can be repeated, and two drivers that repeat it at once share a
    transaction.
    """
    tries: dict[int, TransactionState] = {}
    for info in known:
        # At the last colon: the user's own name may have some.
        head, _, number = info.transaction_id.rpartition(":")
        if info.target == target and head == name and number.isascii() and number.isdigit():
            tries[int(number)] = info.state
    for wanted in (TransactionState.COMMITTED, TransactionState.OPEN):
        for nth, state in sorted(tries.items()):
            if state is wanted:
                return check_transaction_id(f"{name}:{nth}")

    return check_transaction_id(f"{name}:{max(tries, default=0) + 1}")


def stream_identity(options: Options, target: str, local_property: Callable[[str], str | None]) -> Identity:
    """The identity of the calling task's micro-batch."""
    query, batch, run = (_property(local_property, name) for name in (QUERY_ID, BATCH_ID, RUN_ID))
    if not (batch.isascii() and batch.isdigit() and len(batch) < 20 and int(batch) <= ATTRIBUTE_MAX):
        raise Unsupported(f"the task's local property {BATCH_ID} is {batch!r}, not a batch id; {_WHY}")

    if not _UUID.fullmatch(query) or not _UUID.fullmatch(run):
        raise Unsupported(
            f"the task's local properties {QUERY_ID} and {RUN_ID} are {query!r} and {run!r}, not ids; {_WHY}"
        )

    # The run is part of the id, so that an old driver cannot abort what a new run writes.
    token = TransactionToken(options.txn_app_id or query, int(batch))
    return Identity(target, check_transaction_id(f"{query}:{batch}:{run}"), token, options.txn_lease)


def _property(local_property: Callable[[str], str | None], name: str) -> str:
    value = local_property(name)
    if not value:
        raise Unsupported(f"the task has no local property {name}; {_WHY}")

    return value


def common_identity(identities: Iterable[Identity]) -> Identity:
    """The identity that all tasks of a write share. Raises ``InvalidArgument`` if they differ."""
    found = set(identities)
    if len(found) != 1:
        raise InvalidArgument(
            f"the tasks of one write name {len(found)} transactions: "
            f"{sorted(each.transaction_id for each in found)}"
        )

    return found.pop()


_WHY = (
    "without it an exactly-once write cannot recognize a replayed micro-batch. "
    "Use foreachBatch with txnAppId and txnVersion, or delivery 'at-least-once'"
)
