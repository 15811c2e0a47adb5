"""Import a text file into a segment, one event for each line, exactly once however often it runs.

    tierlog serve data                                             # in another terminal
    python examples/batch_import.py --endpoint http://127.0.0.1:8470 README.md app/lines

A failed job may have been committed, if the answer was lost. The import has a name (``txnId``), so repeating
it adds nothing then."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from pyspark.sql import SparkSession

from tierlog.spark_bridge import TierlogDataSource


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Import a text file into a segment.")
    parser.add_argument("--endpoint", default="http://127.0.0.1:8470")
    parser.add_argument("--name", help="the import's name; default: the file's")
    parser.add_argument("file")
    parser.add_argument("segment")
    given = parser.parse_args(arguments)
    name = (
        given.name
        or "import-"
        + "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in given.file)[-60:]
    )

    # Spark would start the `python3` of the PATH, which may be one without tierlog.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.appName("tierlog batch import").getOrCreate()
    spark.dataSource.register(TierlogDataSource)

    lines = spark.read.text(given.file)  # one column, `value`
    lines.write.format("tierlog").option("endpoint", given.endpoint).option("txnId", name).mode(
        "append"
    ).save(given.segment)

    events = spark.read.format("tierlog").option("endpoint", given.endpoint).load(given.segment)
    print(f"{given.segment} has {events.count()} events")


if __name__ == "__main__":
    main()
