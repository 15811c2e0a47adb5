"""A writer with Spark: the driver process, whose tasks append all lines and read them back.

Owns: the two jobs. Does not own: exactly-once, which is the data source's (docs/spark.md), nor who kills what
meanwhile. ``jobs.SparkJob`` starts it.

A write is one transaction for each segment. Its tasks read the input's files themselves, piece by piece, in
the order of the input, so that the segment's bytes are known beforehand.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from chaos_parts.gate import Passer
from chaos_parts.spark_session import session
from quickstart_parts.orders import Answer, Do, Order, carry_out
from quickstart_parts.shares import Piece, QuickstartError
from tierlog.spark_bridge import events

if TYPE_CHECKING:
    import pyarrow as pa

TASKS = 4
"""For each segment."""
BATCH_ROWS = 2_000
BATCH_BYTES = "256 KiB"
"""Small, so that a killed host is in the middle of something."""


@contextmanager
def quickstart_session() -> Iterator[Any]:
    """Two tasks at a time, four attempts for each. Its files are all in the folder that this process runs
    in."""
    here = os.getcwd()
    settings = {
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={here} -XX:-UsePerfData",
        "spark.local.dir": here,
        "spark.sql.warehouse.dir": here,
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(BATCH_ROWS),
    }
    with session("local[2,4]", **settings) as spark:
        spark.sparkContext.setLogLevel("ERROR")
        yield spark


# --- writing ------------------------------------------------------------------------------------


def write(spark: Any, order: Order) -> Answer:
    for segment in order.segments:
        pieces = segment.pieces
        numbers = spark.range(0, len(pieces), 1, min(TASKS, len(pieces)))
        lines = numbers.mapInArrow(partial(read_pieces, pieces, order.port), "value binary")
        writer = lines.write.format("tierlog").option("endpoint", order.url).option("batchBytes", BATCH_BYTES)
        writer.mode("append").save(segment.name)

    return {"repeated": 0}


def read_pieces(
    pieces: list[Piece], port: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """In a task: the lines of the pieces whose numbers come in."""
    import pyarrow as pa

    with Passer(port) as passer:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                piece = pieces[number]
                passer.cross(piece.share, piece.index)
                yield pa.RecordBatch.from_arrays([pa.array(piece.load(), pa.binary())], ["value"])


# --- reading ------------------------------------------------------------------------------------


def read(spark: Any, order: Order) -> Answer:
    """Of each segment: how many events there are, how many bytes, and their SHA-256. Tasks compute them, one
    task for each segment."""
    found: dict[str, Any] = {}
    for segment in order.segments:
        frame = spark.read.format("tierlog").option("endpoint", order.url).load(segment.name)
        rows = frame.mapInArrow(
            digest, "first bigint, end bigint, events bigint, bytes bigint, sha256 string"
        ).collect()
        found[segment.name] = [row.asDict() for row in rows]

    return {"segments": found}


def digest(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In a task: one row for all events, whose frames must follow each other."""
    import pyarrow as pa

    sha256 = hashlib.sha256()
    first, end, count, size = -1, -1, 0, 0
    for batch in batches:
        for offset, value in zip(
            batch.column("offset").to_pylist(), batch.column("value").to_pylist(), strict=True
        ):
            if first < 0:
                first = end = offset
            if offset != end:
                raise QuickstartError(f"Spark read an event at {offset} where the one before ends at {end}")
            end = offset + events.HEADER_BYTES + len(value)
            count += 1
            size += len(value)
            sha256.update(value)
    row = {"first": first, "end": end, "events": count, "bytes": size, "sha256": sha256.hexdigest()}
    yield pa.RecordBatch.from_pylist([row])


def handle(spark: Any, order: Order) -> Answer:
    jobs: dict[Do, Callable[[Any, Order], Answer]] = {Do.WRITE: write, Do.READ: read}
    return jobs[order.do](spark, order)


def main() -> None:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    # Java and its children write to what they inherit as standard output: that becomes the log, and answers
    # go out through a copy.
    sys.stdout = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with quickstart_session() as spark:
        carry_out(partial(handle, spark), (QuickstartError, OSError, PySparkException, Py4JError))


if __name__ == "__main__":
    main()
