"""Batch reads of a real Spark: all events between two offsets, cut between events, with the columns that were
asked for."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from support.spark import values
from tierlog import SyncClient
from tierlog.spark_bridge import events

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
