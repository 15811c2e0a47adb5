"""``CachedMetadataStore``: a bounded write-through cache in front of a record store whose reads cost
something.

Owns: what is remembered, its bounds, and coherence. Does not own: any record; the store behind it decides
every commit.

For a store that is this process's alone to change, as a container's is while it owns its epoch: somebody
else's commit would not be seen by ``get``, but it is by the next ``commit``, which compares versions in the
store itself; a conflict therefore empties the cache.

Ordering: a commit takes its keys out before it begins and puts them in, with the new version, once it has
returned, unless a later commit of them has begun. A read that overlaps a commit of its key is not remembered,
because it may have seen the old value. A commit that raises, or is cancelled, leaves its keys out: what is
true then is asked again. Absence is remembered too: a new key is looked up before it is written. Stores whose
records are in memory need none of this.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping

import attrs

from ..base.errors import InvalidArgument, MetadataConflict
from ..base.statistics import counter, gauge
from .metadata_store import ChunkMetadataStore

_OVERHEAD = 200
"""Bytes that one entry costs beside its key and value, about."""


@attrs.frozen
class CacheStatistics:
    hits: int = attrs.field(metadata=counter("Records that were read from memory."))
    misses: int = attrs.field(metadata=counter("Records that the store was asked for."))
    entries: int = attrs.field(metadata=gauge("Records in memory."))
    bytes: int = attrs.field(metadata=gauge("About how many bytes they take."))


class CachedMetadataStore(ChunkMetadataStore):
    def __init__(
        self, store: ChunkMetadataStore, *, entries_max: int = 65_536, bytes_max: int = 32 << 20
    ) -> None:
        if entries_max < 1 or bytes_max < 1:
            raise InvalidArgument(
                f"a cache of {entries_max} entries and {bytes_max} bytes holds nothing; both must be at "
                f"least 1"
            )

        self._store = store
        self._entries_max = entries_max
        self._bytes_max = bytes_max
        self._entries: OrderedDict[str, tuple[int, bytes] | None] = OrderedDict()
        self._bytes = 0
        self._reading: dict[str, object] = {}
        """By key the newest read under way whose answer may be remembered."""
        self._committing: dict[str, object] = {}
        """By key the newest commit under way: only it may remember what it wrote."""
        self._hits = self._misses = 0

    async def get(self, key: str) -> tuple[int, bytes] | None:
        if key in self._entries:
            self._hits += 1
            self._entries.move_to_end(key)
            return self._entries[key]

        self._misses += 1
        read = object()
        if key not in self._committing:
            self._reading[key] = read
        try:
            found = await self._store.get(key)
            if self._reading.get(key) is read:
                self._put(key, found)
        finally:
            if self._reading.get(key) is read:
                del self._reading[key]
        return found

    async def commit(self, expected: Mapping[str, int], writes: Mapping[str, bytes | None]) -> int:
        commit = object()
        self._forget(writes)
        self._committing.update(dict.fromkeys(writes, commit))
        try:
            version = await self._store.commit(expected, writes)
        except BaseException as error:
            self._forget(list(self._entries) if isinstance(error, MetadataConflict) else writes)
            self._end(commit, writes)
            raise

        for key in self._end(commit, writes):
            value = writes[key]
            self._put(key, None if value is None else (version, bytes(value)))
        return version

    def _end(self, commit: object, writes: Iterable[str]) -> list[str]:
        """The keys of a commit that is over which no later one has begun to write."""
        own = [key for key in writes if self._committing.get(key) is commit]
        for key in own:
            del self._committing[key]
        return own

    async def scan(self, prefix: str) -> list[str]:
        return await self._store.scan(prefix)

    def statistics(self) -> CacheStatistics:
        return CacheStatistics(self._hits, self._misses, len(self._entries), self._bytes)

    def _put(self, key: str, found: tuple[int, bytes] | None) -> None:
        self._drop(key)
        self._entries[key] = found
        self._bytes += _size(key, found)
        while self._entries and (len(self._entries) > self._entries_max or self._bytes > self._bytes_max):
            self._drop(next(iter(self._entries)))

    def _drop(self, key: str) -> None:
        if key in self._entries:
            self._bytes -= _size(key, self._entries.pop(key))

    def _forget(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._drop(key)
            self._reading.pop(key, None)


def _size(key: str, found: tuple[int, bytes] | None) -> int:
    return _OVERHEAD + len(key) + (len(found[1]) if found else 0)
