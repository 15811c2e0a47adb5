"""The quickstart's Spark driver: writes the text with tierlog's data source, and reads it back.

Each line of JSON on its standard input is a request: write these pieces of every segment, or without pieces
read all segments. A write is one transaction per segment. Its tasks read the pieces from files, and wait at a
sync point before each one."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from chaos_parts.spark_session import folder_settings, run_driver, session
from chaos_parts.sync_point import SyncPoint


def handle(spark: Any, request: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for number, name in enumerate(request["segments"]):
        if request["pieces"] is None:
            frame = spark.read.format("tierlog").option("endpoint", request["url"]).load(name)
            lines = frame.toArrow()["value"].to_pylist()
            found[name] = [len(lines), sha256(b"".join(lines)).hexdigest()]
        else:
            first, end = request["pieces"][number]
            read = partial(read_pieces, request["folder"], request["port"], number)
            frame = spark.range(first, end, 1, min(4, end - first)).mapInArrow(read, "value binary")
            # In small batches, so that a killed host has appends in flight.
            writer = frame.write.format("tierlog").options(endpoint=request["url"], batchBytes="256 KiB")
            writer.mode("append").save(name)
    return {"found": found}


def read_pieces(folder: str, port: int, segment: int, batches: Iterator[Any]) -> Iterator[Any]:
    """In a task: the lines of the pieces whose numbers come in."""
    import pyarrow as pa

    with SyncPoint(port) as sync_point:
        for batch in batches:
            for piece in batch.column(0).to_pylist():
                sync_point.reach(segment, piece)
                lines = Path(folder, f"{segment}-{piece}").read_bytes().splitlines(keepends=True)
                yield pa.RecordBatch.from_arrays([pa.array(lines, pa.binary())], ["value"])


if __name__ == "__main__":
    # Two tasks at a time, four attempts for each.
    run_driver(session("local[2,4]", **folder_settings()), handle)
