"""Batch writes of a real Spark to a real service: whole, once, in order, or not at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from support.spark import WIDE, failing, missing, numbered, staged, values, written
from tierlog import InvalidArgument, SegmentNotFound, SyncClient

Read = Callable[..., Any]
Write = Callable[..., None]


@pytest.mark.parametrize("rows", ["arrow", "python"])
def test_what_is_written_is_read_back_in_the_order_of_partitions(
    spark: Any, store: SyncClient, segment: str, write: Write, reader: Read, rows: str
) -> None:
    write(numbered(spark, 5_000, 3), segment, rows=rows, batchBytes="4096")

    assert written(store, segment) == values(5_000)
    assert [bytes(row.value) for row in reader(segment).orderBy("offset").collect()] == values(5_000)
    assert staged(store, segment) == []


def test_binary_columns_and_a_key_beside_the_value_are_taken(
    spark: Any, store: SyncClient, segment: str, write: Write
) -> None:
    frame = spark.createDataFrame(
        [("k", bytearray(b"\0\xff")), ("l", bytearray())], "key string, value binary"
    )

    write(frame.coalesce(1), segment)

    assert written(store, segment) == [b"\0\xff", b""]


def test_a_frame_without_rows_writes_nothing(
    spark: Any, store: SyncClient, segment: str, write: Write
) -> None:
    write(numbered(spark, 10, 2).where("value = 'none'"), segment)

    assert written(store, segment) == []


@pytest.mark.parametrize("how", ["raises", "is killed"])
def test_tasks_that_fail_half_way_and_run_again_write_once(
    spark: Any, store: SyncClient, segment: str, write: Write, how: str
) -> None:
    def fail(attempt: int) -> None:
        if attempt == 0 and how == "raises":
            raise RuntimeError("on purpose")
        if attempt == 0:
            import os
            import signal

            os.kill(os.getpid(), signal.SIGKILL)

    write(failing(numbered(spark, 4_000, 2, WIDE), fail), segment, batchBytes="4096")

    assert written(store, segment) == values(4_000, WIDE)
    assert staged(store, segment) == []


def test_a_failed_job_leaves_nothing_visible(
    spark: Any, store: SyncClient, segment: str, write: Write
) -> None:
    from pyspark.errors import PySparkException

    def fail(attempt: int) -> None:
        raise RuntimeError("on purpose")

    with pytest.raises(PySparkException):
        write(failing(numbered(spark, 4_000, 2, WIDE), fail), segment, batchBytes="4096")

    assert store.segment_info(segment).length == 0
    assert staged(store, segment) == []
    assert [info.state.value for info in store.list_transactions(segment)] == ["aborted"]


def test_at_least_once_loses_nothing_and_shows_rows_twice(
    spark: Any, store: SyncClient, segment: str, write: Write
) -> None:
    def fail(attempt: int) -> None:
        if attempt == 0:
            raise RuntimeError("on purpose")

    write(
        failing(numbered(spark, 4_000, 2, WIDE), fail), segment, delivery="at-least-once", batchBytes="4096"
    )

    # Twice: what the failed attempts sent had arrived. So it had in the tests above, where nothing is there
    # twice.
    counts = Counter(written(store, segment))
    assert set(counts) == set(values(4_000, WIDE))
    assert max(counts.values()) == 2
    assert store.list_transactions(segment) == []


# --- running a job again ------------------------------------------------------------------------


def lossy_source(before: bool) -> type[Any]:
    """The data source, whose commits fail on the driver: before the service receives them, or when its answer
    comes back."""
    from tierlog.spark_bridge import TierlogDataSource
    from tierlog.spark_bridge.writer import BatchArrowWriter

    class Writer(BatchArrowWriter):
        def commit(self, messages: Any) -> None:
            if not before:
                super().commit(messages)
            raise RuntimeError("the answer was lost")

    class Source(TierlogDataSource):
        @classmethod
        def name(cls) -> str:
            return "tierlog_lossy"

        def writer(self, schema: Any, overwrite: bool) -> Any:
            made = super().writer(schema, overwrite)
            return Writer(made.job, made.identity)

    return Source


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize(
    "options", [{"txnId": "load"}, {"txnAppId": "app", "txnVersion": "7"}], ids=["id", "version"]
)
def test_a_named_job_that_is_run_again_is_written_once(
    spark: Any, store: SyncClient, segment: str, write: Write, before: bool, options: dict[str, str]
) -> None:
    """Whether it had been committed or not, which the failed `save` cannot know; with other partitions."""
    from pyspark.errors import PySparkException

    spark.dataSource.register(lossy_source(before))
    with pytest.raises(PySparkException, match="the answer was lost"):
        write(numbered(spark, 100, 2), segment, source="tierlog_lossy", **options)

    assert len(written(store, segment)) == (0 if before else 100)

    for partitions in (3, 1):
        write(numbered(spark, 100, partitions), segment, **options)

    assert written(store, segment) == values(100)
    assert staged(store, segment) == []


def test_another_version_of_an_application_is_another_write(
    spark: Any, store: SyncClient, segment: str, write: Write
) -> None:
    for version in ("1", "2", "1"):
        write(numbered(spark, 10, 1), segment, txnAppId="app", txnVersion=version)

    assert written(store, segment) == values(10) * 2


# --- refusals, before any task runs -------------------------------------------------------------


def test_a_segment_cannot_be_overwritten(spark: Any, url: str, segment: str) -> None:
    from pyspark.errors import PySparkException

    with pytest.raises(
        PySparkException, match=r"a segment cannot be overwritten: write with mode\('append'\)"
    ):
        numbered(spark, 1, 1).write.format("tierlog").option("endpoint", url).mode("overwrite").save(segment)


@pytest.mark.parametrize(
    ("column", "options", "words"),
    [
        ("1 AS value", {}, "column 'value' is int"),
        ("'a' AS value", {"batchSize": "1"}, "did you mean 'batchBytes'"),
        ("'a' AS value", {"createSegment": "false"}, "SegmentNotFound"),
        ("'a' AS value", {"endpoint": "http://127.0.0.1:9"}, "Unavailable"),
    ],
)
def test_mistakes_are_reported_before_any_task_runs(
    spark: Any, segment: str, write: Write, column: str, options: dict[str, str], words: str
) -> None:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException, match=words):
        write(spark.range(1).selectExpr(column), segment, **options)


def test_a_null_is_refused(spark: Any, store: SyncClient, segment: str, write: Write) -> None:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException, match="1 of 1 events are null"):
        write(spark.sql("SELECT CAST(NULL AS STRING) AS value"), segment)

    assert store.segment_info(segment).length == 0


def test_an_append_too_large_for_the_service_is_reported_with_the_option(
    url: str, store: SyncClient, segment: str
) -> None:
    if reason := missing():
        pytest.skip(reason)

    import pyarrow as pa
    from pyspark.sql.types import BinaryType, StructField, StructType

    from tierlog.spark_bridge import TierlogDataSource

    given = {"endpoint": url, "segment": segment, "delivery": "at-least-once", "batchBytes": "16 MiB"}
    writer = TierlogDataSource(given).writer(StructType([StructField("value", BinaryType())]), False)
    with pytest.raises(
        InvalidArgument,
        match="batchBytes, 16777216, are too large for the service: .* most 8388608",
    ):
        writer.write(iter([pa.record_batch([pa.array([bytes(1 << 20)] * 9, pa.binary())], ["value"])]))

    assert store.segment_info(segment).length == 0


def test_a_late_task_does_not_create_the_target_that_its_user_has_deleted(
    url: str, store: SyncClient, segment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reason := missing():
        pytest.skip(reason)

    import pyarrow as pa
    from pyspark.sql.types import BinaryType, StructField, StructType

    from tierlog.spark_bridge import TierlogDataSource, writer

    monkeypatch.setattr(writer, "task", lambda: SimpleNamespace(partitionId=lambda: 0))
    source = TierlogDataSource({"endpoint": url, "segment": segment})
    job = source.writer(StructType([StructField("value", BinaryType())]), False)
    store.delete_segment(segment)

    with pytest.raises(SegmentNotFound):
        job.write(iter([pa.record_batch([pa.array([b"late"], pa.binary())], ["value"])]))
    with pytest.raises(SegmentNotFound):
        store.segment_info(segment)
