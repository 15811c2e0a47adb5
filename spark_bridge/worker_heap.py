"""Tunes the heap of reused Python workers: freezes long-lived objects, and lets Arrow reuse memory.

Spark's daemon collects all garbage after each task of a worker. That visits every object of every module: 30
to 60 ms of a core, four times in each micro-batch, for tasks that take 2 to 6 ms. What a worker has loaded
when its first task begins is frozen then, and what that task left (connections, pandas) when the second one
begins; later collections visit only newer objects. The same holds for the process in which Spark makes data
sources, once for each read and each batch write.

Arrow's own allocators return a batch of megabytes to the system and take new pages for the next one, which
costs more than copying it. The C library's allocator keeps them.

A cycle that was frozen, and is or becomes garbage, is never freed. That is little memory, because freezing
happens twice. Processes that Spark's daemon did not start are not touched."""

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
        self._begun = self._made = 0

    def make(self) -> None:
        """Called once by each data source that is made. That process does without Arrow."""
        self._made += 1
        if self._made <= 2 and self._program() == _DAEMON:
            self._freeze()

    def begin(self) -> None:
        """Called once by each task, before anything else."""
        self._begun += 1
        if self._begun > 2 or self._program() != _DAEMON:
            return

        if self._begun == 1:
            self._keep_memory()
        self._freeze()


def program() -> str:
    """The module that this process runs; workers are forks of Spark's daemon."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return "" if spec is None else str(spec.name)


def keep_memory() -> None:
    import pyarrow as pa

    pa.set_memory_pool(pa.system_memory_pool())


worker_heap = WorkerHeap(gc.freeze, keep_memory, program)
