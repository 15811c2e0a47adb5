"""The codec: fields come back, and a decoder over any bytes gives a value or ``DecodeError``."""

from __future__ import annotations

import struct
from signal import Signals
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierlog.storage_backends.base.codec import DecodeError, Decoder, Encoder

FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "u8": st.integers(0, 255),
    "u16": st.integers(0, (1 << 16) - 1),
    "u32": st.integers(0, (1 << 32) - 1),
    "u64": st.integers(0, (1 << 64) - 1),
    "i64": st.integers(-(1 << 63), (1 << 63) - 1),
    "ascending": st.one_of(
        [
            st.sets(st.integers(0, top - 1), max_size=20).map(lambda values: tuple(sorted(values)))
            for top in (1 << 7, 1 << 15, 1 << 31, 1 << 64)
        ]
    ),
    "blob": st.binary(max_size=30),
    "text": st.text(max_size=30),
}
records = st.lists(
    st.sampled_from(sorted(FIELDS)).flatmap(lambda kind: st.tuples(st.just(kind), FIELDS[kind])), max_size=8
)


@given(records)
def test_fields_come_back_in_order(record: list[tuple[str, Any]]) -> None:
    encoder = Encoder()
    for kind, value in record:
        getattr(encoder, kind)(value)

    fields = Decoder(encoder.finish())

    assert [getattr(fields, kind)() for kind, _ in record] == [value for _, value in record]
    fields.finish()


def test_the_bytes_are_big_endian_with_lengths_before() -> None:
    data = Encoder().u8(1).u16(2).u32(3).u64(4).i64(-5).blob(b"ab").text("é").raw(b"z").finish()

    assert (
        data.hex(" ")
        == "01 00 02 00 00 00 03 00 00 00 00 00 00 00 04 ff ff ff ff ff ff ff fb 00 00 00 02 61 62 00 02 c3 "
        "a9 7a"
    )


def test_ascending_numbers_take_the_width_of_the_widest_gap() -> None:
    """A hundred thousand segments that were created one after another fit into an element."""
    assert Encoder().ascending((5, 6, 9)).finish().hex(" ") == "00 00 00 03 00 00 00 00 00 00 00 05 01 01 03"
    assert Encoder().ascending((5, 6, 262)).finish().hex(" ").endswith("05 02 00 01 01 00")
    assert Encoder().ascending(()).finish() == bytes(4)
    with pytest.raises(struct.error):
        Encoder().ascending((6, 5))


@pytest.mark.parametrize(
    "gaps",
    ["01 01 00", "02 00 01 00 03", "03 00 00 01 00 00 03"],
    ids=["not ascending", "too wide", "no width"],
)
def test_ascending_numbers_have_one_form(gaps: str) -> None:
    with pytest.raises(DecodeError, match="numbers"):
        Decoder(bytes.fromhex("00 00 00 03 00 00 00 00 00 00 00 05" + gaps)).ascending()


@pytest.mark.parametrize("values", [(), (5,), (5, 6, 262)], ids=["none", "one", "some"])
def test_ascending_numbers_can_be_skipped(values: tuple[int, ...]) -> None:
    fields = Decoder(Encoder().ascending(values).u8(7).finish())
    fields.skip_ascending()
    assert fields.u8() == 7
    fields.finish()


def test_only_known_members_of_an_enum_are_decoded() -> None:
    fields = Decoder(b"\x01\x02")

    assert fields.member(Signals) is Signals.SIGHUP
    assert fields.member(Signals) is Signals.SIGINT
    with pytest.raises(DecodeError, match="Signals at 0 is 0, which is unknown"):
        Decoder(b"\x00").member(Signals)


@given(st.binary(max_size=40), st.lists(st.sampled_from(sorted(FIELDS)), max_size=8))
def test_any_bytes_give_values_or_a_decode_error(data: bytes, kinds: list[str]) -> None:
    fields = Decoder(data)
    for kind in kinds:
        before = fields.position
        try:
            getattr(fields, kind)()
        except DecodeError:
            return

        assert before < fields.position <= len(data)


@pytest.mark.parametrize(
    ("kind", "value"),
    [("u8", 256), ("u8", -1), ("u16", 1 << 16), ("u32", -1), ("u64", 1 << 64), ("i64", 1 << 63)],
)
def test_a_value_out_of_its_range_is_the_callers_bug(kind: str, value: int) -> None:
    with pytest.raises(struct.error):
        getattr(Encoder(), kind)(value)


@pytest.mark.parametrize(("position", "end"), [(-1, 2), (3, 2), (0, 4), (4, None)])
def test_a_range_outside_of_the_bytes_is_refused(position: int, end: int | None) -> None:
    with pytest.raises(DecodeError, match="outside 3 bytes"):
        Decoder(b"abc", position, end)


def test_a_decoder_stays_inside_its_range() -> None:
    fields = Decoder(b"xxabyy", 2, 4)

    assert fields.remaining == 2
    assert bytes(fields.raw(2)) == b"ab"
    with pytest.raises(DecodeError):
        fields.u8()


def test_bytes_left_over_are_refused() -> None:
    with pytest.raises(DecodeError, match="2 bytes left over at 1"):
        fields = Decoder(b"abc")
        fields.u8()
        fields.finish()


@pytest.mark.parametrize("size", [-1, 4])
def test_raw_bytes_cannot_be_more_than_there_are(size: int) -> None:
    with pytest.raises(DecodeError):
        Decoder(b"abc").raw(size)


def test_a_length_that_promises_too_much_allocates_nothing() -> None:
    with pytest.raises(DecodeError, match="4294967295 bytes wanted"):
        Decoder(b"\xff\xff\xff\xff").blob()


def test_text_that_is_not_utf8_is_refused_with_its_offset() -> None:
    with pytest.raises(DecodeError, match="text at 2 is not UTF-8"):
        Decoder(b"\x00\x01\xff").text()
