"""Benchmarks of the Spark bridge: a session with two tasks at a time, a server process with durable appends,
and the same cores for all.

All benchmarks share the session of this process: a JVM takes ten seconds to start. The references are Spark's
uncompressed parquet and its `noop` sink, with the same rows in the same round. Parquet files are not synced;
the store's appends are."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import tierlog
from benchmarks.harness import Benchmark, BenchmarkError, Pair, Setting, alternate
from benchmarks.service import MIB, line_of, start
from tierlog.storage_backends.base.transactions import StagedPart

ROW_BYTES = 1024
PARTITIONS = 4
BATCH_ROWS = 1_000
PARTS = 32
ROUNDS = 3


def missing() -> str:
    """Why Spark cannot run here; empty if it can."""
    absent = [name for name in ("pyspark", "pyarrow", "pandas") if find_spec(name) is None]
    if absent:
        return f"it needs {' and '.join(absent)}: pip install 'tierlog[spark]'"

    home = os.environ.get("JAVA_HOME")
    if shutil.which("java") is None and not (home and os.path.exists(os.path.join(home, "bin", "java"))):
        return "it needs Java 17 or newer, and there is no `java` on PATH and none in JAVA_HOME"

    return ""


@functools.cache
def session() -> Any:
    from pyspark.sql import SparkSession

    root = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    os.environ.update(
        PYSPARK_PYTHON=sys.executable,
        PYSPARK_DRIVER_PYTHON=sys.executable,
        SPARK_LOCAL_IP="127.0.0.1",
        PYTHONPATH=path,
    )
    builder = SparkSession.builder.master("local[2]").appName("tierlog benchmarks")
    for key, value in {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "4g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.parquet.compression.codec": "uncompressed",
    }.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    atexit.register(spark.stop)
    return spark


class Served:
    """A server process of its own."""

    def __init__(self, process: subprocess.Popen[str], client: tierlog.SyncClient, url: str) -> None:
        self.process = process
        self.client = client
        self.url = url

    def write(self, frame: Any, segment: str) -> None:
        frame.write.format("tierlog").option("endpoint", self.url).mode("append").save(segment)


@contextmanager
def served(setting: Setting) -> Iterator[Served]:
    with start("store", setting.fresh("served")) as process:
        try:
            url = line_of(process)
            with tierlog.connect_sync(url) as client:
                yield Served(process, client, url)
        finally:
            process.communicate()


@contextmanager
def cached_rows(setting: Setting) -> Iterator[tuple[Any, int]]:
    """Rows of 1 KiB that cannot be compressed, in memory; and their number."""
    count = setting.megabytes_of(1_000, 8) * 1_000_000 // ROW_BYTES
    frame = (
        session()
        .range(0, count, 1, PARTITIONS)
        .selectExpr("CAST(repeat(sha2(CAST(id AS STRING), 512), 8) AS BINARY) AS value")
    )
    frame.cache()
    try:
        if frame.count() != count:
            raise BenchmarkError("Spark made another number of rows")
        yield frame, count
    finally:
        frame.unpersist(blocking=True)


def written_bytes(pid: int) -> int:
    """Bytes that a process has written to disk so far; 0 if that is unknown."""
    try:
        with open(f"/proc/{pid}/io", encoding="ascii") as stream:
            fields = dict(line.split(": ") for line in stream)
    except OSError:
        return 0

    return int(fields["write_bytes"])


# --- write and read -----------------------------------------------------------------------------


async def write(setting: Setting) -> Sequence[Pair]:
    with served(setting) as server, cached_rows(setting) as (frame, count):
        folder, size = setting.fresh("parquet"), count * (ROW_BYTES + 4)
        jvm = session().sparkContext._gateway.proc.pid
        disk: dict[str, list[float]] = {"tierlog": [], "parquet": []}

        async def value() -> float:
            before = written_bytes(server.process.pid)
            seconds = timed(lambda: server.write(frame, "bench/write"))
            if server.client.segment_info("bench/write").length != size:
                raise BenchmarkError("the segment does not have all rows")
            server.client.flush()
            disk["tierlog"].append((written_bytes(server.process.pid) - before) / 1e6)
            server.client.delete_segment("bench/write")
            return count * ROW_BYTES / 1e6 / seconds

        async def reference() -> float:
            before = written_bytes(jvm)
            seconds = timed(lambda: frame.write.mode("overwrite").parquet(folder))
            disk["parquet"].append((written_bytes(jvm) - before) / 1e6)
            return count * ROW_BYTES / 1e6 / seconds

        pairs = await alternate(setting, value, reference, ROUNDS)
        reported = ", ".join(f"{name} {statistics.median(each):,.0f} MB" for name, each in disk.items())
        print(
            f"spark_write: to disk for {count * ROW_BYTES / 1e6:,.0f} MB of rows: {reported}", file=sys.stderr
        )
        return pairs


async def read(setting: Setting) -> Sequence[Pair]:
    """The data was flushed. It is read from the page cache, except by the store in the first round."""
    with served(setting) as server:
        folder = os.path.join(setting.fresh("parquet"), "rows")
        with cached_rows(setting) as (frame, count):
            server.write(frame, "bench/read")
            frame.write.parquet(folder)
        server.client.flush()
        service: list[float] = []

        def reader(direct: str) -> Any:
            return (
                session()
                .read.format("tierlog")
                .options(endpoint=server.url, minPartitions=PARTITIONS, direct=direct)
                .schema("value binary")
                .load("bench/read")
            )

        def rate(make: Any) -> float:
            found: list[Any] = []
            seconds = timed(
                lambda: found.extend(make().selectExpr("count(value)", "sum(length(value))").collect())
            )
            if tuple(found[0]) != (count, count * ROW_BYTES):
                raise BenchmarkError(f"{found[0]} was read, {count} rows were written")
            return count * ROW_BYTES / 1e6 / seconds

        async def value() -> float:
            service.append(rate(lambda: reader("never")))
            return rate(lambda: reader("always"))

        async def reference() -> float:
            return rate(lambda: session().read.parquet(folder))

        pairs = await alternate(setting, value, reference, ROUNDS)
        ratios = [each / pair.reference for each, pair in zip(service[-len(pairs) :], pairs, strict=True)]
        print(
            f"spark_read: through the service {statistics.median(service[-len(pairs) :]):,.0f} MB/s, "
            f"{statistics.median(ratios):.2f} of parquet",
            file=sys.stderr,
        )
        return pairs


def timed(act: Any) -> float:
    begin = time.perf_counter()
    act()
    return time.perf_counter() - begin


# --- micro-batches and commits ------------------------------------------------------------------


async def batches(setting: Setting) -> Sequence[Pair]:
    """The median duration of a query's micro-batches, without the first ones."""
    wanted = setting.size(12, 3)
    with served(setting) as server:
        rows = (
            session()
            .readStream.format("rate-micro-batch")
            .option("rowsPerBatch", BATCH_ROWS)
            .option("numPartitions", 2)
            .load()
        )
        rows = rows.selectExpr("CAST(rpad(CAST(value AS STRING), 1024, 'x') AS BINARY) AS value")

        def milliseconds(sink: Any) -> float:
            query = sink.option("checkpointLocation", setting.fresh("checkpoint")).start()
            try:
                while query.exception() is None and (
                    query.lastProgress is None or query.lastProgress.batchId < wanted + 2
                ):
                    time.sleep(0.02)
                if query.exception() is not None:
                    raise BenchmarkError(f"the query failed: {query.exception()}")
                return statistics.median(
                    float(each.durationMs["triggerExecution"]) for each in query.recentProgress[3:]
                )
            finally:
                query.stop()

        async def value() -> float:
            sink = (
                rows.writeStream.format("tierlog")
                .option("endpoint", server.url)
                .option("segment", "bench/batches")
            )
            took = milliseconds(sink)
            if server.client.segment_info("bench/batches").length < wanted * BATCH_ROWS * (ROW_BYTES + 4):
                raise BenchmarkError("the segment does not have the rows of all micro-batches")
            return took

        async def reference() -> float:
            return milliseconds(rows.writeStream.format("noop"))

        return await alternate(setting, value, reference, ROUNDS)


