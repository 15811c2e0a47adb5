"""The heap of a Python worker that Spark uses again: what is there to stay is kept out of Spark's collections of garbage.

Owns: when that is, and in which processes. Does not own: what a worker does.

Spark's daemon collects all garbage after each piece of work that a worker did. That looks at every object of every module: 30 to 60 ms of
a core, four times in each micro-batch, for pieces of work that take 2 to 6 ms. What is alive when the second piece begins has just lived
through such a collection: modules, connections. It is frozen then, once, and later collections look at what came after.

A cycle that is frozen and dropped later stays. There can be little of that, because it happens once; Python that no daemon of Spark runs
is left as it is.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable

_DAEMON = "pyspark.daemon"


class WorkerHeap:
    def __init__(self, freeze: Callable[[], None], program: Callable[[], str]) -> None:
        self._freeze = freeze
        self._program = program
        self._begun = 0

    def begin(self) -> None:
        """Called once by each piece of work, before anything else."""
        self._begun += 1
        if self._begun == 2 and self._program() == _DAEMON:
            self._freeze()


def program() -> str:
    """The module that this process was started with; workers are forks of it."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return "" if spec is None else str(spec.name)


worker_heap = WorkerHeap(gc.freeze, program)
