"""Streams of a real Spark, from a real service and to it: every event once, through restarts, replays and
lost answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from support.spark import numbered, staged, values, written
from tierlog import SyncClient
from tierlog.spark_bridge import events

Start = Callable[..., Any]


@pytest.fixture
def copy(spark: Any, url: str, segment: str, checkpoint: str) -> Start:
    """Starts a query that copies ``<segment>/in`` to ``<segment>/out``: what is there now, then it ends."""

    def start(sink: str = "tierlog", to: dict[str, str] | None = None, **options: str) -> Any:
        stream = spark.readStream.format("tierlog").option("endpoint", url).options(**options)
        query = stream.load(f"{segment}/in").select("value").writeStream.format(sink).options(**(to or {}))
        target = (
            query.option("endpoint", url)
            .option("segment", f"{segment}/out")
            .option("checkpointLocation", checkpoint)
        )
        return target.trigger(availableNow=True).start()

    return start


@pytest.fixture
def fill(store: SyncClient, segment: str) -> Callable[[int, int], None]:
    def append(first: int, last: int) -> None:
        if f"{segment}/in" not in store.list_segments(f"{segment}/in"):
            store.create_segment(f"{segment}/in")
        store.append(f"{segment}/in", events.encode(values(last)[first:]))

    return append


def ended(query: Any) -> list[int]:
    """Wait for its end; the rows of each micro-batch."""
    assert query.awaitTermination(150)
    return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]


def test_a_stream_reads_history_out_of_long_term_storage(
    copy: Start, fill: Any, store: SyncClient, segment: str
) -> None:
    fill(0, 1_000)
    store.flush()
    fill(1_000, 1_100)
    assert ended(copy(direct="always")) == [1_100]

    assert written(store, f"{segment}/out") == values(1_100)


def test_a_copy_continues_where_it_ended(copy: Start, fill: Any, store: SyncClient, segment: str) -> None:
    fill(0, 1_000)
    assert ended(copy()) == [1_000]
    fill(1_000, 1_500)
    assert ended(copy()) == [500]

    assert written(store, f"{segment}/out") == values(1_500)
    assert staged(store, f"{segment}/out") == []


def test_micro_batches_are_bounded_in_bytes_and_cut_between_events(
    copy: Start, fill: Any, store: SyncClient, segment: str
) -> None:
    fill(0, 1_000)

    assert ended(copy(maxBytesPerTrigger="4000", minPartitions="2")) == [363, 363, 274]
    assert written(store, f"{segment}/out") == values(1_000)


@pytest.mark.parametrize("rows", ["arrow", "python"])
def test_each_micro_batch_is_known_by_query_and_number(
    copy: Start, fill: Any, store: SyncClient, segment: str, rows: str
) -> None:
    """The local properties of tasks, which Spark does not document, are there."""
    fill(0, 10)
    query = copy(to={"rows": rows})
    ended(query)

    [info] = store.list_transactions(f"{segment}/out")
    assert info.token is not None
    assert (info.token.writer, info.token.epoch) == (str(query.id), 0)
    assert info.transaction_id == f"{query.id}:0:{query.runId}"


def lossy_source(before: bool) -> type[Any]:
    """The data source, whose commits fail on the driver: before the service receives them, or when its answer
    comes back."""
    from tierlog.spark_bridge import TierlogDataSource
    from tierlog.spark_bridge.writer import StreamArrowWriter

    class Writer(StreamArrowWriter):
        def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803 - Spark passes it by this name
            if not before:
                super().commit(messages, batchId)
            raise RuntimeError("the answer was lost")

    class Source(TierlogDataSource):
        @classmethod
        def name(cls) -> str:
            return "tierlog_lossy_stream"

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:
            return Writer(super().streamWriter(schema, overwrite).job)

    return Source


@pytest.mark.parametrize("before", [True, False])
def test_a_replayed_micro_batch_is_written_once_whatever_its_partitions(
    spark: Any, copy: Start, fill: Any, store: SyncClient, segment: str, before: bool
) -> None:
    """The driver fails before the commit, or loses its answer; the next run has three partitions instead of
    two."""
    from pyspark.errors import StreamingQueryException

    spark.dataSource.register(lossy_source(before))
    fill(0, 300)
    with pytest.raises(StreamingQueryException, match="the answer was lost"):
        copy("tierlog_lossy_stream", minPartitions="2").awaitTermination(150)

    assert len(written(store, f"{segment}/out")) == (0 if before else 300)

    fill(300, 400)
    assert ended(copy(minPartitions="3")) == [300, 100]
    assert written(store, f"{segment}/out") == values(400)
    assert staged(store, f"{segment}/out") == []


def test_an_idle_stream_notices_new_bytes(
    spark: Any, url: str, fill: Any, store: SyncClient, segment: str
) -> None:
    fill(0, 10)
    seen: list[int] = []
    stream = spark.readStream.format("tierlog").option("endpoint", url).load(f"{segment}/in")
    query = stream.writeStream.foreachBatch(lambda frame, number: seen.append(frame.count())).start()
    try:
        query.processAllAvailable()
        fill(10, 15)
        query.processAllAvailable()
    finally:
        query.stop()

    assert seen == [10, 5]


@pytest.fixture
def read_all(spark: Any, url: str, segment: str, checkpoint: str) -> Callable[..., list[str]]:
    """Reads what is new in all segments below ``<segment>/``."""

    def read(**options: str) -> list[str]:
        stream = (
            spark.readStream.format("tierlog")
            .option("endpoint", url)
            .option("segmentPrefix", f"{segment}/")
            .options(**options)
            .load()
        )
        seen: list[str] = []
        query = stream.writeStream.option("checkpointLocation", checkpoint).foreachBatch(
            lambda frame, number: seen.extend(bytes(row.value).decode() for row in frame.collect())
        )
        ended(query.trigger(availableNow=True).start())
        return sorted(seen)

    return read


@pytest.fixture
def append(store: SyncClient, segment: str) -> Callable[..., None]:
    def to(name: str, *given: bytes) -> None:
        if f"{segment}/{name}" not in store.list_segments(f"{segment}/{name}"):
            store.create_segment(f"{segment}/{name}")
        store.append(f"{segment}/{name}", events.encode(given))

    return to


def test_segments_of_a_prefix_are_one_stream_and_new_ones_join_it(
    read_all: Callable[..., list[str]], append: Callable[..., None]
) -> None:
    append("a", b"a1")
    append("b")
    assert read_all() == ["a1"]

    append("b", b"b1")
    append("c", b"c1")
    assert read_all() == ["b1", "c1"]


def test_a_deleted_segment_of_a_prefix_is_reported_or_skipped(
    read_all: Callable[..., list[str]], append: Callable[..., None], store: SyncClient, segment: str
) -> None:
    from pyspark.errors import StreamingQueryException

    append("a", b"a1")
    append("b", b"b1")
    assert read_all() == ["a1", "b1"]

    store.delete_segment(f"{segment}/b")
    append("a", b"a2")
    with pytest.raises(StreamingQueryException, match="/b' is gone; it was read up to 6. Set failOnDataLoss"):
        read_all()
    assert read_all(failOnDataLoss="false") == ["a2"]


def test_a_stream_whose_bytes_were_truncated_fails_or_skips_as_configured(
    copy: Start, fill: Any, store: SyncClient, segment: str
) -> None:
    from pyspark.errors import StreamingQueryException

    fill(0, 100)
    ended(copy())
    fill(100, 200)
    store.truncate_segment(f"{segment}/in", 11 * 150)

    with pytest.raises(StreamingQueryException, match="to read from. Set failOnDataLoss"):
        copy().awaitTermination(150)

    ended(copy(failOnDataLoss="false"))
    assert written(store, f"{segment}/out") == values(100) + values(200)[150:]


@pytest.mark.parametrize("loss", ["true", "false"])
def test_a_stream_does_not_continue_in_another_segment_of_the_name(
    copy: Start, fill: Any, store: SyncClient, segment: str, loss: str
) -> None:
    from pyspark.errors import StreamingQueryException

    fill(0, 100)
    ended(copy())
    store.delete_segment(f"{segment}/in")
    fill(0, 10)

    with pytest.raises(StreamingQueryException, match="it was deleted and recreated"):
        copy(failOnDataLoss=loss).awaitTermination(150)


def test_a_stream_begins_at_the_latest_when_configured(
    copy: Start, fill: Any, store: SyncClient, segment: str
) -> None:
    fill(0, 100)
    assert ended(copy(startingOffsets="latest")) == []
    fill(100, 110)
    assert ended(copy(startingOffsets="latest")) == [10]

    assert written(store, f"{segment}/out") == values(110)[100:]


def test_foreach_batch_is_written_once_with_an_application_and_a_version(
    spark: Any, url: str, fill: Any, store: SyncClient, segment: str, checkpoint: str
) -> None:
    """Each micro-batch is written twice here, as a replay would."""
    fill(0, 100)

    def save(frame: Any, number: int) -> None:
        writer = (
            frame.select("value").write.format("tierlog").option("endpoint", url).option("txnAppId", "copy")
        )
        for _ in range(2):
            writer.option("txnVersion", number).mode("append").save(f"{segment}/out")

    stream = (
        spark.readStream.format("tierlog")
        .option("endpoint", url)
        .option("maxBytesPerTrigger", "500")
        .load(f"{segment}/in")
    )
    query = (
        stream.writeStream.foreachBatch(save)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )

    # Spark counts the rows of both times.
    assert ended(query) == [90, 90, 20]
    assert written(store, f"{segment}/out") == values(100)


def test_a_source_of_another_kind_can_be_written_as_a_stream(
    spark: Any, url: str, store: SyncClient, segment: str, checkpoint: str, tmp_path: Any
) -> None:
    numbered(spark, 50, 2).write.text(str(tmp_path / "text"))
    stream = spark.readStream.text(str(tmp_path / "text"))
    query = stream.writeStream.format("tierlog").options(
        endpoint=url, segment=segment, checkpointLocation=checkpoint
    )

    ended(query.trigger(availableNow=True).start())

    assert sorted(written(store, segment)) == values(50)
