"""The verbs of transactions as requests (rule H17). No I/O; both clients share it.

Owns: the arguments' checks, which request each verb becomes, and what a repeat of it does. Does not own: the
verdicts (``retries.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from ....storage_backends.base.arguments import checked_parts, checked_token
from ....storage_backends.base.errors import InvalidArgument
from ....storage_backends.base.names import check_segment_name
from ....storage_backends.base.transactions import (
    CommitResult,
    StagedPart,
    TransactionInfo,
    TransactionToken,
    check_lease,
    check_transaction_id,
    staged_name,
)
from ..wire import paths, transactions
from ..wire.paths import Verb
from .attempts import ClientContext, Program, call_all_hosts
from .requests import Call, Request, Response, listing, post
from .retries import Repeat

T = TypeVar("T")


def begin_transaction(
    target: str, transaction_id: str, token: TransactionToken | None, lease: float
) -> Call[TransactionInfo]:
    begin = transactions.Begin(check_transaction_id(transaction_id), checked_token(token), check_lease(lease))
    return post(
        target,
        Verb.BEGIN_TRANSACTION,
        transactions.begin_document(begin),
        _parsed(transactions.parse_transaction),
        Repeat.SETTLES,
    )


def stage_segment(target: str, transaction_id: str, part: str) -> Call[str]:
    staged_name(target, transaction_id, part)
    body = transactions.stage_document(transaction_id, part)
    return post(target, Verb.STAGE_SEGMENT, body, _parsed(transactions.parse_staged), Repeat.SETTLES)


def commit_transaction(
    target: str, transaction_id: str, parts: Sequence[StagedPart], token: TransactionToken | None
) -> Call[CommitResult]:
    checked = tuple(map(transactions.check_part, checked_parts(parts)))
    body = transactions.commit_document(
        transactions.Commit(check_transaction_id(transaction_id), checked, checked_token(token))
    )
    return post(
        target, Verb.COMMIT_TRANSACTION, body, _parsed(transactions.parse_commit_result), Repeat.COMMITS
    )


def abort_transaction(target: str, transaction_id: str, reason: str) -> Call[TransactionInfo]:
    if not isinstance(reason, str):
        raise InvalidArgument(f"a reason is a str, not {type(reason).__name__}")

    body = transactions.abort_document(check_transaction_id(transaction_id), reason)
    return post(target, Verb.ABORT_TRANSACTION, body, _parsed(transactions.parse_transaction), Repeat.SETTLES)


def transaction_info(target: str, transaction_id: str) -> Call[TransactionInfo]:
    check_segment_name(target)
    path = paths.transaction_info_path(target, check_transaction_id(transaction_id))
    return Call(Request("GET", path), Repeat.READS, _parsed(transactions.parse_transaction), target)


def list_transactions(context: ClientContext, prefix: str) -> Program[list[TransactionInfo]]:
    """Of all hosts; a host is believed about its own containers only."""
    call = Call(
        listing(paths.transactions_path, prefix), Repeat.READS, _parsed(transactions.parse_transactions)
    )
    found = yield from call_all_hosts(context, call)
    infos = [
        info
        for containers, told in found
        for info in told
        if context.map.container_of(info.target) in containers
    ]
    return sorted(infos, key=lambda info: (info.target, info.transaction_id))


def _parsed(parse: Callable[[bytes], T]) -> Callable[[Response], T]:
    return lambda response: parse(response.body)
