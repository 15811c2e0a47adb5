"""The verbs of transactions (rules T1 to T9, ``docs/protocols/transactions.md``): the store inherits them.

Owns: their argument checks. Does not own: what a transaction may do next (``container/transactions.py``), nor
the way to a container (the store's).

Every verb can be repeated: what was done before is found, said, and not done again. So a lost reply,
``OutcomeUnknown`` or a restart of the caller is answered by the same call once more.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from ...storage_backends.base.arguments import check_offset, checked_parts, checked_token
from ...storage_backends.base.errors import InvalidArgument, shown
from ...storage_backends.base.names import check_segment_name
from ...storage_backends.base.transactions import (
    LEASE_DEFAULT,
    CommitResult,
    StagedPart,
    TransactionInfo,
    TransactionToken,
    check_lease,
    is_staged,
    staged_name,
)
from ..container.transaction_requests import (
    AbortTransactionRequest,
    BeginTransactionRequest,
    CommitTransactionRequest,
    StageSegmentRequest,
    TransactionRequest,
)

if TYPE_CHECKING:
    from ..container.container import Container

T = TypeVar("T")
REASON_MAX = 1_000
"""The most characters of the reason of an abort."""


class TransactionVerbs:
    """What a store can do with transactions, given its way to the container of a name."""

    _rolling_size: int
    _lease_max: float
    _staged_max: int

    async def _call(self, verb: str, name: str, act: Callable[[Container], Awaitable[T]]) -> T:
        raise NotImplementedError

    async def _call_each(self, act: Callable[[Container], Awaitable[T]]) -> list[T]:
        raise NotImplementedError

    async def begin_transaction(
        self,
        target: str,
        transaction_id: str,
        token: TransactionToken | None = None,
        lease: float = LEASE_DEFAULT,
    ) -> TransactionInfo:
        """Begin a transaction on ``target``, or find the one of that id; its state tells whether there is
        anything left to do.

        With a ``token`` whose epoch was committed before, by this transaction or another, the state is
        COMMITTED: there is nothing to write (rule T4). It is aborted after ``lease`` seconds in which nothing
        was staged or appended; the store's ``transactions.lease_max`` may grant less, which the answer's
        ``lease`` tells.

        Raises ``TransactionEnded`` (its tombstone is known; rule T5), ``SegmentNotFound``,
        ``InvalidArgument`` (another token than before).
        """
        _check(target, transaction_id)
        milliseconds = math.ceil(min(check_lease(lease), self._lease_max) * 1000)
        request = BeginTransactionRequest(target, transaction_id, checked_token(token), milliseconds)
        return await self._call(
            "begin_transaction", target, lambda container: container.ask_transaction(request)
        )

    async def stage_segment(self, target: str, transaction_id: str, part: str) -> str:
        """Make the staged segment ``part`` of an open transaction, or find it; returns its name, which takes
        appends like any other.

        Nobody sees its bytes in the target before the commit. It cannot be sealed, truncated, merged or
        deleted by name.

        Raises ``TransactionNotFound``, ``TransactionEnded``, ``InvalidArgument`` (also for one more than
        ``transactions.staged_max``).
        """
        _check(target, transaction_id)
        name = staged_name(target, transaction_id, part)
        check_segment_name(name)
        request = StageSegmentRequest(target, transaction_id, name, self._rolling_size, self._staged_max)
        return await self._call("stage_segment", target, lambda container: container.ask(request, 256))

    async def commit_transaction(
        self,
        target: str,
        transaction_id: str,
        parts: Sequence[StagedPart],
        token: TransactionToken | None = None,
    ) -> CommitResult:
        """Move ``parts`` to the target's tail in this order, in one step, and end the transaction; its other
        staged segments are dropped.

        Each part must be as long as its ``length`` says (rule T3). If the transaction, or the epoch of its
        token, was committed before, nothing is done and ``applied`` is False. ``token``: the one of
        ``begin_transaction``; given here too, a repeat finds it even when the transaction is long forgotten
        (rule T4).

        Raises ``BadOffset`` (a part has another length), ``SegmentSealed`` (the target; the transaction stays
        open), ``SegmentNotFound`` (the target, or a part that was never staged), ``TransactionNotFound``,
        ``TransactionEnded`` (aborted), ``InvalidArgument``. After each of them nothing was changed.
        """
        _check(target, transaction_id)
        chosen = _checked_parts(parts)
        request = CommitTransactionRequest(target, transaction_id, chosen, checked_token(token))
        size = 256 * (1 + len(chosen))
        return await self._call("commit_transaction", target, lambda container: container.ask(request, size))

    async def abort_transaction(self, target: str, transaction_id: str, reason: str = "") -> TransactionInfo:
        """End a transaction and drop its staged segments; a committed one stays committed, and the answer's
        state says so.

        An unknown one is remembered as aborted, because its begin may come later (rule T6).
        ``SegmentNotFound`` if there is no target.
        """
        _check(target, transaction_id)
        request = AbortTransactionRequest(target, transaction_id, _checked_reason(reason))
        return await self._call(
            "abort_transaction", target, lambda container: container.ask_transaction(request)
        )

    async def transaction_info(self, target: str, transaction_id: str) -> TransactionInfo:
        """What is known of one transaction; all of it is durable. ``TransactionNotFound``."""
        _check(target, transaction_id)
        request = TransactionRequest(target, transaction_id)
        return await self._call(
            "transaction_info", target, lambda container: container.ask_transaction(request)
        )

    async def list_transactions(self, prefix: str = "") -> list[TransactionInfo]:
        """Every known transaction, open or ended, whose target's name begins with ``prefix``, sorted by
        target and id."""
        if not isinstance(prefix, str):
            raise InvalidArgument(f"prefix is a str, not {type(prefix).__name__}")

        infos = [
            info
            for found in await self._call_each(lambda container: container.list_transactions(prefix))
            for info in found
        ]
        return sorted(infos, key=lambda info: (info.target, info.transaction_id))


def _check(target: str, transaction_id: str) -> None:
    """The target is a user's segment, and its name leaves room for those of the staged ones."""
    check_segment_name(target)
    if is_staged(target):
        raise InvalidArgument(f"{target!r} is a staged segment, not a transaction's target")

    check_segment_name(staged_name(target, transaction_id, "p"))


def _checked_parts(parts: Iterable[StagedPart]) -> tuple[StagedPart, ...]:
    chosen = checked_parts(parts)
    for part in chosen:
        check_segment_name(part.name)
        check_offset(part.length, "a part's length")

    return chosen


def _checked_reason(reason: object) -> str:
    if (
        not isinstance(reason, str)
        or len(reason) > REASON_MAX
        or any("\ud800" <= letter <= "\udfff" for letter in reason)
    ):
        raise InvalidArgument(f"a reason is text of at most {REASON_MAX} characters, not {shown(reason)}")

    return reason
