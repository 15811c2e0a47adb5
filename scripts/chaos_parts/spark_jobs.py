"""What a Spark driver is requested to write, and how: a batch, or a run of a stream.

The rows name the attempt that writes them, so that the checks can tell attempts apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Self

import attrs
import cattrs

from chaos_parts.spark_checker import Event
from chaos_parts.spark_scenarios import FaultKind, Scenario

if TYPE_CHECKING:
    import pyarrow as pa

STREAM_SECONDS = 90
_BATCH_BYTES = 4096
"""So small that a hundred rows are several appends."""
_PARTITIONS_BEFORE_SHUFFLE = 8


@attrs.frozen(kw_only=True)
class Request:
    scenario: Scenario
    url: str
    target: str
    source: str
    """The segment that a stream copies."""
    checkpoint: str
    partitions: int
    port: int
    """Of the sync point."""
    faulty: bool
    """Whether the fault is injected into this run."""

    def document(self) -> dict[str, Any]:
        document: dict[str, Any] = cattrs.unstructure(self)
        return document

    @classmethod
    def parse(cls, document: dict[str, Any]) -> Self:
        return cattrs.structure(document, cls)


def carry_out(spark: Any, request: Request) -> None:
    """Write, with the fault if there is one. Raises Spark's errors."""
    name = "tierlog"
    if request.faulty:
        from chaos_parts.spark_failing_writer import NAME, Fault, source_with

        name = NAME
        spark.dataSource.register(source_with(Fault(request.scenario, request.port)))
    (_copy_stream if request.scenario.stream else _write_batch)(spark, request, name)


def _options(request: Request) -> dict[str, str]:
    rows = "arrow" if request.scenario.arrow else "python"
    return {
        "endpoint": request.url,
        "batchBytes": str(_BATCH_BYTES),
        "txnLease": f"{request.scenario.lease:g} s",
        "rows": rows,
    }


def _write_batch(spark: Any, request: Request, name: str) -> None:
    scenario = request.scenario
    shuffled = scenario.kind is FaultKind.ELSEWHERE
    rows = spark.range(0, scenario.rows, 1, _PARTITIONS_BEFORE_SHUFFLE if shuffled else request.partitions)
    if shuffled:
        rows = rows.repartition(request.partitions)
    named = {"txnAppId": "chaos", "txnVersion": "1"} if scenario.versioned else {"txnId": "chaos"}
    writer = rows.selectExpr("CAST(id AS STRING) AS value").mapInArrow(tag, "value binary").write.format(name)
    writer.options(**_options(request), **named).mode("append").save(request.target)


def _copy_stream(spark: Any, request: Request, name: str) -> None:
    """Up to the current end of the source."""
    reader = (
        spark.readStream.format("tierlog")
        .option("endpoint", request.url)
        .option("minPartitions", str(request.partitions))
    )
    rows = reader.schema("value binary").load(request.source).mapInArrow(tag, "value binary")
    writer = rows.writeStream.format(name).options(
        **_options(request), segment=request.target, checkpointLocation=request.checkpoint
    )
    query = writer.trigger(availableNow=True).start()
    try:
        if not query.awaitTermination(STREAM_SECONDS):
            raise TimeoutError(f"the stream did not end within {STREAM_SECONDS} s")
    finally:
        query.stop()


def warm_up(spark: Any) -> None:
    """Start the Python workers, so that speculation does not take the first round's tasks for slow ones."""
    spark.range(0, 8, 1, 8).selectExpr("CAST(id AS STRING) AS value").mapInArrow(tag, "value binary").count()


def tag(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In the task that writes: row numbers come in, events go out."""
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
