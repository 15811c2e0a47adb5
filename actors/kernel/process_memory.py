"""Start and end of a process of tierlog's own, as Python's garbage collector sees them.

Owns: what the collector leaves alone in such a process. Does not own: the collector of an app that opens a
store; nothing here is for it.

Imports make some 50,000 objects that stay to the end, and no garbage. Looking through them takes a third of
the time of a host's start and end, and while a host serves it is a pause whenever everything is looked at. So
they are not looked at: not while they are made, not later, and not once more at the end. Finalizers in
cycles, which a collection at the end would run, do no work of tierlog's: whoever opens something closes it.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def importing() -> Iterator[None]:
    """Import here what stays to the process's end."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def leave_the_rest_to_the_system() -> None:
    """Nothing more is worth collecting: the process ends, and its memory with it."""
    gc.freeze()
