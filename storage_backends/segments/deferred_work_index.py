"""The debts that are due, in memory: read once, then kept by the commits of this instance (rule S11).

Owns: which debts there are, which of them are due, and how many only a newer version knows how to pay: those
are left alone, and the others go on. Does not own: their records' meaning (``records/debt.py``), nor any
change of them (transactions). Only this instance commits, so what it knows is what is stored; after a commit
of unknown outcome it reads again.
"""

from __future__ import annotations

from collections.abc import Mapping

from .metadata_store import ChunkMetadataStore
from .records import DEFERRED_WORK_PREFIX, DeferredWorkRecord
from .records.deferred_work import is_of_newer_kind
from .transaction import decode_record


class DeferredWorkIndex:
    def __init__(self, store: ChunkMetadataStore) -> None:
        self._store = store
        self._known: dict[str, DeferredWorkRecord] | None = None
        self.newer: frozenset[str] = frozenset()
        """The keys of debts of kinds that this code does not know, as of the last look at the store."""

    async def read(self) -> list[DeferredWorkRecord]:
        """All debts, in the order in which they are to be paid."""
        if self._known is None:
            self._known = await self._load()
        return sorted(self._known.values(), key=lambda debt: (debt.kind, debt.segment))

    async def _load(self) -> dict[str, DeferredWorkRecord]:
        known: dict[str, DeferredWorkRecord] = {}
        newer: list[str] = []
        for key in await self._store.scan(DEFERRED_WORK_PREFIX):
            found = await self._store.get(key)
            if found is None:
                continue

            if is_of_newer_kind(found[1]):
                newer.append(key)
            else:
                known[key] = decode_record(DeferredWorkRecord, key, found[1])
        self.newer = frozenset(newer)
        return known

    def committed(self, written: Mapping[str, DeferredWorkRecord | None]) -> None:
        """A commit has changed these."""
        if self._known is None:
            return

        for key, debt in written.items():
            if debt is None:
                self._known.pop(key, None)
            else:
                self._known[key] = debt

    def forget(self) -> None:
        """A commit's outcome is unknown."""
        self._known = None
