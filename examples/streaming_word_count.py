r"""Count the words of a segment as it grows, and write the counts to another segment.

    python examples/streaming_word_count.py --endpoint http://127.0.0.1:8470 --checkpoint counts \
        app/lines app/counts

Each micro-batch appends the whole table: the last event of a word has its current count. Stop it, kill it,
start it again: it continues where it was, and no micro-batch is written twice. With ``--once`` it ends when
it has read everything. """

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from tierlog.spark_bridge import TierlogDataSource


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Count words of one segment into another.")
    parser.add_argument("--endpoint", default="http://127.0.0.1:8470")
    parser.add_argument("--checkpoint", required=True, help="a folder that remembers how far the count is")
    parser.add_argument("--once", action="store_true", help="end when all that is there now is counted")
    parser.add_argument("source")
    parser.add_argument("target")
    given = parser.parse_args(arguments)

    # Spark would start the `python3` of the PATH, which may be one without tierlog.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.appName("tierlog word count").getOrCreate()
    spark.dataSource.register(TierlogDataSource)

    lines = spark.readStream.format("tierlog").option("endpoint", given.endpoint).load(given.source)
    words = lines.select(
        F.explode(F.split(F.lower(F.col("value").cast("string")), r"\W+")).alias("word")
    ).where("word != ''")
    counts = words.groupBy("word").count().select(F.to_json(F.struct("word", "count")).alias("value"))

    writer = (
        counts.writeStream.format("tierlog")
        .option("endpoint", given.endpoint)
        .option("segment", given.target)
    )
    writer = writer.outputMode("complete").option("checkpointLocation", given.checkpoint)
    if given.once:
        writer = writer.trigger(availableNow=True)
    writer.start().awaitTermination()


if __name__ == "__main__":
    main()
