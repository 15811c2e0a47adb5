"""The time of transactions: when a lease or a tombstone is over (rules T5 and T7).

Owns: deadlines on the owner's monotone clock, and asking for the abort or the forgetting that is due. Does
not own: whether it happens (the pipeline decides, with ``transactions.py``), nor the records.

An append costs nothing here: each open transaction is looked at every quarter of its lease, and whether
something came since the last look is seen by the number and the durable lengths of its staged segments. So a
lease is never ended early, and at most a quarter late. Deadlines live in memory only, so after a takeover
every lease and every tombstone is whole again. Without transactions nothing is due, and the task sleeps until
one begins.

Cancellation: nothing is held. Crash: nothing is kept.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import anyio
import attrs

from ...journal.operations.abort_transaction import AbortTransaction
from ...journal.operations.begin_transaction import BeginTransaction
from ...journal.operations.commit_transaction import CommitTransaction
from ...journal.operations.transaction_image import TransactionImage, TransactionStatus
from ...storage_backends.base.statistics import counter, gauge
from ...storage_backends.base.transactions import TransactionInfo, TransactionState
from .operations.transactions import ExpireTransactionRequest, ForgetTransactionsRequest
from .requests import Request
from .state import ContainerState
from .transaction_table import Key

LOOKS = 4
"""Looks at an open transaction in one lease."""
_FORGET_TOGETHER = 1 / 64
"""Tombstones are forgotten late by up to this share of their time: many with one operation."""
_FORGET_MAX = 1024
_REQUEST_BYTES = 256


@attrs.frozen
class TransactionStatistics:
    open: int = attrs.field(metadata=gauge("Open transactions."))
    tombstones: int = attrs.field(metadata=gauge("Ended transactions that are still remembered."))
    committed: int = attrs.field(metadata=counter("Transactions committed by this owner."))
    aborted: int = attrs.field(metadata=counter("Transactions aborted by this owner, for whatever reason."))
    expired: int = attrs.field(metadata=counter("Those of them whose lease was over."))


@attrs.define(eq=False)
class _Watch:
    """One open transaction between two looks."""

    record: TransactionImage
    staged: tuple[int, int]
    """What the last look saw: number and durable bytes of its staged segments."""
    deadline: float


class Leases:
    def __init__(
        self, state: ContainerState, ask: Callable[[Request, int], Awaitable[Any]], *, tombstone: float
    ) -> None:
        """``ask`` puts an internal request into the pipeline; ``tombstone``: seconds for which an ended
        transaction is remembered."""
        self._state = state
        self._ask = ask
        self._tombstone = tombstone
        self._open: dict[Key, _Watch] = {}
        self._looks: list[tuple[float, int, _Watch]] = []
        """(time, a number that breaks ties, what to look at); a watch that is not in ``_open`` any more is
        passed over."""
        self._numbers = itertools.count()
        self._ended: dict[Key, tuple[TransactionImage, float]] = {}
        """(tombstone, when it is over), the oldest first: all have the same time."""
        self._live = False
        self._sleeps_until = -math.inf
        self._wake = anyio.Event()
        self._committed = self._aborted = self._expired = 0

    def begin(self) -> None:
        """The ownership begins: all that recovery found has its whole time (rules T5 and T7)."""
        self._live = True
        now = anyio.current_time()
        for key in self._state.transactions.records:
            self._watch(key, now)
            self._bury(key, now)

    def note(self, op: BeginTransaction | CommitTransaction | AbortTransaction) -> None:
        """``op`` is durable. What recovery replays has its time from ``begin`` on."""
        if not self._live:
            return

        key, now = (self._state.segments.by_id[op.target].name, op.id), anyio.current_time()
        if type(op) is BeginTransaction:
            self._watch(key, now)
            return

        self._committed += type(op) is CommitTransaction
        self._aborted += type(op) is AbortTransaction
        self._bury(key, now)

    def with_time(self, info: TransactionInfo) -> TransactionInfo:
        """``info`` with the time that is left of its lease or tombstone."""
        return attrs.evolve(info, expires_in=max(0.0, self._time_left(info)))

    async def run(self) -> None:
        """Ask for what is due, whenever something is."""
        while True:
            now = anyio.current_time()
            await self._look(now)
            await self._forget(now)
            self._wake = anyio.Event()
            self._sleeps_until = self._next_time()
            with anyio.CancelScope(deadline=self._sleeps_until):
                await self._wake.wait()
            self._sleeps_until = -math.inf

    def statistics(self) -> TransactionStatistics:
        table = self._state.transactions
        return TransactionStatistics(
            table.open_count, table.tombstones, self._committed, self._aborted, self._expired
        )

    # --- inside ----------------------------------------------------------------------------------

    def _watch(self, key: Key, now: float) -> None:
        record = self._state.transactions.records.get(key)
        if record is None or record.status is not TransactionStatus.OPEN:
            return  # it ended in a group that is not durable yet

        watch = self._open[key] = _Watch(record, self._seen(record), now + record.lease / 1000)
        self._look_again(watch, now)

    def _bury(self, key: Key, now: float) -> None:
        record = self._state.transactions.records.get(key)
        if record is None or record.status is TransactionStatus.OPEN:
            return  # its name was taken by a newer one

        self._open.pop(key, None)
        self._drop_looks()
        self._ended.pop(key, None)
        self._ended[key] = (record, now + self._tombstone)
        self._wake_by(self._next_time())

    def _look_again(self, watch: _Watch, now: float) -> None:
        at = min(watch.deadline, now + watch.record.lease / 1000 / LOOKS)
        heapq.heappush(self._looks, (at, next(self._numbers), watch))
        self._wake_by(at)

    def _drop_looks(self) -> None:
        """Once most of the looks are at what has ended, those go: there are never many more than open
        transactions."""
        if len(self._looks) > 2 * len(self._open):
            self._looks = [entry for entry in self._looks if self._is_open(entry[2])]
            heapq.heapify(self._looks)

    def _is_open(self, watch: _Watch) -> bool:
        return self._open.get((watch.record.target, watch.record.id)) is watch

    def _wake_by(self, time: float) -> None:
        if time < self._sleeps_until:
            self._wake.set()

    def _next_time(self) -> float:
        look = self._looks[0][0] if self._looks else math.inf
        oldest = next(iter(self._ended.values()), None)
        return look if oldest is None else min(look, oldest[1] + self._tombstone * _FORGET_TOGETHER)

    def _seen(self, record: TransactionImage) -> tuple[int, int]:
        staged = self._state.transactions.staged(record).values()
        return len(staged), sum(map(self._state.segments.length_of, staged))

    async def _look(self, now: float) -> None:
        while self._looks and self._looks[0][0] <= now:
            watch = heapq.heappop(self._looks)[2]
            if not self._is_open(watch):
                continue

            seen = self._seen(watch.record)
            if seen != watch.staged:
                watch.staged, watch.deadline = seen, now + watch.record.lease / 1000
            elif now >= watch.deadline:
                if await self._ask(ExpireTransactionRequest(watch.record, seen), _REQUEST_BYTES):
                    self._expired += 1
                    continue
                watch.deadline = (
                    now + watch.record.lease / 1000
                )  # something came to it that is not durable yet

            self._look_again(watch, now)

    async def _forget(self, now: float) -> None:
        while due := list(itertools.islice(self._due(now), _FORGET_MAX)):
            for record in due:
                del self._ended[record.target, record.id]

            await self._ask(ForgetTransactionsRequest(due), _REQUEST_BYTES * len(due))

    def _due(self, now: float) -> Iterator[TransactionImage]:
        return (
            record
            for record, deadline in itertools.takewhile(lambda entry: entry[1] <= now, self._ended.values())
        )

    def _time_left(self, info: TransactionInfo) -> float:
        now, key = anyio.current_time(), (info.target, info.transaction_id)
        if info.state is TransactionState.OPEN:
            watch = self._open.get(key)
            # What came since the last look makes the lease whole; the next look will see it.
            return (
                info.lease
                if watch is None or self._seen(watch.record) != watch.staged
                else watch.deadline - now
            )

        tombstone = self._ended.get(key)
        return 0.0 if tombstone is None else tombstone[1] - now
