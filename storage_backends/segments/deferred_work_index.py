"""The deferred work that is stored, kept in memory."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

import anyio
import anyio.lowlevel

from ..base.sharded_dict import ShardedDict
from .metadata_store import ChunkMetadataStore
from .records import DEFERRED_WORK_PREFIX, DeferredWorkRecord
from .records.deferred_work import is_of_newer_kind
from .transaction import decode_record

_STEP = 512
"""Items that one step of the event loop works on."""


class DeferredWorkIndex:
    """The deferred work of the segments, read once and then kept current by this instance's own commits (rule
    S11).

    Only this instance commits, so what it knows is what is stored. After a commit of unknown outcome it reads
    again.
    """

    def __init__(self, store: ChunkMetadataStore) -> None:
        self._store = store
        self._known: ShardedDict[str, DeferredWorkRecord] | None = None
        self._doubted: ShardedDict[str, DeferredWorkRecord] = ShardedDict()
        """What was known before a commit of unknown outcome."""
        self._loading = anyio.Lock()
        self._is_outdated = False
        """Whether the outcome of a commit was unknown during the read."""
        self._written: ShardedDict[str, DeferredWorkRecord | None] = ShardedDict()
        """Changed by commits during the read."""
        self._changed: ShardedDict[str, None] = ShardedDict()
        self.newer: frozenset[str] = frozenset()
        """Keys of work of kinds that only a newer version knows, as of the last read. It is left alone."""

    async def read(self) -> list[DeferredWorkRecord]:
        """All deferred work, in the order in which to run it."""
        return sorted((await self._current()).values(), key=lambda work: (work.kind, work.segment))

    async def changes(self) -> dict[str, DeferredWorkRecord | None]:
        """By key, as they are now, some hundreds of the items that changed since they were last given, at
        first all; None for those that are gone. Empty if none is left."""
        known = await self._current()
        found = {key: known.get(key) for key in islice(self._changed, _STEP)}
        for key in found:
            del self._changed[key]
        return found

    @property
    def has_changes(self) -> bool:
        """Whether ``changes`` may return any."""
        return self._known is None or bool(self._changed)

    def touch(self, key: str) -> None:
        """Something else that decides whether the item is due has changed."""
        self._changed[key] = None

    async def _current(self) -> ShardedDict[str, DeferredWorkRecord]:
        async with self._loading:
            # Once more if a commit of unknown outcome fell into the read: it may have been applied behind the
            # scan.
            while self._known is None:
                self._is_outdated = False
                known = await self._load()
                if not self._is_outdated:
                    self._known = known
        return self._known

    async def _load(self) -> ShardedDict[str, DeferredWorkRecord]:
        """Read all deferred work, in steps: there may be very many items."""
        self._written = ShardedDict()
        known: ShardedDict[str, DeferredWorkRecord] = ShardedDict()
        newer: list[str] = []
        # What was known may be gone, so each item is given once more.
        for number, key in enumerate(self._doubted, 1):
            self._changed[key] = None
            if number % _STEP == 0:
                await anyio.lowlevel.checkpoint()
        self._doubted = ShardedDict()
        for number, key in enumerate(await self._store.scan(DEFERRED_WORK_PREFIX), 1):
            found = await self._store.get(key)
            # Neither run nor dropped: the newer version that left it still needs it (S11).
            if found is not None and is_of_newer_kind(found[1]):
                newer.append(key)
            elif found is not None:
                known[key] = decode_record(DeferredWorkRecord, key, found[1])
                self._changed[key] = None
            if number % _STEP == 0:
                await anyio.lowlevel.checkpoint()
        self.newer = frozenset(newer)
        # What was committed while the scan went on: it may have passed those keys before.
        _apply(known, self._written)
        return known

    def committed(self, written: Mapping[str, DeferredWorkRecord | None]) -> None:
        """A commit has written these, None for removed."""
        if not written:
            return

        for key in written:
            self.touch(key)
        if self._known is None:
            self._written.update(written)
        else:
            _apply(self._known, written)

    def invalidate(self) -> None:
        """A commit's outcome is unknown: read again, also if a read is under way."""
        if self._known is not None:
            self._doubted = self._known
            self._known = None
        self._is_outdated = True


def _apply(
    known: ShardedDict[str, DeferredWorkRecord], written: Mapping[str, DeferredWorkRecord | None]
) -> None:
    for key, work in written.items():
        if work is None:
            known.pop(key, None)
        else:
            known[key] = work
