"""One Spark application for one figure: ``python -m benchmarks.peers.spark_program WHAT CONNECTOR COUNT
FOLDER`` does it, checks that all is there, and prints the figure. What is measured is the first work of the
session."""

from __future__ import annotations

import atexit
import json
import os
import sys
from typing import Any

from benchmarks.harness import BenchmarkError
from benchmarks.spark import BATCH_ROWS, SMALL, batch_milliseconds, batch_rows, cached, session, timed, totals


def rows_of(connector: dict[str, Any]) -> Any:
    reader = session().read.format(connector["format"]).options(**connector["reads"])
    return reader.load().select("value")


def write(connector: dict[str, Any], count: int) -> float:
    with cached(SMALL, count) as data:
        writer = data.frame.write.format(connector["format"]).options(**connector["writes"])
        seconds = timed(lambda: writer.mode("append").save())
        check(totals(rows_of(connector)), (data.count, data.size))
    return seconds


def read(connector: dict[str, Any], count: int) -> float:
    found: list[tuple[int, int]] = []
    seconds = timed(lambda: found.append(totals(rows_of(connector))))
    check(found[0][0], count)
    return seconds


def batches(connector: dict[str, Any], count: int, folder: str) -> float:
    sink = batch_rows().writeStream.format(connector["format"]).options(**connector["writes"])
    milliseconds = batch_milliseconds(sink, f"{folder}/checkpoint", count)
    # Those of the micro-batch that was under way at the end may be there too.
    if (found := totals(rows_of(connector))[0]) < count * BATCH_ROWS:
        raise BenchmarkError(f"{found} rows were read after {count} micro-batches")
    return milliseconds


def check(found: object, expected: object) -> None:
    if found != expected:
        raise BenchmarkError(f"{found} was read in place of {expected}")


def main(what: str, connector: str, count: str, folder: str) -> None:
    atexit.register(_end_of_java)  # Before the session registers its own end, and so after it.
    # Java inherits the standard output, so it becomes the log.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    parsed = json.loads(connector)
    if what == "batches":
        figure = batches(parsed, int(count), folder)
    else:
        figure = {"write": write, "read": read}[what](parsed, int(count))
    print(figure, file=answers, flush=True)


def _end_of_java() -> None:
    """It removes its files when its input ends."""
    from pyspark import SparkContext

    if SparkContext._gateway is not None:
        java = SparkContext._gateway.proc
        java.stdin.close()
        java.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
