"""Python's garbage collector in tierlog's own processes. Nothing here is for an app that opens a store.

Imports make some 50,000 objects that live until the process ends. Traversing them takes a third of the time
that a host needs to start and to end, and pauses a serving host at each full collection. So they are
excluded: while they are made, later, and at the end. Finalizers in cycles, which a collection at the end
would run, do no work of tierlog's. A host does not exclude the segments of its containers: a container that
moves to another host leaves cycles, whose memory only a collection frees.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


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
