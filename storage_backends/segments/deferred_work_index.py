"""The deferred work that are due, in memory: read once, then kept by the commits of this instance (rule S11).

Owns: which deferred work there are, which of them are due, and how many only a newer version knows how to run: those
are left alone, and the others go on. Does not own: their records' meaning (``records/deferred_work.py``), nor any
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
        """The keys of deferred work of kinds that this code does not know, as of the last look at the store."""

    async def read(self) -> list[DeferredWorkRecord]:
        """All deferred work, in the order in which to run it."""
        if self._known is None:
            self._known = await self._load()
        return sorted(self._known.values(), key=lambda work: (work.kind, work.segment))

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

        for key, work in written.items():
            if work is None:
                self._known.pop(key, None)
            else:
                self._known[key] = work

    def forget(self) -> None:
        """A commit's outcome is unknown."""
        self._known = None
