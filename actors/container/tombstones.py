"""The time of ended transactions, after which they are forgotten (rule T5).

They are rows (rule M21). Memory has a few moments, with the version up to which transactions had ended by
then; the index of the rows finds those whose time is over. Moments are on the owner's monotonic clock and in
memory only: after a takeover the time of all begins anew. Cancellation and crash: what is forgotten is in the
log; the next owner goes on with the others."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
from msgspec import Struct

from ...storage_backends.base.errors import CLAIM_REFUSED, TierlogError
from ...storage_backends.sorted_runs.reader import RunReader
from ..telemetry.logging import get_logger
from .operations.transactions import ForgetTransactionsRequest
from .requests import Request
from .state import ContainerState
from .transactions import find_ends

_log = get_logger("container")
_FORGET_TOGETHER = 1 / 64
"""Tombstones are forgotten late by up to this share of their time, so that one operation forgets many."""
_REQUEST_BYTES = 256
_RETRY_SECONDS = 30.0
_ROWS_WAITING_MAX = 32 << 20
"""Bytes of rows in memory up to which tombstones are removed: each removal is a row, too, until it is
published."""


class _Ends(Struct, eq=False):
    """Transactions that ended within a short time."""

    version: int
    """Of the last one; all earlier ones ended before."""
    since: float
    deadline: float


class Tombstones:
    def __init__(
        self,
        state: ContainerState,
        runs: RunReader,
        ask: Callable[[Request, int], Awaitable[Any]],
        flush: Callable[[], Awaitable[None]],
        seconds: float,
    ) -> None:
        """``ask`` puts an internal request into the pipeline; ``flush`` returns once rows are published;
        ``seconds``: for which an ended transaction is remembered."""
        self._state = state
        self._runs = runs
        self._ask = ask
        self._flush = flush
        self._seconds = seconds
        self._ends: list[_Ends] = []
        """The oldest first, 65 or so."""
        self._resume = b""
        """The ends before this place of the index are forgotten."""
        self._wake = anyio.Event()

    def note(self, version: int, now: float) -> None:
        """A transaction ended with ``version``, and all that ended with lower ones have been noted."""
        newest = self._ends[-1] if self._ends else None
        if newest is None or now - newest.since > self._seconds * _FORGET_TOGETHER:
            newest = _Ends(version, now, 0.0)
            self._ends.append(newest)
            if len(self._ends) == 1:
                self._wake.set()
        newest.version, newest.deadline = version, now + self._seconds

    def time_left(self, version: int) -> float:
        """The seconds for which the transaction is remembered that ended with ``version``."""
        number = bisect_left(self._ends, version, key=lambda ends: ends.version)
        if number == len(self._ends):
            return self._seconds  # it ended just now, and is noted next
        return self._ends[number].deadline - anyio.current_time()

    async def run(self) -> None:
        """Forget those whose time is over, until cancelled."""
        while True:
            if not self._ends:
                self._wake = anyio.Event()
                await self._wake.wait()
            oldest = self._ends[0]
            await anyio.sleep_until(oldest.deadline)
            if anyio.current_time() < oldest.deadline:
                continue  # others have ended soon after the first of them
            del self._ends[0]
            if not await self._forget(oldest.version):
                self._ends.insert(0, oldest)
                await anyio.sleep(_RETRY_SECONDS)

    async def _forget(self, version: int) -> bool:
        """Whether all that ended up to ``version`` are forgotten."""
        try:
            while (page := await find_ends(self._state, self._runs, self._resume, version)).ends:
                if not await self._has_room():
                    return False

                request = ForgetTransactionsRequest(page.ends, page.records_to)
                if await self._ask(request, _REQUEST_BYTES * len(page.ends)):
                    self._resume = page.resume
        except CLAIM_REFUSED:
            raise
        except TierlogError as error:
            _log.warning("tombstones_not_removed", container=self._state.container, error=str(error))
            return False
        return True

    async def _has_room(self) -> bool:
        """Whether the removal of a page need not wait for rows to be published."""
        table = self._state.table
        if table.memory >= _ROWS_WAITING_MAX:
            await self._flush()
        return table.memory < _ROWS_WAITING_MAX
