"""Maintenance: the writer's share of paying what metadata-only operations left to be done in long-term
storage (rules F6, S11).

Owns: how many steps a cycle does, which debts wait after a failure, and when the next cycle for debts is due.
Does not own: the steps (``ChunkedSegmentStorage.pay``), the cycle around them (``writer.py``), what clients
wait for.

A step that fails ends the cycle's maintenance and makes a pause; its debt is left alone for a growing one, so
that the others go on. A debt of a kind that only a newer version knows stays as it is, is said once and
counted. So trouble of long-term storage costs a cycle one attempt and does not spin (rule S7). Only NotOwner,
and a claim that is not ours, end the writer. Cancellation and crash: debts are records, and the next owner
reads them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import anyio
import attrs

from ...storage_backends.base.errors import CLAIM_REFUSED, MetadataConflict, NotOwner, TierlogError
from ...storage_backends.segments.records import DeferredWorkRecord
from ..telemetry.logging import get_logger

_log = get_logger("writer")

_NAMED = 10
"""The most debts that one event names."""
PAUSE_MAX = 60.0
"""Seconds; the longest pause of a debt that fails again and again."""


class Debtor(Protocol):
    """What maintenance needs of long-term storage."""

    async def debts(self) -> Sequence[DeferredWorkRecord]: ...
    def newer_debts(self) -> frozenset[str]: ...
    async def pay(self, debt: DeferredWorkRecord) -> bool: ...


@attrs.frozen
class _Failure:
    count: int
    not_before: float


class Maintenance:
    def __init__(
        self,
        storage: Debtor,
        claim: Callable[[], Awaitable[None]],
        *,
        steps: int,
        pause: float,
        error_pause: float,
    ) -> None:
        """``claim()`` returns once this owner may write to long-term storage (rule W8). ``steps``: in one
        cycle. ``pause`` and ``error_pause``: seconds between two cycles for debts, and after the first
        failure of one."""
        self._storage = storage
        self._claim = claim
        self._steps = steps
        self._pause = pause
        self._error_pause = error_pause
        self._not_before = 0.0
        self._failures: dict[str, _Failure] = {}
        self.due_at: float | None = None
        """When a cycle for debts is due, in monotonic seconds of this ownership; None if there are no
        debts."""
        self.open = 0
        """Debts that were left after the last look."""
        self.newer: frozenset[str] = frozenset()
        """The keys of debts that only a newer version knows how to pay."""
        self.paid = 0
        """Steps done."""

    async def look(self) -> None:
        """Learn what there is to pay: what an earlier owner left (rule F6)."""
        self._plan(await self._debts())

    async def run(self, is_wanted: Callable[[], bool]) -> int:
        """The steps of one cycle; how many were done. After each ``is_wanted()`` tells whether somebody waits
        for the cycle's end."""
        done = 0
        while done < self._steps and (debt := self._next(await self._debts())) is not None:
            if not await self._pay(debt):
                break

            done += 1
            if is_wanted():
                break

        self._plan(await self._debts())
        self.paid += done
        return done

    async def _debts(self) -> Sequence[DeferredWorkRecord]:
        try:
            debts = await self._storage.debts()
        except NotOwner:
            raise
        except TierlogError as error:
            _log.error("debts_unreadable", error=str(error))
            return ()

        newer = self._storage.newer_debts()
        if unheard := newer - self.newer:
            _log.warning("debts_of_a_newer_version", count=len(newer), debts=sorted(unheard)[:_NAMED])
        self.newer = newer
        return debts

    def _next(self, debts: Sequence[DeferredWorkRecord]) -> DeferredWorkRecord | None:
        """The first that may begin; one that has failed comes after those that have not."""
        now = anyio.current_time()
        return min((debt for debt in debts if self._may_begin(debt) <= now), key=self._failed, default=None)

    def _failed(self, debt: DeferredWorkRecord) -> int:
        failure = self._failures.get(debt.key)
        return failure.count if failure else 0

    def _may_begin(self, debt: DeferredWorkRecord) -> float:
        failure = self._failures.get(debt.key)
        return max(self._not_before, failure.not_before if failure else 0.0)

    async def _pay(self, debt: DeferredWorkRecord) -> bool:
        """Whether the step was done."""
        try:
            await self._claim()
        except CLAIM_REFUSED:
            raise
        except TierlogError as error:
            self._fail(debt, error)
            return False

        try:
            await self._storage.pay(debt)
        except NotOwner:
            raise
        except TierlogError as error:
            self._fail(debt, error)
            return False

        self._failures.pop(debt.key, None)
        return True

    def _fail(self, debt: DeferredWorkRecord, error: TierlogError) -> None:
        count = self._failures[debt.key].count + 1 if debt.key in self._failures else 1
        self._not_before = anyio.current_time() + self._error_pause
        pause = min(PAUSE_MAX, self._error_pause * 2 ** min(count - 1, 16))
        self._failures[debt.key] = _Failure(count, anyio.current_time() + pause)
        if not isinstance(
            error, MetadataConflict
        ):  # its segment was deleted meanwhile, and the next cycle takes the debt over
            _log.warning("maintenance_failed", debt=debt.key, error=str(error), pause=pause)

    def _plan(self, debts: Sequence[DeferredWorkRecord]) -> None:
        keys = {debt.key for debt in debts}
        self._failures = {key: failure for key, failure in self._failures.items() if key in keys}
        self.open = len(debts)
        earliest = min((self._may_begin(debt) for debt in debts), default=None)
        self.due_at = None if earliest is None else max(earliest, anyio.current_time() + self._pause)
