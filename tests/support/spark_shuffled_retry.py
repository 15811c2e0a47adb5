"""A program: Spark with two executor processes writes rows that came through a shuffle, and every task fails
once half-way.

``python -m support.spark_shuffled_retry URL SEGMENT [naive]``, with ``tests`` on the path. A task that runs
again on the other executor gets the same rows in another order, which one process never shows. ``naive``
writes as a source without transactions might: a writer for each partition, whose appends are numbered.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from support.spark import WIDE, failing, numbered, session

ROWS = 4_000


def naive_source() -> type[Any]:
    """Wrong on purpose: it takes the n-th append of one attempt for the n-th append of the next."""
    from tierlog.spark_bridge import TierlogDataSource
    from tierlog.spark_bridge.schema import arrow_frames
    from tierlog.spark_bridge.staging import DirectAppender, append_directly
    from tierlog.spark_bridge.writer import BatchArrowWriter, Message, task

    class Writer(BatchArrowWriter):
        def write(self, iterator: Iterator[Any]) -> Any:
            from tierlog.spark_bridge.connections import connections  # each process has its own

            writer_id = f"{self.identity.transaction_id}-{task().partitionId()}"
            place = DirectAppender(connections.client(self.job.options), self.job.target, writer_id)
            append_directly(place, arrow_frames(iterator, self.job.column), self.job.options.batch_bytes)
            return Message(None)

    class Source(TierlogDataSource):
        @classmethod
        def name(cls) -> str:
            return "tierlog_naive"

        def writer(self, schema: Any, overwrite: bool) -> Any:
            made = super().writer(schema, overwrite)
            return Writer(made.job, made.identity)

    return Source


def main(url: str, segment: str, kind: str = "") -> None:
    def fail(attempt: int) -> None:
        if attempt == 0:
            raise RuntimeError("on purpose")

    elsewhere = {
        "spark.excludeOnFailure.enabled": "true",
        "spark.excludeOnFailure.task.maxTaskAttemptsPerExecutor": "1",
    }
    with session("local-cluster[2,1,1024]", **elsewhere) as spark:
        source = "tierlog"
        if kind == "naive":
            spark.dataSource.register(naive_source())
            source = "tierlog_naive"
        shuffled = numbered(spark, ROWS, 8, WIDE).repartition(2)
        frame = failing(shuffled, fail)
        frame.write.format(source).options(endpoint=url, batchBytes="4096").mode("append").save(segment)


if __name__ == "__main__":
    main(*sys.argv[1:])
