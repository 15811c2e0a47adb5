"""The quickstart's Spark driver: a process that writes the text with tierlog's data source, and reads it
back.

Each line of JSON on its standard input is a request: ``write`` the pieces from ``first`` to ``end`` of every
segment, or ``read`` all segments. A write is one transaction per segment. Its tasks read the pieces from
files, and wait at a sync point before each one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chaos_parts.spark_session import answer_requests, folder_settings, redirect_output, session
from chaos_parts.sync_point import SyncPoint
from tierlog.spark_bridge import TierlogDataSource

if TYPE_CHECKING:
    import pyarrow as pa

TASKS = 4
"""For each segment."""
BATCH_BYTES = "256 KiB"
"""Small, so that a killed host has appends in flight."""


def handle(spark: Any, request: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for number, name in enumerate(request["segments"]):
        if request["do"] == "read":
            frame = spark.read.format("tierlog").option("endpoint", request["url"]).load(name)
            [row] = frame.mapInArrow(digest, "events bigint, sha256 string").collect()
            found[name] = row.asDict()
        else:
            first, end = request["first"][number], request["end"][number]
            pieces = spark.range(first, end, 1, min(TASKS, end - first))
            read = partial(read_pieces, request["folder"], request["port"], number)
            writer = pieces.mapInArrow(read, "value binary").write.format("tierlog")
            writer = writer.option("endpoint", request["url"]).option("batchBytes", BATCH_BYTES)
            writer.mode("append").save(name)
    return {"found": found}


def read_pieces(
    folder: str, port: int, segment: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """In a task: the lines of the pieces whose numbers come in."""
    import pyarrow as pa

    with SyncPoint(port) as sync_point:
        for batch in batches:
            for piece in batch.column(0).to_pylist():
                sync_point.reach(segment, piece)
                lines = Path(folder, f"{segment}-{piece}").read_bytes().splitlines(keepends=True)
                yield pa.RecordBatch.from_arrays([pa.array(lines, pa.binary())], ["value"])


def digest(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In a task: the number of its events, and their SHA-256."""
    import pyarrow as pa

    count, sha256 = 0, hashlib.sha256()
    for batch in batches:
        count += len(batch)
        sha256.update(b"".join(batch.column("value").to_pylist()))
    yield pa.RecordBatch.from_pylist([{"events": count, "sha256": sha256.hexdigest()}])


if __name__ == "__main__":
    answers = redirect_output()
    # Two tasks at a time, four attempts for each.
    with session("local[2,4]", **folder_settings()) as spark:
        spark.dataSource.register(TierlogDataSource)
        answer_requests(answers, partial(handle, spark))
