"""A dict for tables with an entry for each of very many segments, which grows in short steps.

A full dict copies itself into one twice as large, in one step that takes up to 9 ms at 87,381 entries. Here
the entries of a large table are spread over small dicts. Their shares differ, so they grow one after the
other: with equal shares of consecutive ids all of them would be full at the same time. A small table is one
dict: a flush cycle makes a dozen of them, and to make 32 dicts takes 0.1 ms.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any, TypeVar, overload

K = TypeVar("K", bound=Any)
V = TypeVar("V")
T = TypeVar("T")
SHARDS = 32
SLOTS = 1024
"""A power of two."""
UNDIVIDED_MAX = 1024
"""The most entries in one dict alone."""


def _shares() -> Iterator[int]:
    """The shard of each slot. Shard ``n`` has about ``2 ** (n / SHARDS)`` times the slots of shard 0."""
    weights = [2.0 ** (shard / SHARDS) for shard in range(SHARDS)]
    scale, end = SLOTS / sum(weights), 0.0
    for shard, weight in enumerate(weights):
        begin, end = end, end + weight * scale
        yield from [shard] * (round(end) - round(begin))


_SHARD_OF = tuple(_shares())


class ShardedDict(MutableMapping[K, V]):
    """A dict without an order. However large it is, no change takes long."""

    __slots__ = ("_mask", "_shards", "_slots")

    def __init__(self) -> None:
        self._shards: tuple[dict[K, V], ...] = ({},)
        self._slots: tuple[dict[K, V], ...] = self._shards
        """The dict in which a key is, by its hash."""
        self._mask = 0
        """0 while all entries are in one dict: then a lookup needs no hash of its own."""

    def _divide(self) -> None:
        """Spread the entries over small dicts."""
        shards: tuple[dict[K, V], ...] = tuple({} for _ in range(SHARDS))
        slots, mask = tuple(map(shards.__getitem__, _SHARD_OF)), SLOTS - 1
        for key, value in self._shards[0].items():
            slots[hash(key) & mask][key] = value
        self._shards, self._slots, self._mask = shards, slots, mask

    def __getitem__(self, key: K) -> V:
        return self._slots[self._mask and hash(key) & self._mask][key]

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: V | T) -> V | T: ...
    def get(self, key: K, default: object = None) -> object:
        return self._slots[self._mask and hash(key) & self._mask].get(key, default)

    def __contains__(self, key: object) -> bool:
        return key in self._slots[self._mask and hash(key) & self._mask]

    def __setitem__(self, key: K, value: V) -> None:
        shard = self._slots[self._mask and hash(key) & self._mask]
        shard[key] = value
        if not self._mask and len(shard) > UNDIVIDED_MAX:
            self._divide()

    def __delitem__(self, key: K) -> None:
        del self._slots[self._mask and hash(key) & self._mask][key]

    def __len__(self) -> int:
        return sum(map(len, self._shards))

    def __bool__(self) -> bool:
        return any(self._shards)

    def __iter__(self) -> Iterator[K]:
        """The keys that are there when they are reached, each once. Entries may come and go meanwhile, so a
        large dict can be worked through in slices."""
        for shard in self._shards:
            for key in tuple(shard):
                # Not ``in shard``: it may have been divided meanwhile.
                if key in self:
                    yield key