async def commit(setting: Setting) -> Sequence[Pair]:
    """The driver's part of a write with 32 partitions, as the bridge does it."""
    data, names = os.urandom(MIB), iter(range(1_000_000))
    with served(setting) as server:
        client = server.client
        client.create_segment("bench/commit")

        async def value() -> float:
            name = f"commit-{next(names)}"
            client.begin_transaction("bench/commit", name)
            staged = [client.stage_segment("bench/commit", name, f"p{number:05d}") for number in range(PARTS)]
            for each in staged:
                client.append(each, data, expected_offset=0)
            before = client.segment_info("bench/commit").length
            seconds = timed(
                lambda: client.commit_transaction(
                    "bench/commit", name, [StagedPart(each, MIB) for each in staged]
                )
            )
            if client.segment_info("bench/commit").length != before + PARTS * MIB:
                raise BenchmarkError("the commit did not move what was staged")
            return seconds * 1e3

        async def reference() -> float:
            """Like a file committer: move each file, then sync the folder."""
            source, target = setting.fresh("staged"), setting.fresh("table")
            for number in range(PARTS):
                with open(os.path.join(source, str(number)), "wb") as stream:
                    stream.write(data)
                    os.fsync(stream.fileno())
            return timed(lambda: _move(source, target)) * 1e3

        return await alternate(setting, value, reference, 9)


def _move(source: str, target: str) -> None:
    for number in range(PARTS):
        os.rename(os.path.join(source, str(number)), os.path.join(target, str(number)))
    folder = os.open(target, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


BENCHMARKS = (
    Benchmark(
        "spark_write",
        "Spark writes 1 GB of rows of 1 KiB, exactly once",
        "Cached rows, four partitions, two at a time, durable when it returns. Against uncompressed "
        "parquet, which is not synced.",
        "MB/s",
        0.5,
        write,
        missing=missing,
    ),
    Benchmark(
        "spark_read",
        "Spark reads 1 GB of events of 1 KiB, flushed, out of chunks",
        "One segment, cut into four. Against the same rows out of uncompressed parquet. Prints what a read "
        "through the service is, in the same rounds.",
        "MB/s",
        0.7,
        read,
        missing=missing,
    ),
    Benchmark(
        "spark_batch_1000",
        "a micro-batch of 1,000 rows",
        "The median of a query's micro-batches, without its first ones. Against Spark's `noop` sink.",
        "ms",
        1.5,
        batches,
        lower_is_better=True,
        missing=missing,
    ),
    Benchmark(
        "spark_commit_32",
        "the commit of a write with 32 partitions of 1 MiB",
        "One call of the driver. Reference: 32 files are renamed and their folder is synced.",
        "ms",
        50,
        commit,
        lower_is_better=True,
        goal_of="value",
        missing=missing,
    ),
)
