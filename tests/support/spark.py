"""What tests of the Spark bridge share: rows, and tasks that fail. Its session is
``chaos_parts.spark_session``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

from chaos_parts.spark_session import missing, session
from tierlog import SyncClient
from tierlog.spark_bridge import events

__all__ = [
    "FAILING_BATCH",
    "ROOT",
    "WIDE",
    "failing",
    "missing",
    "numbered",
    "session",
    "staged",
    "values",
    "written",
]

FAILING_BATCH = 10
WIDE = "x" * 1_000
ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))


def numbered(spark: Any, rows: int, partitions: int, tail: str = "") -> Any:
    """Rows ``r000000`` and so on, in order, a run of them in each partition. With the tail ``WIDE`` no buffer
    holds a task's rows."""
    return spark.range(0, rows, 1, partitions).selectExpr(f"printf('r%06d{tail}', id) AS value")


def values(rows: int, tail: str = "") -> list[bytes]:
    return [b"r%06d%s" % (number, tail.encode()) for number in range(rows)]


def written(store: SyncClient, segment: str) -> list[bytes]:
    """The events of a segment, as plain bytes tell them."""
    length, data = store.segment_info(segment).length, b""
    while len(data) < length:
        data += store.read(segment, len(data), length - len(data))
    return events.decode(data)


def staged(store: SyncClient, segment: str) -> list[str]:
    """What transactions have left beside the segment."""
    return store.list_segments(f"{segment}#txn.")


def failing(frame: Any, fail: Callable[[int], None]) -> Any:
    """The same rows; after some batches of each task ``fail`` gets the number of the attempt."""

    def later(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        for number, batch in enumerate(batches):
            if number == FAILING_BATCH:
                fail(context.attemptNumber())
            yield batch

    return frame.mapInArrow(later, "value string")
