"""What a driver is ordered to write, and how it does it with Spark.

Owns: the form of an order, the two jobs (a batch, a run of a stream), and the rows, which name the attempt
that writes them. Does not own: the session (``spark_driver.py``), nor the trouble (``spark_faults.py``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Self

import attrs
import cattrs

from chaos_parts.spark_draws import Draw, Way
from chaos_parts.spark_oracle import Event

if TYPE_CHECKING:
    import pyarrow as pa

STREAM_SECONDS = 90
_BATCH_BYTES = 4096
"""So small that a hundred rows are several appends."""
_PARTITIONS_BEFORE_SHUFFLE = 8


@attrs.frozen(kw_only=True)
class Order:
    draw: Draw
    url: str
    target: str
    source: str
    """The segment that a stream copies."""
    checkpoint: str
    partitions: int
    port: int
    """The gate's."""
    trouble: bool
    """Whether this run meets the trouble, or shall just succeed."""

    def line(self) -> bytes:
        return json.dumps(cattrs.unstructure(self)).encode() + b"\n"

    @classmethod
    def parse(cls, line: str | bytes) -> Self:
        return cattrs.structure(json.loads(line), cls)


def carry_out(spark: Any, order: Order) -> None:
    """Raises what Spark raises."""
    name = "tierlog"
    if order.trouble:
        from chaos_parts.spark_faults import NAME, Fault, source_with

        name = NAME
        spark.dataSource.register(source_with(Fault(order.draw, order.port)))
    (_copy_stream if order.draw.stream else _write_batch)(spark, order, name)


def _options(order: Order) -> dict[str, str]:
    rows = "arrow" if order.draw.arrow else "python"
    return {
        "endpoint": order.url,
        "batchBytes": str(_BATCH_BYTES),
        "txnLease": f"{order.draw.lease:g} s",
        "rows": rows,
    }


def _write_batch(spark: Any, order: Order, name: str) -> None:
    draw = order.draw
    shuffled = draw.way is Way.ELSEWHERE
    rows = spark.range(0, draw.rows, 1, _PARTITIONS_BEFORE_SHUFFLE if shuffled else order.partitions)
    if shuffled:
        rows = rows.repartition(order.partitions)
    named = {"txnAppId": "chaos", "txnVersion": "1"} if draw.versioned else {"txnId": "chaos"}
    writer = rows.selectExpr("CAST(id AS STRING) AS value").mapInArrow(tag, "value binary").write.format(name)
    writer.options(**_options(order), **named).mode("append").save(order.target)


def _copy_stream(spark: Any, order: Order, name: str) -> None:
    """Until the end that the source has now."""
    reader = (
        spark.readStream.format("tierlog")
        .option("endpoint", order.url)
        .option("minPartitions", str(order.partitions))
    )
    rows = reader.schema("value binary").load(order.source).mapInArrow(tag, "value binary")
    writer = rows.writeStream.format(name).options(
        **_options(order), segment=order.target, checkpointLocation=order.checkpoint
    )
    query = writer.trigger(availableNow=True).start()
    try:
        if not query.awaitTermination(STREAM_SECONDS):
            raise TimeoutError(f"the stream did not end within {STREAM_SECONDS} s")
    finally:
        query.stop()


def warm_up(spark: Any) -> None:
    """So that the first round's tasks do not take as long as Python takes to start: what is slow is told by
    comparison."""
    spark.range(0, 8, 1, 8).selectExpr("CAST(id AS STRING) AS value").mapInArrow(tag, "value binary").count()


def tag(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In a task, the one that writes: numbers of rows come in, events go out."""
    import pyarrow as pa
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    number = 0
    for batch in batches:
        made = []
        for row in batch.column(0).to_pylist():
            made.append(Event(int(row), context.partitionId(), context.taskAttemptId(), number).encode())
            number += 1
        yield pa.RecordBatch.from_arrays([pa.array(made, pa.binary())], ["value"])
