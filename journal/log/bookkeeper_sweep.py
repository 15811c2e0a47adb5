"""``OrphanSweep``: finds the ledgers of a log that no record lists (rule B8). An opening that died between
creating a ledger and listing it leaves one, and so does a truncation between its record and its deletions.

Nothing is remembered but the last ledger that was looked at: after a crash the next owner looks again.
"""

from __future__ import annotations

from functools import partial

from ...storage_backends.base.parallel import in_parallel
from .bookkeeper_calls import LogContext, epoch_of
from .bookkeeper_record import LogRecord


class OrphanSweep:
    def __init__(self, ctx: LogContext) -> None:
        self._ctx = ctx
        self._after = -1
        self._is_done = False

    async def find(self, record: LogRecord) -> list[int]:
        """Some ids of orphans, as of the owner's own ``record``: of the next ``swept_max`` ledgers of the
        cluster, until all were looked at once."""
        if self._is_done:
            return []
        count = self._ctx.options.swept_max
        ids = await self._ctx.list_ledgers(self._after, count)
        listed = {ledger.id for ledger in record.ledgers}
        unlisted = [ledger for ledger in ids if ledger not in listed]
        calls = [partial(self._is_orphan, ledger, record.epoch) for ledger in unlisted]
        found = await in_parallel(self._ctx.options.parallel, calls)
        self._is_done = len(ids) < count
        self._after = ids[-1] if ids else self._after
        return [ledger for ledger, is_orphan in zip(unlisted, found, strict=True) if is_orphan]

    async def _is_orphan(self, ledger: int, epoch: int) -> bool:
        description = await self._ctx.describe(ledger)
        if description is None:
            return False
        mark = self._ctx.mark.items()
        # One of this epoch may be this owner's next one; one of a later epoch is another owner's.
        return mark <= description.metadata.items() and epoch_of(description) < epoch
