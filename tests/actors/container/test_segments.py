"""The segment table: names, ids, eviction of idle segments."""

from __future__ import annotations

import pytest
from hypothesis import given

from support.container_parts import NAME, Parts, append, by_writer
from support.operations import images
from tierlog.actors.container.operations.attributes import AttributesRequest
from tierlog.actors.container.operations.delete import DeleteRequest
from tierlog.actors.container.operations.merge import MergeRequest
from tierlog.actors.container.operations.seal import SealRequest
from tierlog.actors.container.operations.writers import ExpireWritersRequest
from tierlog.actors.container.segments import SegmentState, SegmentTable
from tierlog.journal.operations.segment_image import SegmentImage, SegmentStatus, encode_image
from tierlog.storage_backends.base.segments import AttributeUpdate, SegmentInfo


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


def test_an_evicted_segment_is_loaded_in_the_step_that_needs_it() -> None:
    """C4: nothing waits, so no operation can overtake another."""
    parts = Parts()
    before = idle(parts, NAME)
    fields = {
        name: getattr(before, name)
        for name in SegmentState.__slots__
        if name not in ("append_boundaries", "log_references", "touched", "waiter")
    }

    assert parts.state.segments.evict(10) == [before.sid]
    assert before.sid not in parts.state.segments.by_id
    assert parts.do(by_writer(b"abc", 1, 3)) == 0, "a repeat is recognised"
    after = parts.segment()
    assert after is not before
    assert {name: getattr(after, name) for name in fields} == fields
    assert parts.do(by_writer(b"e", 4)) == 4
    assert after.touched == parts.state.sequence


@pytest.mark.parametrize(
    "why", ["unflushed", "waited for", "merged into", "deleted", "truncated since", "not durable"]
)
def test_a_segment_with_state_beyond_its_image_is_not_evicted(why: str) -> None:
    parts = Parts()
    segment = idle(parts, NAME)
    if why == "unflushed":
        parts.do(append(NAME, b"x"))
    elif why == "waited for":
        segment.waiter = Bell()  # type: ignore[assignment]
    elif why == "merged into":
        parts.create("s")
        parts.do(append("s", b"x"), SealRequest("s"), MergeRequest(NAME, ["s"], []))
    elif why == "deleted":
        parts.do(DeleteRequest(NAME))
    elif why == "truncated since":
        segment.start_offset = 1
    else:
        parts.decide(append(NAME, b""))
        segment.durable_length -= 1

    assert parts.state.segments.evict(10) == []


def test_segments_that_changed_since_the_last_visit_stay() -> None:
    parts = Parts()
    segments = [idle(parts, name) for name in "abc"]
    assert parts.state.segments.evict(3) == []
    parts.do(AttributesRequest("a", [AttributeUpdate("a", 6)]))

    assert parts.state.segments.evict(3) == [segments[1].sid, segments[2].sid]
    assert list(parts.state.segments.by_id) == [segments[0].sid]


def test_one_step_of_eviction_encodes_a_bounded_number_of_bytes() -> None:
    parts = Parts()
    for number in range(100):
        segment = idle(parts, f"s{number}")
        segment.attributes = {f"{index:0200}": index for index in range(100)}
    parts.state.segments.evict(100)

    assert 5 < len(parts.state.segments.evict(100)) < 20


def test_an_evicted_name_is_still_taken_and_listed() -> None:
    parts = Parts()
    idle(parts, NAME)
    parts.state.segments.evict(2)

    assert parts.state.segments.names("") == [NAME]
    assert len(parts.state.segments) == 1
    with pytest.raises(ValueError, match="in the table already"):
        parts.state.segments.add(SegmentState(99, NAME, 10))


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
    segment.has_record = flushed
    segment.status = status

    assert segment.needs_flush is needs
