"""Python's garbage collector in tierlog's own processes. Nothing here is for an app that opens a store.

Imports make some 50,000 objects that live until the process ends. Traversing them takes a third of the time
that a host needs to start and to end, and pauses a serving host at each full collection. So they are
excluded: while they are made, later, and at the end. Finalizers in cycles, which a collection at the end
would run, do no work of tierlog's. A host excludes what its containers have recovered too: a full collection
visits 11 objects for a segment that is kept in full in memory, 220 ms of the event loop for 100,000.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager

_YOUNG = 1
"""Generations 0 and 1 have a few thousand objects."""


@contextmanager
def importing() -> Iterator[None]:
    """Exclude what is imported in the body from garbage collection."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def skip_final_collection() -> None:
    """Skip the collection at exit: the system frees the memory."""
    gc.freeze()


def count_full_collections() -> int:
    return int(gc.get_stats()[2]["collections"])


class RecoveredObjects:
    """Excludes all objects of the process from garbage collection, once for each recovered container.

    Reference counts still free them, but only a collection frees their cycles. So when a container has ended,
    they are included again until the next full collection, which frees the cycles that it left.
    """

    def __init__(
        self,
        owned: Callable[[], AbstractSet[tuple[int, int]]],
        collections: Callable[[], int] = count_full_collections,
    ) -> None:
        """``owned()``: (index, epoch) of each container that has recovered and not ended. ``collections()``:
        how many full collections there were."""
        self._owned = owned
        self._collections = collections
        self._excluded: AbstractSet[tuple[int, int]] = frozenset()
        self._collections_before = -1
        """When a container had ended last."""

    def check(self) -> None:
        owned = self._owned()
        if not owned >= self._excluded:
            gc.unfreeze()
            self._excluded, self._collections_before = frozenset(), self._collections()
        if not owned <= self._excluded and self._collections() > self._collections_before:
            gc.collect(_YOUNG)  # Else their garbage is excluded too.
            gc.freeze()
            self._excluded = frozenset(owned)
