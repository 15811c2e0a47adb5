"""Who writes: the transaction and the token of one write (rule T4).

Owns: how a batch write and a micro-batch are named, so that every task, every attempt and every replay of one
write says the same. Pure, but for the question which tries of a named write there were. Does not own: what is
done under the name (``staging.py``).

A batch writer is made once for each job and pickled to all its tasks, so an id drawn there names the job. A
stream's writer is made anew for each micro-batch and once more for its commit, so an id drawn there would
name nothing: what it is called comes from the task's local properties. They are Spark's internals. Where one
is absent the write fails, because without it nobody could tell a replay.
"""

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
    """One write: ``transaction_id`` is unique to this try of it, the token (if any) to what is written."""

    target: str
    transaction_id: str
    token: TransactionToken | None
    lease: float


def batch_identity(
    options: Options, target: str, new_id: Callable[[], str], known: Callable[[], Iterable[TransactionInfo]]
) -> Identity:
    """``known``: the transactions of the target, which are asked for only if the user named the write."""
    token = None
    if options.txn_app_id is not None and options.txn_version is not None:
        token = TransactionToken(options.txn_app_id, options.txn_version)
    name = f"spark-{new_id()}" if options.txn_id is None else try_of(options.txn_id, target, known())
    return Identity(target, name, token, options.txn_lease)


def try_of(name: str, target: str, known: Iterable[TransactionInfo]) -> str:
    """The transaction of the user's ``txnId``: the committed one if there is one, else the open one, else the
    next.

    Numbered, so that a write whose first try failed can be tried again, and two drivers that do so at once
    share a transaction.
    """
    tries: dict[int, TransactionState] = {}
    for info in known:
        head, _, number = info.transaction_id.rpartition(":")
        if info.target == target and head == name and number.isascii() and number.isdigit():
            tries[int(number)] = info.state
    for wanted in (TransactionState.COMMITTED, TransactionState.OPEN):
        for nth, state in sorted(tries.items()):
            if state is wanted:
                return check_transaction_id(f"{name}:{nth}")

    return check_transaction_id(f"{name}:{max(tries, default=0) + 1}")


def stream_identity(options: Options, target: str, local_property: Callable[[str], str | None]) -> Identity:
    """Of the micro-batch whose task asks."""
    query, batch, run = (_property(local_property, name) for name in (QUERY_ID, BATCH_ID, RUN_ID))
    if not (batch.isascii() and batch.isdigit() and len(batch) < 20 and int(batch) <= ATTRIBUTE_MAX):
        raise Unsupported(f"the task's local property {BATCH_ID} is {batch!r} and no batch id; {_WHY}")

    if not _UUID.fullmatch(query) or not _UUID.fullmatch(run):
        raise Unsupported(
            f"the task's local properties {QUERY_ID} and {RUN_ID} are {query!r} and {run!r} and no ids; "
            f"{_WHY}"
        )

    # The run is part of the name: what an old driver aborts is then never what a new run writes.
    token = TransactionToken(options.txn_app_id or query, int(batch))
    return Identity(target, check_transaction_id(f"{query}:{batch}:{run}"), token, options.txn_lease)


def _property(local_property: Callable[[str], str | None], name: str) -> str:
    value = local_property(name)
    if not value:
        raise Unsupported(f"the task has no local property {name}; {_WHY}")

    return value


def agreed(identities: Iterable[Identity]) -> Identity:
    """The one identity that all tasks of a write found."""
    found = set(identities)
    if len(found) != 1:
        raise InvalidArgument(
            f"the tasks of one write name {len(found)} transactions: "
            f"{sorted(each.transaction_id for each in found)}"
        )

    return found.pop()


_WHY = (
    "without it an exactly-once write cannot tell a replayed micro-batch. "
    "Use foreachBatch with txnAppId and txnVersion, or delivery 'at-least-once'"
)
