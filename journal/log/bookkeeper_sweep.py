"""``OrphanSweep``: finds the ledgers of a log that no record lists (rule B8). An opening that died between
creating a ledger and listing it leaves one, and so does a truncation between its record and its deletions.

Nothing is persisted: after a crash the next owner looks again. What the creator of a ledger wrote never
changes, so the logs of one process look at each ledger once, and not each of them: ``KnownLedgers``.
"""

from __future__ import annotations

from functools import partial

from ...storage_backends.base.parallel import in_parallel
from .bookkeeper_calls import LogContext, epoch_of
from .bookkeeper_record import LogRecord

_KNOWN_MAX = 100_000

_Creator = tuple[tuple[bytes, ...], int]
"""The values of its log's mark, and its epoch."""


class KnownLedgers:
    """Who created the ledgers that the logs of this process looked at."""

    def __init__(self) -> None:
        self.is_sweeping = False
        """Whether one of them looks at ledgers now: what it finds spares the others their calls."""
        self._creators: dict[int, _Creator] = {}
        self._marks: dict[tuple[bytes, ...], tuple[bytes, ...]] = {}
        """Each mark once: a log has many ledgers."""

    def find(self, ledger: int) -> _Creator | None:
        return self._creators.get(ledger)

    def add(self, ledger: int, mark: tuple[bytes, ...], epoch: int) -> _Creator:
        if len(self._creators) >= _KNOWN_MAX:
            del self._creators[next(iter(self._creators))]
        creator = (self._marks.setdefault(mark, mark), epoch)
        self._creators[ledger] = creator
        return creator


class OrphanSweep:
    def __init__(self, ctx: LogContext, known: KnownLedgers) -> None:
        self._ctx = ctx
        self._known = known
        self._after = -1
        self._is_done = False

    async def find(self, record: LogRecord) -> list[int]:
        """Some ids of orphans, as of the owner's own ``record``: of the next ``swept_max`` ledgers of the
        cluster, until all were looked at once. None while another log of this process looks."""
        if self._is_done or self._known.is_sweeping:
            return []
        self._known.is_sweeping = True
        try:
            return await self._find(record)
        finally:
            self._known.is_sweeping = False

    async def _find(self, record: LogRecord) -> list[int]:
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
        creator = self._known.find(ledger) or await self._look_at(ledger)
        if creator is None:
            return False
        mark, created_in = creator
        # One of this epoch may be this owner's next one; one of a later epoch is another owner's.
        return mark == tuple(self._ctx.mark.values()) and created_in < epoch

    async def _look_at(self, ledger: int) -> _Creator | None:
        description = await self._ctx.describe(ledger)
        if description is None:
            return None
        mark = tuple(description.metadata.get(name, b"") for name in self._ctx.mark)
        return self._known.add(ledger, mark, epoch_of(description))
