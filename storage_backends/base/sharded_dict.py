"""A dict for tables with an entry for each of very many segments, which grows in short steps.

A full dict copies itself into one twice as large, in one step that takes up to 9 ms at 87,381 entries. Here
many entries are spread over small dicts. Their shares differ, so they grow one after the other: with equal
shares of consecutive ids all of them would be full at the same time. A few are in one dict, because each
flush cycle makes several tables that stay small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, TypeVar, overload

K = TypeVar("K", bound=Any)
V = TypeVar("V")
T = TypeVar("T")
SHARDS = 32
SLOTS = 1024
_TOGETHER = 1024
"""Up to this many entries are in one dict. More are spread, in a step of 0.1 ms, and stay so."""


def _shares() -> Iterator[int]:
    """The number of slots of each shard. Shard ``n`` has about ``2 ** (n / SHARDS)`` times those of shard
    0."""
    weights = [2.0 ** (shard / SHARDS) for shard in range(SHARDS)]
    scale, end = SLOTS / sum(weights), 0.0
    for weight in weights:
        begin, end = end, end + weight * scale
        yield round(end) - round(begin)


_SHARES = tuple(_shares())


class ShardedDict(MutableMapping[K, V]):
    """A dict without an order. However large it is, no change takes long."""

    __slots__ = ("_new_shard", "_shards", "_size", "slots")

    def __init__(self, new_shard: Callable[[], dict[K, V]] = dict) -> None:
        self._new_shard = new_shard
        self._shards = [new_shard()]
        self._size = 0
        self.slots = self._shards * SLOTS
        """The dict in which a key is: ``slots[hash(key) % SLOTS]``. Hot paths look it up themselves, because
        a call costs as much as the rest."""

    def __getitem__(self, key: K) -> V:
        return self.slots[hash(key) % SLOTS][key]

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: V | T) -> V | T: ...
    def get(self, key: K, default: object = None) -> object:
        return self.slots[hash(key) % SLOTS].get(key, default)

    def __contains__(self, key: object) -> bool:
        return key in self.slots[hash(key) % SLOTS]

    def __setitem__(self, key: K, value: V) -> None:
        shard = self.slots[hash(key) % SLOTS]
        before = len(shard)
        shard[key] = value
        self._size += len(shard) - before
        if self._size > _TOGETHER and len(self._shards) == 1:
            self._spread()

    def __delitem__(self, key: K) -> None:
        del self.slots[hash(key) % SLOTS][key]
        self._size -= 1

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[K]:
        """The keys that are there when they are reached, each once. Entries may come and go meanwhile, so a
        large dict can be worked through in slices."""
        for shard in self._shards:
            for key in tuple(shard):
                if key in self:
                    yield key

    def _spread(self) -> None:
        (entries,) = self._shards
        # Both lists are new: an iteration that has begun ends with the entries of the one dict.
        self._shards, self.slots = [], []
        for share in _SHARES:
            shard = self._new_shard()
            self._shards.append(shard)
            self.slots += [shard] * share
        for key, value in entries.items():
            self.slots[hash(key) % SLOTS][key] = value
