r"""Sort a stream's events into two segments, each event once, with ``foreachBatch``.

    python examples/foreach_batch.py --endpoint http://127.0.0.1:8470 --checkpoint sort.checkpoint \
        app/lines app/errors app/rest

After a crash a micro-batch is repeated, possibly when only one of its two writes was committed. So each write
has a name: an application (``txnAppId``) and the number of the micro-batch (``txnVersion``). A write that was
committed before adds nothing. """

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession

from tierlog.spark_bridge import TierlogDataSource


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Sort the lines of a segment into two.")
    parser.add_argument("--endpoint", default="http://127.0.0.1:8470")
    parser.add_argument("--checkpoint", required=True, help="a folder that remembers how far the work is")
    parser.add_argument("--once", action="store_true", help="end when all that is there now is sorted")
    parser.add_argument("source")
    parser.add_argument("errors", help="gets the lines with the word ERROR")
    parser.add_argument("rest")
    given = parser.parse_args(arguments)

    # Spark would start the `python3` of the PATH, which may be one without tierlog.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.appName("tierlog foreachBatch").getOrCreate()
    spark.dataSource.register(TierlogDataSource)

    def save(batch: DataFrame, number: int) -> None:
        for segment, condition in (
            (given.errors, "value LIKE '%ERROR%'"),
            (given.rest, "value NOT LIKE '%ERROR%'"),
        ):
            writer = batch.where(condition).write.format("tierlog").option("endpoint", given.endpoint)
            writer.option("txnAppId", "sort").option("txnVersion", number).mode("append").save(segment)

    lines = (
        spark.readStream.format("tierlog")
        .option("endpoint", given.endpoint)
        .schema("value string")
        .load(given.source)
    )
    writer = lines.writeStream.foreachBatch(save).option("checkpointLocation", given.checkpoint)
    if given.once:
        writer = writer.trigger(availableNow=True)
    writer.start().awaitTermination()


if __name__ == "__main__":
    main()
