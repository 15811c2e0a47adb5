"""Batch reads of a real Spark: all events between two offsets, cut between events, with the columns that were
asked for."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition

import tierlog
from support.live_service import SyncOwnService
from support.spark import values
from tierlog import SyncClient, WrongSegmentKind
from tierlog.spark_bridge import events
from tierlog.spark_bridge.options import parse_options
from tierlog.spark_bridge.reader import TierlogReader

Read = Callable[..., Any]
EVENTS = values(1_000)


@pytest.fixture
def filled(store: SyncClient, segment: str) -> str:
    store.create_segment(segment)
    for start in range(0, 1_000, 100):
        store.append(segment, events.encode(EVENTS[start : start + 100]))
    return segment


def test_each_event_is_a_row_with_its_segment_and_offset(reader: Read, filled: str) -> None:
    frame = reader(filled, readBytes="64 KiB")

    assert frame.schema.simpleString() == "struct<segment:string,offset:bigint,value:binary>"
    assert [tuple(row) for row in frame.collect()] == [
        (filled, 11 * number, bytearray(event)) for number, event in enumerate(EVENTS)
    ]


def test_more_partitions_than_segments_are_cut_between_events(reader: Read, filled: str) -> None:
    frame = reader(filled, minPartitions="4")

    assert frame.rdd.getNumPartitions() == 4
    assert [bytes(row.value) for row in frame.collect()] == EVENTS


def test_columns_can_be_left_out_and_text_asked_for(reader: Read, filled: str) -> None:
    assert reader(filled, includeMetadata="false").columns == ["value"]
    assert reader(filled, schema="value string, offset bigint").limit(2).collect() == [
        ("r000000", 0),
        ("r000001", 11),
    ]


def test_offsets_bound_a_read(reader: Read, filled: str) -> None:
    frame = reader(filled, startingOffsets=json.dumps({filled: 22}), endingOffsets=json.dumps({filled: 44}))

    assert [bytes(row.value) for row in frame.collect()] == EVENTS[2:4]


def test_an_offset_inside_an_event_is_reported(reader: Read, filled: str) -> None:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException, match="has no framed events from byte 5 on"):
        reader(filled, startingOffsets=json.dumps({filled: 5})).collect()


def test_all_segments_of_a_prefix_are_read(spark: Any, url: str, store: SyncClient, segment: str) -> None:
    for name in ("a", "b", "c"):
        store.create_segment(f"{segment}/{name}")
        if name != "c":
            store.append(f"{segment}/{name}", events.encode([name.encode()]))

    rows = spark.read.format("tierlog").options(endpoint=url, segmentPrefix=f"{segment}/").load().collect()

    assert [(row.segment, bytes(row.value)) for row in rows] == [
        (f"{segment}/a", b"a"),
        (f"{segment}/b", b"b"),
    ]


def test_truncated_events_are_reported_or_left_out(reader: Read, store: SyncClient, filled: str) -> None:
    from pyspark.errors import PySparkException

    offsets = json.dumps({filled: 0})
    store.truncate_segment(filled, 110)

    with pytest.raises(
        PySparkException,
        match="was truncated at 110, after the offset 0 to read from. Set failOnDataLoss",
    ):
        reader(filled, startingOffsets=offsets).collect()

    assert [bytes(row.value) for row in reader(filled).collect()] == EVENTS[10:]
    assert [
        bytes(row.value) for row in reader(filled, startingOffsets=offsets, failOnDataLoss="false").collect()
    ] == EVENTS[10:]


def test_a_read_ends_where_the_segment_ended_when_it_was_planned(
    reader: Read, store: SyncClient, filled: str
) -> None:
    """And a segment that became another one since is not read as if it were the same."""
    from pyspark.errors import PySparkException

    frame = reader(filled)
    rows = frame.rdd
    assert rows.getNumPartitions() == 1
    store.append(filled, events.encode([b"later"]))
    assert rows.count() == 1_000

    store.delete_segment(filled)
    store.create_segment(filled)
    store.append(filled, bytes(11_000))
    with pytest.raises(Exception, match="was deleted and recreated") as caught:
        rows.count()
    assert isinstance(caught.value, PySparkException) or "Py4J" in type(caught.value).__name__


# --- out of long-term storage -------------------------------------------------------------------


@pytest.fixture
def flushed(store: SyncClient, filled: str) -> str:
    """And some events that are not."""
    store.flush()
    store.append(filled, events.encode(EVENTS))
    return filled


@pytest.mark.parametrize("partitions", ["1", "4"])
def test_history_is_read_out_of_chunks_and_the_rest_through_the_service(
    reader: Read, flushed: str, partitions: str
) -> None:
    frame = reader(flushed, direct="always", minPartitions=partitions)

    assert [bytes(row.value) for row in frame.collect()] == EVENTS * 2
    assert [row.offset for row in frame.collect()] == [11 * number for number in range(2_000)]


def test_another_mount_point_must_be_the_same_storage(
    reader: Read, store: SyncClient, flushed: str, tmp_path: Path
) -> None:
    from pyspark.errors import PySparkException

    root = Path(store.segment_layout(flushed, 0, 1).place.location)
    (tmp_path / "mounted").symlink_to(root)
    (tmp_path / "empty").mkdir()

    found = reader(flushed, direct="always", storageLocation=str(tmp_path / "mounted")).collect()
    assert [bytes(row.value) for row in found] == EVENTS * 2
    for place in ("empty", "missing"):
        frame = reader(flushed, direct="always", storageLocation=str(tmp_path / place))
        with pytest.raises(PySparkException, match=f"{place} is not there, or not mounted"):
            frame.collect()


def test_a_storage_out_of_reach_is_no_error_by_default(reader: Read, store: SyncClient, segment: str) -> None:
    large = values(200_000)
    store.create_segment(segment)
    store.append(segment, events.encode(large))
    store.flush()

    assert reader(segment).count() == 200_000
    assert reader(segment, storageLocation="/missing").count() == 200_000


def test_a_store_without_a_service_is_read(spark: Any, tmp_path: Path) -> None:
    import anyio

    async def fill() -> None:
        async with tierlog.open_store(tmp_path / "data", containers=2) as store:
            for name in ("app/a", "app/b"):
                await store.create_segment(name)
                await store.append(name, events.encode(EVENTS))
            await store.flush()
            await store.append("app/a", events.encode([b"in the log only"]))

    anyio.run(fill)
    shutil.rmtree(tmp_path / "data" / "wal")
    read = spark.read.format("tierlog")

    for place in ("data", "data/lts"):
        frame = read.options(lts=str(tmp_path / place), minPartitions="3").load("app/a")
        assert frame.rdd.getNumPartitions() == 3
        assert [bytes(row.value) for row in frame.collect()] == EVENTS
    rows = read.options(lts=str(tmp_path / "data"), segmentPrefix="app/").load().collect()
    assert [(row.segment, bytes(row.value)) for row in rows] == [
        (name, event) for name in ("app/a", "app/b") for event in EVENTS
    ]


# --- nothing to read -----------------------------------------------------------------------------


def make_empty_ones(store: SyncClient, prefix: str) -> None:
    store.create_segment(f"{prefix}/empty")
    store.create_segment(f"{prefix}/truncated")
    store.append(f"{prefix}/truncated", events.encode([b"abc"]))
    store.truncate_segment(f"{prefix}/truncated", 7)
    store.create_table(f"{prefix}/table")
    store.table(f"{prefix}/table").put(b"k", b"v")
    store.flush()


@pytest.fixture
def sources(url: str, store: SyncClient, segment: str, tmp_path: Path) -> list[dict[str, str]]:
    make_empty_ones(store, segment)
    with (
        SyncOwnService(tmp_path / "data", hosts=1, containers=1) as other,
        tierlog.connect_sync(other.url) as client,
    ):
        make_empty_ones(client, segment)
    return [{"endpoint": url}, {"lts": str(tmp_path / "data")}]


def test_what_has_no_bytes_has_no_rows(spark: Any, sources: list[dict[str, str]], segment: str) -> None:
    for source in sources:
        read = spark.read.format("tierlog").options(**source)
        for name in ("empty", "truncated"):
            assert read.load(f"{segment}/{name}").collect() == []
    for source in sources:
        for prefix in (f"{segment}/", "no segment"):
            read = spark.read.format("tierlog").options(**source, segmentPrefix=prefix)
            assert read.load().collect() == []


def test_a_table_is_no_segment_of_events(spark: Any, sources: list[dict[str, str]], segment: str) -> None:
    from pyspark.errors import PySparkException

    for source in sources:
        with pytest.raises(PySparkException, match="is a table, which has rows and no bytes"):
            spark.read.format("tierlog").options(**source).load(f"{segment}/table").collect()


@pytest.mark.parametrize("name", ["empty", "truncated", ""])
def test_the_task_of_an_empty_plan_reads_nothing(
    sources: list[dict[str, str]], segment: str, name: str
) -> None:
    """Spark makes one, with a partition of its own."""
    for source in sources:
        given = {"path": f"{segment}/{name}"} if name else {"segmentPrefix": f"{segment}/"}
        reader = TierlogReader(parse_options({**source, **given}), ())
        assert reader.partitions() == []
        assert list(reader.read(InputPartition(None))) == []


def test_a_plan_refuses_a_table(sources: list[dict[str, str]], segment: str) -> None:
    for source in sources:
        with pytest.raises(WrongSegmentKind):
            TierlogReader(parse_options({**source, "path": f"{segment}/table"}), ()).partitions()
