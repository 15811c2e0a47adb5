"""Benchmarks of the Spark bridge: a session with two tasks at a time, a server process with durable appends,
and the same cores for all.

All benchmarks share the session of this process: a JVM takes ten seconds to start. The references are Spark's
uncompressed parquet and its `noop` sink, with the same rows in the same round. Parquet files are not synced;
the store's appends are.

Beside its figure each prints the processor time by process: of the JVM, of Spark's Python workers, and of the
store's process."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import statistics
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from typing import Any

import attrs

import tierlog
from benchmarks.harness import Benchmark, BenchmarkError, Pair, Setting, alternate
from benchmarks.service import MIB, line_of, start
from tierlog.storage_backends.base.transactions import StagedPart

HEADER_BYTES = 4
PARTITIONS = 4
BATCH_ROWS = 1_000
PARTS = 32
ROUNDS = 3


@attrs.frozen
class Rows:
    """Rows that cannot be compressed."""

    megabytes: int
    each: int
    """Bytes of one, on average."""
    value: str
    """The column, out of ``id``."""

    def count(self, setting: Setting) -> int:
        return setting.megabytes_of(self.megabytes, 8) * 1_000_000 // self.each


LARGE = Rows(1_000, 1024, "repeat(sha2(CAST(id AS STRING), 512), 8)")
SMALL = Rows(200, 100, "substr(sha2(CAST(id AS STRING), 512), 1, 80 + id % 41)")
"""Of different lengths, as most events are."""


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
    # As docs/spark.md recommends, and so is a setting below.
    python = os.path.join(sysconfig.get_path("scripts"), "tierlog-spark-python")
    os.environ.update(
        PYSPARK_PYTHON=python,
        PYSPARK_DRIVER_PYTHON=python,
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
        "spark.python.unix.domain.socket.enabled": "true",
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


@attrs.frozen
class Cached:
    frame: Any
    count: int
    size: int
    """Bytes of all values."""

    @property
    def megabytes(self) -> float:
        return self.size / 1e6


@contextmanager
def cached(rows: Rows, count: int) -> Iterator[Cached]:
    """The rows, in memory."""
    frame = session().range(0, count, 1, PARTITIONS).selectExpr(f"CAST({rows.value} AS BINARY) AS value")
    frame.cache()
    try:
        yield Cached(frame, *totals(frame))
    finally:
        frame.unpersist(blocking=True)


def totals(frame: Any) -> tuple[int, int]:
    """The number of rows, and the bytes of their values."""
    [found] = frame.selectExpr("count(value)", "sum(length(value))").collect()
    return found[0], found[1]


def written_bytes(pid: int) -> int:
    """Bytes that a process has written to disk so far; 0 if that is unknown."""
    try:
        with open(f"/proc/{pid}/io", encoding="ascii") as stream:
            fields = dict(line.split(": ") for line in stream)
    except OSError:
        return 0

    return int(fields["write_bytes"])


class Processors:
    """Processor time by process, beside each figure."""

    def __init__(self, name: str, server: Served) -> None:
        self._name = name
        self._host = server.process.pid
        self._spent: dict[str, list[dict[str, float]]] = {}

    def timed(self, what: str, act: Any) -> float:
        before = self._so_far()
        seconds = timed(act)
        after = self._so_far()
        self._spent.setdefault(what, []).append({kind: after[kind] - before[kind] for kind in after})
        return seconds

    def report(self) -> None:
        for what, spent in self._spent.items():
            counted = spent[1:] or spent  # the first round warms up
            medians = [
                f"{kind} {statistics.median(each[kind] for each in counted):.2f} s" for kind in counted[0]
            ]
            print(f"{self._name}: processor time of {what}: {', '.join(medians)}", file=sys.stderr)

    def _so_far(self) -> dict[str, float]:
        """Seconds; 0 where there is no ``/proc``."""
        jvm = session().sparkContext._gateway.proc.pid
        parents, seconds = dict[int, int](), dict[int, float]()
        for pid in (int(name) for name in _entries("/proc") if name.isdigit()):
            try:
                with open(f"/proc/{pid}/stat", encoding="utf-8") as stream:
                    fields = stream.read().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended
            parents[pid] = int(fields[1])
            # Of a worker's parent with its ended children: workers are forks of Spark's daemons.
            ticks = sum(map(int, fields[11 : 13 if pid in (jvm, self._host) else 15]))
            seconds[pid] = ticks / os.sysconf("SC_CLK_TCK")
        spent = {"JVM": seconds.get(jvm, 0.0), "Python": 0.0, "store": seconds.get(self._host, 0.0)}
        for pid in seconds:
            ancestor = parents.get(pid)
            while ancestor is not None and ancestor != jvm:
                ancestor = parents.get(ancestor)
            if ancestor is not None:
                spent["Python"] += seconds[pid]
        return spent


def _entries(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


# --- write and read -----------------------------------------------------------------------------


async def write(setting: Setting, name: str, rows: Rows) -> Sequence[Pair]:
    with served(setting) as server, cached(rows, rows.count(setting)) as data:
        folder, processors = setting.fresh("parquet"), Processors(name, server)
        jvm = session().sparkContext._gateway.proc.pid
        disk: dict[str, list[float]] = {"tierlog": [], "parquet": []}

        async def value() -> float:
            before = written_bytes(server.process.pid)
            seconds = processors.timed("tierlog", lambda: server.write(data.frame, "bench/write"))
            length = server.client.segment_info("bench/write").length
            if length != data.size + data.count * HEADER_BYTES:
                raise BenchmarkError("the segment does not have all rows")
            server.client.flush()
            disk["tierlog"].append((written_bytes(server.process.pid) - before) / 1e6)
            server.client.delete_segment("bench/write")
            return data.megabytes / seconds

        async def reference() -> float:
            before = written_bytes(jvm)
            seconds = processors.timed("parquet", lambda: data.frame.write.mode("overwrite").parquet(folder))
            disk["parquet"].append((written_bytes(jvm) - before) / 1e6)
            return data.megabytes / seconds

        pairs = await alternate(setting, value, reference, ROUNDS)
        processors.report()
        reported = ", ".join(f"{name} {statistics.median(each):,.0f} MB" for name, each in disk.items())
        print(f"{name}: to disk for {data.megabytes:,.0f} MB of rows: {reported}", file=sys.stderr)
        return pairs


async def read(setting: Setting, name: str, rows: Rows, direct: str) -> Sequence[Pair]:
    """The data was flushed. It is read from the page cache, except by the store in the first round."""
    with served(setting) as server:
        folder, processors = os.path.join(setting.fresh("parquet"), "rows"), Processors(name, server)
        with cached(rows, rows.count(setting)) as data:
            server.write(data.frame, "bench/read")
            data.frame.write.parquet(folder)
        server.client.flush()

        def events() -> Any:
            return (
                session()
                .read.format("tierlog")
                .options(endpoint=server.url, minPartitions=PARTITIONS, direct=direct)
                .schema("value binary")
                .load("bench/read")
            )

        async def rate(what: str, frame: Any) -> float:
            found: list[tuple[int, int]] = []
            seconds = processors.timed(what, lambda: found.append(totals(frame())))
            if found != [(data.count, data.size)]:
                raise BenchmarkError(f"{found} was read, {data.count} rows were written")
            return data.megabytes / seconds

        pairs = await alternate(
            setting,
            lambda: rate("tierlog", events),
            lambda: rate("parquet", lambda: session().read.parquet(folder)),
            ROUNDS,
        )
        processors.report()
        return pairs


def timed(act: Any) -> float:
    begin = time.perf_counter()
    act()
    return time.perf_counter() - begin


# --- micro-batches and commits ------------------------------------------------------------------


def batch_rows() -> Any:
    """A stream with micro-batches of rows of 1 KiB, one as soon as the last one is done."""
    rows = (
        session()
        .readStream.format("rate-micro-batch")
        .option("rowsPerBatch", BATCH_ROWS)
        .option("numPartitions", 2)
        .load()
    )
    return rows.selectExpr("CAST(rpad(CAST(value AS STRING), 1024, 'x') AS BINARY) AS value")


def batch_milliseconds(sink: Any, checkpoint: str, wanted: int) -> float:
    """The median duration of a query's micro-batches, without the first ones."""
    query = sink.option("checkpointLocation", checkpoint).start()
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


