"""What tests of the Spark bridge share: whether there is a Spark, its session, rows, and tasks that fail."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from tierlog import SyncClient, events

BATCH_ROWS = 100
"""So small that a writer has sent something long before its task ends."""
FAILING_BATCH = 10
WIDE = "x" * 1_000
ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))


def missing() -> str:
    """What keeps Spark from running here; empty if nothing does."""
    absent = [name for name in ("pyspark", "pyarrow", "pandas") if find_spec(name) is None]
    if absent:
        return f"needs {' and '.join(absent)}: pip install -e '.[dev,spark]'"

    if shutil.which("java") is None and not os.path.exists(os.path.join(os.environ.get("JAVA_HOME", ""), "bin", "java")):
        return "needs Java 17 or newer: no `java` on PATH and none in JAVA_HOME"

    return ""


@contextmanager
def session(master: str, **settings: str) -> Iterator[Any]:
    """A Spark session. A process has one JVM and one master. Spark finds `pyspark_tierlog` by itself."""
    from pyspark.sql import SparkSession

    # An editable installation is importable without being listed, and Spark goes by the list.
    path = os.pathsep.join(filter(None, (ROOT, os.environ.get("PYTHONPATH"))))
    os.environ.update(PYSPARK_PYTHON=sys.executable, PYSPARK_DRIVER_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1", PYTHONPATH=path)
    common = {
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "3",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(BATCH_ROWS),
        "spark.executorEnv.PYTHONPATH": path,
    }
    builder = SparkSession.builder.master(master).appName("tierlog tests")
    for key, value in {**common, **settings}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    try:
        yield spark
    finally:
        spark.stop()


def numbered(spark: Any, rows: int, partitions: int, tail: str = "") -> Any:
    """Rows ``r000000`` and so on, in order, a run of them in each partition. With the tail ``WIDE`` no buffer holds a task's rows."""
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


def failing(frame: Any, fail: Callable[[int], None], schema: str = "value string") -> Any:
    """The same rows; after some batches of each task ``fail`` is told the number of the attempt."""

    def later(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        for number, batch in enumerate(batches):
            if number == FAILING_BATCH:
                fail(context.attemptNumber())
            yield batch

    return frame.mapInArrow(later, schema)
