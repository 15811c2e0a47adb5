"""The order of deferred work (rule F6). Pure; every step costs O(log n), however much work there is.

What may begin comes in the order (failures, kind, segment): work that has failed after work that has not.
What failed waits for its time apart from the rest."""

from __future__ import annotations

from heapq import heappop, heappush

from msgspec import Struct

from ...storage_backends.base.sharded_dict import ShardedDict
from ...storage_backends.segments.records import DeferredWorkRecord


class _Entry(Struct, eq=False):
    work: DeferredWorkRecord
    failures: int = 0
    not_before: float | None = None
    """When it may begin; None if it may at once."""


class WorkQueue:
    __slots__ = ("_entries", "_ready", "_waiting")

    def __init__(self) -> None:
        self._entries: ShardedDict[str, _Entry] = ShardedDict()
        # What is in the heaps counts only if it agrees with the entry: changes leave the old one behind, and
        # whoever meets it at the top drops it.
        self._ready: list[tuple[int, int, int, str]] = []
        """(failures, kind, segment, key)."""
        self._waiting: list[tuple[float, str]] = []
        """(not before, key)."""

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, work: DeferredWorkRecord) -> None:
        """Add the work, or what is left of it."""
        entry = self._entries.get(work.key)
        if entry is None:
            self._entries[work.key] = entry = _Entry(work)
            self._push(entry)
        else:
            # Its position in the heap stays valid: kind and segment do not change.
            entry.work = work

    def drop(self, key: str) -> None:
        self._entries.pop(key, None)

    def succeeded(self, key: str) -> None:
        """A step was done: its failures do not count any more."""
        entry = self._entries.get(key)
        if entry is not None and entry.failures:
            entry.failures = 0
            self._push(entry)

    def failures(self, key: str) -> int:
        """How many times in a row the work has failed."""
        entry = self._entries.get(key)
        return entry.failures if entry is not None else 0

    def failed(self, key: str, not_before: float) -> None:
        """The work waits until ``not_before``."""
        entry = self._entries.get(key)
        if entry is not None:
            entry.failures += 1
            entry.not_before = not_before
            heappush(self._waiting, (not_before, key))

    def first(self, now: float) -> DeferredWorkRecord | None:
        """What to do next; None if nothing may begin at ``now``."""
        self._wake(now)
        while self._ready:
            failures, *_, key = self._ready[0]
            entry = self._entries.get(key)
            if entry is not None and entry.not_before is None and entry.failures == failures:
                return entry.work

            # Left behind by a change, whose own entry is further down.
            heappop(self._ready)
        return None

    def earliest(self, now: float) -> float | None:
        """When the next work may begin; None if there is none."""
        if self.first(now) is not None:
            return now
        return self._waiting[0][0] if self._waiting else None

    def _wake(self, now: float) -> None:
        """Move what may begin at ``now`` to the rest."""
        while self._waiting:
            not_before, key = self._waiting[0]
            entry = self._entries.get(key)
            if entry is not None and entry.not_before == not_before:
                if not_before > now:
                    return
                entry.not_before = None
                self._push(entry)
            heappop(self._waiting)

    def _push(self, entry: _Entry) -> None:
        work = entry.work
        heappush(self._ready, (entry.failures, work.kind, work.segment, work.key))
