"""Keys in order, for tables that are listed by prefix and copied into checkpoints while they change.

The keys are kept in immutable runs of bounded length. A change replaces one run, so the list of the runs is
the order at one moment: taking it costs one reference for a few hundred keys, and it can be worked through in
slices, between which the table changes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, Generic, TypeVar

from .sharded_dict import UNDIVIDED_MAX, ShardedDict

K = TypeVar("K", bound=Any)
V = TypeVar("V")
RUN_MAX = 256
"""The most keys in one run."""


class SortedKeys(Generic[K]):
    """A set of keys in order."""

    __slots__ = ("_firsts", "_runs")

    def __init__(self) -> None:
        self._runs: list[tuple[K, ...]] = []
        self._firsts: list[K] = []
        """The first key of each run."""

    def add(self, key: K) -> None:
        """Add a key that is not there."""
        if not self._runs:
            self._replace(0, 0, (key,))
            return

        index = max(0, bisect_right(self._firsts, key) - 1)
        run = self._runs[index]
        at = bisect_left(run, key)
        if len(run) < RUN_MAX:
            self._replace(index, index + 1, (*run[:at], key, *run[at:]))
        elif at == RUN_MAX:
            self._replace(index + 1, index + 1, (key,))  # keys that come in order fill the runs
        else:
            run = (*run[:at], key, *run[at:])
            middle = RUN_MAX // 2
            self._replace(index, index + 1, run[:middle], run[middle:])

    def remove(self, key: K) -> None:
        """Remove a key that is there."""
        index = bisect_right(self._firsts, key) - 1
        run = self._runs[index]
        at = bisect_left(run, key)
        rest = run[:at] + run[at + 1 :]
        self._replace(index, index + 1, *((rest,) if rest else ()))

    def _replace(self, start: int, stop: int, *runs: tuple[K, ...]) -> None:
        if len(runs) == 1 == stop - start:
            self._runs[start] = runs[0]
            self._firsts[start] = runs[0][0]
            return

        self._runs[start:stop] = runs
        self._firsts[start:stop] = [run[0] for run in runs]

    def runs(self) -> list[tuple[K, ...]]:
        """All keys at this moment, in order."""
        return list(self._runs)

    def runs_from(self, start: K) -> list[tuple[K, ...]]:
        """The keys from ``start`` on at this moment, in order, after a few smaller ones."""
        return self._runs[max(0, bisect_right(self._firsts, start) - 1) :]


def with_prefix(runs: list[tuple[str, ...]], prefix: str) -> Iterator[str]:
    """The keys of ``runs`` that begin with ``prefix``."""
    for key in chain.from_iterable(runs):
        if key.startswith(prefix):
            yield key
        elif key > prefix:
            return


class FrozenView(Generic[K, V]):
    """The entries of a table at one moment, in order, each taken once, while the table changes. Values are
    looked up when they are taken; whoever changes one calls ``before_change``."""

    __slots__ = ("_find", "_keys", "_last", "_saved", "_taken")

    def __init__(self, runs: list[tuple[K, ...]], find: Callable[[K], V | None]) -> None:
        """``find(key)`` is the value in the table; None if the key is not there."""
        self._find = find
        self._keys = chain.from_iterable(runs)
        self._last: K | None = runs[-1][-1] if runs else None
        self._taken: K | None = None
        self._saved: dict[K, V] = {}
        """The values at that moment of keys that were not taken before they changed."""

    def before_change(self, key: K) -> None:
        """The value of ``key`` is about to change, or to be removed."""
        if self._last is None or key > self._last or key in self._saved:
            return

        if (self._taken is None or key > self._taken) and (value := self._find(key)) is not None:
            self._saved[key] = value

    def __iter__(self) -> Iterator[tuple[K, V]]:
        for key in self._keys:
            self._taken = key
            value = self._saved.pop(key, None)
            if value is None:
                value = self._find(key)
            assert value is not None, "keys that are removed are saved before"
            yield key, value


class SortedDict(ShardedDict[K, V]):
    """A dict that keeps its keys in order, and gives a frozen view of its entries. However large it is, no
    change takes long."""

    __slots__ = ("_keys", "_view")

    def __init__(self) -> None:
        super().__init__()
        self._keys: SortedKeys[K] = SortedKeys()
        self._view: FrozenView[K, V] | None = None

    def __iter__(self) -> Iterator[K]:
        """The keys at this moment, in order."""
        return chain.from_iterable(self._keys.runs())

    def __setitem__(self, key: K, value: V) -> None:
        if self._view is not None:
            self._view.before_change(key)
        # Written out: as calls, the two lookups take longer than the rest.
        shard = self._slots[hash(key) & self._mask]
        if key not in shard:
            self._keys.add(key)
        shard[key] = value
        if not self._mask and len(shard) > UNDIVIDED_MAX:
            self._divide()

    def __delitem__(self, key: K) -> None:
        if self._view is not None:
            self._view.before_change(key)
        super().__delitem__(key)
        self._keys.remove(key)

    def runs_from(self, start: K) -> list[tuple[K, ...]]:
        """As ``SortedKeys.runs_from``."""
        return self._keys.runs_from(start)

    def freeze(self) -> FrozenView[K, V]:
        """The entries at this moment, until ``end_view``."""
        self._view = FrozenView(self._keys.runs(), self.get)
        return self._view

    def end_view(self) -> None:
        self._view = None
