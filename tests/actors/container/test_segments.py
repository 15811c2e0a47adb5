"""The segment table: names, ids, and idle segments that leave memory."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from support.container_parts import NAME, ROLLING, Parts, append, by_writer
from support.operations import images
from tierlog.actors.container.ended_rows import ended_key
from tierlog.actors.container.operations.attributes import AttributesRequest
from tierlog.actors.container.operations.cold import UnloadRequest
from tierlog.actors.container.operations.create import CreateRequest
from tierlog.actors.container.operations.delete import DeleteRequest
from tierlog.actors.container.operations.merge import MergeRequest
from tierlog.actors.container.operations.seal import SealRequest
from tierlog.actors.container.operations.transactions import BeginTransactionRequest
from tierlog.actors.container.operations.writers import ExpireWritersRequest
from tierlog.actors.container.segments import NotLoaded, SegmentState, SegmentTable
from tierlog.journal.manifest.element import SEGMENTS
from tierlog.journal.operations.forget_segment import ForgetSegment
from tierlog.journal.operations.load_segment import LoadSegment, UnloadSegments
from tierlog.journal.operations.segment_image import SegmentImage, SegmentStatus, encode_image
from tierlog.storage_backends.base.errors import SegmentExists, SegmentNotFound
from tierlog.storage_backends.base.segments import AttributeUpdate, SegmentInfo
from tierlog.storage_backends.segments.records.segment import segment_key
from tierlog.storage_backends.sorted_runs.run_list import RunList


@given(images)
def test_an_image_holds_all_that_is_not_in_long_term_storage(image: SegmentImage) -> None:
    unique = image._replace(
        values=tuple(dict(image.values).items()), writers=tuple(dict(image.writers).items())
    )
    unique = unique._replace(expired=tuple(dict.fromkeys(image.expired)))
    segment = SegmentState.from_image(unique)

    assert segment.image() == encode_image(unique)
    assert segment.durable_length == segment.length
    assert not segment.has_record


def test_only_live_segments_have_a_name() -> None:
    """C2: merged and deleted ones are known by id alone."""
    parts = Parts()
    target, source = parts.create("t"), parts.create("s")
    parts.do(append("s", b"x"), SealRequest("s"), MergeRequest("t", ["s"], []))
    parts.do(DeleteRequest("t"))
    table = parts.state.segments

    assert len(table) == 0
    assert table.find("t") is None
    assert table.find("s") is None
    assert table.get(target.sid) is target
    assert table.get(source.sid) is source
    assert table.get(99) is None


def test_an_id_and_a_name_are_used_once() -> None:
    table = SegmentTable()
    table.add(SegmentState(1, "a", 10))
    with pytest.raises(ValueError, match="in the table already"):
        table.add(SegmentState(1, "b", 10))
    with pytest.raises(ValueError, match="in the table already"):
        table.add(SegmentState(2, "a", 10))

    assert len(table) == 1


def test_info_is_a_copy() -> None:
    parts = Parts()
    segment = parts.create()
    parts.do(append(NAME, b"abc"), AttributesRequest(NAME, [AttributeUpdate("a", 1)]))
    info = segment.info(3)
    parts.do(AttributesRequest(NAME, [AttributeUpdate("a", 2)]))

    assert info == SegmentInfo(
        NAME, segment.sid, 3, 0, sealed=False, attributes={"a": 1}, flushed_length=0, container=3
    )


def idle(parts: Parts, name: str) -> SegmentState:
    """A flushed segment with a writer, an expired writer and an attribute."""
    parts.create(name)
    parts.do(by_writer(b"abc", 1, 3, name=name), by_writer(b"d", 9, name=name, writer=b"v"))
    parts.do(ExpireWritersRequest(name, [b"v"]), AttributesRequest(name, [AttributeUpdate("a", 5)]))
    return parts.flush(name)


def published(parts: Parts) -> None:
    """The runs have all images and names."""
    parts.state.table.use(RunList((), parts.state.sequence, SEGMENTS))


def load_of(parts: Parts, segment: SegmentState) -> LoadSegment:
    version, record = parts.state.resident[segment_key(segment.sid)]
    return LoadSegment(segment.touched, segment.image(), version, record)


def test_m4_a_segment_that_is_unloaded_and_loaded_is_as_before() -> None:
    parts = Parts()
    before = idle(parts, NAME)
    published(parts)
    load = load_of(parts, before)
    fields = {
        name: getattr(before, name)
        for name in SegmentState.__slots__
        if name not in ("__weakref__", "append_boundaries", "log_references", "seen", "waiter")
    }

    assert parts.operations(UnloadRequest([before.sid, 99]))[0] == [UnloadSegments((before.sid,))]
    parts.do(UnloadRequest([before.sid, 99]))
    assert before.sid not in parts.state.segments
    assert before.sid not in parts.cache
    assert not parts.state.resident
    with pytest.raises(NotLoaded, match=NAME):
        parts.decide(by_writer(b"abc", 1, 3))
    parts.log(load)
    after = parts.segment()
    assert after is not before
    assert {name: getattr(after, name) for name in fields} == fields
    assert parts.do(by_writer(b"abc", 1, 3)) == 0, "a repeat is recognised"
    assert parts.do(by_writer(b"e", 4)) == 4
    assert after.touched == parts.state.sequence


@pytest.mark.parametrize(
    "why",
    [
        "unflushed",
        "waited for",
        "merged into",
        "deleted",
        "truncated since",
        "named by a parked request",
        "not durable",
        "not in a run",
        "target",
    ],
)
def test_m4_a_segment_with_state_beyond_the_runs_is_not_unloaded(why: str) -> None:
    parts = Parts()
    segment = idle(parts, NAME)
    if why != "not in a run":
        published(parts)
    if why == "unflushed":
        parts.do(append(NAME, b"x"))
    elif why == "waited for":
        segment.waiter = Bell()  # type: ignore[assignment]
    elif why == "merged into":
        parts.state.looked_up = {"s": False}
        parts.create("s")
        parts.do(append("s", b"x"), SealRequest("s"), MergeRequest(NAME, ["s"], []))
    elif why == "deleted":
        parts.do(DeleteRequest(NAME))
    elif why == "truncated since":
        segment.start_offset = 1
    elif why == "named by a parked request":
        parts.state.parked = {NAME}
    elif why == "not durable":
        parts.decide(append(NAME, b""))
        segment.durable_length -= 1
    elif why == "target":
        parts.state.looked_up_rows = {ended_key(NAME, "t"): None}
        parts.do(BeginTransactionRequest(NAME, "t", None, 1000))

    assert parts.operations(UnloadRequest([segment.sid])) == ([], None)


def test_segments_that_changed_since_the_last_visit_are_not_idle() -> None:
    parts = Parts()
    segments = [idle(parts, name) for name in "abc"]
    assert parts.state.segments.find_idle(3) == []
    parts.do(AttributesRequest("a", [AttributeUpdate("a", 6)]))

    found = parts.state.segments.find_idle(3)
    assert found == [segments[1].sid, segments[2].sid]
    assert parts.state.segments.find_idle(3) == [segments[0].sid, *found]


def test_m4_a_name_that_is_not_in_memory_must_be_looked_up() -> None:
    """Unless the memtable, or the cache, shows whether there is such a segment."""
    parts = Parts()
    segment = idle(parts, NAME)
    published(parts)
    parts.do(UnloadRequest([segment.sid]))
    for name in (NAME, "no/such"):
        with pytest.raises(NotLoaded):
            parts.decide(append(name, b"x"))
        with pytest.raises(NotLoaded):
            parts.decide(CreateRequest(name, ROLLING))
    parts.state.looked_up = {NAME: True, "no/such": False}
    with pytest.raises(SegmentExists):
        parts.decide(CreateRequest(NAME, ROLLING))
    parts.state.looked_up = {"no/such": False}
    parts.create("no/such")
    parts.state.looked_up = {}
    parts.do(DeleteRequest("no/such"))
    with pytest.raises(SegmentNotFound):
        parts.decide(append("no/such", b"x"))


def test_m4_readers_of_a_cold_segment_go_on_when_it_is_loaded() -> None:
    parts = Parts()
    segment = idle(parts, NAME)
    published(parts)
    table, load = parts.state.segments, load_of(parts, segment)
    parts.do(UnloadRequest([segment.sid]))
    assert table.readable(segment.sid) is segment
    waiter: Any = Bell()
    segment.waiter = waiter
    parts.log(load)
    assert table.readable(segment.sid) is parts.segment() is not segment
    assert parts.segment().waiter is waiter
    parts.do(DeleteRequest(NAME))
    parts.log(ForgetSegment(segment.sid))
    assert table.readable(segment.sid) is None


def test_a_waiter_is_woken_once() -> None:
    segment = SegmentState(1, NAME, 10)
    segment.wake()
    segment.waiter = waiter = Bell()  # type: ignore[assignment]
    segment.wake()
    segment.wake()

    assert waiter.rung == 1
    assert segment.waiter is None


class Bell:
    rung = 0

    def set(self) -> None:
        self.rung += 1


@pytest.mark.parametrize(
    ("status", "flushed", "needs"),
    [
        (SegmentStatus.LIVE, False, True),
        (SegmentStatus.LIVE, True, False),
        (SegmentStatus.MERGED, False, False),
        (SegmentStatus.DELETED, True, True),
    ],
)
def test_what_a_flush_cycle_has_to_do(status: SegmentStatus, flushed: bool, needs: bool) -> None:
    segment = SegmentState(1, NAME, 10)
    segment.length = 1
    segment.flushed = int(flushed)
    segment.status = status

    assert segment.needs_flush is needs


def test_m5_an_empty_segment_needs_no_record_until_it_has_bytes_or_is_sealed() -> None:
    parts = Parts()
    segment = parts.create()
    assert segment.is_clean
    assert not parts.state.segments.dirty
    parts.do(AttributesRequest(NAME, [AttributeUpdate("a", 6)]))
    assert segment.is_clean
    parts.do(SealRequest(NAME))
    assert segment.needs_flush
    parts.create("s")
    parts.do(append("s", b"x"))
    assert parts.segment("s").needs_flush
