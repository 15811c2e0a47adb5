"""Framed events: whole frames there and back, cut-off tails, and the same for Arrow columns."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierlog import events
from tierlog.storage_backends.base.codec import DecodeError
from tierlog.storage_backends.base.errors import InvalidArgument

some_events = st.lists(st.binary(max_size=40))


def test_a_frame_is_a_big_endian_length_and_the_event() -> None:
    assert events.encode([b"abc", b""]) == b"\0\0\0\3abc\0\0\0\0"


@given(some_events)
def test_events_come_back_as_they_were(given_events: list[bytes]) -> None:
    data = events.encode(given_events)

    assert events.decode(data) == given_events
    assert [event.data for event in events.iterate(data)] == given_events
    assert len(events.borders(data)) == len(given_events) + 1


@given(some_events, st.data())
def test_pieces_cut_anywhere_give_the_same_events(given_events: list[bytes], draw: st.DataObject) -> None:
    data = events.encode(given_events)
    cut = draw.draw(st.integers(0, len(data)))

    first = list(events.iterate(data[:cut], 100))
    taken = first[-1].end - 100 if first else 0
    rest = list(events.iterate(data[taken:], 100 + taken))

    assert [event.data for event in first + rest] == given_events
    assert [event.offset - 100 for event in first + rest] == events.borders(data)[:-1]


def test_bytes_that_end_inside_a_frame_are_refused_as_a_whole() -> None:
    with pytest.raises(DecodeError, match="5 bytes at 5 are no whole frame"):
        events.decode(events.encode([b"a"]) + b"\0\0\0\2b")


def test_a_length_that_no_event_has_is_refused_where_it_stands() -> None:
    with pytest.raises(DecodeError, match="no frame begins at 5"):
        list(events.iterate(events.encode([b"a"]) + b"\xff\0\0\0b"))
    with pytest.raises(DecodeError, match="no frame begins"):
        events.frame_bytes(b"\xff\0\0\0")


def test_an_event_that_is_too_large_is_named() -> None:
    with pytest.raises(InvalidArgument, match=f"event 1 has {events.EVENT_BYTES_MAX + 1} bytes"):
        events.encode([b"", bytes(events.EVENT_BYTES_MAX + 1)])


def test_a_header_tells_the_size_of_its_frame() -> None:
    assert events.frame_bytes(events.encode([b"abc"])[:4]) == 7
    with pytest.raises(DecodeError, match="4 bytes, not 3"):
        events.frame_bytes(b"\0\0\0")


# --- Arrow ----------------------------------------------------------------------------------------------------

NEEDS_ARROW = "needs pyarrow: pip install -e '.[dev,spark]'"


@given(some_events, st.integers(0, 5), st.sampled_from(["binary", "large_binary"]))
def test_an_arrow_column_is_framed_as_its_events_are(given_events: list[bytes], skipped: int, kind: str) -> None:
    """Slices too: their buffers hold more than they show."""
    pa = pytest.importorskip("pyarrow", reason=NEEDS_ARROW)
    column = pa.array(given_events, getattr(pa, kind)()).slice(skipped)

    frames = events.encode_arrow(column)

    assert bytes(frames.data) == events.encode(given_events[skipped:])
    assert [0, *frames.ends] == events.borders(frames.data)


def test_text_is_framed_as_its_utf_8() -> None:
    pa = pytest.importorskip("pyarrow", reason=NEEDS_ARROW)

    for kind in (pa.string(), pa.large_string()):
        assert bytes(events.encode_arrow(pa.array(["ä", ""], kind)).data) == events.encode(["ä".encode(), b""])


@given(some_events)
def test_a_block_of_frames_becomes_an_arrow_column(given_events: list[bytes]) -> None:
    pa = pytest.importorskip("pyarrow", reason=NEEDS_ARROW)
    data = events.encode(given_events)

    column = events.decode_arrow(data + b"\0\0", events.borders(data))

    assert column.equals(pa.array(given_events, pa.binary()))


def test_nulls_are_refused_with_their_row() -> None:
    pa = pytest.importorskip("pyarrow", reason=NEEDS_ARROW)

    with pytest.raises(InvalidArgument, match="2 of 4 events are null, the first in row 1"):
        events.encode_arrow(pa.array([b"a", None, b"", None]))


def test_columns_of_other_types_are_refused() -> None:
    pa = pytest.importorskip("pyarrow", reason=NEEDS_ARROW)

    with pytest.raises(InvalidArgument, match="not of int64"):
        events.encode_arrow(pa.array([1]))


def test_an_event_in_a_column_that_is_too_large_is_named() -> None:
    pa = pytest.importorskip("pyarrow", reason=NEEDS_ARROW)

    with pytest.raises(InvalidArgument, match="the event in row 1 has"):
        events.encode_arrow(pa.array([b"", bytes(events.EVENT_BYTES_MAX + 1)]))
