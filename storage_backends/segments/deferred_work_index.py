"""The deferred work that is stored, kept in memory."""

from __future__ import annotations

from collections.abc import Mapping

from .metadata_store import ChunkMetadataStore
from .records import DEFERRED_WORK_PREFIX, DeferredWorkRecord
from .records.deferred_work import is_of_newer_kind
from .transaction import decode_record


class DeferredWorkIndex:
    """The deferred work of the segments, read once and then kept current by this instance's own commits (rule
    S11).

    Only this instance commits, so what it knows is what is stored. After a commit of unknown outcome it reads
    again.
    """

    def __init__(self, store: ChunkMetadataStore) -> None:
        self._store = store
        self._known: dict[str, DeferredWorkRecord] | None = None
        self._changed: dict[str, None] = {}
        self.newer: frozenset[str] = frozenset()
        """Keys of work of kinds that only a newer version knows, as of the last read. It is left alone."""

    async def read(self) -> list[DeferredWorkRecord]:
        """All deferred work, in the order in which to run it."""
        return sorted((await self._current()).values(), key=lambda work: (work.kind, work.segment))

    async def changes(self) -> dict[str, DeferredWorkRecord | None]:
        """By key, as they are now, the items that changed since the last call, at first all; None for those
        that are gone."""
        known = await self._current()
        changed, self._changed = self._changed, {}
        return {key: known.get(key) for key in changed}

    def touch(self, key: str) -> None:
        """Something else that decides whether the item is due has changed."""
        self._changed[key] = None

    async def _current(self) -> dict[str, DeferredWorkRecord]:
        if self._known is None:
            self._known = await self._load()
            self._changed.update(dict.fromkeys(self._known))
        return self._known

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
        """A commit has written these, None for removed."""
        if self._known is None:
            return

        for key, work in written.items():
            self._changed[key] = None
            if work is None:
                self._known.pop(key, None)
            else:
                self._known[key] = work

    def invalidate(self) -> None:
        """A commit's outcome is unknown: read again."""
        self._changed.update(dict.fromkeys(self._known or ()))
        self._known = None
