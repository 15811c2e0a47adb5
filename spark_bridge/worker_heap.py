"""The heap of a Python worker that Spark uses again: what is there to stay is kept out of Spark's collections
of garbage, and the memory of Arrow's batches is used again.

Owns: when that is, and in which processes. Does not own: what a worker does.

Spark's daemon collects all garbage after each piece of work that a worker did. That looks at every object of
every module: 30 to 60 ms of a core, four times in each micro-batch, for pieces of work that take 2 to 6 ms.
What is alive when the second piece begins has just lived through such a collection: modules, connections. It
is frozen then, once, and later collections look at what came after.

Arrow's own allocators give a batch of megabytes back to the system and take new pages for the next one, which
costs a task more than copying it. The C library's keeps them.

A cycle that is frozen and dropped later stays. There can be little of that, because it happens once; Python
that no daemon of Spark runs is left as it is.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable

_DAEMON = "pyspark.daemon"


class WorkerHeap:
    def __init__(
        self, freeze: Callable[[], None], keep_memory: Callable[[], None], program: Callable[[], str]
    ) -> None:
        self._freeze = freeze
        self._keep_memory = keep_memory
        self._program = program
        self._begun = 0

    def begin(self) -> None:
        """Called once by each piece of work, before anything else."""
        self._begun += 1
        if self._begun > 2 or self._program() != _DAEMON:
            return

        if self._begun == 1:
            self._keep_memory()
        else:
            self._freeze()


def program() -> str:
    """The module that this process was started with; workers are forks of it."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return "" if spec is None else str(spec.name)


def keep_memory() -> None:
    import pyarrow as pa

    pa.set_memory_pool(pa.system_memory_pool())


worker_heap = WorkerHeap(gc.freeze, keep_memory, program)