async def batches(setting: Setting) -> Sequence[Pair]:
    wanted = setting.size(12, 3)
    with served(setting) as server:
        rows = batch_rows()

        def milliseconds(sink: Any) -> float:
            return batch_milliseconds(sink, setting.fresh("checkpoint"), wanted)

        async def value() -> float:
            sink = (
                rows.writeStream.format("tierlog")
                .option("endpoint", server.url)
                .option("segment", "bench/batches")
            )
            took = milliseconds(sink)
            if server.client.segment_info("bench/batches").length < wanted * BATCH_ROWS * (
                LARGE.each + HEADER_BYTES
            ):
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
        partial(write, name="spark_write", rows=LARGE),
        missing=missing,
    ),
    Benchmark(
        "spark_write_100",
        "Spark writes 2 million rows of 80 to 120 bytes, exactly once",
        "As `spark_write`.",
        "MB/s",
        0.8,
        partial(write, name="spark_write_100", rows=SMALL),
        missing=missing,
    ),
    Benchmark(
        "spark_read",
        "Spark reads 1 GB of events of 1 KiB, flushed, out of chunks",
        "One segment, cut into four, each task from long-term storage itself. Against the same rows out of "
        "uncompressed parquet.",
        "MB/s",
        0.8,
        partial(read, name="spark_read", rows=LARGE, direct="always"),
        missing=missing,
    ),
    Benchmark(
        "spark_read_100",
        "Spark reads 2 million events of 80 to 120 bytes, flushed, out of chunks",
        "As `spark_read`.",
        "MB/s",
        0.8,
        partial(read, name="spark_read_100", rows=SMALL, direct="always"),
        missing=missing,
    ),
    Benchmark(
        "spark_read_100_service",
        "the same through the service",
        "Each task over HTTP, and not from long-term storage.",
        "MB/s",
        0.5,
        partial(read, name="spark_read_100_service", rows=SMALL, direct="never"),
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
