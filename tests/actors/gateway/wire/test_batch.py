"""Rule H7: the form of a batch, of its answer, and their bounds."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierlog.actors.gateway.wire.batch import (
    BatchDecoder,
    BatchItem,
    BatchLimits,
    decode_outcomes,
    encode_batch,
    encode_outcomes,
)
from tierlog.actors.gateway.wire.errors import OwnedElsewhere
from tierlog.storage_backends.base.errors import (
    BadOffset,
    InvalidArgument,
    OutcomeUnknown,
    SegmentNotFound,
    TooLarge,
    Unavailable,
)

ITEMS = [
    BatchItem("a/b", b"hello"),
    BatchItem("c#1", b"xyz", b"w1", 7, 3, 6, 100),
    BatchItem("a/b", b"", expected_offset=0),
    BatchItem("c#1", b"!", b"\x00\xff", 0, 1, -1),
    BatchItem("a/b", b"?", b"w", 4, 1, history=9),
]
GOLDEN = bytes.fromhex(
    "544c4231" "0002" "00000005"  # magic, names, items
    "0003" "612f62" "0003" "632331"
    "0000" "00" "00" "00000000" "00000005"
    "0000000000000000" "0000000000000000" "0000000000000000" "68656c6c6f"
    "0001" "03" "02" "00000003" "00000003"
    "0000000000000007" "0000000000000006" "0000000000000064" "7731" "78797a"
    "0000" "02" "00" "00000000" "00000000" "0000000000000000" "0000000000000000" "0000000000000000"
    "0001" "01" "02" "00000001" "00000001"
    "0000000000000000" "ffffffffffffffff" "0000000000000000" "00ff" "21"
    "0000" "04" "01" "00000001" "00000001"
    "0000000000000004" "0000000000000000" "0000000000000000" "0000000000000009" "77" "3f"
)  # fmt: skip

numbers = st.integers(0, (1 << 63) - 1)


@st.composite
def items(draw: st.DrawFn) -> BatchItem:
    name, data = draw(st.sampled_from(["a", "b/c", "d#\u00e4"])), draw(st.binary(max_size=50))
    expected, history = draw(st.none() | numbers), draw(st.none() | numbers)
    if draw(st.booleans()):
        known = None if expected is None else history
        return BatchItem(name, data, expected_offset=expected, history=known)

    first = draw(st.integers(0, (1 << 63) - 200))
    previous = draw(st.none() | st.integers(-1, first - 1))
    return BatchItem(
        name,
        data,
        draw(st.binary(min_size=1, max_size=64)),
        first,
        draw(st.integers(1, 100)),
        previous,
        expected,
        history,
    )


def encoded(batch: list[BatchItem]) -> bytes:
    return b"".join(encode_batch(batch))


def decoded(data: bytes, step: int = 0, limits: BatchLimits | None = None) -> list[BatchItem]:
    decoder = BatchDecoder(limits)
    found: list[BatchItem] = []
    for start in range(0, len(data), step or max(1, len(data))):
        found += decoder.feed(data[start : start + (step or len(data))])
    decoder.finish()
    return found


def test_h7_golden_bytes() -> None:
    assert encoded(ITEMS) == GOLDEN
    assert decoded(GOLDEN) == ITEMS


def test_an_empty_batch_is_a_batch() -> None:
    assert decoded(encoded([])) == []


@given(st.lists(items(), max_size=12), st.integers(1, 40))
def test_h7_an_encoded_batch_is_decoded_from_any_pieces(batch: list[BatchItem], step: int) -> None:
    assert decoded(encoded(batch), step) == batch


@pytest.mark.parametrize("length", range(len(GOLDEN)))
def test_h7_a_batch_that_was_cut_off_is_refused(length: int) -> None:
    with pytest.raises(InvalidArgument):
        decoded(GOLDEN[:length])


@given(st.integers(0, len(GOLDEN) - 1), st.integers(1, 255))
def test_h7_a_changed_byte_is_refused_or_changes_an_item(position: int, flip: int) -> None:
    changed = bytearray(GOLDEN)
    changed[position] ^= flip
    try:
        found = decoded(bytes(changed))
    except InvalidArgument:
        return

    assert found != ITEMS
    assert [len(item.data) for item in found] == [len(item.data) for item in ITEMS]


def one(**changes: int) -> bytes:
    fields = {
        "segment": 0,
        "flags": 0,
        "writer": 0,
        "count": 0,
        "size": 0,
        "first": 0,
        "previous": 0,
        "expected": 0,
        **changes,
    }
    history = fields.pop("history", 0)
    head = struct.pack(">4sHI", b"TLB1", 1, 1) + struct.pack(">H", 1) + b"a"
    return (
        head
        + struct.pack(">HBBIIQqQ", *fields.values())
        + (struct.pack(">Q", history) if fields["flags"] & 4 else b"")
        + bytes(fields["writer"] + min(fields["size"], 100))
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"segment": 1},
        {"flags": 8},
        {"flags": 4},  # of neither a number nor an offset
        {"flags": 6, "history": 1 << 63},
        {"writer": 65, "count": 1},
        {"writer": 1, "count": 0},
        {"writer": 1, "count": (1 << 20) + 1},
        {"writer": 1, "count": 1, "first": 1 << 63},
        {"writer": 1, "count": 2, "first": (1 << 63) - 1},
        {"writer": 1, "count": 1, "flags": 1, "previous": 0},
        {"writer": 1, "count": 1, "flags": 1, "previous": -2},
        {"writer": 1, "count": 1, "previous": 5},
        {"count": 1},
        {"first": 1},
        {"flags": 1, "previous": -1},
        {"expected": 1},
        {"flags": 2, "expected": 1 << 63},
    ],
)
def test_h7_every_field_has_its_range(changes: dict[str, int]) -> None:
    with pytest.raises(InvalidArgument):
        decoded(one(**changes))


def test_h7_an_item_that_is_too_large_is_refused_at_its_header() -> None:
    header = one(size=11)[:-11]

    with pytest.raises(TooLarge):
        BatchDecoder(BatchLimits(append_bytes=10)).feed(header)


def test_h7_too_many_items_are_refused_at_the_head() -> None:
    with pytest.raises(TooLarge):
        BatchDecoder(BatchLimits(items=3)).feed(GOLDEN[:10])


def test_h7_more_names_than_items_are_refused() -> None:
    with pytest.raises(InvalidArgument):
        BatchDecoder().feed(struct.pack(">4sHI", b"TLB1", 2, 1))


@pytest.mark.parametrize("name", [b"", b"_system/x", b"a//b", b"\xff", b"a" * 256])
def test_h7_names_are_checked(name: bytes) -> None:
    with pytest.raises(InvalidArgument):
        BatchDecoder().feed(struct.pack(">4sHI", b"TLB1", 1, 1) + struct.pack(">H", len(name)) + name)


def test_h7_the_decoder_holds_no_more_than_one_unfinished_item() -> None:
    data = encoded([BatchItem("a", bytes(1000)) for _ in range(100)])
    decoder = BatchDecoder()

    held = 0
    for start in range(0, len(data), 500):
        decoder.feed(data[start : start + 500])
        held = max(held, len(decoder._buffer))

    assert held < 2000


def test_h7_outcomes_come_back_in_order() -> None:
    errors = [
        BadOffset("x", segment="a", expected=1, given=2),
        SegmentNotFound("y", segment="b"),
        OwnedElsewhere("z", owner="http://h"),
    ]
    outcomes = [12, None, *errors, 0]

    back = decode_outcomes(b"".join(encode_outcomes(outcomes)), 6)

    assert back[:2] == [12, None]
    assert [(type(error), vars(error)) for error in back[2:5]] == [
        (type(error), vars(error)) for error in errors
    ]
    assert back[5] == 0


@pytest.mark.parametrize("count", [0, 1, 127, 128, 129, 1000])
def test_outcomes_are_encoded_in_short_pieces(count: int) -> None:
    outcomes = [None if number % 3 else SegmentNotFound("y", segment="b") for number in range(count)]

    pieces = list(encode_outcomes(outcomes))
    assert max(map(len, pieces)) < 20_000
    back = decode_outcomes(b"".join(pieces), count)
    assert [type(outcome) for outcome in back] == [type(outcome) for outcome in outcomes]


def test_the_text_of_a_problem_may_have_half_a_surrogate_pair() -> None:
    """As the path of a file with another encoding has, which an ``OSError`` names."""
    [back] = decode_outcomes(b"".join(encode_outcomes([Unavailable("a\udc80b: disk gone")])), 1)

    assert isinstance(back, Unavailable)
    assert str(back) == "a\udc80b: disk gone"


def test_a_result_that_is_not_known_is_an_unknown_outcome() -> None:
    back = decode_outcomes(b"".join(encode_outcomes([KeyError("x")])), 1)

    assert type(back[0]) is OutcomeUnknown


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"results":[1]}', b'{"results":{}}', b"[" * 100_000])
def test_an_answer_that_does_not_match_the_batch_is_a_value_error(body: bytes) -> None:
    with pytest.raises(ValueError):
        decode_outcomes(body, 2)
