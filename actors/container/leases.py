"""The time of open transactions: when a lease expires (rule T7).

Deadlines are on the owner's monotonic clock; what has expired is aborted by a request like any other
(``operations/transactions.py``).

An append costs nothing here. Each open transaction is checked every quarter of its lease, and the number and
durable lengths of its staged segments show whether something came since the last check. So a lease never
expires early, and at most a quarter late. Deadlines are in memory only: after a takeover every lease begins
anew. Without transactions nothing is due, and the task sleeps until one begins. Ended ones are in the care of
``tombstones.py``."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import attrs
from msgspec import Struct

from ...journal.operations.abort_transaction import AbortTransaction
from ...journal.operations.begin_transaction import BeginTransaction
from ...journal.operations.commit_transaction import CommitTransaction
from ...journal.operations.transaction_image import TransactionImage
from ...storage_backends.base.transactions import TransactionInfo
from ...storage_backends.sorted_runs.reader import RunReader
from ..kernel.slices import in_slices
from .ended_rows import ended_key
from .operations.transactions import ExpireTransactionRequest
from .requests import Request
from .state import ContainerState
from .tombstones import Tombstones
from .transaction_table import Key

if TYPE_CHECKING:
    from .statistics import TransactionStatistics

CHECKS_PER_LEASE = 4
"""Checks of an open transaction in one lease."""
_REQUEST_BYTES = 256


class _Watch(Struct, eq=False):
    """One open transaction between two checks."""

    record: TransactionImage
    staged: tuple[int, int]
    """Number and durable bytes of its staged segments at the last check."""
    deadline: float


class Leases:
    def __init__(
        self,
        state: ContainerState,
        runs: RunReader,
        ask: Callable[[Request, int], Awaitable[Any]],
        flush: Callable[[], Awaitable[None]],
        *,
        tombstone: float,
    ) -> None:
        """The arguments are those of ``Tombstones``; ``tombstone``: its ``seconds``."""
        self._state = state
        self._ask = ask
        self.tombstones = Tombstones(state, runs, ask, flush, tombstone)
        self._open: dict[Key, _Watch] = {}
        self._checks: list[tuple[float, int, _Watch]] = []
        """(time, a number that breaks ties, what to check); a watch that is not in ``_open`` any more is
        skipped."""
        self._numbers = itertools.count()
        self._live = False
        self._sleeps_until = -math.inf
        self._wake = anyio.Event()
        self._committed = self._aborted = self._expired = 0

    async def begin(self) -> None:
        """The ownership begins: everything that recovery found has its full time (rules T5 and T7). Nothing
        is logged meanwhile."""
        now = anyio.current_time()
        for keys in in_slices(list(self._state.transactions.records)):
            for key in keys:
                self._watch(key, now)
            await anyio.lowlevel.checkpoint()
        if self._state.transactions.ends:
            self.tombstones.note(self._state.sequence, now)
        self._live = True

    def note(self, op: BeginTransaction | CommitTransaction | AbortTransaction) -> None:
        """``op`` is durable. For operations that recovery replays, the time runs from ``begin`` on."""
        if not self._live:
            return

        key, now = (self._state.segments.by_id[op.target].name, op.id), anyio.current_time()
        if type(op) is BeginTransaction:
            self._watch(key, now)
            return

        self._committed += type(op) is CommitTransaction
        self._aborted += type(op) is AbortTransaction
        if key not in self._state.transactions.records:  # otherwise a newer transaction has its id
            self._open.pop(key, None)
            # Here, because only an end makes checks needless.
            self._drop_checks()
        # It is in memory until a later operation is durable: that an element with a run counts.
        row = self._state.table.find_in_memory(ended_key(*key))
        if row is not None:
            self.tombstones.note(row.version, now)

    def with_time(self, info: TransactionInfo, version: int) -> TransactionInfo:
        """``info`` with the time that its lease or tombstone has left. ``version``: of its end; 0 if it is
        open."""
        left = self.tombstones.time_left(version) if version else self._lease_left(info)
        return attrs.evolve(info, expires_in=max(0.0, left))

    async def run(self) -> None:
        """Request what is due, until cancelled."""
        while True:
            now = anyio.current_time()
            await self._check_due(now)
            self._wake = anyio.Event()
            # No await between: what was noted before is in ``_next_time``, and what is noted later sees
            # ``_sleeps_until`` and wakes this task.
            self._sleeps_until = self._next_time()
            with anyio.CancelScope(deadline=self._sleeps_until):
                await self._wake.wait()
            self._sleeps_until = -math.inf

    def statistics(self) -> TransactionStatistics:
        from .statistics import TransactionStatistics

        table = self._state.transactions
        return TransactionStatistics(
            len(table.records), table.ends, self._committed, self._aborted, self._expired
        )

    # --- inside ----------------------------------------------------------------------------------

    def _watch(self, key: Key, now: float) -> None:
        record = self._state.transactions.records.get(key)
        if record is None:
            return  # a later group, which is not durable yet, ends it

        watch = self._open[key] = _Watch(record, self._seen(record), now + record.lease / 1000)
        self._schedule_check(watch, now)

    def _schedule_check(self, watch: _Watch, now: float) -> None:
        at = min(watch.deadline, now + watch.record.lease / 1000 / CHECKS_PER_LEASE)
        heapq.heappush(self._checks, (at, next(self._numbers), watch))
        self._wake_by(at)

    def _drop_checks(self) -> None:
        """Drop the checks of ended transactions once they are the majority: there are never many more checks
        than open transactions."""
        if len(self._checks) > 2 * len(self._open):
            self._checks = [entry for entry in self._checks if self._is_open(entry[2])]
            heapq.heapify(self._checks)

    def _is_open(self, watch: _Watch) -> bool:
        return self._open.get((watch.record.target, watch.record.id)) is watch

    def _wake_by(self, time: float) -> None:
        if time < self._sleeps_until:
            self._wake.set()

    def _next_time(self) -> float:
        return self._checks[0][0] if self._checks else math.inf

    def _seen(self, record: TransactionImage) -> tuple[int, int]:
        staged = self._state.transactions.staged(record).values()
        by_id = self._state.segments.by_id
        return len(staged), sum(by_id[sid].durable_length for sid in staged)

    async def _check_due(self, now: float) -> None:
        while self._checks and self._checks[0][0] <= now:
            watch = heapq.heappop(self._checks)[2]
            if not self._is_open(watch):
                continue

            seen = self._seen(watch.record)
            if seen != watch.staged:
                watch.staged, watch.deadline = seen, now + watch.record.lease / 1000
            elif now >= watch.deadline:
                # T7: decided in the pipeline, where an append that is not durable yet counts too.
                if await self._ask(ExpireTransactionRequest(watch.record, seen), _REQUEST_BYTES):
                    self._expired += 1
                    continue
                # Something came to it that is not durable yet.
                watch.deadline = now + watch.record.lease / 1000

            self._schedule_check(watch, now)

    def _lease_left(self, info: TransactionInfo) -> float:
        watch = self._open.get((info.target, info.transaction_id))
        # What came since the last check renews the lease; the next check will see it.
        if watch is None or self._seen(watch.record) != watch.staged:
            return info.lease
        return watch.deadline - anyio.current_time()
