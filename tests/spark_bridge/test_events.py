"""Framed events: whole frames there and back, cut-off tails, and the same for Arrow columns."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import accumulate

import pytest
from hypothesis import assume, example, given
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
    assert len(events.boundaries(data)) == len(given_events) + 1


@given(some_events, st.data())
def test_pieces_cut_anywhere_give_the_same_events(given_events: list[bytes], draw: st.DataObject) -> None:
    data = events.encode(given_events)
    cut = draw.draw(st.integers(0, len(data)))

    first = list(events.iterate(data[:cut], 100))
    taken = first[-1].end - 100 if first else 0
    rest = list(events.iterate(data[taken:], 100 + taken))

    assert [event.data for event in first + rest] == given_events
    assert [event.offset - 100 for event in first + rest] == list(events.boundaries(data))[:-1]


def test_bytes_that_end_inside_a_frame_are_refused_as_a_whole() -> None:
    with pytest.raises(DecodeError, match="the 5 bytes at 5 are not a whole frame"):
        events.decode(events.encode([b"a"]) + b"\0\0\0\2b")


def test_an_invalid_length_is_refused_with_its_offset() -> None:
    with pytest.raises(DecodeError, match="no frame begins at 5"):
        list(events.iterate(events.encode([b"a"]) + b"\xff\0\0\0b"))
    with pytest.raises(DecodeError, match="no frame begins"):
        events.frame_bytes(b"\xff\0\0\0")


def test_an_event_that_is_too_large_is_named() -> None:
    with pytest.raises(InvalidArgument, match=f"event 1 has {events.EVENT_BYTES_MAX + 1} bytes"):
        events.encode([b"", bytes(events.EVENT_BYTES_MAX + 1)])


def test_a_header_has_the_size_of_its_frame() -> None:
    assert events.frame_bytes(events.encode([b"abc"])[:4]) == 7
    with pytest.raises(DecodeError, match="4 bytes, not 3"):
        events.frame_bytes(b"\0\0\0")


# --- events that are equally long ---------------------------------------------------------------

NO_EVENT = (events.EVENT_BYTES_MAX + 1).to_bytes(4, "big")
contents_like_headers = st.lists(st.sampled_from([0, 1, 4, 8]), max_size=24).map(bytes)
"""Bytes that can be taken for a header where a frame is taken to begin."""


def equally_long(size: int, count: int) -> bytes:
    return events.encode([bytes([number % 3]) * size for number in range(count)])


def found_or_refused(find: Callable[[bytes], Sequence[int] | None], data: bytes) -> list[int] | str | None:
    try:
        found = find(data)
    except DecodeError as error:
        return str(error)

    return None if found is None else list(found)


@given(
    content=contents_like_headers,
    count=st.integers(0, 40),
    tail=st.one_of(
        some_events.map(events.encode),
        contents_like_headers,
        st.binary(max_size=40),
        st.just(NO_EVENT),
        st.just(NO_EVENT + bytes(40)),
    ),
    cut=st.integers(0, 30),
)
@example(content=b"", count=16, tail=b"", cut=0)
@example(content=b"", count=16, tail=NO_EVENT, cut=0)
@example(content=bytes(8), count=16, tail=NO_EVENT, cut=0)
@example(content=bytes(8), count=16, tail=bytes(4), cut=0)
@example(content=bytes(8), count=17, tail=b"", cut=3)
@example(content=bytes(8), count=17, tail=b"", cut=9)
@example(content=bytes(8), count=17, tail=events.encode([bytes(7)]), cut=0)
@example(content=bytes(8), count=17, tail=events.encode([bytes(9)]), cut=0)
@example(content=bytes(8), count=17, tail=events.encode([bytes(9)]), cut=1)
def test_the_fast_path_finds_what_a_walk_finds_or_nothing(
    content: bytes, count: int, tail: bytes, cut: int
) -> None:
    data = events.encode([content] * count) + tail
    data = data[: len(data) - cut]

    quick = found_or_refused(events._equal_boundaries, data)
    walked = found_or_refused(events._walked_boundaries, data)

    assert quick in (None, walked)
    assert found_or_refused(events.boundaries, data) == walked


@given(
    st.lists(st.one_of(st.text("ab", max_size=9).map(str.encode), st.binary(max_size=9)), max_size=40),
    st.sampled_from([b"", bytes(300), b"a" * 300, b"a" * 70_000]),
    st.binary(max_size=5),
    st.integers(0, 12),
)
@example([b"a"], b"", b"", 3)
@example([b"a", b"b\0", b"c"], b"", b"", 0)
@example([b"a", b"b\0\0\0\1c", b"d"], b"", b"", 0)
@example([b"a"] * 20, b"a" * 70_000, b"", 0)
def test_a_scan_finds_what_a_walk_finds_or_nothing(
    contents: list[bytes], large: bytes, tail: bytes, cut: int
) -> None:
    """Zeros at the end of an event, or in it, make it fail."""
    pytest.importorskip("numpy")
    data = events.encode([*contents, large]) + tail
    data = data[: len(data) - cut]
    walked = found_or_refused(events._walked_boundaries, data)

    scanned = events._scan(data)

    assert scanned is None or list(scanned) == walked
    assert found_or_refused(events.scan_boundaries, data) == walked


@pytest.mark.parametrize("length", [1, 100, 250])
def test_short_texts_are_found_by_a_scan_and_others_by_a_walk(length: int) -> None:
    pytest.importorskip("numpy")
    contents = [b"a" * (length + number % 2) for number in range(1_000)]
    data = events.encode(contents)
    expected = [0, *accumulate(4 + len(each) for each in contents)]

    scanned = events._scanned_boundaries(data)

    assert scanned is not None
    assert list(scanned) == expected
    assert events._scanned_boundaries(events.encode([*contents, b"b\0\0\0", b"c"])) is None
    assert events._scanned_boundaries(events.encode([b"a" * 400, b"a" * 401] * 100)) is None


@given(
    st.lists(st.tuples(st.integers(1, 255), st.integers(250, 600)), min_size=1, max_size=40),
    st.integers(0, 300),
    st.booleans(),
)
def test_a_scan_finds_texts_of_any_length_at_any_address(
    sizes: list[tuple[int, int]], cut: int, is_odd: bool
) -> None:
    """Of those with 256 bytes or more it sees only half of the headers, and finds the others by their
    neighbours."""
    pytest.importorskip("numpy")
    data = events.encode([b"a" * size for pair in sizes for size in pair])
    data = data[: max(4, len(data) - cut)]

    scanned = events._scan(memoryview(bytes(is_odd) + data)[is_odd:])

    assert scanned is not None
    assert list(scanned) == events._walked_boundaries(data)


@pytest.mark.parametrize("size", [0, 1, 250, 70_000])
@pytest.mark.parametrize("count", [16, 17, 40])
def test_where_equally_long_events_begin_is_a_range(size: int, count: int) -> None:
    step = 4 + size
    whole = range(0, count * step + 1, step)

    assert events.boundaries(equally_long(size, count)) == whole
    assert events.boundaries(equally_long(size, count + 1)[:-1]) == whole, "the last one is cut off"
    assert (
        events.boundaries(equally_long(size, count) + (size + 1).to_bytes(4, "big")[: step - 1]) == whole
    ), "a longer one is cut off"


@pytest.mark.parametrize("other", [0, 7, 9, 10, 300])
@pytest.mark.parametrize("at", [0, 1, 16, 31, 32])
def test_one_event_of_another_length_is_seen_wherever_it_is(other: int, at: int) -> None:
    lengths = [8] * 32
    lengths.insert(at, other)
    found = events.boundaries(events.encode([bytes(length) for length in lengths]))

    assert list(found) == [0, *accumulate(4 + length for length in lengths)]


def test_a_few_equally_long_events_are_walked() -> None:
    assert events._equal_boundaries(equally_long(8, 15)) is None
    assert list(events.boundaries(equally_long(8, 15))) == list(range(0, 181, 12))


@pytest.mark.parametrize("size", [0, 3, 4, 5, 100])
@pytest.mark.parametrize("more", [b"", b"a", bytes(100)])
def test_an_invalid_length_is_refused_behind_equally_long_events(size: int, more: bytes) -> None:
    data = equally_long(size, 20)
    with pytest.raises(DecodeError, match=f"no frame begins at {len(data)}:"):
        events.boundaries(data + NO_EVENT + more)


def test_equally_long_events_that_are_too_long_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = equally_long(8, 20)
    monkeypatch.setattr(events, "EVENT_BYTES_MAX", 7)

    with pytest.raises(DecodeError, match="no frame begins at 0: 8 is not the length of an event"):
        events.boundaries(data)


# --- Arrow --------------------------------------------------------------------------------------

NEEDS_ARROW = "needs pyarrow: pip install -e '.[dev,spark]'"


@given(some_events, st.integers(0, 5), st.sampled_from(["binary", "large_binary"]))
def test_an_arrow_column_is_framed_as_its_events_are(
    given_events: list[bytes], skipped: int, kind: str
) -> None:
    """Slices too: their buffers hold more than they show."""
    pa = pytest.importorskip("pyarrow", reason=NEEDS_ARROW)
    column = pa.array(given_events, getattr(pa, kind)()).slice(skipped)

    frames = events.encode_arrow(column)

    assert bytes(frames.data) == events.encode(given_events[skipped:])
    assert [0, *frames.ends] == list(events.boundaries(frames.data))


def test_text_is_framed_as_its_utf_8() -> None:
    pa = pytest.importorskip("pyarrow", reason=NEEDS_ARROW)

    for kind in (pa.string(), pa.large_string()):
        assert bytes(events.encode_arrow(pa.array(["ä", ""], kind)).data) == events.encode(
            ["ä".encode(), b""]
        )


@given(some_events)
def test_a_block_of_frames_becomes_an_arrow_column(given_events: list[bytes]) -> None:
    pa = pytest.importorskip("pyarrow", reason=NEEDS_ARROW)
    data = events.encode(given_events)

    column = events.decode_arrow(data + b"\0\0", events.boundaries(data))

    assert column.equals(pa.array(given_events, pa.binary()))


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
@given(
    size=st.integers(0, 40), count=st.integers(16, 40), skipped=st.integers(0, 16), rest=st.binary(max_size=3)
)
def test_equally_long_events_become_the_same_column(
    kind: type, size: int, count: int, skipped: int, rest: bytes
) -> None:
    """Whatever their bytes are in, and from any of the boundaries on."""
    pa = pytest.importorskip("pyarrow", reason=NEEDS_ARROW)
    assume(skipped < count)
    data = equally_long(size, count) + rest
    found = events.boundaries(data)
    assert isinstance(found, range)

    column = events.decode_arrow(kind(data), found[skipped:])

    assert column.equals(events.decode_arrow(kind(data), list(found[skipped:])))
    assert column.equals(pa.array(events.decode(data[: found[-1]])[skipped:], pa.binary()))
    column.validate(full=True)


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


def test_a_column_of_the_same_text() -> None:
    pytest.importorskip("pyarrow")

    assert events.repeated("ä/b", 3).to_pylist() == ["ä/b"] * 3
    assert events.repeated("a", 0).to_pylist() == []
    with pytest.raises(InvalidArgument, match="lower readBytes"):
        events.repeated("a" * 128, 1 << 24)


def test_a_read_imports_no_pandas() -> None:
    """A new Python worker is busy with that for longer than with most tasks."""
    pytest.importorskip("pyarrow")
    pytest.importorskip("pyspark")
    program = (
        "import sys\n"
        "from tierlog.spark_bridge import events\n"
        "from tierlog.spark_bridge.ranges import Block\n"
        "from tierlog.spark_bridge.reader import record_batch\n"
        "from tierlog.spark_bridge.schema import Column, arrow_schema\n"
        "kinds = {'segment': 'string', 'offset': 'bigint', 'value': 'string'}\n"
        "schema = arrow_schema([Column(*each) for each in kinds.items()])\n"
        "data = events.encode([b'one', b'three'])\n"
        "found = record_batch(Block(7, data, events.scan_boundaries(data)), 's', schema)\n"
        "print(found.to_pylist()[1], 'pandas' in sys.modules)\n"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout == "{'segment': 's', 'offset': 14, 'value': 'three'} False\n"
